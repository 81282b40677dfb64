// The runtimes of CUDA and HIP where they are alike but for the first letters of their names: DS4_RT(Malloc) is cudaMalloc or
// hipMalloc. For runtime_cuda.h and runtime_hip.h, which say what Result, Stream, Graph and GraphExec are.
#pragma once

namespace ds4::gpu::rt {

inline const char *text(Result r) { return DS4_RT(GetErrorString)(r); }
inline const char *explain(Stream, Result r) { return text(r); }

inline Result memory(uint64_t *free, uint64_t *total) {
    size_t f = 0, t = 0;
    const Result r = DS4_RT(MemGetInfo)(&f, &t);
    *free = f;
    *total = t;
    return r;
}

inline Result allocate(void **out, uint64_t bytes) {
    const Result r = DS4_RT(Malloc)(out, bytes);
    if (r) (void)DS4_RT(GetLastError)();  // told here; not again by the next launch
    return r;
}
inline void release(void *p) { (void)DS4_RT(Free)(p); }

inline void unmap_host(const void *host) { (void)DS4_RT(HostUnregister)(const_cast<void *>(host)); }

inline Result clear(void *p, uint64_t bytes) {
    const Result r = DS4_RT(Memset)(p, 0, bytes);
    return r ? r : DS4_RT(DeviceSynchronize)();
}
inline Result upload_now(void *dst, const void *src, uint64_t bytes) {
    return DS4_RT(Memcpy)(dst, src, bytes, DS4_RT(MemcpyHostToDevice));
}

inline Result stream_create(Stream *out, unsigned) { return DS4_RT(StreamCreateWithFlags)(out, DS4_RT(StreamNonBlocking)); }
inline void stream_destroy(Stream s) { (void)DS4_RT(StreamDestroy)(s); }
inline Result copy(Stream s, void *dst, const void *src, uint64_t bytes) {
    return DS4_RT(MemcpyAsync)(dst, src, bytes, DS4_RT(MemcpyDefault), s);
}
inline Result fill(Stream s, void *dst, int value, uint64_t bytes) { return DS4_RT(MemsetAsync)(dst, value, bytes, s); }
inline Result wait(Stream s) { return DS4_RT(StreamSynchronize)(s); }

// What is enqueued from `capture_begin` on is kept, not run.
inline Result capture_begin(Stream s) { return DS4_RT(StreamBeginCapture)(s, DS4_RT(StreamCaptureModeRelaxed)); }
inline Result capture_end(Stream s, Graph *out) { return DS4_RT(StreamEndCapture)(s, out); }
inline void graph_destroy(Graph g) {
    if (g) (void)DS4_RT(GraphDestroy)(g);
}
inline void exec_destroy(GraphExec e) {
    if (e) (void)DS4_RT(GraphExecDestroy)(e);
}

}  // namespace ds4::gpu::rt
