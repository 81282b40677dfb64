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

}  // namespace ds4::gpu::rt

#define DS4_RT(name) hip##name
#include "runtime_device.h"
#undef DS4_RT

namespace ds4::gpu::rt {

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

inline Result allocate_pinned(void **out, uint64_t bytes) { return hipHostMalloc(out, bytes, hipHostMallocDefault); }
inline void release_pinned(void *p) { (void)hipHostFree(p); }

inline Result map_host(const void *host, uint64_t bytes, void **device) {
    void *p = const_cast<void *>(host);
    Result r = hipHostRegister(p, bytes, hipHostRegisterMapped);
    if (!r && (r = hipHostGetDevicePointer(device, p, 0))) (void)hipHostUnregister(p);
    if (r) (void)hipGetLastError();
    return r;
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

template <class... P, class... A>
Result launch(Stream s, const char *, void (*kernel)(P...), dim3 grid, dim3 block, size_t bytes, A... args) {
    kernel<<<grid, block, bytes, s>>>(static_cast<P>(args)...);
    return hipGetLastError();
}

}  // namespace ds4::gpu::rt
