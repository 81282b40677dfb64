// Products of float32 weights and activations for many tokens, compiled once per instruction set and chosen at run time.
//
// A product has the bits of Kernels::dot: 32 partial sums, which a tile keeps for `rows` weight rows and a few tokens
// while it goes through a stretch of columns, and one tree at the end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/isa.h"

namespace ds4::cpu {

constexpr size_t kPartialSums = 32;
constexpr size_t kMostTileTokens = 6;

struct FloatKernels {
    const char *name;
    size_t rows, tokens;  // of a tile that suits the registers of the variant; tokens <= kMostTileTokens
    // partial[(t * rows + r) * 32 ...] += products of w[r] and x + t * x_stride over n columns, n a multiple of 32:
    // tile[T - 1] for T tokens.
    void (*tile[kMostTileTokens])(const float *const *w, const float *x, size_t x_stride, size_t n, float *partial);
    // The sum of 32 partial sums in the order of Kernels::dot.
    float (*sum)(const float *partial);
    // Kernels::dot with a row of halves, or bfloat16. NULL: decoding it first is as fast.
    float (*dot_f16)(const void *w, const float *x, size_t n);
    float (*dot_bf16)(const void *w, const float *x, size_t n);
};

const FloatKernels *float_kernels_base();
const FloatKernels *float_kernels_avx2();    // NULL when not compiled for x86-64
const FloatKernels *float_kernels_avx512();
const FloatKernels *active_float_kernels();

}  // namespace ds4::cpu
