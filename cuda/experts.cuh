// Kernels of the routed experts. The (token, choice) pairs of a chunk are sorted by expert, then token, and cut into tiles:
// runs of pairs of one expert. Pair numbers index the middle rows. As on the CPU, what a token's experts give is added in
// ascending order of the experts.
#pragma once

#include "few_tokens.cuh"
#include "float_tiles.cuh"
#include "tiles.cuh"

namespace ds4::gpu {

constexpr uint32_t kMostExperts = 1024;
constexpr uint32_t kMostChoices = 64;
constexpr uint32_t kSegment = 256;  // pairs that a thread block sorts

struct ExpertTile {
    uint32_t expert, first, count, unused;
};

// The sorted pairs, in work space.
struct Sorted {
    uint32_t *first;   // [n_expert + 1] pair numbers
    uint32_t *counts;  // [segments][n_expert]: pairs of the segment, later those of all earlier segments
    uint32_t *token;   // [pairs]
    float *weight;     // [pairs]
    uint32_t *number;  // [token][choice]: the pair's number
    ExpertTile *tiles;
    uint32_t *n_tiles;
};

struct SortArgs {
    const int32_t *ids;     // [pairs]
    const float *weights;   // [pairs]
    const uint8_t *chosen;  // [n_expert] or NULL
    uint32_t n_pairs, k, n_expert, tile;  // most pairs of a tile
    Sorted out;

    __device__ __forceinline__ uint32_t n_segments() const { return (n_pairs + kSegment - 1) / kSegment; }
    __device__ __forceinline__ bool has(uint32_t e) const { return !chosen || chosen[e]; }
};

// A segment's ids into shared memory; how many they are.
__device__ __forceinline__ uint32_t load_segment(const SortArgs &a, uint32_t segment, Shared<int32_t> ids) {
    const uint32_t first = segment * kSegment, count = a.n_pairs - first < kSegment ? a.n_pairs - first : kSegment;
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) ids[i] = a.ids[first + i];
    sync_block();
    return count;
}

__device__ __forceinline__ void count_pairs(const SortArgs &a, uint32_t segment, Shared<int32_t> ids, uint32_t n) {
    for (uint32_t e = threadIdx.x; e < a.n_expert; e += blockDim.x) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < n; i++) count += int32_t(ids[i]) == static_cast<int32_t>(e);
        a.out.counts[segment * a.n_expert + e] = count;
    }
}

// By one thread block of kFewThreads: where the pairs of each expert begin, and its tiles.
__device__ __forceinline__ void place_pairs(const SortArgs &a) {
    constexpr uint32_t kEach = kMostExperts / kFewThreads;  // experts of a thread
    DS4_SHARED(uint64_t, sums, 2 * kFewThreads);            // pairs, and tiles in the high half
    const uint32_t e0 = threadIdx.x * kEach;
    uint32_t count[kEach];
    uint64_t own = 0;
#pragma unroll
    for (uint32_t j = 0; j < kEach; j++) {
        count[j] = 0;
        if (e0 + j >= a.n_expert) continue;
        for (uint32_t s = 0; s < a.n_segments(); s++) {
            uint32_t &at = a.out.counts[s * a.n_expert + e0 + j];
            const uint32_t here = at;
            at = count[j];
            count[j] += here;
        }
        own += count[j];
        if (a.has(e0 + j)) own += static_cast<uint64_t>((count[j] + a.tile - 1) / a.tile) << 32;
    }
    uint32_t from = 0;
    sums[threadIdx.x] = own;
    sync_block();
    for (uint32_t step = 1; step < kFewThreads; step *= 2) {
        uint64_t sum = sums[from + threadIdx.x];
        if (threadIdx.x >= step) sum += uint64_t(sums[from + threadIdx.x - step]);
        from = kFewThreads - from;
        sums[from + threadIdx.x] = sum;
        sync_block();
    }
    const uint64_t before = uint64_t(sums[from + threadIdx.x]) - own;
    uint32_t pair = static_cast<uint32_t>(before), tile = static_cast<uint32_t>(before >> 32);
#pragma unroll
    for (uint32_t j = 0; j < kEach; j++) {
        const uint32_t e = e0 + j;
        if (e >= a.n_expert) continue;
        a.out.first[e] = pair;
        if (a.has(e))
            for (uint32_t i = 0; i < count[j]; i += a.tile)
                a.out.tiles[tile++] = {e, pair + i, count[j] - i < a.tile ? count[j] - i : a.tile, 0};
        pair += count[j];
    }
    if (threadIdx.x == kFewThreads - 1) {
        a.out.first[a.n_expert] = pair;
        *a.out.n_tiles = tile;
    }
}

