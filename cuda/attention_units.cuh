// Attention with matrix units, for rows stored as halves: 16 heads at a time are the rows of a tile, keys or dims its
// columns.
//
// Rows are exact as halves; queries and weights are split in two halves each and both parts are multiplied, so that the
// result is as close to float32 as the plain kernel's. Pieces, their joining and the split over blocks are those of
// attention.cuh: one token has the same bits alone and in a chunk.
#pragma once

#include "attention.cuh"
#include "half_unit.cuh"

namespace ds4::gpu {

constexpr uint32_t kUnitWarps = 4;
constexpr uint32_t kUnitThreads = kUnitWarps * kWarp;
constexpr uint32_t kUnitHeads = kUnitRows;
constexpr uint32_t kSliceWords = 64;                  // of 128 dims, staged at a time
constexpr uint32_t kSlicePitch = kSliceWords + 4;     // words; lanes of a warp meet different banks
constexpr uint32_t kMostSlices = 4;                   // 512 dims
constexpr uint32_t kPairPitch = kPieceKeys / 2 + 4;   // words of weights, two keys each

__host__ __device__ inline uint32_t unit_slices(uint32_t dim) { return (dim / 2 + kSliceWords - 1) / kSliceWords; }
__host__ __device__ inline uint32_t unit_query_pitch(uint32_t dim) { return unit_slices(dim) * kSliceWords + 4; }
// Of the dynamic shared memory: both halves of the queries, and one slice of the keys.
__host__ __device__ inline uint32_t unit_words(uint32_t dim) {
    return 2 * kUnitHeads * unit_query_pitch(dim) + kPieceKeys * kSlicePitch;
}

// A power of two that brings the largest of a row's values near 1, for halves.
__device__ __forceinline__ float near_one(float largest) {
    const uint32_t exponent = as_bits(largest) >> 23;
    return exponent == 0 || exponent >= 253 ? 1.0f : as_float((254u - exponent) << 23);
}

template <class U> struct UnitTile {
    uint32_t a[U::kA];
    // Words [word, word + 8) of 16 rows.
    __device__ __forceinline__ void load(Shared<uint32_t> rows, uint32_t pitch, uint32_t word) {
#pragma unroll
        for (int i = 0; i < U::kA; i++)
            a[i] = rows[U::a_row(lane(), i) * pitch + word + U::a_word(lane(), i)];
    }
};

// The slice `slice` of the rows of a piece; rows that do not exist, and dims, are 0.
__device__ __forceinline__ void stage_slice(Shared<uint32_t> keys, Shared<const uint8_t *> rows, uint32_t n,
                                            uint32_t dim, uint32_t slice) {
    constexpr uint32_t kParts = kSliceWords / 4;
    for (uint32_t i = threadIdx.x; i < kPieceKeys * kParts; i += kUnitThreads) {
        const uint32_t key = i / kParts, word = i % kParts * 4, first = (slice * kSliceWords + word) * 2;
        uint32_t v[4] = {};
        if (key < n && first < dim) {
            const uint8_t *row = rows[key];
            memcpy(v, __builtin_assume_aligned(row + first * 2, 16), 16);
        }
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) keys[key * kSlicePitch + word + j] = v[j];
    }
}

