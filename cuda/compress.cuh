// The compressor: a group of tokens pooled into one row, which is normalised, rotated, rounded and stored.
//
// Every step has the order of the CPU's, so the rounding sees the same values and gives the same codes.
#pragma once

#include "round_trip.cuh"

namespace ds4::gpu {

constexpr uint32_t kCompressThreads = 256;
constexpr uint32_t kMostCompressDim = 1024;

// Where the entries of a group come from: positions of this chunk from k and s, to which the position table is still to
// be added; earlier ones from the rings.
struct Entries {
    const float *k, *s, *ape, *state_k, *state_s;
    uint32_t pos0, width, ratio, ring;

    __device__ explicit Entries(const ds4_args_compress &a)
        : k(at<const float>(a.k)), s(at<const float>(a.s)), ape(at<const float>(a.ape)),
          state_k(at<const float>(a.state_k)), state_s(at<const float>(a.state_s)), pos0(a.pos0),
          width(a.width), ratio(a.ratio), ring(a.ring) {}
    __device__ float value(uint32_t pos, uint32_t column) const {
        return pos >= pos0 ? k[static_cast<uint64_t>(pos - pos0) * width + column]
                           : state_k[static_cast<uint64_t>(pos % ring) * width + column];
    }
    __device__ float score(uint32_t pos, uint32_t column) const {
        return pos >= pos0 ? s[static_cast<uint64_t>(pos - pos0) * width + column] + ape[pos % ratio * width + column]
                           : state_s[static_cast<uint64_t>(pos % ring) * width + column];
    }
};

// 1 / sqrt(mean(x^2) + eps) of a row in shared memory, to every lane of the warp: 32 partial sums and a tree, as the
// CPU.
__device__ __forceinline__ float inverse_rms_of_row(Shared<float> x, uint32_t n, float eps) {
    const uint32_t l = static_cast<uint32_t>(lane()) % 32, whole = n / 32 * 32;
    float sum = 0.0f;
    for (uint32_t i = l; i < whole; i += 32) {
        const float v = x[i];
        sum += v * v;
    }
    for (int m = 16; m > 0; m /= 2) sum += warp_xor(sum, m);
    for (uint32_t i = whole; i < n; i++) {
        const float v = x[i];
        sum += v * v;
    }
    return 1.0f / sqrtf(sum / static_cast<float>(n) + eps);
}

// One block makes the row of one group that closes in this chunk.
static __global__ void __launch_bounds__(kCompressThreads) compress_groups(ds4_args_compress a) {
    DS4_SHARED(float, row, kMostCompressDim);
    const Entries entries(a);
    const uint32_t group = a.pos0 / a.ratio + blockIdx.x, r = a.ratio, dim = a.dim, tid = threadIdx.x;
    const bool overlap = a.width == 2 * dim;  // first half of the previous group, second half of this one
    const uint32_t first = overlap && group > 0 ? (group - 1) * r : group * r, end = (group + 1) * r;
    for (uint32_t c = tid; c < dim; c += kCompressThreads) {
        const auto column = [&](uint32_t pos) { return overlap && pos >= group * r ? c + dim : c; };
        float top = entries.score(first, column(first)), sum = 0.0f, value = 0.0f;
        for (uint32_t pos = first + 1; pos < end; pos++) top = greater(top, entries.score(pos, column(pos)));
        for (uint32_t pos = first; pos < end; pos++) {
            const float e = exp_of(entries.score(pos, column(pos)) - top);
            sum += e;
            value += e * entries.value(pos, column(pos));
        }
        row[c] = value / sum;
    }
    sync_block();
    const float inverse = inverse_rms_of_row(row, dim, a.eps);
    sync_block();
    const float *norm = at<const float>(a.norm);
    for (uint32_t c = tid; c < dim; c += kCompressThreads) row[c] = row[c] * inverse * norm[c];
    sync_block();
    const float *freqs = at<const float>(a.freqs);
    for (uint32_t i = tid; i < a.n_rot / 2; i += kCompressThreads) {
        const float angle = static_cast<float>(group * r) * freqs[i], s = sinf(angle), co = cosf(angle);
        const uint32_t c = dim - a.n_rot + 2 * i;
        const float x = row[c], y = row[c + 1];
        row[c] = x * co + y * -s;
        row[c + 1] = y * co + x * s;
    }
    sync_block();
    round_shared_row(row, dim, a.n_rot, a.round);
    uint8_t *to = at<uint8_t>(a.rows) + group * row_bytes(a.row_type, dim);
    for (uint32_t c = tid; c < dim; c += kCompressThreads) store_value(to, a.row_type, c, row[c]);
}

// The last positions of the chunk into the rings; runs when the groups have been made. One block a position.
static __global__ void __launch_bounds__(kCompressThreads) compress_keep(ds4_args_compress a, uint32_t first) {
    const Entries entries(a);
    const uint32_t pos = a.pos0 + first + blockIdx.x;
    const uint64_t slot = static_cast<uint64_t>(pos % a.ring) * a.width;
    float *state_k = at<float>(a.state_k) + slot, *state_s = at<float>(a.state_s) + slot;
    for (uint32_t c = threadIdx.x; c < a.width; c += kCompressThreads) {
        state_k[c] = entries.value(pos, c);
        state_s[c] = entries.score(pos, c);
    }
}

}  // namespace ds4::gpu
