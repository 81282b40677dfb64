// What the kernels are written with: one set of names for nvcc (CUDA), clang (HIP) and the host executor of tests/simt.
//
// Qualifiers and indices are CUDA's: __global__, __device__, __forceinline__, __launch_bounds__, threadIdx, blockIdx,
// blockDim, gridDim. Blocks are one-dimensional and whole warps. All that a warp or a block does together (shuffles,
// votes, barriers) is done by all of its threads at the same place; a thread that has returned early is an error.
//
// kWarp                      32 or 64. Nothing may assume either.
// lane() warp_index() warp_count()
// warp_xor(v, mask) warp_from(v, lane) warp_sum(v) warp_max(v) warp_any(b) sync_warp() sync_block()
//                            values of up to 8 bytes. Shuffles do not order memory, barriers do.
// DS4_SHARED(T, name, n);    a shared array of a constant size
// DS4_DYNAMIC_SHARED(T, name);        the dynamic one, as large as the launch says
// DS4_DYNAMIC_PART(T, name, offset, n);  n elements of T from byte `offset` of it on; parts may not overlap
// Shared<T>                  how a function takes a shared array (or `name + first`). Elements are read and written as
//                            name[i]; where a type is deduced (auto, templates), say T(name[i])
// shared_ptr_of(name)        the bare elements, for loads of matrix units and wide loads, after
// touch_read(name, first, count), touch_write(name, first, count)   which say what is touched; nothing on a device
// block_sum(v, scratch) block_max(v, scratch)   of all threads, to all threads, in a fixed order; scratch is a
//                            Shared<T> of kMostWarps elements, free for use again afterwards
// dot4(a, b, c)              c + the products of 4 signed bytes of a and of b
// DS4_LAUNCH(queue, kernel, grid, block, dynamic_bytes, arguments...)   `kernel` in parentheses if it has commas
//
// Arithmetic: multiply-add is never fused behind our back; write fmaf where it is wanted.
#pragma once

#include <type_traits>

#include "backend/kernel_args.h"

#ifdef DS4_HOST_SIMT

#include "cuda_shim.h"

#define DS4_ON_DEVICE 0
#define DS4_SHARED(T, name, n)                \
    static const char name##_is_shared = 0;   \
    const simt::Array<T> name = simt::static_array<T>(&name##_is_shared, #name, n)
#define DS4_DYNAMIC_SHARED(T, name) const simt::Array<T> name = simt::dynamic_array<T>(#name)
#define DS4_DYNAMIC_PART(T, name, offset, n) const simt::Array<T> name = simt::dynamic_part<T>(#name, offset, n)

namespace ds4::gpu {

constexpr int kWarp = DS4_WARP;
template <class T> using Shared = simt::Array<T>;

template <class T> T *shared_ptr_of(const simt::Array<T> &a) { return a.raw(); }
template <class T> void touch_read(const simt::Array<T> &a, int first, int count) { a.touch(first, static_cast<uint64_t>(count), false); }
template <class T> void touch_write(const simt::Array<T> &a, int first, int count) { a.touch(first, static_cast<uint64_t>(count), true); }

inline int lane() { return static_cast<int>(simt::self().lane); }
inline int warp_index() { return static_cast<int>(simt::self().thread / DS4_WARP); }
inline int warp_count() { return static_cast<int>(simt::current->n_threads / DS4_WARP); }

// Where a collective is called, for the executor's messages. On a device these parameters do not exist.
#define DS4_SITE , const simt::Site &site = simt::Site::current()
#define DS4_SITE_ALONE const simt::Site &site = simt::Site::current()
#define DS4_HERE , site
#define DS4_HERE_ALONE site

template <class T> T warp_xor(T v, int mask DS4_SITE) {
    return simt::exchange(v, static_cast<unsigned>(lane() ^ mask) DS4_HERE);
}
template <class T> T warp_from(T v, int from DS4_SITE) { return simt::exchange(v, static_cast<unsigned>(from) DS4_HERE); }
inline bool warp_any(bool v DS4_SITE) { return simt::ballot(v DS4_HERE) != 0; }
inline void sync_warp(DS4_SITE_ALONE) { simt::sync_warp(site); }
inline void sync_block(DS4_SITE_ALONE) { simt::sync_block(site); }
inline int dot4(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8) c += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
    return c;
}

}  // namespace ds4::gpu

#else  // a device

#if defined(__HIP__)
#include <hip/hip_runtime.h>
#else
#include <cuda_runtime.h>
#endif

#define DS4_ON_DEVICE 1
#define DS4_SHARED(T, name, n) __shared__ __align__(16) T name[n]
#define DS4_DYNAMIC_SHARED(T, name)                                   \
    extern __shared__ __align__(16) unsigned char ds4_dynamic_shared[]; \
    T *const name = reinterpret_cast<T *>(ds4_dynamic_shared)