// Grid (tokens x groups of 16 heads, pieces or 1), as attention_kernel. dim: a multiple of 8, at most 512.
template <class U, bool kSplit>
__global__ void __launch_bounds__(kUnitThreads) attention_units(ds4_args_attention a, Pieces out) {
    constexpr uint32_t kKeyTiles = kPieceKeys / kUnitWarps / U::kCols;       // of a warp
    constexpr uint32_t kDimTiles = 2 * kSliceWords / kUnitWarps / U::kCols;  // of a warp, in a slice
    static_assert(kKeyTiles >= 1 && kDimTiles % 2 == 0, "tiles of dims go in pairs");
    DS4_DYNAMIC_SHARED(uint32_t, words);
    DS4_SHARED(float, scores, kUnitHeads * (kPieceKeys + 1));
    DS4_SHARED(uint32_t, high, kUnitHeads * kPairPitch);  // weights [head][pair of keys]
    DS4_SHARED(uint32_t, low, kUnitHeads * kPairPitch);
    DS4_SHARED(const uint8_t *, rows, kPieceKeys);
    DS4_SHARED(Softmax, softmax, kUnitHeads);
    DS4_SHARED(Factors, factors, kUnitHeads);
    DS4_SHARED(float, scale_of, kUnitHeads);
    const uint32_t groups = (a.heads + kUnitHeads - 1) / kUnitHeads;
    const uint32_t pitch = unit_query_pitch(a.dim), slices = unit_slices(a.dim);
    const uint32_t t = blockIdx.x / groups, head0 = blockIdx.x % groups * kUnitHeads, tid = threadIdx.x;
    const uint32_t heads = a.heads - head0 < kUnitHeads ? a.heads - head0 : kUnitHeads;
    const uint32_t me = static_cast<uint32_t>(lane()), warp = static_cast<uint32_t>(warp_index());
    const Keys keys(a, t);
    const uint32_t first = kSplit ? blockIdx.y : 0, end = kSplit ? first + 1 : keys.pieces();
    if (first >= keys.pieces()) return;
    const auto query_high = words, query_low = words + kUnitHeads * pitch, slice_keys = words + 2 * kUnitHeads * pitch;

    // Queries as halves near 1; the scores get the factor back.
    for (uint32_t h = warp; h < kUnitHeads; h += kUnitWarps) {
        const float *q = at<const float>(a.q) + (static_cast<uint64_t>(t) * a.heads + head0 + h) * a.dim;
        float largest = 0.0f;
        for (uint32_t d = me; h < heads && d < a.dim; d += kWarp) largest = greater(largest, fabsf(q[d]));
        const float factor = near_one(warp_max(largest));
        for (uint32_t w = me; w < pitch; w += kWarp) {
            Halves x{0, 0}, y{0, 0};
            if (h < heads && 2 * w < a.dim) x = halves_of(q[2 * w] * factor), y = halves_of(q[2 * w + 1] * factor);
            query_high[h * pitch + w] = x.high | static_cast<uint32_t>(y.high) << 16;
            query_low[h * pitch + w] = x.low | static_cast<uint32_t>(y.low) << 16;
        }
        if (me == 0) {
            scale_of[h] = a.scale / factor;
            softmax[h] = Softmax{h < heads ? at<const float>(a.sinks)[head0 + h] : 0.0f, 1.0f};
        }
    }

    float sum[kMostSlices][kDimTiles][U::kOut] = {};
    for (uint32_t piece = first; piece < end; piece++) {
        const uint32_t begin = piece * kPieceKeys;
        const uint32_t n = keys.n_total - begin < kPieceKeys ? keys.n_total - begin : kPieceKeys;
        if (tid < n) rows[tid] = keys.row(begin + tid);
        sync_block();

        // Scores: every warp has 16 keys.
        float score[kKeyTiles][U::kOut] = {};
        for (uint32_t slice = 0; slice < slices; slice++) {
            stage_slice(slice_keys, rows, n, a.dim, slice);
            sync_block();
            for (uint32_t word = 0; word < kSliceWords; word += kUnitWords) {
                UnitTile<U> q_high, q_low;
                q_high.load(query_high, pitch, slice * kSliceWords + word);
                q_low.load(query_low, pitch, slice * kSliceWords + word);
#pragma unroll
                for (uint32_t tile = 0; tile < kKeyTiles; tile++) {
                    const uint32_t key = (warp * kKeyTiles + tile) * U::kCols + U::b_col(lane());
                    uint32_t b[U::kB];
#pragma unroll
                    for (int i = 0; i < U::kB; i++)
                        b[i] = slice_keys[key * kSlicePitch + word + U::b_word(lane(), i)];
                    U::multiply_add(score[tile], q_low.a, b);
                    U::multiply_add(score[tile], q_high.a, b);
                }
            }
            sync_block();
        }
#pragma unroll
        for (uint32_t tile = 0; tile < kKeyTiles; tile++)
#pragma unroll
            for (int i = 0; i < U::kOut; i++) {
                const uint32_t h = U::out_row(lane(), i);
                const uint32_t key = (warp * kKeyTiles + tile) * U::kCols + U::out_col(lane(), i);
                scores[h * (kPieceKeys + 1) + key] = score[tile][i] * scale_of[h];
            }
        sync_block();

        // Weights: a warp takes 4 heads one after the other, a lane two keys that are neighbours.
        for (uint32_t h = warp; h < kUnitHeads; h += kUnitWarps) {
            const uint32_t key = 2 * me, row = h * (kPieceKeys + 1);
            const bool first_in = key < n, second_in = key + 1 < n;
            const float x = first_in ? float(scores[row + key]) : 0.0f;
            const float y = second_in ? float(scores[row + key + 1]) : 0.0f;
            float top = -kLargestFloat;
            if (first_in) top = greater(top, x);
            if (second_in) top = greater(top, y);
            top = warp_max(top);
            const float u = first_in ? exp_of(x - top) : 0.0f, v = second_in ? exp_of(y - top) : 0.0f;
            const float total = warp_sum(u + v);
            if (key < kPieceKeys) {
                const Halves p = halves_of(u), r = halves_of(v);
                high[h * kPairPitch + me] = p.high | static_cast<uint32_t>(r.high) << 16;
                low[h * kPairPitch + me] = p.low | static_cast<uint32_t>(r.low) << 16;
            }
            if (me == 0) {
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

        // Weighted rows: in each slice a warp has 32 dims; the columns of two tiles are dims that are neighbours.
#pragma unroll
        for (uint32_t slice = 0; slice < kMostSlices; slice++) {
            if (slice >= slices) break;
            if (slices > 1) stage_slice(slice_keys, rows, n, a.dim, slice);  // else it is still there
            sync_block();
            float now[kDimTiles][U::kOut] = {};
            for (uint32_t word = 0; word < kPieceKeys / 2; word += kUnitWords) {
                UnitTile<U> w_high, w_low;
                w_high.load(high, kPairPitch, word);
                w_low.load(low, kPairPitch, word);
#pragma unroll
                for (uint32_t tile = 0; tile < kDimTiles; tile += 2) {
                    const uint32_t column = (warp * kDimTiles + tile) / 2 * U::kCols + U::b_col(lane());
                    uint32_t even[U::kB], odd[U::kB];
#pragma unroll
                    for (int i = 0; i < U::kB; i++) {
                        const uint32_t key = 2 * (word + U::b_word(lane(), i));
                        const uint32_t x = slice_keys[key * kSlicePitch + column];
                        const uint32_t y = slice_keys[(key + 1) * kSlicePitch + column];
                        even[i] = (x & 0xffffu) | y << 16;
                        odd[i] = x >> 16 | (y & 0xffff0000u);
                    }
                    U::multiply_add(now[tile], w_low.a, even);
                    U::multiply_add(now[tile], w_high.a, even);
                    U::multiply_add(now[tile + 1], w_low.a, odd);
                    U::multiply_add(now[tile + 1], w_high.a, odd);
                }
            }
#pragma unroll
            for (int i = 0; i < U::kOut; i++) {
                Factors f{0.0f, 1.0f};
                if (!kSplit) f = factors[U::out_row(lane(), i)];
#pragma unroll
                for (uint32_t tile = 0; tile < kDimTiles; tile++)
                    sum[slice][tile][i] = fmaf(now[tile][i], f.now, sum[slice][tile][i] * f.old);
            }
            sync_block();
        }
    }
#pragma unroll
    for (int i = 0; i < U::kOut; i++) {
        const uint32_t h = U::out_row(lane(), i), head = head0 + h;
        if (h >= heads) continue;
        float *to = kSplit ? out.rows + out.index(t, first, head, a.heads) * a.dim
                           : at<float>(a.out) + (static_cast<uint64_t>(t) * a.heads + head) * a.dim;
        float scale = 1.0f;
        if (!kSplit) {
            const Softmax s = softmax[h];
            scale = 1.0f / s.sum;
        }
#pragma unroll
        for (uint32_t slice = 0; slice < kMostSlices; slice++)
#pragma unroll
            for (uint32_t tile = 0; tile < kDimTiles; tile++) {
                const uint32_t column = (warp * kDimTiles + tile) / 2 * U::kCols + U::out_col(lane(), i);
                const uint32_t d = 2 * (slice * kSliceWords + column) + tile % 2;
                if (d < a.dim) to[d] = sum[slice][tile][i] * scale;
            }
    }
}

}  // namespace ds4::gpu
