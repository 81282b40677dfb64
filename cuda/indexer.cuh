// The indexer: scores of the visible compressed rows, and the rows that are kept.
//
// A score has the bits of the CPU's: the product of a head and a row is summed in the order of the dims, heads that are
// 16 apart are added in their order, and the 16 sums as a tree. So equal inputs give the same choice on every back end.
//
// The best rows are found exactly: bit by bit the largest key is found that enough rows reach. A block holds up to
// 8192 rows in registers; of more rows every stretch of 8192 keeps its best first, and the choice is made among those.
#pragma once

#include "values.cuh"

namespace ds4::gpu {

constexpr uint32_t kIndexRows = 64, kIndexHeads = 64, kIndexDims = 32, kIndexThreads = 256;
constexpr uint32_t kIndexPitch = kIndexRows + 1;  // keeps the lanes of a warp in different banks
static_assert(kIndexRows == kIndexHeads, "one pitch for both tiles");

__device__ __forceinline__ uint32_t visible_rows(const ds4_args_indexer &a, uint32_t t) {
    return (a.pos0 + t + 1) / a.ratio;
}

// ranks [token - first][most]: the scores of tokens from `first` on, as rank_of. Grid (stretches of 64 rows, tokens).
template <int kRowType>
__global__ void __launch_bounds__(kIndexThreads) index_scores(ds4_args_indexer a, uint32_t first, uint32_t most,
                                                              uint32_t *ranks) {
    DS4_SHARED(float, query, kIndexDims * kIndexPitch);  // [dim][head]
    DS4_SHARED(float, keys, kIndexDims * kIndexPitch);   // [dim][row]
    const uint32_t t = first + blockIdx.y, row0 = blockIdx.x * kIndexRows, tid = threadIdx.x;
    const uint32_t tx = tid % 16, ty = tid / 16, visible = visible_rows(a, t);
    if (row0 >= visible) return;
    const uint32_t n_rows = visible - row0 < kIndexRows ? visible - row0 : kIndexRows;
    const uint32_t lanes = (a.heads + 15) / 16 * 16;
    const uint64_t stride = row_bytes(a.row_type, a.dim);
    const uint8_t *rows = at<const uint8_t>(a.rows) + row0 * stride;
    const float *q = at<const float>(a.q) + static_cast<uint64_t>(t) * a.heads * a.dim;
    const float *w = at<const float>(a.weights) + static_cast<uint64_t>(t) * a.heads;

    float part[4] = {};  // of rows 4 ty.., heads tx + 16 i
    for (uint32_t head0 = 0; head0 < lanes; head0 += kIndexHeads) {
        float sum[4][4] = {};  // [head][row]
        for (uint32_t d0 = 0; d0 < a.dim; d0 += kIndexDims) {
            for (uint32_t i = tid; i < kIndexDims * kIndexRows; i += kIndexThreads) {
                const uint32_t d = i % kIndexDims, j = i / kIndexDims;
                const bool inside = d0 + d < a.dim;
                query[d * kIndexPitch + j] = inside && head0 + j < a.heads ? q[(head0 + j) * a.dim + d0 + d] : 0.0f;
                float x = 0.0f;
                if (inside && j < n_rows) x = load_value<kRowType>(rows + j * stride, d0 + d);
                keys[d * kIndexPitch + j] = x;
            }
            sync_block();
            for (uint32_t d = 0; d < kIndexDims; d++) {
                float x[4], y[4];
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    x[i] = query[d * kIndexPitch + tx + 16 * i];
                    y[i] = keys[d * kIndexPitch + 4 * ty + i];
                }
#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
#pragma unroll
                    for (uint32_t j = 0; j < 4; j++) sum[i][j] += x[i] * y[j];
            }
            sync_block();
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t h = head0 + 16 * i + tx;
            if (h >= lanes) break;
            const float weight = h < a.heads ? w[h] * a.scale : 0.0f;
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) part[j] += (sum[i][j] < 0.0f ? 0.0f : sum[i][j]) * weight;
        }
    }
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        for (int m = 8; m > 0; m /= 2) part[j] += warp_xor(part[j], m);
        const uint32_t row = 4 * ty + j;
        if (tx == 0 && row < n_rows) ranks[static_cast<uint64_t>(blockIdx.y) * most + row0 + row] = rank_of(part[j]);
    }
}

constexpr uint32_t kStretch = 8192, kSelectThreads = 256, kItems = kStretch / kSelectThreads;
constexpr uint32_t kFewThreads = 64;  // do where a stretch has no more than kItems for each

// What is left of `n` candidates when every stretch keeps its best `keep`.
__host__ __device__ inline uint32_t candidates_left(uint32_t n, uint32_t keep) {
    const uint32_t rest = n % kStretch;
    return n / kStretch * keep + (rest < keep ? rest : keep);
}

// Exclusive sum over the threads of a block of two counts below 65536; the sums of all in `total`.
__device__ __forceinline__ uint32_t scan_pair(uint32_t v, Shared<uint32_t> scratch, uint32_t *total) {
    uint32_t sum = v;
    for (int step = 1; step < kWarp; step *= 2) {
        const uint32_t below = warp_from(sum, lane() >= step ? lane() - step : lane());
        if (lane() >= step) sum += below;
    }
    if (lane() == kWarp - 1) scratch[warp_index()] = sum;
    sync_block();
    uint32_t before = 0, all = 0;
    for (int w = 0; w < warp_count(); w++) {
        if (w == warp_index()) before = all;
        all += uint32_t(scratch[w]);
    }
    sync_block();
    *total = all;
    return before + sum - v;
}

