// The inner loops over rows of activations, compiled once per instruction set and chosen at run time.
//
// As in kernels.h every variant gives the same bits: elements are independent of each other, or are summed in the order
// of Kernels::dot (32 partial sums and a tree). Rows may have any length and alignment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/isa.h"
#include "quant/quant.h"

namespace ds4::cpu {

constexpr size_t kMaxStreams = 8;  // of hyper-connections; every registered shape has 4

struct RowKernels {
    const char *name;

    // ---- activations rounded to 8 bits: the bytes of ds4::quantize_q8_k and quantize_q8_a ----
    void (*quantize_q8_k)(const float *src, BlockQ8K *dst, uint64_t n);
    void (*quantize_q8_a)(const float *src, BlockQ8A *dst, uint64_t n);

    // ---- norms, rotation, storage ----
    // 1 / sqrt(mean(x^2) + eps)
    float (*inverse_rms)(const float *x, size_t n, float eps);
    // y = x * inverse_rms(x) * w; w may be NULL, y may be x.
    void (*rms_row)(const float *x, const float *w, float *y, size_t n, float eps);
    // Pairs (a, b) of each of `rows` rows of n values, `stride` apart, become (a cos - b sin, a sin + b cos). cosine holds
    // every cosine twice; sine holds -sin, sin. sign -1 turns back.
    void (*rope)(float *x, size_t rows, size_t stride, size_t n, const float *cosine, const float *sine, float sign);
    // y += x
    void (*add)(float *y, const float *x, size_t n);
    // y -= factor * x
    void (*subtract)(float *y, const float *x, float factor, size_t n);
    // Float32 to half, ties to even (the bits of f32_to_f16).
    void (*to_f16)(const float *src, void *dst, size_t n);

    // ---- activation functions ----
    // out = weight * (silu(min(g, clamp)) * clamp(u, +-clamp)); out may be g or u.
    void (*swiglu)(const float *g, const float *u, float weight, float clamp, float *out, size_t n);
    // z = sqrt(softplus(x)); z may be x.
    void (*router_scores)(const float *x, float *z, size_t n);
    // out[c] = sum_i softmax_i(s[i][c]) * k[i][c] over n_entries rows.
    void (*pool)(const float *const *k, const float *const *s, size_t n_entries, size_t n, float *out);

    // ---- hyper-connections (docs/model.md) of h <= kMaxStreams streams ----
    // From mix [(2 + h) * h], already scaled by `inverse_rms`: pre [h], post [h], and comb [h][h] made doubly stochastic.
    void (*hc_coefficients)(const float *mix, float inverse_rms, const float *scale, const float *base, size_t h,
                            uint32_t iterations, float eps, float *pre, float *post, float *comb);
    // gate[i] = sigmoid(mix[i] * inverse_rms * scale + base[i]) + eps
    void (*hc_gates)(const float *mix, float inverse_rms, float scale, const float *base, size_t h, float eps, float *gate);
    // out[c] = sum_i weight[i] * streams[i * dim + c], c < n
    void (*hc_gather)(const float *streams, size_t dim, const float *weight, size_t h, float *out, size_t n);
    // streams[k * dim + c] = post[k] * y[c] + sum_j comb[j][k] * streams[j * dim + c], c < n
    void (*hc_scatter)(float *streams, size_t dim, const float *y, const float *post, const float *comb, size_t h, size_t n);
};

const RowKernels *row_kernels_base();
const RowKernels *row_kernels_avx2();    // NULL when not compiled for x86-64
const RowKernels *row_kernels_avx512();
const RowKernels *active_row_kernels();

}  // namespace ds4::cpu
