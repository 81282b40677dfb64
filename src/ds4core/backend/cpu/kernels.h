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
    // y[i] += a * x[i]
    void (*axpy)(float *y, const float *x, float a, size_t n);
    float (*sum_squares)(const float *x, size_t n);
    // Decoders of the three types that single-token steps read most.
    void (*f16_row)(const void *src, float *dst, size_t n);
    void (*bf16_row)(const void *src, float *dst, size_t n);
    void (*q8_0_row)(const void *src, float *dst, size_t n);
    // y[i] = e^x[i] as cpu/exp.inc has it; x may be y
    void (*exp_row)(const float *x, float *y, size_t n);
};

const Kernels *kernels_base();
const Kernels *kernels_avx2();    // NULL when not compiled for x86-64
const Kernels *kernels_avx512();

}  // namespace ds4::cpu