// A thread's items, and which of them the block keeps.
struct Selection {
    uint32_t at_least;     // items with a larger key are kept, and of those with this one the first `equal`
    uint32_t equal;
};

// The `keep` largest of all items of a block, keep >= 1 and at most the number of keys that are not 0.
__device__ __forceinline__ Selection find_largest(const uint32_t (&keys)[kItems], uint32_t keep,
                                                  Shared<uint32_t> scratch) {
    uint32_t bound = 0;
    for (int bit = 31; bit >= 0; bit--) {
        const uint32_t candidate = bound | 1u << bit;
        uint32_t count = 0;
#pragma unroll
        for (uint32_t i = 0; i < kItems; i++) count += keys[i] >= candidate;
        count = block_sum(count, scratch);
        if (count < keep) continue;
        bound = candidate;
        if (count == keep) return {bound - 1, 0};
    }
    uint32_t larger = 0;
#pragma unroll
    for (uint32_t i = 0; i < kItems; i++) larger += keys[i] > bound;
    return {bound, keep - block_sum(larger, scratch)};
}

// One pass of the choice. in_ranks [token][in_stride] with the rows that they belong to (in_rows, or NULL: rows in
// order). Grid (stretches, tokens from `first` on).
struct SelectPass {
    const uint32_t *in_ranks;
    const int32_t *in_rows;
    uint32_t *out_ranks;  // [token][out_stride]: the best top_k + 1 of each stretch, in order
    int32_t *out_rows;
    float *gaps;          // [token]
    uint32_t first, in_stride, out_stride, pass;  // pass: how many went before
};

// kLast: one stretch is left and the answer is written: rows, count, and the gap between the last one that was kept
// and the best one that was not.
template <bool kLast> __global__ void __launch_bounds__(kSelectThreads) index_select(ds4_args_indexer a, SelectPass p) {
    DS4_SHARED(uint32_t, scratch, kMostWarps);
    const uint32_t t = p.first + blockIdx.y, tid = threadIdx.x, top = a.top_k, visible = visible_rows(a, t);
    int32_t *selected = at<int32_t>(a.selected) + static_cast<uint64_t>(t) * top;
    if (kLast && tid == 0) at<int32_t>(a.counts)[t] = static_cast<int32_t>(visible < top ? visible : top);
    if (visible <= top) {  // all are read, and nothing was scored
        for (uint32_t i = tid; kLast && i < visible; i += blockDim.x) selected[i] = static_cast<int32_t>(i);
        if (kLast && tid == 0) p.gaps[blockIdx.y] = INFINITY;
        return;
    }
    uint32_t n = visible;
    for (uint32_t i = 0; i < p.pass; i++) n = candidates_left(n, top + 1);
    const uint32_t begin = blockIdx.x * kStretch;
    if (begin >= n) return;
    n = n - begin < kStretch ? n - begin : kStretch;

    // A thread has consecutive items, so that the kept ones come out in order.
    const uint64_t from = static_cast<uint64_t>(blockIdx.y) * p.in_stride + begin;
    const uint32_t each = (n + blockDim.x - 1) / blockDim.x, own = tid * each;
    uint32_t keys[kItems];
#pragma unroll
    for (uint32_t i = 0; i < kItems; i++) keys[i] = i < each && own + i < n ? p.in_ranks[from + own + i] : 0;

    const uint32_t wanted = kLast ? top : top + 1, keep = n < wanted ? n : wanted;
    const Selection s = find_largest(keys, keep, scratch);
    uint32_t counts = 0;  // low half: larger ones, high half: equal ones
#pragma unroll
    for (uint32_t i = 0; i < kItems; i++)
        if (keys[i]) counts += keys[i] > s.at_least ? 1u : keys[i] == s.at_least ? 1u << 16 : 0u;
    uint32_t total;
    const uint32_t before = scan_pair(counts, scratch, &total);
    uint32_t larger = before & 0xffffu, equal = before >> 16;
    uint32_t kept = 0xffffffffu, left = 0;  // the smallest key that is kept, the largest that is not
#pragma unroll
    for (uint32_t i = 0; i < kItems; i++) {
        if (keys[i] == 0) continue;
        const bool more = keys[i] > s.at_least, tie = keys[i] == s.at_least;
        if (more || (tie && equal < s.equal)) {
            const uint32_t place = larger + (equal < s.equal ? equal : s.equal);
            const int32_t row = p.in_rows ? p.in_rows[from + own + i] : static_cast<int32_t>(begin + own + i);
            if (kLast) {
                selected[place] = row;
            } else {
                const uint64_t to = static_cast<uint64_t>(blockIdx.y) * p.out_stride + blockIdx.x * (top + 1) + place;
                p.out_ranks[to] = keys[i];
                p.out_rows[to] = row;
            }
            kept = keys[i] < kept ? keys[i] : kept;
        } else {
            left = keys[i] > left ? keys[i] : left;
        }
        larger += more;
        equal += tie;
    }
    if (!kLast) return;
    kept = ~block_max(~kept, scratch);
    left = block_max(left, scratch);
    if (tid == 0) p.gaps[blockIdx.y] = value_of_rank(kept) - value_of_rank(left);
}

}  // namespace ds4::gpu
