// What all kernels share: argument records, addresses, sums over a threadgroup.
//
// Rules of these files, which the translator of the host executor relies on or checks: `threadgroup` arrays stand in
// kernels only, one declaration a line; helpers take `threadgroup T *` or `const threadgroup T *`; simd_* functions and
// barriers are called by all threads; no double; no function is overloaded by address space.
#pragma once

#include <metal_stdlib>

#include "backend/kernel_args.h"
#include "records.h"

using namespace metal;

constant constexpr uint kSimd = 32;

// Position of a thread: index in the threadgroup, in its simdgroup, number of its simdgroup, and simdgroups in all.
#define DS4_THREAD                                                                          \
    uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],      \
        uint sg [[simdgroup_index_in_threadgroup]], uint n_sg [[simdgroups_per_threadgroup]]
#define DS4_GROUP uint3 group [[threadgroup_position_in_grid]]

// The place that a reference names, or null.
template <class T> inline device T *at(ds4_ref r) { return r.buffer ? (device T *)(r.buffer + r.offset) : nullptr; }

inline device const uchar *weight_row(ds4_weight w, ulong row) {
    return (device const uchar *)(w.data.buffer + w.data.offset + row * w.row_stride);
}

// Sum over the threadgroup, the same for every thread. scratch: n_sg values.
inline float group_sum(float v, threadgroup float *scratch, uint lane, uint sg, uint n_sg) {
    v = simd_sum(v);
    if (lane == 0) scratch[sg] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float sum = scratch[0];
    for (uint i = 1; i < n_sg; i++) sum += scratch[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return sum;
}

// The sum of a value a lane as a tree of fixed shape: + 16, + 8, + 4, + 2, + 1. On every lane.
inline float tree_sum(float v) {
    for (ushort m = 16; m > 0; m /= 2) v += simd_shuffle_xor(v, m);
    return v;
}

inline float group_max(float v, threadgroup float *scratch, uint lane, uint sg, uint n_sg) {
    v = simd_max(v);
    if (lane == 0) scratch[sg] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float top = scratch[0];
    for (uint i = 1; i < n_sg; i++) top = max(top, float(scratch[i]));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return top;
}

inline uint group_count(uint v, threadgroup uint *scratch, uint lane, uint sg, uint n_sg) {
    v = simd_sum(v);
    if (lane == 0) scratch[sg] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint sum = 0;
    for (uint i = 0; i < n_sg; i++) sum += scratch[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return sum;
}

// ---- scalar functions; a NaN goes through all of them ----

inline float clamped(float x, float low, float high) { return x < low ? low : (x > high ? high : x); }
inline float at_most(float x, float high) { return x > high ? high : x; }

// e^x as the definition has it (src/ds4core/backend/cpu/exp.inc): plain products and sums, the same bits everywhere. Below
// the smallest normal number the result is 0, above the largest infinity, and a NaN stays one.
inline float exp_of(float x) {
    const float t = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the sum's low bits are n, rounded to nearest
    const float n = t - 12582912.0f;
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = r * 0.00138144672f + 0.00836878084f;
    p = p * r + 0.0416683927f;
    p = p * r + 0.166665196f;
    p = p * r + 0.49999994f;
    p = (p * r * r + r) + 1.0f;
    const float scaled = as_type<float>(as_type<uint>(p) + (as_type<uint>(t) << 23));  // only n's low bits stay
    if (isnan(x)) return x;
    if (x > 88.7228317f) return INFINITY;
    return x < -87.3365402f ? 0.0f : scaled;
}
inline float sigmoid(float x) { return 1.0f / (1.0f + exp_of(-x)); }

// weight * silu(min(g, clamp)) * clamp(u, +-clamp)
inline float gated(float g, float u, float weight, float clamp_at) {
    const float a = at_most(g, clamp_at), b = clamped(u, -clamp_at, clamp_at);
    return weight * (a / (1.0f + exp_of(-a)) * b);
}

inline float load_value(uint row_type, device const uchar *rows, ulong index) {
    if (row_type == DS4_ROW_F16) return float(((device const half *)rows)[index]);
    return ((device const float *)rows)[index];
}

inline void store_value(uint row_type, device uchar *rows, ulong index, float v) {
    if (row_type == DS4_ROW_F16)
        ((device half *)rows)[index] = half(v);
    else
        ((device float *)rows)[index] = v;
}
