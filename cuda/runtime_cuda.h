// CUDA's device under the names of runtime.h.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace ds4::gpu::rt {

using Result = cudaError_t;
constexpr Result kOk = cudaSuccess, kOutOfMemory = cudaErrorMemoryAllocation;
using Stream = cudaStream_t;
using Graph = cudaGraph_t;
using GraphExec = cudaGraphExec_t;

}  // namespace ds4::gpu::rt

#define DS4_RT(name) cuda##name
#include "runtime_device.h"
#undef DS4_RT

namespace ds4::gpu::rt {

// The compiled architectures are 8.0, 9.0 and 12.0, each with the code that later ones of its generation can run.
inline Result open(int index, Info *info) {
    int n = 0;
    Result r = cudaGetDeviceCount(&n);
    if (r) return r;
    if (index >= n) return cudaErrorNoDevice;
    if ((r = cudaSetDevice(index))) return r;
    cudaDeviceProp p;
    if ((r = cudaGetDeviceProperties(&p, index))) return r;
    snprintf(info->name, sizeof info->name, "%.127s", p.name);
    snprintf(info->arch, sizeof info->arch, "sm_%d%d", p.major, p.minor);
    if (p.major < 8) return cudaErrorNoKernelImageForDevice;
    info->unified = p.integrated && p.canMapHostMemory;
    return memory(&info->free, &info->total);
}

// Why `open` failed, for the user.
inline void explain_open(Result r, char *out, size_t size) {
    int driver = 0;
    switch (r) {
        case cudaErrorInsufficientDriver:
            if (cudaDriverGetVersion(&driver) != cudaSuccess || !driver)
                snprintf(out, size, "no NVIDIA driver is installed here (libcuda.so.1)");
            else
                snprintf(out, size, "the NVIDIA driver knows CUDA %d.%d and this build needs %d.%d; update the driver", driver / 1000,
                         driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
            return;
        case cudaErrorNoDevice: snprintf(out, size, "no NVIDIA GPU was found"); return;
        case cudaErrorNoKernelImageForDevice:
            snprintf(out, size, "the GPU is too old: compute capability 8.0 or newer is needed");
            return;
        default: snprintf(out, size, "%s", text(r));
    }
}

inline Result allocate_pinned(void **out, uint64_t bytes) { return cudaMallocHost(out, bytes); }
inline void release_pinned(void *p) { cudaFreeHost(p); }

inline Result map_host(const void *host, uint64_t bytes, void **device) {
    void *p = const_cast<void *>(host);
    Result r = cudaHostRegister(p, bytes, cudaHostRegisterMapped | cudaHostRegisterReadOnly);
    if (!r && (r = cudaHostGetDevicePointer(device, p, 0))) cudaHostUnregister(p);
    if (r) cudaGetLastError();
    return r;
}

// Run a captured graph: by the executable graph of the last one when they differ in parameters only, else by a new one.
inline Result graph_run(Stream s, Graph g, GraphExec *exec) {
    if (*exec) {
        cudaGraphExecUpdateResultInfo info;
        if (cudaGraphExecUpdate(*exec, g, &info) == cudaSuccess) return cudaGraphLaunch(*exec, s);
        cudaGetLastError();
        cudaGraphExecDestroy(*exec);
        *exec = nullptr;
    }
    const Result r = cudaGraphInstantiate(exec, g, 0);
    return r ? r : cudaGraphLaunch(*exec, s);
}

template <class... P, class... A>
Result launch(Stream s, const char *, void (*kernel)(P...), dim3 grid, dim3 block, size_t bytes, A... args) {
    if (bytes > 48 * 1024) {  // more than every device gives unasked
        const Result r = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
        if (r) return r;
    }
    kernel<<<grid, block, bytes, s>>>(static_cast<P>(args)...);
    return cudaGetLastError();
}

}  // namespace ds4::gpu::rt