__device__ __forceinline__ void number_pairs(const SortArgs &a, uint32_t segment, Shared<int32_t> ids, uint32_t n) {
    const uint32_t first = segment * kSegment;
    for (uint32_t e = threadIdx.x; e < a.n_expert; e += blockDim.x) {
        uint32_t pair = a.out.first[e] + a.out.counts[segment * a.n_expert + e];
        for (uint32_t i = 0; i < n; i++) {
            if (int32_t(ids[i]) != static_cast<int32_t>(e)) continue;
            a.out.token[pair] = (first + i) / a.k;
            a.out.weight[pair] = a.weights[first + i];
            a.out.number[first + i] = pair++;
        }
    }
}

// All pairs in one segment, by one thread block; or many, by three launches.
__global__ void __launch_bounds__(kFewThreads) sort_few_pairs(SortArgs a) {
    DS4_SHARED(int32_t, ids, kSegment);
    const uint32_t n = load_segment(a, 0, ids);
    count_pairs(a, 0, ids, n);
    sync_block();
    place_pairs(a);
    sync_block();
    number_pairs(a, 0, ids, n);
}
__global__ void __launch_bounds__(kFewThreads) count_pairs_of_segments(SortArgs a) {
    DS4_SHARED(int32_t, ids, kSegment);
    count_pairs(a, blockIdx.x, ids, load_segment(a, blockIdx.x, ids));
}
__global__ void __launch_bounds__(kFewThreads) place_all_pairs(SortArgs a) { place_pairs(a); }
__global__ void __launch_bounds__(kFewThreads) number_pairs_of_segments(SortArgs a) {
    DS4_SHARED(int32_t, ids, kSegment);
    number_pairs(a, blockIdx.x, ids, load_segment(a, blockIdx.x, ids));
}

// ---- products ----

// One of the three matrices of all experts, stacked or each at its place.
struct ExpertStack {
    ds4_weight w;
    const ds4_expert_place *places;  // or NULL
    uint32_t part;                   // 0 gate, 1 up, 2 down

    __device__ __forceinline__ const uint8_t *matrix(uint32_t expert) const {
        uint64_t offset = expert * w.matrix_stride;
        if (places) {
            const ds4_expert_place p = places[expert];
            offset = part == 0 ? p.gate : part == 1 ? p.up : p.down;
        }
        return at<const uint8_t>(w.data) + offset;
    }
};

enum ExpertStep : uint32_t {
    kStepGate,  // middle rows = the gate's product
    kStepUp,    // middle rows = the activation function of themselves and the up product
    kStepDown   // parts = the down product
};

// The product of rows [0, w.n_out) of a matrix of every expert with its pairs.
struct ExpertArgs {
    ExpertStack stack;
    Sorted pairs;
    Rounded rounded;  // of tokens for gate and up, of pairs for down; or
    const float *x;   // the same as float32, w.n_in apart
    float *out;       // [pair][out_stride]
    uint32_t first_row, n_rows, out_stride;  // the rows of this launch; row first_row is column 0 of `out`
    uint32_t step;
    float clamp;

    __device__ __forceinline__ uint32_t input(uint32_t pair) const { return step == kStepDown ? pair : pairs.token[pair]; }
    __device__ __forceinline__ void store(uint32_t pair, uint32_t r, float sum) const {
        float *y = out + uint64_t{pair} * out_stride + r;
        *y = step == kStepUp ? swiglu(*y, sum, pairs.weight[pair], clamp) : sum;
    }
};

// blockIdx.x counts rows, blockIdx.y tiles of up to N pairs.
template <class F, int N> __global__ void __launch_bounds__(kFewThreads) experts_few(ExpertArgs a, int rows_at_once) {
    if (blockIdx.y >= *a.pairs.n_tiles) return;
    const ExpertTile tile = a.pairs.tiles[blockIdx.y];
    const uint8_t *matrix = a.stack.matrix(tile.expert);
    const uint32_t first = blockIdx.x * static_cast<uint32_t>(rows_at_once);
    few_products<F, N>(
        rows_at_once, a.stack.w.n_in, static_cast<int>(tile.count), a.rounded,
        [&](int v) {
            const uint32_t r = first + static_cast<uint32_t>(v);
            return r < a.n_rows ? matrix + (a.first_row + r) * a.stack.w.row_stride : nullptr;
        },
        [&](int, int t) { return a.input(tile.first + static_cast<uint32_t>(t)); },
        [&](int v, int t, float sum) { a.store(tile.first + static_cast<uint32_t>(t), first + static_cast<uint32_t>(v), sum); });
}

