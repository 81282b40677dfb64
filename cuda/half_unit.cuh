// Matrix units for halves: products of tiles of 16-bit floats, summed in float32. A HalfUnit says what lane holds
// what, as the units of mma.cuh do for bytes, so that kernels are written once.
//
// A unit multiplies 16 rows with kCols columns, 8 words (of 2 halves) deep. Lane l gives a[i], word a_word(l, i) of row
// a_row(l, i), and b[i], word b_word(l, i) of column b_col(l), and gets c[i], the sum of row out_row(l, i) and column
// out_col(l, i). All lanes of a warp call together. The order of a unit's sums is its own, but always the same.
//
// On the host executor the units are made of shuffles with the same layouts; the products of a call are summed in the
// order of the words, and then added.
#pragma once

#include "values.cuh"

namespace ds4::gpu {

constexpr int kUnitRows = 16, kUnitWords = 8;

__device__ __forceinline__ float low_half(uint32_t word) { return half_to_float(static_cast<uint16_t>(word)); }
__device__ __forceinline__ float high_half(uint32_t word) { return half_to_float(static_cast<uint16_t>(word >> 16)); }

// m16n8k16 of sm_80 and later.
struct HalfSm80 {
    static constexpr int kLanes = 32, kCols = 8, kA = 4, kB = 2, kOut = 4;
    static __device__ __forceinline__ int a_row(int l, int i) { return l / 4 + 8 * (i % 2); }
    static __device__ __forceinline__ int a_word(int l, int i) { return l % 4 + 4 * (i / 2); }
    static __device__ __forceinline__ int b_col(int l) { return l / 4; }
    static __device__ __forceinline__ int b_word(int l, int i) { return l % 4 + 4 * i; }
    static __device__ __forceinline__ int out_row(int l, int i) { return l / 4 + 8 * (i / 2); }
    static __device__ __forceinline__ int out_col(int l, int i) { return 2 * (l % 4) + i % 2; }
    static __device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if DS4_ON_DEVICE
#if defined(__CUDA_ARCH__)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
#else
        const int row = lane() / 4, col = 2 * (lane() % 4);
        float sum[4] = {};
        for (int w = 0; w < kUnitWords; w++)
            for (int h = 0; h < 2; h++) {
                const uint32_t y = warp_from(b[w / 4], 4 * (col + h) + w % 4);
                for (int r = 0; r < 2; r++) {
                    const uint32_t x = warp_from(a[r + 2 * (w / 4)], 4 * row + w % 4);
                    sum[2 * r + h] += low_half(x) * low_half(y);
                    sum[2 * r + h] += high_half(x) * high_half(y);
                }
            }
        for (int i = 0; i < 4; i++) c[i] += sum[i];
#endif
    }
};

// v_mfma_f32_16x16x16_f16 of gfx942, waves of 64.
struct HalfGfx942 {
    static constexpr int kLanes = 64, kCols = 16, kA = 2, kB = 2, kOut = 4;
    static __device__ __forceinline__ int a_row(int l, int) { return l % 16; }
    static __device__ __forceinline__ int a_word(int l, int i) { return 2 * (l / 16) + i; }
    static __device__ __forceinline__ int b_col(int l) { return l % 16; }
    static __device__ __forceinline__ int b_word(int l, int i) { return 2 * (l / 16) + i; }
    static __device__ __forceinline__ int out_row(int l, int i) { return 4 * (l / 16) + i; }
    static __device__ __forceinline__ int out_col(int l, int) { return l % 16; }
    static __device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[2], const uint32_t (&b)[2]) {
#if DS4_ON_DEVICE
#if defined(__gfx942__)
        typedef _Float16 v4h __attribute__((ext_vector_type(4)));
        typedef float v4f __attribute__((ext_vector_type(4)));
        v4h x, y;
        memcpy(&x, a, 8);
        memcpy(&y, b, 8);
        const v4f sum = __builtin_amdgcn_mfma_f32_16x16x16f16(x, y, v4f{c[0], c[1], c[2], c[3]}, 0, 0, 0);
        for (int i = 0; i < 4; i++) c[i] = sum[i];
#endif
#else
        float sum[4] = {};
        for (int w = 0; w < kUnitWords; w++) {
            const uint32_t y = warp_from(b[w % 2], 16 * (w / 2) + lane() % 16);
            for (int i = 0; i < 4; i++) {
                const uint32_t x = warp_from(a[w % 2], 16 * (w / 2) + 4 * (lane() / 16) + i);
                sum[i] += low_half(x) * low_half(y);
                sum[i] += high_half(x) * high_half(y);
            }
        }
        for (int i = 0; i < 4; i++) c[i] += sum[i];
#endif
    }
};

