// Numbers as the CPU back end computes them: halves, products and sums that are rounded one by one, and e^x by its
// polynomial. What is made of these has the CPU's bits on every device.
#pragma once

#include "portable.h"

#if DS4_ON_DEVICE
#if defined(__HIP__)
#include <hip/hip_fp16.h>
#else
#include <cuda_fp16.h>
#endif
#else
#include "base/half.h"
#endif

namespace ds4::gpu {

__device__ __forceinline__ float as_float(uint32_t bits) {
#if DS4_ON_DEVICE
    return __uint_as_float(bits);
#else
    return std::bit_cast<float>(bits);
#endif
}
__device__ __forceinline__ uint32_t as_bits(float x) {
#if DS4_ON_DEVICE
    return __float_as_uint(x);
#else
    return std::bit_cast<uint32_t>(x);
#endif
}

// Never fused, whatever the options of the compiler.
__device__ __forceinline__ float mul(float a, float b) {
#if defined(__CUDA_ARCH__)
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}
__device__ __forceinline__ float add(float a, float b) {
#if defined(__CUDA_ARCH__)
    return __fadd_rn(a, b);
#else
    return a + b;
#endif
}
__device__ __forceinline__ float divide(float a, float b) {
#if defined(__CUDA_ARCH__)
    return __fdiv_rn(a, b);
#else
    return a / b;
#endif
}

__device__ __forceinline__ float half_to_float(uint16_t h) {
#if DS4_ON_DEVICE
    return __half2float(__ushort_as_half(h));
#else
    return f16_to_f32(h);
#endif
}
__device__ __forceinline__ float bfloat_to_float(uint16_t b) { return as_float(static_cast<uint32_t>(b) << 16); }

// e^x as backend/cpu/exp.inc defines it, bit for bit: at most 1 ulp from the exact value.
__device__ __forceinline__ float exp_of(float x) {
    const float t = add(mul(x, 1.44269504f), 12582912.0f), n = add(t, -12582912.0f);
    const float r = add(add(x, -mul(n, 0.693359375f)), -mul(n, -2.12194440e-4f));
    float p = add(mul(r, 0x1.6a2352p-10f), 0x1.123a6cp-7f);
    p = add(mul(p, r), 0x1.5558f4p-5f);
    p = add(mul(p, r), 0x1.555490p-3f);
    p = add(mul(p, r), 0x1.fffffcp-2f);
    p = add(add(mul(mul(p, r), r), r), 1.0f);
    if (x < -0x1.5d589ep+6f) return 0.0f;                // ln of the smallest normal number, rounded toward 0
    if (x > 0x1.62e42ep+6f) return as_float(0x7f800000);  // ln of the largest number, rounded toward 0
    if (x != x) return x;
    return as_float(as_bits(p) + (as_bits(t) << 23));
}

// weight * silu(min(g, top)) * clamp(u, +-top); a NaN stays one.
__device__ __forceinline__ float swiglu(float g, float u, float weight, float top) {
    const float a = top < g ? top : g, low = top < u ? top : u, b = low < -top ? -top : low;
    return mul(weight, mul(divide(a, add(1.0f, exp_of(-a))), b));
}

// 4 bytes of `table` (8 bytes, the first ones in `low`) by the low 3 bits of the bytes of `index`.
__device__ __forceinline__ uint32_t pick4(uint32_t low, uint32_t high, uint32_t index) {
    index &= 0x07070707;
#if defined(__CUDA_ARCH__)
    index |= index >> 4;
    return __byte_perm(low, high, (index & 0xff) | (index >> 8 & 0xff00));
#elif defined(__HIP_DEVICE_COMPILE__)
    return __builtin_amdgcn_perm(high, low, index);
#else
    uint32_t out = 0;
    for (int i = 0; i < 32; i += 8) {
        const uint32_t at = index >> i & 7;
        out |= ((at < 4 ? low >> (8 * at) : high >> (8 * (at - 4))) & 255) << i;
    }
    return out;
#endif
}

}  // namespace ds4::gpu
