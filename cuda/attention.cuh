// Attention over window and compressed rows with a sink.
//
// The keys of a token, window rows first, are taken in pieces of 64. A piece has its own largest score, weights, sum
// and weighted rows; pieces are then joined one after the other. That order is a part of the result: one block may go
// through all pieces (prefill), or each piece may have its block and a second kernel joins them (decode, long
// contexts), and the bits are the same.
//
// A row is key and value of all heads, so a block takes 8 heads and every element that it loads meets all of them.
#pragma once

#include "values.cuh"

namespace ds4::gpu {

constexpr uint32_t kPieceKeys = 64;
constexpr uint32_t kBlockHeads = 8;
constexpr uint32_t kAttentionThreads = 128;
constexpr uint32_t kMostHeadDim = 4 * kAttentionThreads;
constexpr uint32_t kKeysAtOnce = 4;  // of a warp; times kBlockHeads = 32 sums

// The sums of v[0, 2 * kHalf) over the lanes that differ in the bits of 2 * kHalf - 1: each lane keeps the halves that
// its bits say, at last v[0].
template <int kHalf> __device__ __forceinline__ void fold_lanes(float (&v)[32]) {
    const bool upper = lane() & kHalf;
#pragma unroll
    for (int i = 0; i < kHalf; i++) {
        const float keep = upper ? v[i + kHalf] : v[i], give = upper ? v[i] : v[i + kHalf];
        v[i] = keep + warp_xor(give, kHalf);
    }
    if constexpr (kHalf > 1) fold_lanes<kHalf / 2>(v);
}

// The sum of v[lane % 32] over the lanes of the warp, for 32 values in 31 shuffles.
__device__ __forceinline__ float transpose_sum(float (&v)[32]) {
    fold_lanes<16>(v);
    if constexpr (kWarp == 64) v[0] += warp_xor(v[0], 32);
    return v[0];
}

// The rows of one token in their order.
struct Keys {
    const uint8_t *window, *compressed;
    const int32_t *selected;
    uint64_t stride;
    uint32_t first, n_window, n_total, capacity;

    __device__ Keys(const ds4_args_attention &a, uint32_t t) {
        const uint32_t pos = a.pos0 + t;
        first = pos + 1 > a.window ? pos + 1 - a.window : 0;
        n_total = n_window = pos + 1 - first;
        stride = row_bytes(a.row_type, a.dim);
        capacity = a.capacity;
        window = at<const uint8_t>(a.window_rows);
        compressed = a.ratio ? at<const uint8_t>(a.compressed_rows) : nullptr;
        selected = a.ratio ? at<const int32_t>(a.selected) : nullptr;
        if (selected) {
            n_total += static_cast<uint32_t>(at<const int32_t>(a.counts)[t]);
            selected += static_cast<uint64_t>(t) * a.top_k;
        } else if (compressed) {
            n_total += (pos + 1) / a.ratio;
        }
    }
    __device__ const uint8_t *row(uint32_t i) const {
        if (i < n_window) return window + (first + i) % capacity * stride;
        i -= n_window;
        return compressed + (selected ? static_cast<uint32_t>(selected[i]) : i) * stride;
    }
    __device__ uint32_t pieces() const { return (n_total + kPieceKeys - 1) / kPieceKeys; }
};

// The softmax of a head over the pieces so far: largest logit, and the sum of weights relative to it. It begins with
// the sink, which takes weight and gives no value.
struct Softmax {
    float top, sum;
};

// What the weighted rows before (`old`) and of a new piece (`now`) are multiplied by when they are joined.
struct Factors {
    float old, now;
};

__device__ __forceinline__ Factors join(Softmax &s, Softmax piece) {
    const float top = greater(s.top, piece.top);
    const Factors f{exp_of(s.top - top), exp_of(piece.top - top)};
    s.sum = fmaf(piece.sum, f.now, s.sum * f.old);
    s.top = top;
    return f;
}

// Where the pieces of split tokens go: rows [token][piece][head][dim] and softmax [token][piece][head].
struct Pieces {
    float *rows;
    Softmax *softmax;
    uint32_t most;  // pieces of a token

