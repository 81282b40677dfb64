// Hyper-connections: mixing the residual streams before and after a sublayer (docs/model.md, hyper-connections).
#pragma once

#include "common.metal"

// 1 / rms of the streams of a token, for every thread of the threadgroup.
inline float inverse_rms(device const float *x, uint n, float eps, threadgroup float *scratch, uint tid, uint lane, uint sg,
                         uint n_sg) {
    float sum = 0;
    for (uint i = tid; i < n; i += n_sg * kSimd) sum += x[i] * x[i];
    return 1.0f / precise::sqrt(group_sum(sum, scratch, lane, sg, n_sg) / float(n) + eps);
}

// An h x h matrix of a simdgroup: element i lies with lane i % 32, in place i / 32.
struct Matrix {
    float v[2];
};

inline float element(thread const Matrix &c, uint i, uint n) {
    const float low = simd_shuffle(c.v[0], ushort(i % kSimd));
    if (n <= kSimd) return low;
    const float high = simd_shuffle(c.v[1], ushort(i % kSimd));
    return i < kSimd ? low : high;
}

// Every element divided by the sum of its column (or row), plus eps; sums in order.
inline Matrix scaled(thread const Matrix &c, uint h, bool columns, float eps, uint lane) {
    Matrix out;
    for (uint p = 0; p < 2; p++) {
        const uint i = (lane + p * kSimd) % (h * h), j = i / h, k = i % h;
        float sum = 0;
        for (uint other = 0; other < h; other++) {
            const float v = element(c, columns ? other * h + k : j * h + other, h * h);
            sum = other == 0 ? v : sum + v;
        }
        out.v[p] = c.v[p] * (1.0f / (sum + eps));
        if (h * h <= kSimd) break;
    }
    return out;
}

// comb [h][h] of a token: softmax of the rows plus eps, then columns and rows made to sum to 1 in turn. One simdgroup.
inline void combination(device const float *mix, float inverse, float scale, device const float *base, uint h, uint iterations,
                        float eps, device float *comb, uint lane) {
    Matrix c;
    for (uint p = 0; p < 2; p++) {
        const uint i = (lane + p * kSimd) % (h * h);
        c.v[p] = mix[i] * inverse * scale + base[i];
    }
    Matrix less;
    for (uint p = 0; p < 2; p++) {
        const uint row = (lane + p * kSimd) % (h * h) / h * h;
        float top = element(c, row, h * h);
        for (uint k = 1; k < h; k++) {
            const float v = element(c, row + k, h * h);
            top = v > top ? v : top;
        }
        less.v[p] = exp_of(c.v[p] - top);
    }
    for (uint p = 0; p < 2; p++) {
        const uint row = (lane + p * kSimd) % (h * h) / h * h;
        float sum = element(less, row, h * h);
        for (uint k = 1; k < h; k++) sum += element(less, row + k, h * h);
        c.v[p] = less.v[p] / sum + eps;
    }
    c = scaled(c, h, true, eps, lane);
    for (uint i = 1; i < iterations; i++) {
        c = scaled(c, h, false, eps, lane);
        c = scaled(c, h, true, eps, lane);
    }
    for (uint p = 0; p < 2; p++)
        if (lane + p * kSimd < h * h) comb[lane + p * kSimd] = c.v[p];
}

// x = sum over the streams of weight[i] * streams[i]
inline void gather(device const float *streams, const threadgroup float *weight, uint h, uint dim, device float *x, uint tid,
                   uint threads) {
    for (uint c = tid; c < dim; c += threads) {
        float v = weight[0] * streams[c];
        for (uint i = 1; i < h; i++) v += weight[i] * streams[ulong(i) * dim + c];
        x[c] = v;
    }
}

// A token a threadgroup.
kernel void hc_pre(constant ds4_args_hc_pre &a [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    threadgroup float scratch[32];
    threadgroup float pre[DS4_METAL_MAX_STREAMS];
    const uint t = group.x, h = a.n_hc;
    device const float *mix = at<float>(a.mix) + ulong(t) * (2 + h) * h;
    device const float *streams = at<float>(a.streams) + ulong(t) * h * a.dim;
    device const float *scale = at<float>(a.scale);
    device const float *base = at<float>(a.base);
    const float inverse = inverse_rms(streams, h * a.dim, a.norm_eps, scratch, tid, lane, sg, n_sg);
    if (sg == 0) {
        if (lane < h) {
            pre[lane] = sigmoid(mix[lane] * inverse * scale[0] + base[lane]) + a.hc_eps;
            at<float>(a.post)[ulong(t) * h + lane] = 2.0f * sigmoid(mix[h + lane] * inverse * scale[1] + base[h + lane]);
        }
        combination(mix + 2 * h, inverse, scale[2], base + 2 * h, h, a.iterations, a.hc_eps,
                    at<float>(a.comb) + ulong(t) * h * h, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    gather(streams, pre, h, a.dim, at<float>(a.x) + ulong(t) * a.dim, tid, n_sg * kSimd);
}

// A value of every stream a thread; group.y is the token.
kernel void hc_post(constant ds4_args_hc_post &a [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    const uint c = group.x * n_sg * kSimd + tid, t = group.y, h = a.n_hc;
    if (c >= a.dim) return;
    device float *streams = at<float>(a.streams) + ulong(t) * h * a.dim + c;
    device const float *post = at<float>(a.post) + ulong(t) * h;
    device const float *comb = at<float>(a.comb) + ulong(t) * h * h;
    const float y = at<float>(a.y)[ulong(t) * a.dim + c];
    float old[DS4_METAL_MAX_STREAMS];
    for (uint j = 0; j < h; j++) old[j] = streams[ulong(j) * a.dim];
    for (uint k = 0; k < h; k++) {
        float v = post[k] * y;
        for (uint j = 0; j < h; j++) v += comb[j * h + k] * old[j];
        streams[ulong(k) * a.dim] = v;
    }
}

// A token a threadgroup.
kernel void hc_head(constant ds4_args_hc_head &a [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    threadgroup float scratch[32];
    threadgroup float gates[DS4_METAL_MAX_STREAMS];
    const uint t = group.x, h = a.n_hc;
    device const float *mix = at<float>(a.mix) + ulong(t) * h;
    device const float *streams = at<float>(a.streams) + ulong(t) * h * a.dim;
    const float inverse = inverse_rms(streams, h * a.dim, a.norm_eps, scratch, tid, lane, sg, n_sg);
    if (tid < h) gates[tid] = sigmoid(mix[tid] * inverse * at<float>(a.scale)[0] + at<float>(a.base)[tid]) + a.hc_eps;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    gather(streams, gates, h, a.dim, at<float>(a.x) + ulong(t) * a.dim, tid, n_sg * kSimd);
}