// Gate and up at once, of the same type: even rows of a thread block are the gate's, odd rows those of up.
template <class F, int N> __global__ void __launch_bounds__(kFewThreads) experts_few_gate_up(ExpertArgs a, ExpertStack up, int rows_at_once) {
    DS4_SHARED(float, both, kMostRowsAtOnce * N);
    if (blockIdx.y >= *a.pairs.n_tiles) return;
    const ExpertTile tile = a.pairs.tiles[blockIdx.y];
    const uint8_t *of_gate = a.stack.matrix(tile.expert), *of_up = up.matrix(tile.expert);
    const uint32_t first = blockIdx.x * static_cast<uint32_t>(rows_at_once) / 2;
    few_products<F, N>(
        rows_at_once, a.stack.w.n_in, static_cast<int>(tile.count), a.rounded,
        [&](int v) -> const uint8_t * {
            const uint32_t r = first + static_cast<uint32_t>(v / 2);
            if (r >= a.n_rows) return nullptr;
            return v % 2 ? of_up + r * up.w.row_stride : of_gate + r * a.stack.w.row_stride;
        },
        [&](int, int t) { return a.input(tile.first + static_cast<uint32_t>(t)); }, [&](int v, int t, float sum) { both[v * N + t] = sum; });
    sync_block();
    const uint32_t v = threadIdx.x / N, t = threadIdx.x % N, r = first + v;
    if (2 * v >= static_cast<uint32_t>(rows_at_once) || r >= a.n_rows || t >= tile.count) return;
    const uint32_t pair = tile.first + t;
    a.out[uint64_t{pair} * a.out_stride + r] = swiglu(both[2 * v * N + t], both[(2 * v + 1) * N + t], a.pairs.weight[pair], a.clamp);
}

// Tiles of up to kTileTokens pairs.
template <class F, class Unit> __global__ void __launch_bounds__(kTileThreads) experts_tiles(ExpertArgs a) {
    if (blockIdx.y >= *a.pairs.n_tiles) return;
    const ExpertTile tile = a.pairs.tiles[blockIdx.y];
    const uint32_t r0 = blockIdx.x * kTileRows, n_rows = a.n_rows - r0 < kTileRows ? a.n_rows - r0 : kTileRows;
    const uint8_t *rows = a.stack.matrix(tile.expert) + (a.first_row + r0) * a.stack.w.row_stride;
    tile_products<F, Unit>(
        static_cast<int>(n_rows), static_cast<int>(tile.count), a.stack.w.n_in, a.rounded,
        [&](int r) { return rows + static_cast<uint64_t>(r) * a.stack.w.row_stride; },
        [&](int t) { return a.input(tile.first + static_cast<uint32_t>(t)); },
        [&](int r, int t, float sum) { a.store(tile.first + static_cast<uint32_t>(t), r0 + static_cast<uint32_t>(r), sum); });
}