    __device__ uint64_t index(uint32_t t, uint32_t piece, uint32_t head, uint32_t heads) const {
        return (static_cast<uint64_t>(t) * most + piece) * heads + head;
    }
};

// Grid (tokens x groups of heads, pieces or 1). kSplit: the block computes one piece and leaves it to attention_join.
template <int kRowType, bool kSplit>
__global__ void __launch_bounds__(kAttentionThreads) attention_kernel(ds4_args_attention a, Pieces out) {
    DS4_SHARED(float, query, kBlockHeads * kMostHeadDim);     // [head][dim]
    DS4_SHARED(float, weights, kPieceKeys * kBlockHeads);     // [key][head]: scores, then weights
    DS4_SHARED(const uint8_t *, rows, kPieceKeys);
    DS4_SHARED(Softmax, softmax, kBlockHeads);
    DS4_SHARED(Factors, factors, kBlockHeads);
    const uint32_t groups = (a.heads + kBlockHeads - 1) / kBlockHeads;
    const uint32_t t = blockIdx.x / groups, head0 = blockIdx.x % groups * kBlockHeads;
    const uint32_t tid = threadIdx.x, fours = a.dim / 4;
    const uint32_t heads = a.heads - head0 < kBlockHeads ? a.heads - head0 : kBlockHeads;
    const Keys keys(a, t);
    const uint32_t first = kSplit ? blockIdx.y : 0, end = kSplit ? first + 1 : keys.pieces();
    if (first >= keys.pieces()) return;

    const float *q = at<const float>(a.q) + (static_cast<uint64_t>(t) * a.heads + head0) * a.dim;
    for (uint32_t i = tid; i < kBlockHeads * a.dim; i += kAttentionThreads) query[i] = i < heads * a.dim ? q[i] : 0.0f;
    if (!kSplit && tid < kBlockHeads)
        softmax[tid] = Softmax{tid < heads ? at<const float>(a.sinks)[head0 + tid] : 0.0f, 1.0f};

    float sum[kBlockHeads][4] = {};  // of rows so far, dims 4 tid..
    for (uint32_t piece = first; piece < end; piece++) {
        const uint32_t begin = piece * kPieceKeys;
        const uint32_t n = keys.n_total - begin < kPieceKeys ? keys.n_total - begin : kPieceKeys;
        if (tid < n) rows[tid] = keys.row(begin + tid);
        sync_block();

        // Scores: a warp takes 4 keys at a time, its lanes share the dims.
        for (uint32_t key = warp_index() * kKeysAtOnce; key < n; key += warp_count() * kKeysAtOnce) {
            float part[32] = {};
            const uint8_t *row[kKeysAtOnce];
#pragma unroll
            for (uint32_t j = 0; j < kKeysAtOnce; j++) row[j] = rows[key + j < n ? key + j : n - 1];
            for (uint32_t d = lane(); d < fours; d += kWarp) {
                Four k[kKeysAtOnce];
#pragma unroll
                for (uint32_t j = 0; j < kKeysAtOnce; j++) k[j] = load_four<kRowType>(row[j], 4 * d);
#pragma unroll
                for (uint32_t h = 0; h < kBlockHeads; h++)
#pragma unroll
                    for (uint32_t i = 0; i < 4; i++) {
                        const float x = query[(h * fours + d) * 4 + i];
#pragma unroll
                        for (uint32_t j = 0; j < kKeysAtOnce; j++)
                            part[j * kBlockHeads + h] = fmaf(x, k[j].v[i], part[j * kBlockHeads + h]);
                    }
            }
            const float score = transpose_sum(part);
            const uint32_t l = lane();
            if (l < 32 && key + l / kBlockHeads < n) weights[key * kBlockHeads + l] = score * a.scale;
        }
        sync_block();

        // Weights relative to the largest score: a warp takes a head, its lanes the keys.
        for (uint32_t h = warp_index(); h < kBlockHeads; h += warp_count()) {
            float top = -kLargestFloat, total = 0.0f;  // a NaN is left out here and spreads through its exponential
            for (uint32_t key = lane(); key < n; key += kWarp) top = greater(top, weights[key * kBlockHeads + h]);
            top = warp_max(top);
            for (uint32_t key = lane(); key < n; key += kWarp) {
                const float w = exp_of(weights[key * kBlockHeads + h] - top);
                weights[key * kBlockHeads + h] = w;
                total += w;
            }
            total = warp_sum(total);
            if (lane() == 0) {
                const Softmax own{top, total};
                if (kSplit) {
                    if (h < heads) out.softmax[out.index(t, piece, head0 + h, a.heads)] = own;
                } else {
                    Softmax s = softmax[h];
                    factors[h] = join(s, own);
                    softmax[h] = s;
                }
            }
        }
        sync_block();

        // Weighted rows: a thread takes 4 dims of all heads.
        if (tid < fours) {
            float now[kBlockHeads][4] = {};
            for (uint32_t key = 0; key < n; key++) {
                const Four v = load_four<kRowType>(rows[key], 4 * tid);
#pragma unroll
                for (uint32_t h = 0; h < kBlockHeads; h++) {
                    const float w = weights[key * kBlockHeads + h];
#pragma unroll
                    for (uint32_t i = 0; i < 4; i++) now[h][i] = fmaf(w, v.v[i], now[h][i]);
                }
            }
#pragma unroll
            for (uint32_t h = 0; h < kBlockHeads; h++) {
                if (kSplit) {
#pragma unroll
                    for (uint32_t i = 0; i < 4; i++) sum[h][i] = now[h][i];
                } else {
                    const Factors f = factors[h];
#pragma unroll
                    for (uint32_t i = 0; i < 4; i++) sum[h][i] = fmaf(now[h][i], f.now, sum[h][i] * f.old);
                }
            }
        }
        sync_block();
    }
    if (tid >= fours) return;
#pragma unroll
    for (uint32_t h = 0; h < kBlockHeads; h++) {
        if (h >= heads) break;
        float *to = kSplit ? out.rows + out.index(t, first, head0 + h, a.heads) * a.dim
                           : at<float>(a.out) + (static_cast<uint64_t>(t) * a.heads + head0 + h) * a.dim;
        float scale = 1.0f;
        if (!kSplit) {
            const Softmax s = softmax[h];
            scale = 1.0f / s.sum;
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) to[4 * tid + i] = sum[h][i] * scale;
    }
}

// Joins the pieces of each token in their order. Grid: tokens x heads.
static __global__ void __launch_bounds__(kAttentionThreads) attention_join(ds4_args_attention a, Pieces in) {
    const uint32_t head = blockIdx.x % a.heads, t = blockIdx.x / a.heads, pieces = Keys(a, t).pieces();
    if (4 * threadIdx.x >= a.dim) return;
    Softmax s{at<const float>(a.sinks)[head], 1.0f};
    float sum[4] = {};
    for (uint32_t piece = 0; piece < pieces; piece++) {
        const uint64_t index = in.index(t, piece, head, a.heads);
        const Four now = load_four<DS4_ROW_F32>(reinterpret_cast<const uint8_t *>(in.rows + index * a.dim),
                                                4 * threadIdx.x);
        const Factors f = join(s, in.softmax[index]);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) sum[i] = fmaf(now.v[i], f.now, sum[i] * f.old);
    }
    const float scale = 1.0f / s.sum;
    float *to = at<float>(a.out) + (static_cast<uint64_t>(t) * a.heads + head) * a.dim + 4 * threadIdx.x;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) to[i] = sum[i] * scale;
}

}  // namespace ds4::gpu
