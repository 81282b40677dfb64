// Matrix units: products of tiles of signed 8-bit values, summed in int32. What lane holds what differs from unit to
// unit; an Int8Unit says it, so that kernels are written once. Sums of integers are exact, so a unit gives the bits of
// the plain product.
//
// A unit multiplies 16 rows with kCols columns, kDepth words (of 4 values) deep. Lane l gives a[i], word a_word(l, i) of
// row a_row(l, i), and b[i], word b_word(l, i) of column b_col(l), and gets c[i], the sum of row out_row(l, i) and
// column out_col(l, i). All lanes of a warp call together.
//
// On an architecture without its unit a product does nothing: matrix_units() in rounding.h says where kernels that have them
// may be launched. On the host executor all units are made of shuffles, with the same layouts.
#pragma once

#include "portable.h"

namespace ds4::gpu {

// m16n8k32 of sm_80 and later.
struct Int8Sm80 {
    static constexpr int kLanes = 32, kCols = 8, kDepth = 8, kA = 4, kB = 2, kOut = 4;
    static __device__ __forceinline__ int a_row(int l, int i) { return l / 4 + 8 * (i % 2); }
    static __device__ __forceinline__ int a_word(int l, int i) { return l % 4 + 4 * (i / 2); }
    static __device__ __forceinline__ int b_col(int l) { return l / 4; }
    static __device__ __forceinline__ int b_word(int l, int i) { return l % 4 + 4 * i; }
    static __device__ __forceinline__ int out_row(int l, int i) { return l / 4 + 8 * (i / 2); }
    static __device__ __forceinline__ int out_col(int l, int i) { return 2 * (l % 4) + i % 2; }
    static __device__ __forceinline__ void multiply_add(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if DS4_ON_DEVICE
#if defined(__CUDA_ARCH__)
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
#else
        const int row = lane() / 4, col = 2 * (lane() % 4);
        for (int w = 0; w < 8; w++) {
            int x[2], y[2];
            for (int h = 0; h < 2; h++) {
                x[h] = static_cast<int>(warp_from(a[h + 2 * (w / 4)], 4 * row + w % 4));
                y[h] = static_cast<int>(warp_from(b[w / 4], 4 * (col + h) + w % 4));
            }
            for (int i = 0; i < 4; i++) c[i] = dot4(x[i / 2], y[i % 2], c[i]);
        }
#endif
    }
};

// v_mfma_i32_16x16x32_i8 of gfx942, waves of 64.
struct Int8Gfx942 {
    static constexpr int kLanes = 64, kCols = 16, kDepth = 8, kA = 2, kB = 2, kOut = 4;
    static __device__ __forceinline__ int a_row(int l, int) { return l % 16; }
    static __device__ __forceinline__ int a_word(int l, int i) { return 2 * (l / 16) + i; }
    static __device__ __forceinline__ int b_col(int l) { return l % 16; }
    static __device__ __forceinline__ int b_word(int l, int i) { return 2 * (l / 16) + i; }
    static __device__ __forceinline__ int out_row(int l, int i) { return 4 * (l / 16) + i; }
    static __device__ __forceinline__ int out_col(int l, int) { return l % 16; }
    static __device__ __forceinline__ void multiply_add(int (&c)[4], const uint32_t (&a)[2], const uint32_t (&b)[2]) {
#if DS4_ON_DEVICE
#if defined(__gfx942__)
        typedef int v4i __attribute__((ext_vector_type(4)));
        const v4i sum = __builtin_amdgcn_mfma_i32_16x16x32_i8(static_cast<long>(static_cast<uint64_t>(a[1]) << 32 | a[0]),
                                                              static_cast<long>(static_cast<uint64_t>(b[1]) << 32 | b[0]),
                                                              v4i{c[0], c[1], c[2], c[3]}, 0, 0, 0);
        for (int i = 0; i < 4; i++) c[i] = sum[i];
#endif
#else
        for (int w = 0; w < 8; w++) {
            const int y = static_cast<int>(warp_from(b[w % 2], 16 * (w / 2) + lane() % 16));
            for (int i = 0; i < 4; i++)
                c[i] = dot4(static_cast<int>(warp_from(a[w % 2], 16 * (w / 2) + 4 * (lane() / 16) + i)), y, c[i]);
        }
#endif
    }
};

// v_wmma_i32_16x16x16_iu8 of gfx11, waves of 32: both halves of a wave give the same operands.
struct Int8Gfx11 {
    static constexpr int kLanes = 32, kCols = 16, kDepth = 4, kA = 4, kB = 4, kOut = 8;
    static __device__ __forceinline__ int a_row(int l, int) { return l % 16; }
    static __device__ __forceinline__ int a_word(int, int i) { return i; }
    static __device__ __forceinline__ int b_col(int l) { return l % 16; }
    static __device__ __forceinline__ int b_word(int, int i) { return i; }
    static __device__ __forceinline__ int out_row(int l, int i) { return 2 * i + l / 16; }
    static __device__ __forceinline__ int out_col(int l, int) { return l % 16; }
    static __device__ __forceinline__ void multiply_add(int (&c)[8], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
#if DS4_ON_DEVICE
#if defined(__GFX11__)
        typedef int v4i __attribute__((ext_vector_type(4)));
        typedef int v8i __attribute__((ext_vector_type(8)));
        v4i x, y;
        v8i sum;
        for (int i = 0; i < 4; i++) x[i] = static_cast<int>(a[i]), y[i] = static_cast<int>(b[i]);
        for (int i = 0; i < 8; i++) sum[i] = c[i];
        sum = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, x, true, y, sum, false);
        for (int i = 0; i < 8; i++) c[i] = sum[i];
#endif
#else
        for (int w = 0; w < 4; w++)
            for (int i = 0; i < 8; i++)
                c[i] = dot4(static_cast<int>(warp_from(a[w], 2 * i + lane() / 16)), static_cast<int>(b[w]), c[i]);
#endif
    }
};

