// Hyper-connections: mixing the residual streams before and after a sublayer. One block a token before, elements
// independent after; every sum has the CPU's order.
#pragma once

#include "sums.cuh"
#include "values.cuh"

namespace ds4::gpu {

constexpr uint32_t kHyperThreads = 512;
constexpr uint32_t kMostStreams = 8;

// 1 / sqrt(mean(x^2) + eps), to all threads; tile of kSumTile elements.
__device__ __forceinline__ float inverse_rms_of_streams(const float *x, uint32_t n, float eps, Shared<float> tile) {
    const float all = ordered_sum(n, tile, [&](uint32_t i) { return mul(x[i], x[i]); });
    return divide(1.0f, sqrtf(add(divide(all, static_cast<float>(n)), eps)));
}

// x[c] = sum_i weight[i] * streams[i][c]
__device__ __forceinline__ void gather_streams(const float *streams, Shared<float> weight, uint32_t h, uint32_t dim,
                                               float *x) {
    for (uint32_t c = threadIdx.x; c < dim; c += blockDim.x) {
        float v = weight[0] * streams[c];
        for (uint32_t i = 1; i < h; i++) v += weight[i] * streams[static_cast<uint64_t>(i) * dim + c];
        x[c] = v;
    }
}

// Columns and rows of c [h][h] divided by their sums + eps in turn, columns first and last. By one warp; c is complete
// before, and after.
__device__ __forceinline__ void balance(Shared<float> c, uint32_t h, uint32_t iterations, float eps) {
    const uint32_t me = static_cast<uint32_t>(lane());
    for (uint32_t pass = 0; pass + 1 < 2 * iterations; pass++) {
        // An even pass takes columns: steps of h from element `me` on.
        const uint32_t first = pass % 2 ? me * h : me, step = pass % 2 ? 1 : h;
        if (me < h) {
            float sum = c[first];
            for (uint32_t i = 1; i < h; i++) sum += c[first + i * step];
            const float inverse = 1.0f / (sum + eps);
            for (uint32_t i = 0; i < h; i++) c[first + i * step] *= inverse;
        }
        sync_warp();
    }
}

// Grid: tokens.
static __global__ void __launch_bounds__(kHyperThreads) hc_pre_kernel(ds4_args_hc_pre a) {
    DS4_SHARED(float, scratch, kSumTile);
    DS4_SHARED(float, pre, kMostStreams);
    DS4_SHARED(float, comb, kMostStreams * kMostStreams);
    const uint32_t t = blockIdx.x, h = a.n_hc, dim = a.dim, me = static_cast<uint32_t>(lane());
    const float *streams = at<const float>(a.streams) + static_cast<uint64_t>(t) * h * dim;
    const float *mix = at<const float>(a.mix) + static_cast<uint64_t>(t) * (2 + h) * h;
    const float *scale = at<const float>(a.scale), *base = at<const float>(a.base);
    const float inverse = inverse_rms_of_streams(streams, h * dim, a.norm_eps, scratch);
    if (warp_index() == 0) {
        if (me < h) {
            pre[me] = sigmoid(mix[me] * inverse * scale[0] + base[me]) + a.hc_eps;
            float *post = at<float>(a.post) + static_cast<uint64_t>(t) * h;
            post[me] = sigmoid(mix[h + me] * inverse * scale[1] + base[h + me]) * 2.0f;
            // A row to softmax + eps.
            float row[kMostStreams], top = 0.0f, sum = 0.0f;
            const uint32_t first = 2 * h + me * h;
#pragma unroll
            for (uint32_t k = 0; k < kMostStreams; k++) {
                if (k >= h) break;
                row[k] = mix[first + k] * inverse * scale[2] + base[first + k];
                top = k == 0 || row[k] > top ? row[k] : top;
            }
#pragma unroll
            for (uint32_t k = 0; k < kMostStreams; k++) {
                if (k >= h) break;
                row[k] = exp_of(row[k] - top);
                sum = k == 0 ? row[k] : sum + row[k];
            }
#pragma unroll
            for (uint32_t k = 0; k < kMostStreams; k++) {
                if (k >= h) break;
                comb[me * h + k] = row[k] / sum + a.hc_eps;
            }
        }
        sync_warp();
        balance(comb, h, a.iterations, a.hc_eps);
        for (uint32_t i = me; i < h * h; i += kWarp) at<float>(a.comb)[static_cast<uint64_t>(t) * h * h + i] = comb[i];
    }
    sync_block();
    gather_streams(streams, pre, h, dim, at<float>(a.x) + static_cast<uint64_t>(t) * dim);
}

constexpr uint32_t kSpreadThreads = 256;

// streams'[k] = post[k] * y + sum_j comb[j][k] * streams[j]. Grid: the stretches of 256 dims of one token after the
// other.
static __global__ void __launch_bounds__(kSpreadThreads) hc_post_kernel(ds4_args_hc_post a) {
    const uint32_t stretches = (a.dim + kSpreadThreads - 1) / kSpreadThreads, h = a.n_hc;
    const uint32_t t = blockIdx.x / stretches, c = blockIdx.x % stretches * kSpreadThreads + threadIdx.x;
    if (c >= a.dim) return;
    const float *post = at<const float>(a.post) + static_cast<uint64_t>(t) * h;
    const float *comb = at<const float>(a.comb) + static_cast<uint64_t>(t) * h * h;
    float *streams = at<float>(a.streams) + static_cast<uint64_t>(t) * h * a.dim + c;
    const float y = at<const float>(a.y)[static_cast<uint64_t>(t) * a.dim + c];
    float old[kMostStreams];
#pragma unroll
    for (uint32_t j = 0; j < kMostStreams; j++) old[j] = j < h ? streams[static_cast<uint64_t>(j) * a.dim] : 0.0f;
    for (uint32_t k = 0; k < h; k++) {
        float sum = post[k] * y;
#pragma unroll
        for (uint32_t j = 0; j < kMostStreams; j++)
            if (j < h) sum += comb[j * h + k] * old[j];
        streams[static_cast<uint64_t>(k) * a.dim] = sum;
    }
}

// Grid: tokens.
static __global__ void __launch_bounds__(kHyperThreads) hc_head_kernel(ds4_args_hc_head a) {
    DS4_SHARED(float, scratch, kSumTile);
    DS4_SHARED(float, gate, kMostStreams);
    const uint32_t t = blockIdx.x, h = a.n_hc, i = threadIdx.x;
    const float *streams = at<const float>(a.streams) + static_cast<uint64_t>(t) * h * a.dim;
    const float inverse = inverse_rms_of_streams(streams, h * a.dim, a.norm_eps, scratch);
    const float *mix = at<const float>(a.mix) + static_cast<uint64_t>(t) * h;
    const float *scale = at<const float>(a.scale), *base = at<const float>(a.base);
    if (i < h) gate[i] = sigmoid(mix[i] * inverse * scale[0] + base[i]) + a.hc_eps;
    sync_block();
    gather_streams(streams, gate, h, a.dim, at<float>(a.x) + static_cast<uint64_t>(t) * a.dim);
}

}  // namespace ds4::gpu
