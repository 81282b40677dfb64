// Operations on rows of activations: embedding, norm, rotation, round trips, cache rows, activation function, steering,
// copies.
#pragma once

#include "quant.metal"

// 8 values of a row a thread; group.y is the token.
kernel void embed(constant ds4_args_embed &a [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    const uint dim = a.table.n_in, i = (group.x * n_sg * kSimd + tid) * 8, n = dim > i ? min(dim - i, 8u) : 0;
    if (n == 0) return;
    const int token = at<int>(a.tokens)[group.y];
    float v[8];
    decode_any(a.table.type, weight_row(a.table, ulong(token)), i, n, v);
    for (uint c = 0; c < a.copies; c++) {
        device float *out = at<float>(a.out) + (ulong(group.y) * a.copies + c) * dim + i;
        for (uint j = 0; j < n; j++) out[j] = v[j];
    }
}

// A row a threadgroup. Every simdgroup makes the whole sum, in the definition's order.
kernel void rms_norm(constant ds4_args_rms_norm &a [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    const uint threads = n_sg * kSimd, dim = a.dim, whole = dim / kSimd * kSimd;
    device const float *x = at<float>(a.x) + ulong(group.x) * dim;
    device const float *w = at<float>(a.w);
    device float *y = at<float>(a.y) + ulong(group.x) * dim;
    float sum = 0;
    for (uint i = lane; i < whole; i += kSimd) sum += x[i] * x[i];
    sum = tree_sum(sum);
    for (uint i = whole; i < dim; i++) sum += x[i] * x[i];
    const float inverse = 1.0f / precise::sqrt(sum / float(dim) + a.eps);
    threadgroup_barrier(mem_flags::mem_none);  // y may be x: nobody writes before all have read
    for (uint i = tid; i < dim; i += threads) {
        const float v = x[i] * inverse;
        y[i] = w ? v * w[i] : v;
    }
}

// A pair a thread; group.y is the token.
kernel void rope(constant ds4_args_rope &a [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    const uint pairs = a.n_rot / 2, i = group.x * n_sg * kSimd + tid;
    if (i >= pairs * a.heads) return;
    const uint head = i / pairs, pair = i % pairs;
    device float *x = at<float>(a.x) + (ulong(group.y) * a.heads + head) * a.dim + a.dim - a.n_rot + 2 * pair;
    const float angle = float(a.pos0 + group.y) * at<float>(a.freqs)[pair];
    const float c = precise::cos(angle), s = precise::sin(angle) * a.sign, u = x[0], v = x[1];
    x[0] = u * c - v * s;
    x[1] = v * c + u * s;
}

// ---- simulated quantization (docs/model.md), of a row in threadgroup memory ----

inline float power_of_two_at_least(float q) {  // of a normal number
    const uint bits = as_type<uint>(q);
    return as_type<float>((bits & 0x7f800000u) + ((bits & 0x007fffffu) ? 0x00800000u : 0u));
}

inline float round_e4m3(float x) {
    const float a = fabs(x);
    // Spacing of the codes: 2^-9 below 2^-6, then an eighth of the binade.
    const uint binade = max(as_type<uint>(a) >> 23, 121u);
    const float step = as_type<float>((binade - 3) << 23);
    return copysign(rint(a / step) * step, x);
}

inline float round_e2m1(float x) {
    const float a = fabs(x), step = a < 2.0f ? 0.5f : a < 4.0f ? 1.0f : 2.0f;
    return copysign(rint(a / step) * step, x);
}

// Blocks of `block` values, each by one simdgroup: scale 2^ceil(log2(max(amax, least) / top)), then FP8 or FP4.
inline void round_blocks(threadgroup float *row, uint n, uint block, float least, float top, bool fp8, uint lane, uint sg,
                         uint n_sg) {
    for (uint first = sg * block; first < n; first += n_sg * block) {
        const uint end = min(first + block, n);
        float amax = least;
        for (uint i = first + lane; i < end; i += kSimd) {
            const float v = fabs(row[i]);
            amax = v > amax ? v : amax;  // a NaN is passed over
        }
        amax = simd_max(amax);
        const bool finite = amax <= 3.40282347e+38f;  // infinity has no scale: let the damage show
        const float scale = finite ? power_of_two_at_least(amax * (1.0f / top)) : 1.0f;
        for (uint i = first + lane; i < end; i += kSimd) {
            const float v = clamped(row[i] / scale, -top, top);
            row[i] = finite ? (fp8 ? round_e4m3(v) : round_e2m1(v)) * scale : NAN;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// All threads have written the row and met at a barrier; they meet again at the end.
inline void round_row(threadgroup float *row, uint dim, uint n_rot, uint mode, uint tid, uint lane, uint sg, uint n_sg) {
    if (mode == DS4_ROUND_FP8) round_blocks(row, dim - n_rot, 64, 1e-4f, 448.0f, true, lane, sg, n_sg);
    if (mode != DS4_ROUND_FP4) return;
    for (uint s = 1; s < dim; s *= 2) {
        for (uint i = tid; i < dim / 2; i += n_sg * kSimd) {
            const uint at_pair = i / s * 2 * s + i % s;
            const float u = row[at_pair], v = row[at_pair + s];
            row[at_pair] = u + v;
            row[at_pair + s] = u - v;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    const float norm = 1.0f / precise::sqrt(float(dim));
    for (uint i = tid; i < dim; i += n_sg * kSimd) row[i] = row[i] * norm;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    round_blocks(row, dim, 32, 7.05296610e-38f, 6.0f, false, lane, sg, n_sg);
}

// A row a threadgroup.
kernel void round_rows(constant ds4_args_round_rows &a [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    threadgroup float row[DS4_METAL_MAX_ROW];
    device float *x = at<float>(a.x) + ulong(group.x) * a.dim;
    for (uint i = tid; i < a.dim; i += n_sg * kSimd) row[i] = x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    round_row(row, a.dim, a.n_rot, a.mode, tid, lane, sg, n_sg);
    for (uint i = tid; i < a.dim; i += n_sg * kSimd) x[i] = row[i];
}

// A value a thread; group.y is the token, of which the last `capacity` stay.
kernel void store_rows(constant ds4_args_store_rows &a [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    const uint i = group.x * n_sg * kSimd + tid;
    const uint t = group.y + (a.n > a.capacity ? a.n - a.capacity : 0);
    if (i >= a.dim) return;
    store_value(a.row_type, at<uchar>(a.rows), ulong((a.pos0 + t) % a.capacity) * a.dim + i,
                at<float>(a.x)[ulong(t) * a.dim + i]);
}

kernel void swiglu(constant ds4_args_swiglu &a [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    const ulong i = ulong(group.x) * n_sg * kSimd + tid;
    if (i >= a.count) return;
    device float *x = at<float>(a.a);
    x[i] = gated(x[i], at<float>(a.b)[i], 1.0f, a.clamp);
}

// A value a thread; group.y is the token, group.z the copy.
kernel void add_rows(constant ds4_args_add_rows &a [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    const uint i = group.x * n_sg * kSimd + tid;
    if (i >= a.dim) return;
    at<float>(a.x)[(ulong(group.y) * a.copies + group.z) * a.dim + i] += at<float>(a.e)[ulong(group.y) * a.dim + i];
}

// A token a threadgroup; the simdgroups share the directions.
kernel void steer(constant ds4_args_steer &a [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    threadgroup float factors[DS4_MAX_STEERING];
    device float *y = at<float>(a.y) + ulong(group.x) * a.dim;
    const uint whole = a.dim / kSimd * kSimd;
    for (uint d = sg; d < a.count; d += n_sg) {
        device const float *direction = at<float>(a.directions[d]);
        float sum = 0;
        for (uint i = lane; i < whole; i += kSimd) sum += direction[i] * y[i];
        sum = tree_sum(sum);
        for (uint i = whole; i < a.dim; i++) sum += direction[i] * y[i];
        if (lane == 0) factors[d] = a.scales[d] * sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < a.dim; i += n_sg * kSimd) {
        float v = y[i];
        for (uint d = 0; d < a.count; d++) v -= factors[d] * at<float>(a.directions[d])[i];
        y[i] = v;
    }
}

// 4 bytes a thread; what is left over by the last one.
kernel void copy_bytes(constant ds4_metal_copy &a [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    const ulong i = (ulong(group.x) * n_sg * kSimd + tid) * 4;
    if (i >= a.count) return;
    device uchar *target = at<uchar>(a.target) + i;
    const uint n = uint(min(a.count - i, ulong(4)));
    if (!a.source.buffer) {
        const uint word = a.data[i / 4];
        for (uint j = 0; j < n; j++) target[j] = uchar(word >> (8 * j));
        return;
    }
    device const uchar *source = at<uchar>(a.source) + i;
    for (uint j = 0; j < n; j++) target[j] = source[j];
}

// min over the gaps of a chunk, one threadgroup.
kernel void fold_margin(constant ds4_metal_margin &a [[buffer(0)]], DS4_THREAD) {
    threadgroup float scratch[32];
    device const float *gaps = at<float>(a.gaps);
    float least = INFINITY;
    for (uint i = tid; i < a.n; i += n_sg * kSimd) least = min(least, gaps[i]);
    least = -group_max(-least, scratch, lane, sg, n_sg);
    device float *margin = at<float>(a.margin);
    if (tid == 0) margin[0] = min(margin[0], least);
}