// The same product on gfx12, where each half of a wave gives half of the depth.
struct Int8Gfx12 {
    static constexpr int kLanes = 32, kCols = 16, kDepth = 4, kA = 2, kB = 2, kOut = 8;
    static __device__ __forceinline__ int a_row(int l, int) { return l % 16; }
    static __device__ __forceinline__ int a_word(int l, int i) { return 2 * (l / 16) + i; }
    static __device__ __forceinline__ int b_col(int l) { return l % 16; }
    static __device__ __forceinline__ int b_word(int l, int i) { return 2 * (l / 16) + i; }
    static __device__ __forceinline__ int out_row(int l, int i) { return 8 * (l / 16) + i; }
    static __device__ __forceinline__ int out_col(int l, int) { return l % 16; }
    static __device__ __forceinline__ void multiply_add(int (&c)[8], const uint32_t (&a)[2], const uint32_t (&b)[2]) {
#if DS4_ON_DEVICE
#if defined(__GFX12__)
        typedef int v2i __attribute__((ext_vector_type(2)));
        typedef int v8i __attribute__((ext_vector_type(8)));
        const v2i x{static_cast<int>(a[0]), static_cast<int>(a[1])}, y{static_cast<int>(b[0]), static_cast<int>(b[1])};
        v8i sum;
        for (int i = 0; i < 8; i++) sum[i] = c[i];
        sum = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, x, true, y, sum, false);
        for (int i = 0; i < 8; i++) c[i] = sum[i];
#endif
#else
        for (int w = 0; w < 4; w++) {
            const int y = static_cast<int>(warp_from(b[w % 2], 16 * (w / 2) + lane() % 16));
            for (int i = 0; i < 8; i++)
                c[i] = dot4(static_cast<int>(warp_from(a[w % 2], 16 * (w / 2) + 8 * (lane() / 16) + i)), y, c[i]);
        }
#endif
    }
};

// One name in every pass of a compiler that makes code for several architectures: kernels are found by it.
#if defined(__GFX12__)
struct Int8Wmma : Int8Gfx12 {};
#else
struct Int8Wmma : Int8Gfx11 {};
#endif

using Int8Unit = UnitOf<Int8Sm80, Int8Gfx942, Int8Wmma>;
static_assert(Int8Unit::kLanes == kWarp, "a unit belongs to a warp size");

}  // namespace ds4::gpu
