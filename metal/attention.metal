// Attention over window and compressed rows with a sink (docs/model.md). The keys of a token, in the order window rows,
// compressed rows, are cut into parts of DS4_METAL_SPLIT; a part runs the softmax as it goes (greatest score so far, which
// begins at the sink, and sums scaled to it), and the parts are put together in order. Parts begin at fixed keys, so the
// result of a token does not depend on the chunk.
#pragma once

#include "common.metal"

enum {
    kHeadsOfSimdgroup = 2,
    kDims = DS4_METAL_MAX_DIM / 32,  // of a lane: lane, lane + 32, ...
    kRowsAtOnce = 8,
    kAttentionThreads = DS4_METAL_HEADS / kHeadsOfSimdgroup * 32
};

struct Keys {
    uint first, n_window, total;
};

inline Keys keys_of(constant ds4_args_attention &a, uint t) {
    const uint pos = a.pos0 + t;
    Keys k;
    k.first = pos + 1 > a.window ? pos + 1 - a.window : 0;
    k.n_window = pos + 1 - k.first;
    k.total = k.n_window;
    if (a.ratio) k.total += a.selected.buffer ? uint(at<int>(a.counts)[t]) : (pos + 1) / a.ratio;
    return k;
}

// group: x heads, y part, z token of this launch.
kernel void attention_part(constant ds4_metal_attention &m [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    threadgroup float rows[kRowsAtOnce * DS4_METAL_MAX_DIM];
    constant ds4_args_attention &a = m.a;
    const uint t = m.first_token + group.z, dim = a.dim, begin = group.y * DS4_METAL_SPLIT;
    const Keys keys = keys_of(a, t);
    if (begin >= keys.total) return;
    const uint end = min(keys.total, begin + uint(DS4_METAL_SPLIT)), head0 = group.x * DS4_METAL_HEADS + sg * kHeadsOfSimdgroup;
    device const int *selected = a.ratio ? at<int>(a.selected) : nullptr;

    float q[kHeadsOfSimdgroup][kDims], out[kHeadsOfSimdgroup][kDims], top[kHeadsOfSimdgroup], sum[kHeadsOfSimdgroup];
    for (uint h = 0; h < kHeadsOfSimdgroup; h++) {
        const uint head = min(head0 + h, a.heads - 1);  // one too many repeats the last
        device const float *x = at<float>(a.q) + (ulong(t) * a.heads + head) * dim;
        for (uint i = 0; i < kDims; i++) {
            q[h][i] = lane + i * kSimd < dim ? x[lane + i * kSimd] : 0.0f;
            out[h][i] = 0;
        }
        top[h] = at<float>(a.sinks)[head];
        sum[h] = 0;
    }
    for (uint b = begin; b < end; b += kRowsAtOnce) {
        const uint n = min(end - b, uint(kRowsAtOnce));
        for (uint r = sg; r < n; r += n_sg) {
            const uint key = b + r;
            device const uchar *source = at<uchar>(key < keys.n_window ? a.window_rows : a.compressed_rows);
            uint row = key - keys.n_window;
            if (key < keys.n_window)
                row = (keys.first + key) % a.capacity;
            else if (selected)
                row = uint(selected[ulong(t) * a.top_k + row]);
            for (uint d = lane; d < dim; d += kSimd) rows[r * dim + d] = load_value(a.row_type, source, ulong(row) * dim + d);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint h = 0; h < kHeadsOfSimdgroup; h++) {
            float scores[kRowsAtOnce], greatest = top[h];
            for (uint r = 0; r < n; r++) {
                float s = 0;
                for (uint i = 0; i < kDims; i++)
                    if (lane + i * kSimd < dim) s += q[h][i] * rows[r * dim + lane + i * kSimd];
                scores[r] = simd_sum(s) * a.scale;
                greatest = scores[r] > greatest ? scores[r] : greatest;  // a NaN spreads through its exponential
            }
            const float factor = exp_of(top[h] - greatest);
            top[h] = greatest;
            sum[h] *= factor;
            for (uint i = 0; i < kDims; i++) out[h][i] *= factor;
            for (uint r = 0; r < n; r++) {
                const float e = exp_of(scores[r] - greatest);
                sum[h] += e;
                for (uint i = 0; i < kDims; i++)
                    if (lane + i * kSimd < dim) out[h][i] += e * rows[r * dim + lane + i * kSimd];
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint h = 0; h < kHeadsOfSimdgroup && head0 + h < a.heads; h++) {
        device float *partial =
            at<float>(m.partial) + ((ulong(group.z) * m.parts + group.y) * a.heads + head0 + h) * (dim + 2);
        for (uint i = 0; i < kDims; i++)
            if (lane + i * kSimd < dim) partial[lane + i * kSimd] = out[h][i];
        if (lane == 0) {
            partial[dim] = top[h];
            partial[dim + 1] = sum[h];
        }
    }
}

// group: x head, y token of this launch.
kernel void attention_combine(constant ds4_metal_attention &m [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    constant ds4_args_attention &a = m.a;
    const uint t = m.first_token + group.y, dim = a.dim;
    const uint parts = (keys_of(a, t).total + DS4_METAL_SPLIT - 1) / DS4_METAL_SPLIT;
    const ulong stride = ulong(a.heads) * (dim + 2);
    device const float *partial = at<float>(m.partial) + (ulong(group.y) * m.parts * a.heads + group.x) * (dim + 2);
    const float sink = at<float>(a.sinks)[group.x];
    float top = sink;
    for (uint p = 0; p < parts; p++) top = partial[p * stride + dim] > top ? partial[p * stride + dim] : top;
    float sum = exp_of(sink - top);  // the sink takes weight and gives no value
    for (uint p = 0; p < parts; p++) sum += partial[p * stride + dim + 1] * exp_of(partial[p * stride + dim] - top);
    device float *out = at<float>(a.out) + (ulong(t) * a.heads + group.x) * dim;
    for (uint d = tid; d < dim; d += n_sg * kSimd) {
        float v = 0;
        for (uint p = 0; p < parts; p++) v += partial[p * stride + d] * exp_of(partial[p * stride + dim] - top);
        out[d] = v / sum;
    }
}
