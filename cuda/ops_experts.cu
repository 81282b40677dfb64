// The routed experts: which kernels, and the work space between them.
#include <algorithm>

#include "backend.h"
#include "experts.cuh"
#include "formats.h"
#include "rounding.h"

namespace ds4::gpu {
namespace {

// Parts that wait to be added: so many bytes at a time, else the columns are computed in portions. Tests have few.
#ifdef DS4_HOST_SIMT
constexpr uint64_t kPartBytes = 64 << 10;
#else
constexpr uint64_t kPartBytes = 64 << 20;
#endif

struct Call {
    ds4_queue *q;
    ds4_args_experts a;  // resolved
    uint32_t n_pairs, n_expert, dim, width;
    uint32_t tile = 0, most_tiles = 0;
    Sorted pairs{};
    float *middle = nullptr;

    const uint8_t *chosen() const { return at<const uint8_t>(a.chosen); }
    ExpertStack stack(const ds4_weight &w, uint32_t part) const { return {w, at<const ds4_expert_place>(a.places), part}; }
};

// Sorts the pairs into tiles of up to `tile`.
bool sort_pairs(Call &c, uint32_t tile) {
    if (c.tile == tile) return true;
    c.tile = tile;
    // Every expert has one tile that is not full at most.
    c.most_tiles = c.n_pairs / tile + (c.n_pairs < c.n_expert ? c.n_pairs : c.n_expert);
    if (c.most_tiles > c.n_pairs) c.most_tiles = c.n_pairs;
    const uint64_t segments = blocks_for(c.n_pairs, kSegment);
    const uint64_t words = c.n_expert + 1 + segments * c.n_expert + 3 * uint64_t{c.n_pairs} + 1;
    auto *tiles = work_space<ExpertTile>(c.q, kWorkSorted, c.most_tiles + words * 4 / sizeof(ExpertTile) + 1);
    if (!tiles) return false;
    auto *next = reinterpret_cast<uint32_t *>(tiles + c.most_tiles);
    auto take = [&](uint64_t n) {
        uint32_t *here = next;
        next += n;
        return here;
    };
    Sorted &s = c.pairs;
    s.tiles = tiles;
    s.first = take(c.n_expert + 1);
    s.counts = take(segments * c.n_expert);
    s.token = take(c.n_pairs);
    s.weight = reinterpret_cast<float *>(take(c.n_pairs));
    s.number = take(c.n_pairs);
    s.n_tiles = take(1);
    const SortArgs a{at<const int32_t>(c.a.ids), at(c.a.weights), c.chosen(), c.n_pairs, c.a.k, c.n_expert, tile, s};
    if (segments == 1) {
        DS4_LAUNCH(c.q, sort_few_pairs, 1, kFewThreads, 0, a);
    } else {
        DS4_LAUNCH(c.q, count_pairs_of_segments, static_cast<unsigned>(segments), kFewThreads, 0, a);
        DS4_LAUNCH(c.q, place_all_pairs, 1, kFewThreads, 0, a);
        DS4_LAUNCH(c.q, number_pairs_of_segments, static_cast<unsigned>(segments), kFewThreads, 0, a);
    }
    return true;
}

// Rows a thread block: fewer when there are few tiles, so that all of the device has work.
template <class F> int rows_at_once(const Call &c, uint32_t n_rows, uint32_t n_in, int least) {
    int rows = kMostRowsAtOnce;
    const uint32_t pieces = n_in / F::kValues * F::kPieces;
    while (rows > least && n_rows / static_cast<uint32_t>(rows) * c.most_tiles < kWanted &&
           kFewThreads / static_cast<uint32_t>(rows) < pieces)
        rows /= 2;
    return rows;
}

template <class F, int N> void few(const Call &c, const ExpertArgs &e) {
    const int rows = rows_at_once<F>(c, e.n_rows, e.stack.w.n_in, 1);
    DS4_LAUNCH(c.q, (experts_few<F, N>), dim3(blocks_for(e.n_rows, static_cast<unsigned>(rows)), c.most_tiles), kFewThreads, 0, e, rows);
}
template <class F, int N> void few_gate_up(const Call &c, const ExpertArgs &e, const ExpertStack &up) {
    const int rows = rows_at_once<F>(c, 2 * e.n_rows, e.stack.w.n_in, 2);
    DS4_LAUNCH(c.q, (experts_few_gate_up<F, N>), dim3(blocks_for(2 * uint64_t{e.n_rows}, static_cast<unsigned>(rows)), c.most_tiles), kFewThreads,
               0, e, up, rows);
}

// Few tokens: small tiles, where reading the weights is the work.
bool few_tokens(const Call &c) { return c.a.n <= kFewTokens; }
uint32_t tile_of(const Call &c, bool rounded) {
    if (c.a.n == 1) return 1;  // an expert chosen twice has two tiles
    return few_tokens(c) ? kFewTokens : rounded ? kTileTokens : kFloatTileTokens;
}

template <class F> void rounded_product(const Call &c, const ExpertArgs &e) {
    if (c.a.n == 1) return few<F, 1>(c, e);
    if (few_tokens(c)) return few<F, kFewTokens>(c, e);
    const dim3 grid(blocks_for(e.n_rows, kTileRows), c.most_tiles);
    if (kAlwaysMatrixUnits || matrix_units(c.q))
        DS4_LAUNCH(c.q, (experts_tiles<F, MatrixUnit<Int8Unit>>), grid, kTileThreads, 0, e);
    else if constexpr (!kAlwaysMatrixUnits)
        DS4_LAUNCH(c.q, (experts_tiles<F, PlainUnit>), grid, kTileThreads, 0, e);
}
template <class F> void float_product(const Call &c, const ExpertArgs &e) {
    const dim3 grid(blocks_for(e.n_rows, kFewThreads / 32), c.most_tiles);
    if (c.a.n == 1)
        DS4_LAUNCH(c.q, (experts_few_float<F, 1>), grid, kFewThreads, 0, e);
    else if (few_tokens(c))
        DS4_LAUNCH(c.q, (experts_few_float<F, kFewTokens>), grid, kFewThreads, 0, e);
    else
        DS4_LAUNCH(c.q, (experts_float_tiles<F>), dim3(blocks_for(e.n_rows, kFloatTileRows), c.most_tiles), kFloatTileThreads, 0, e);
}

// The middle rows. Gate and up that are rounded to the same type go together where tokens are few.
void gate_and_up(Call &c) {
    const ds4_args_experts &a = c.a;
    ExpertArgs e{c.stack(a.gate, 0), {}, {}, at(a.x), c.middle, 0, c.width, c.width, kStepGate, a.clamp};
    const ds4_weight *weights[2] = {&a.gate, &a.up};
    for (uint32_t part = 0; part < 2; part++) {
        e.stack = c.stack(*weights[part], part);
        e.step = part == 0 ? kStepGate : kStepUp;
        bool both = false;
        with_format(weights[part]->type, [&](auto format) {
            using F = decltype(format);
            const bool rounded = F::kInteger && a.quantized;
            if (!sort_pairs(c, tile_of(c, rounded))) return;
            e.pairs = c.pairs;
            if constexpr (F::kInteger)
                if (rounded) {
                    if ((part == 0 || a.gate.type != a.up.type) &&
                        !round_rows_of<F>(c.q, kWorkRounded, at(a.x), a.n, c.dim, c.dim, 1, &e.rounded))
                        return;
                    both = a.gate.type == a.up.type && few_tokens(c);
                    if (both && a.n == 1) return few_gate_up<F, 1>(c, e, c.stack(a.up, 1));
                    if (both) return few_gate_up<F, kFewTokens>(c, e, c.stack(a.up, 1));
                    return rounded_product<F>(c, e);
                }
            float_product<F>(c, e);
        });
        if (both) break;
    }
    if (!a.importance.sum_in.buffer || !usable(c.q)) return;
    SquareArgs s{c.pairs, c.chosen(), at(a.x), at<double>(a.importance.sum_in), at<uint64_t>(a.importance.counts), c.dim, true};
    DS4_LAUNCH(c.q, add_expert_squares, dim3(blocks_for(c.dim, kFewThreads), c.n_expert), kFewThreads, 0, s);
    s.rows = c.middle;
    s.sums = at<double>(a.importance.sum_mid);
    s.counts = nullptr;
    s.width = c.width;
    s.of_tokens = false;
    DS4_LAUNCH(c.q, add_expert_squares, dim3(blocks_for(c.width, kFewThreads), c.n_expert), kFewThreads, 0, s);
}

void down(Call &c) {
    const ds4_args_experts &a = c.a;
    const uint64_t row_bytes = uint64_t{c.n_pairs} * sizeof(float);
    uint64_t columns = kPartBytes / row_bytes / kTileRows * kTileRows;
    if (columns < kTileRows) columns = kTileRows;
    if (columns > c.dim) columns = c.dim;
    auto *parts = work_space<float>(c.q, kWorkPartial, columns * c.n_pairs);
    if (!parts) return;
    with_format(a.down.type, [&](auto format) {
        using F = decltype(format);
        const bool rounded = F::kInteger && a.quantized;
        if (!sort_pairs(c, tile_of(c, rounded))) return;
        ExpertArgs e{c.stack(a.down, 2), c.pairs, {}, c.middle, parts, 0, 0, 0, kStepDown, a.clamp};
        if constexpr (F::kInteger)
            if (rounded && !round_rows_of<F>(c.q, kWorkRounded, c.middle, c.n_pairs, c.width, c.width, 1, &e.rounded)) return;
        for (uint32_t first = 0; first < c.dim; first += static_cast<uint32_t>(columns)) {
            e.first_row = first;
            e.n_rows = e.out_stride = c.dim - first < columns ? c.dim - first : static_cast<uint32_t>(columns);
            if constexpr (F::kInteger) {
                if (rounded)
                    rounded_product<F>(c, e);
                else
                    float_product<F>(c, e);
            } else {
                float_product<F>(c, e);
            }
            const AddArgs add{parts, c.pairs.number, at<const int32_t>(a.ids), c.chosen(), at(a.y) + first, a.k, e.n_rows, c.dim,
                              (a.work & DS4_EXPERTS_ADD) != 0};
            DS4_LAUNCH(c.q, add_expert_parts, dim3(a.n, blocks_for(e.n_rows, kFewThreads)), kFewThreads, 0, add);
        }
    });
}

}  // namespace

uint64_t product_work_bytes(const ds4_shape *s, uint32_t chunk) {
    const uint64_t pairs = uint64_t{chunk} * s->n_expert_used, heads = uint64_t{s->n_head} * s->head_dim;
    // The widest rows that are rounded: heads, streams (the MTP block's come as more tokens), the experts' middle rows.
    const uint64_t widest = std::max({heads, uint64_t{s->n_hc} * s->n_embd, uint64_t{s->o_groups} * s->o_lora});
    const uint64_t rounded = rounded_bytes(1, std::max(chunk * widest, pairs * std::max(s->n_ff, s->n_embd)));
    const uint64_t middle = pairs * s->n_ff * sizeof(float);
    const uint64_t segments = (pairs + kSegment - 1) / kSegment;
    const uint64_t sorted = pairs * sizeof(ExpertTile) + (s->n_expert * (segments + 1) + 3 * pairs + 4) * 4 + sizeof(ExpertTile);
    const uint64_t parts = std::min(pairs * s->n_embd * sizeof(float), std::max(kPartBytes, pairs * kTileRows * sizeof(float)));
    return rounded + middle + sorted + parts + 4 * 65536;
}

void experts(ds4_queue *q, const ds4_args_experts *args) {
    if (args->n == 0) return;
    if (args->gate.n_matrices > kMostExperts || args->k > kMostChoices)
        return set_failed(q, DS4_E_UNSUPPORTED, "experts: %u of %u; at most %u of %u", args->k, args->gate.n_matrices, kMostChoices, kMostExperts);
    for (const ds4_weight *w : {&args->gate, &args->up, &args->down})
        if (!with_format(w->type, [](auto) {})) return set_failed(q, DS4_E_UNSUPPORTED, "experts: weights of tensor type %u", w->type);
    Call c{q, resolved(args), args->n * args->k, args->gate.n_matrices, args->gate.n_in, args->gate.n_out};
    c.middle = work_space<float>(q, kWorkMiddle, uint64_t{c.n_pairs} * c.width);
    if (!c.middle) return;
    if (args->work & DS4_EXPERTS_GATE_UP) gate_and_up(c);
    if (usable(q) && (args->work & DS4_EXPERTS_DOWN)) down(c);
}

}  // namespace ds4::gpu
