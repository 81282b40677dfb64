// The inner loops of the CPU backend, compiled once per instruction set and chosen at run time.
//
// Every variant performs the same float operations in the same order (32 partial sums, no fused multiply-add), so
// results do not depend on the machine's instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ds4::cpu {

struct Kernels {
    const char *name;
    // sum_i a[i] * b[i]
    float (*dot)(const float *a, const float *b, size_t n);
    // out[j * out_stride] = w . x[j * x_stride] for j < n_x; each equal to dot()
    void (*dot_many)(const float *w, const float *x, size_t x_stride, size_t n_x, size_t n, float *out,
                     size_t out_stride);
    // Decoders of the three types that single-token steps read most.
    void (*f16_row)(const void *src, float *dst, size_t n);
    void (*bf16_row)(const void *src, float *dst, size_t n);
    void (*q8_0_row)(const void *src, float *dst, size_t n);
    // y[i] = e^x[i] as cpu/exp.inc has it; x may be y
    void (*exp_row)(const float *x, float *y, size_t n);

    // Attention and indexer. `lanes`: heads rounded up to a multiple of 16 (kLanes); lanes without a head hold 0.
    // q [heads][dim] -> out [dim][lanes]; dim is a multiple of 4.
    void (*transpose_heads)(const float *q, size_t heads, size_t dim, size_t lanes, float *out);
    // q [dim][lanes], rows [n][dim] -> out [n][lanes]. A dot product is the sum over strips of 64 dims, in order, of
    // the strip's sum in order.
    void (*head_scores)(const float *q, size_t dim, size_t lanes, const float *rows, size_t n, float *out);
    // 16 lanes of scores [n][lanes] become e^(score * scale - greatest); inverse[16] = 1 / (their sum and the sink's).
    void (*softmax16)(float *scores, size_t n, size_t lanes, const float *sinks, float scale, float *inverse);
    // out[h] (+)= sum over the rows in order of w[row][h] * rows[row], then * inverse[h] unless NULL; `first`: from 0.
    // w [n][lanes], rows [n][dims], dims a multiple of 16.
    void (*sum_values)(const float *w, size_t lanes, size_t heads, const float *rows, size_t dims, size_t n,
                       const float *inverse, bool first, float *out, size_t out_stride);
    // out[row] = sum over the heads of max(q_h . row, 0) * weights[h]; q [dim][lanes], rows [n][dim], a dot product
    // summed in order; heads summed by lane first.
    void (*index_scores)(const float *q, const float *weights, size_t dim, size_t lanes, const float *rows, size_t n,
                         float *out);
};

constexpr size_t kLanes = 16;

const Kernels *kernels_base();
const Kernels *kernels_avx2();    // NULL when not compiled for x86-64
const Kernels *kernels_avx512();

}  // namespace ds4::cpu
