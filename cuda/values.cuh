// Values as the CPU back end computes them, beside numbers.cuh: what is made of the exponential, halves to be stored,
// rows of a cache, and floats in an order that integers can compare.
//
// Products and sums are written as the CPU's and rounded one by one, so they have its bits; fmaf where one rounding is
// wanted.
#pragma once

#include "numbers.cuh"

namespace ds4::gpu {

constexpr float kLargestFloat = 3.40282347e+38f;

// a where one of them is NaN.
__device__ __forceinline__ float lesser(float a, float b) { return b < a ? b : a; }
__device__ __forceinline__ float greater(float a, float b) { return a < b ? b : a; }

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + exp_of(-x)); }

// sqrt(softplus(x)), the router's score: softplus(x) = max(x, 0) + log(1 + e^-|x|), the logarithm as 2 artanh.
__device__ __forceinline__ float router_score(float x) {
    const float e = exp_of(as_float(as_bits(x) | 0x80000000u));
    const float s = e / (2.0f + e), q = s * s;
    float p = q * 0x1.1ed830p-2f + 0x1.1ebcf8p-2f;
    p = p * q + 0x1.99d20ap-2f;
    p = p * q + 0x1.555502p-1f;
    return sqrtf(greater(x, 0.0f) + (s * 2.0f + s * q * p));
}

// To nearest, ties to even.
__device__ __forceinline__ uint16_t float_to_half(float x) {
#if DS4_ON_DEVICE
    return __half_as_ushort(__float2half_rn(x));
#else
    return f32_to_f16(x);
#endif
}

// Unsigned integers in the order of the floats they stand for; -0 and 0 are one, NaN is below everything but 0, which
// stands for no float.
__device__ __forceinline__ uint32_t rank_of(float x) {
    const uint32_t u = as_bits(x != x ? -INFINITY : x + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ float value_of_rank(uint32_t r) { return as_float(r & 0x80000000u ? r & 0x7fffffffu : ~r); }

// ---- rows of a cache, stored as DS4_ROW_F32 or DS4_ROW_F16 ----

struct alignas(16) Four {
    float v[4];
};

template <int kRowType> constexpr uint32_t kValueBytes = kRowType == DS4_ROW_F16 ? 2 : 4;

// The values [first, first + 4) of a row; first is a multiple of 4.
template <int kRowType> __device__ __forceinline__ Four load_four(const uint8_t *row, uint32_t first) {
    Four out;
    if constexpr (kRowType == DS4_ROW_F16) {
        uint64_t packed;
        memcpy(&packed, __builtin_assume_aligned(row + first * 2ull, 8), 8);
        for (int i = 0; i < 4; i++) out.v[i] = half_to_float(static_cast<uint16_t>(packed >> 16 * i));
    } else {
        memcpy(&out, __builtin_assume_aligned(row + first * 4ull, 16), 16);
    }
    return out;
}

template <int kRowType> __device__ __forceinline__ float load_value(const uint8_t *row, uint32_t i) {
    if constexpr (kRowType == DS4_ROW_F16) {
        uint16_t h;
        memcpy(&h, __builtin_assume_aligned(row + i * 2ull, 2), 2);
        return half_to_float(h);
    } else {
        float x;
        memcpy(&x, __builtin_assume_aligned(row + i * 4ull, 4), 4);
        return x;
    }
}

__device__ __forceinline__ void store_value(uint8_t *row, uint32_t row_type, uint32_t i, float x) {
    if (row_type == DS4_ROW_F16)
        reinterpret_cast<uint16_t *>(row)[i] = float_to_half(x);
    else
        reinterpret_cast<float *>(row)[i] = x;
}

__device__ __forceinline__ uint64_t row_bytes(uint32_t row_type, uint32_t dim) {
    return static_cast<uint64_t>(dim) * (row_type == DS4_ROW_F16 ? 2 : 4);
}

}  // namespace ds4::gpu