// v_wmma_f32_16x16x16_f16 of gfx11, waves of 32: both halves of a wave give the same operands.
struct HalfGfx11 {
    static constexpr int kLanes = 32, kCols = 16, kA = 8, kB = 8, kOut = 8;
    static __device__ __forceinline__ int a_row(int l, int) { return l % 16; }
    static __device__ __forceinline__ int a_word(int, int i) { return i; }
    static __device__ __forceinline__ int b_col(int l) { return l % 16; }
    static __device__ __forceinline__ int b_word(int, int i) { return i; }
    static __device__ __forceinline__ int out_row(int l, int i) { return 2 * i + l / 16; }
    static __device__ __forceinline__ int out_col(int l, int) { return l % 16; }
    static __device__ __forceinline__ void multiply_add(float (&c)[8], const uint32_t (&a)[8], const uint32_t (&b)[8]) {
#if DS4_ON_DEVICE
#if defined(__GFX11__)
        typedef _Float16 v16h __attribute__((ext_vector_type(16)));
        typedef float v8f __attribute__((ext_vector_type(8)));
        v16h x, y;
        v8f sum;
        memcpy(&x, a, 32);
        memcpy(&y, b, 32);
        memcpy(&sum, c, 32);
        sum = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(x, y, sum);
        memcpy(c, &sum, 32);
#endif
#else
        float sum[8] = {};
        for (int w = 0; w < kUnitWords; w++)
            for (int i = 0; i < 8; i++) {
                const uint32_t x = warp_from(a[w], 2 * i + lane() / 16);
                sum[i] += low_half(x) * low_half(b[w]);
                sum[i] += high_half(x) * high_half(b[w]);
            }
        for (int i = 0; i < 8; i++) c[i] += sum[i];
#endif
    }
};

// The same product on gfx12, where each half of a wave gives half of the depth.
struct HalfGfx12 {
    static constexpr int kLanes = 32, kCols = 16, kA = 4, kB = 4, kOut = 8;
    static __device__ __forceinline__ int a_row(int l, int) { return l % 16; }
    static __device__ __forceinline__ int a_word(int l, int i) { return 4 * (l / 16) + i; }
    static __device__ __forceinline__ int b_col(int l) { return l % 16; }
    static __device__ __forceinline__ int b_word(int l, int i) { return 4 * (l / 16) + i; }
    static __device__ __forceinline__ int out_row(int l, int i) { return 8 * (l / 16) + i; }
    static __device__ __forceinline__ int out_col(int l, int) { return l % 16; }
    static __device__ __forceinline__ void multiply_add(float (&c)[8], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
#if DS4_ON_DEVICE
#if defined(__GFX12__)
        typedef _Float16 v8h __attribute__((ext_vector_type(8)));
        typedef float v8f __attribute__((ext_vector_type(8)));
        v8h x, y;
        v8f sum;
        memcpy(&x, a, 16);
        memcpy(&y, b, 16);
        memcpy(&sum, c, 32);
        sum = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(x, y, sum);
        memcpy(c, &sum, 32);
#endif
#else
        float sum[8] = {};
        for (int w = 0; w < kUnitWords; w++) {
            const uint32_t y = warp_from(b[w % 4], 16 * (w / 4) + lane() % 16);
            for (int i = 0; i < 8; i++) {
                const uint32_t x = warp_from(a[w % 4], 16 * (w / 4) + 8 * (lane() / 16) + i);
                sum[i] += low_half(x) * low_half(y);
                sum[i] += high_half(x) * high_half(y);
            }
        }
        for (int i = 0; i < 8; i++) c[i] += sum[i];
#endif
    }
};

// One name in every pass of a compiler that makes code for several architectures: kernels are found by it.
#if defined(__GFX12__)
struct HalfWmma : HalfGfx12 {};
#else
struct HalfWmma : HalfGfx11 {};
#endif

using HalfUnit = UnitOf<HalfSm80, HalfGfx942, HalfWmma>;
static_assert(HalfUnit::kLanes == kWarp, "a unit belongs to a warp size");

// A float as two halves: their sum is off by at most 2^-22 of it, and 2^-25.
struct Halves {
    uint16_t high, low;
};
__device__ __forceinline__ Halves halves_of(float x) {
    const uint16_t high = float_to_half(x);
    return {high, float_to_half(x - half_to_float(high))};
}

}  // namespace ds4::gpu