// With float32 activations: tiles of up to N or kFloatTileTokens pairs.
template <class F, int N> __global__ void __launch_bounds__(kFewThreads) experts_few_float(ExpertArgs a) {
    if (blockIdx.y >= *a.pairs.n_tiles) return;
    const ExpertTile tile = a.pairs.tiles[blockIdx.y];
    const uint8_t *matrix = a.stack.matrix(tile.expert);
    const uint32_t first = blockIdx.x * (kFewThreads / 32);
    few_float_products<F, N>(
        a.stack.w.n_in, static_cast<int>(tile.count),
        [&](int v) {
            const uint32_t r = first + static_cast<uint32_t>(v);
            return r < a.n_rows ? matrix + (a.first_row + r) * a.stack.w.row_stride : nullptr;
        },
        [&](int, int t) { return a.x + uint64_t{a.input(tile.first + static_cast<uint32_t>(t))} * a.stack.w.n_in; },
        [&](int v, int t, float sum) { a.store(tile.first + static_cast<uint32_t>(t), first + static_cast<uint32_t>(v), sum); });
}
template <class F> __global__ void __launch_bounds__(kFloatTileThreads) experts_float_tiles(ExpertArgs a) {
    if (blockIdx.y >= *a.pairs.n_tiles) return;
    const ExpertTile tile = a.pairs.tiles[blockIdx.y];
    const uint32_t r0 = blockIdx.x * kFloatTileRows, n_rows = a.n_rows - r0 < kFloatTileRows ? a.n_rows - r0 : kFloatTileRows;
    const uint8_t *rows = a.stack.matrix(tile.expert) + (a.first_row + r0) * a.stack.w.row_stride;
    float_tile_products<F>(
        static_cast<int>(n_rows), static_cast<int>(tile.count), a.stack.w.n_in,
        [&](int r) { return rows + static_cast<uint64_t>(r) * a.stack.w.row_stride; },
        [&](int t) { return a.x + uint64_t{a.input(tile.first + static_cast<uint32_t>(t))} * a.stack.w.n_in; },
        [&](int r, int t, float sum) { a.store(tile.first + static_cast<uint32_t>(t), r0 + static_cast<uint32_t>(r), sum); });
}

// ---- after the products ----

struct AddArgs {
    const float *parts;     // [pair][n_columns]
    const uint32_t *number;  // [token][k]
    const int32_t *ids;
    const uint8_t *chosen;  // or NULL
    float *y;               // [token][y_stride], the columns of the parts
    uint32_t k, n_columns, y_stride;
    bool add;  // to what y holds
};

// y[token] (+)= the parts of its pairs in ascending order. blockIdx.x is the token, blockIdx.y counts columns.
__global__ void __launch_bounds__(kFewThreads) add_expert_parts(AddArgs a) {
    DS4_SHARED(uint32_t, numbers, kMostChoices);
    DS4_SHARED(uint32_t, sorted, kMostChoices);
    constexpr uint32_t kNone = 0xffffffff;
    const uint32_t token = blockIdx.x, j = threadIdx.x;
    if (j < a.k) {
        const uint64_t pair = uint64_t{token} * a.k + j;
        numbers[j] = !a.chosen || a.chosen[a.ids[pair]] ? a.number[pair] : kNone;
    }
    sync_block();
    if (j < a.k) {
        const uint32_t own = numbers[j];
        uint32_t rank = 0;  // those that are left out come last, in any order of their own
        for (uint32_t i = 0; i < a.k; i++) {
            const uint32_t other = numbers[i];
            rank += other < own || (other == own && i < j);
        }
        sorted[rank] = own;
    }
    sync_block();
    const uint32_t c = blockIdx.y * blockDim.x + threadIdx.x;
    if (c >= a.n_columns) return;
    float *y = a.y + uint64_t{token} * a.y_stride + c;
    float sum = a.add ? *y : 0.0f;
    for (uint32_t i = 0; i < a.k; i++) {
        const uint32_t pair = sorted[i];
        if (pair == kNone) break;
        sum = add(sum, a.parts[uint64_t{pair} * a.n_columns + c]);
    }
    *y = sum;
}

struct SquareArgs {
    Sorted pairs;
    const uint8_t *chosen;  // or NULL
    const float *rows;      // [token or pair][width]
    double *sums;           // [n_expert][width]
    uint64_t *counts;       // [n_expert], or NULL: not with these rows
    uint32_t width;
    bool of_tokens;
};

// The squares of the rows of every pair, added to the sums of its expert in order. blockIdx.x counts columns, blockIdx.y is
// the expert.
__global__ void __launch_bounds__(kFewThreads) add_expert_squares(SquareArgs a) {
    const uint32_t e = blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x, first = a.pairs.first[e], end = a.pairs.first[e + 1];
    if (first == end || (a.chosen && !a.chosen[e]) || c >= a.width) return;
    double sum = a.sums[uint64_t{e} * a.width + c];
    for (uint32_t s = first; s < end; s++) {
        const double x = static_cast<double>(a.rows[uint64_t{a.of_tokens ? a.pairs.token[s] : s} * a.width + c]);
        sum += x * x;  // the product is exact
    }
    a.sums[uint64_t{e} * a.width + c] = sum;
    if (a.counts && c == 0) a.counts[e] += end - first;
}

}  // namespace ds4::gpu