#define DS4_DYNAMIC_PART(T, name, offset, n)                          \
    extern __shared__ __align__(16) unsigned char ds4_dynamic_shared[]; \
    T *const name = reinterpret_cast<T *>(ds4_dynamic_shared + (offset))
#define DS4_SITE
#define DS4_SITE_ALONE
#define DS4_HERE
#define DS4_HERE_ALONE

namespace ds4::gpu {

#if defined(__HIP__)
#ifndef DS4_WARP
#error "DS4_WARP must say the wave size of the architecture that is compiled for: 32 or 64"
#endif
constexpr int kWarp = DS4_WARP;
template <class T> __device__ __forceinline__ T warp_xor(T v, int mask) { return __shfl_xor(v, mask, kWarp); }
template <class T> __device__ __forceinline__ T warp_from(T v, int from) { return __shfl(v, from, kWarp); }
__device__ __forceinline__ bool warp_any(bool v) { return __any(v); }
__device__ __forceinline__ void sync_warp() {
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "workgroup");
    __builtin_amdgcn_wave_barrier();
}
#else
constexpr int kWarp = 32;
template <class T> __device__ __forceinline__ T warp_xor(T v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
template <class T> __device__ __forceinline__ T warp_from(T v, int from) { return __shfl_sync(0xffffffffu, v, from); }
__device__ __forceinline__ bool warp_any(bool v) { return __any_sync(0xffffffffu, v); }
__device__ __forceinline__ void sync_warp() { __syncwarp(); }
#endif

template <class T> using Shared = T *;
template <class T> __device__ __forceinline__ T *shared_ptr_of(T *a) { return a; }
template <class T> __device__ __forceinline__ void touch_read(const T *, int, int) {}
template <class T> __device__ __forceinline__ void touch_write(const T *, int, int) {}

__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / kWarp; }
__device__ __forceinline__ int warp_count() { return static_cast<int>(blockDim.x) / kWarp; }
__device__ __forceinline__ void sync_block() { __syncthreads(); }

__device__ __forceinline__ int dot4(int a, int b, int c) {
#if defined(__HIP__)
#if defined(__GFX11__) || defined(__GFX12__)
    return __builtin_amdgcn_sudot4(true, a, true, b, c, false);
#elif defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx1030__)
    return __builtin_amdgcn_sdot4(a, b, c, false);
#else
    for (int i = 0; i < 32; i += 8) c += static_cast<signed char>(a >> i) * static_cast<signed char>(b >> i);
    return c;
#endif
#else
    return __dp4a(a, b, c);
#endif
}

}  // namespace ds4::gpu

#endif

namespace ds4::gpu {

constexpr int kMostWarps = 1024 / kWarp;  // of a block

// The matrix unit that kernels are compiled with. The host executor plays CUDA with warps of 32 and HIP with those of 64.
#if defined(__HIP__)
template <class Cuda, class Wave64, class Wave32> using UnitOf = std::conditional_t<kWarp == 64, Wave64, Wave32>;
#else
template <class Cuda, class Wave64, class Wave32> using UnitOf = std::conditional_t<kWarp == 64, Wave64, Cuda>;
#endif

// The place that a resolved reference names (see resolved() in backend.h); NULL when it is absent.
template <class T = float> __host__ __device__ __forceinline__ T *at(ds4_ref r) {
    return r.buffer ? reinterpret_cast<T *>(static_cast<uintptr_t>(r.buffer + r.offset)) : nullptr;
}

// All lanes get the same bits: both sides of every exchange add the same two values.
template <class T> __device__ __forceinline__ T warp_sum(T v DS4_SITE) {
    for (int m = kWarp / 2; m; m /= 2) v += warp_xor(v, m DS4_HERE);
    return v;
}
template <class T> __device__ __forceinline__ T warp_max(T v DS4_SITE) {
    for (int m = kWarp / 2; m; m /= 2) {
        const T other = warp_xor(v, m DS4_HERE);
        v = other > v ? other : v;
    }
    return v;
}

template <class T> __device__ __forceinline__ T block_sum(T v, Shared<T> scratch DS4_SITE) {
    v = warp_sum(v DS4_HERE);
    if (lane() == 0) scratch[warp_index()] = v;
    sync_block(DS4_HERE_ALONE);
    v = scratch[0];
    for (int w = 1; w < warp_count(); w++) v += scratch[w];
    sync_block(DS4_HERE_ALONE);
    return v;
}
template <class T> __device__ __forceinline__ T block_max(T v, Shared<T> scratch DS4_SITE) {
    v = warp_max(v DS4_HERE);
    if (lane() == 0) scratch[warp_index()] = v;
    sync_block(DS4_HERE_ALONE);
    v = scratch[0];
    for (int w = 1; w < warp_count(); w++) {
        const T other = scratch[w];
        v = other > v ? other : v;
    }
    sync_block(DS4_HERE_ALONE);
    return v;
}

}  // namespace ds4::gpu
