// HIP's device under the names of cuda/runtime.h.
#pragma once

#include <hip/hip_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace ds4::gpu::rt {

using Result = hipError_t;
constexpr Result kOk = hipSuccess, kOutOfMemory = hipErrorOutOfMemory;
using Stream = hipStream_t;
using Graph = hipGraph_t;
using GraphExec = hipGraphExec_t;

struct Info {
    char name[128], arch[32];
    uint64_t total, free;
    bool unified;
};

inline const char *text(Result r) { return hipGetErrorString(r); }
inline const char *explain(Stream, Result r) { return text(r); }

inline Result memory(uint64_t *free, uint64_t *total) {
    size_t f = 0, t = 0;
    const Result r = hipMemGetInfo(&f, &t);
    *free = f;
    *total = t;
    return r;
}

inline Result open(int index, Info *info) {
    int n = 0;
    Result r = hipGetDeviceCount(&n);
    if (r) return r;
    if (index >= n) return hipErrorNoDevice;
    if ((r = hipSetDevice(index))) return r;
    hipDeviceProp_t p;
    if ((r = hipGetDeviceProperties(&p, index))) return r;
    snprintf(info->name, sizeof info->name, "%.127s", p.name);
    snprintf(info->arch, sizeof info->arch, "%.31s", p.gcnArchName);
    // Kernels know their warp when they are compiled: DS4_WARP is that of the architecture.
    if (p.warpSize != DS4_WARP) return hipErrorNoBinaryForGpu;
    info->unified = p.integrated && p.canMapHostMemory;
    return memory(&info->free, &info->total);
}

// Why `open` failed, for the user.
inline void explain_open(Result r, char *out, size_t size) {
    switch (r) {
        case hipErrorNoDevice: snprintf(out, size, "no AMD GPU was found, or this user may not open /dev/kfd"); return;
        case hipErrorInsufficientDriver: snprintf(out, size, "no AMD GPU driver is loaded (amdgpu), or it is too old"); return;
        case hipErrorNoBinaryForGpu:
            snprintf(out, size, "this build is for other GPUs, with waves of %d", DS4_WARP);
            return;
        default: snprintf(out, size, "%s", text(r));
    }
}
inline Result allocate(void **out, uint64_t bytes) {
    const Result r = hipMalloc(out, bytes);
    if (r) (void)hipGetLastError();  // told here; not again by the next launch
    return r;
}
inline void release(void *p) { (void)hipFree(p); }
inline Result allocate_pinned(void **out, uint64_t bytes) { return hipHostMalloc(out, bytes, hipHostMallocDefault); }
inline void release_pinned(void *p) { (void)hipHostFree(p); }

inline Result map_host(const void *host, uint64_t bytes, void **device) {
    void *p = const_cast<void *>(host);
    Result r = hipHostRegister(p, bytes, hipHostRegisterMapped);
    if (!r && (r = hipHostGetDevicePointer(device, p, 0))) (void)hipHostUnregister(p);
    if (r) (void)hipGetLastError();
    return r;
}
inline void unmap_host(const void *host) { (void)hipHostUnregister(const_cast<void *>(host)); }

inline Result clear(void *p, uint64_t bytes) {
    const Result r = hipMemset(p, 0, bytes);
    return r ? r : hipDeviceSynchronize();
}
inline Result upload_now(void *dst, const void *src, uint64_t bytes) {
    return hipMemcpy(dst, src, bytes, hipMemcpyHostToDevice);
}

inline Result stream_create(Stream *out, unsigned) { return hipStreamCreateWithFlags(out, hipStreamNonBlocking); }
inline void stream_destroy(Stream s) { (void)hipStreamDestroy(s); }
inline Result copy(Stream s, void *dst, const void *src, uint64_t bytes) {
    return hipMemcpyAsync(dst, src, bytes, hipMemcpyDefault, s);
}
inline Result fill(Stream s, void *dst, int value, uint64_t bytes) { return hipMemsetAsync(dst, value, bytes, s); }
inline Result wait(Stream s) { return hipStreamSynchronize(s); }

// What is enqueued from `capture_begin` on is kept, not run.
inline Result capture_begin(Stream s) { return hipStreamBeginCapture(s, hipStreamCaptureModeRelaxed); }
inline Result capture_end(Stream s, Graph *out) { return hipStreamEndCapture(s, out); }
inline void graph_destroy(Graph g) {
    if (g) (void)hipGraphDestroy(g);
}
// Run a captured graph: by the executable graph of the last one when they differ in parameters only, else by a new one.
inline Result graph_run(Stream s, Graph g, GraphExec *exec) {
    if (*exec) {
        hipGraphNode_t node = nullptr;
        hipGraphExecUpdateResult why;
        if (hipGraphExecUpdate(*exec, g, &node, &why) == hipSuccess) return hipGraphLaunch(*exec, s);
        (void)hipGetLastError();
        (void)hipGraphExecDestroy(*exec);
        *exec = nullptr;
    }
    const Result r = hipGraphInstantiate(exec, g, nullptr, nullptr, 0);
    return r ? r : hipGraphLaunch(*exec, s);
}
inline void exec_destroy(GraphExec e) {
    if (e) (void)hipGraphExecDestroy(e);
}

template <class... P, class... A>
Result launch(Stream s, const char *, void (*kernel)(P...), dim3 grid, dim3 block, size_t bytes, A... args) {
    kernel<<<grid, block, bytes, s>>>(static_cast<P>(args)...);
    return hipGetLastError();
}

}  // namespace ds4::gpu::rt
