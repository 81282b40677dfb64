// The indexer: scores of a slab of tokens, then passes until one stretch of candidates is left.
#include "backend.h"
#include "indexer.cuh"
#include "margins.cuh"

#include <algorithm>

namespace ds4::gpu {

namespace {

constexpr uint64_t kSlabBytes = 64ull << 20;
constexpr uint32_t kMostSlab = 32768;  // tokens

// Work space of a token with `rows` visible rows.
struct Space {
    uint32_t rows, left;  // candidates after the first pass, 0 if there is only the last one

    Space(uint32_t rows_, uint32_t top_k) : rows(rows_), left(rows > kStretch ? candidates_left(rows, top_k + 1) : 0) {}
    uint64_t bytes() const { return uint64_t{rows} * 4 + uint64_t{left} * 16; }
};

// A pass over up to `left` candidates of each token.
template <bool kLast> void select(ds4_queue *q, const ds4_args_indexer &a, const SelectPass &p, uint32_t left,
                                  uint32_t tokens) {
    const uint32_t stretches = kLast ? 1 : (left + kStretch - 1) / kStretch;
    const uint32_t threads = left <= kFewThreads * kItems ? kFewThreads : kSelectThreads;
    DS4_LAUNCH(q, (index_select<kLast>), dim3(stretches, tokens), threads, 0, a, p);
}

// Tokens [first, first + n), each with more rows than it takes.
void choose(ds4_queue *q, const ds4_args_indexer &a, uint32_t first, uint32_t n, float *gaps) {
    const Space space((a.pos0 + first + n) / a.ratio, a.top_k);
    uint32_t *ranks = work_space<uint32_t>(q, kWorkScores, n * space.bytes() / 4);
    if (!ranks) return;
    const dim3 grid((space.rows + kIndexRows - 1) / kIndexRows, n);
    if (a.row_type == DS4_ROW_F16)
        DS4_LAUNCH(q, index_scores<DS4_ROW_F16>, grid, kIndexThreads, 0, a, first, space.rows, ranks);
    else
        DS4_LAUNCH(q, index_scores<DS4_ROW_F32>, grid, kIndexThreads, 0, a, first, space.rows, ranks);

    uint32_t *out = ranks + uint64_t{n} * space.rows;  // ranks and rows of two passes in turn
    const uint64_t part = uint64_t{n} * space.left;
    SelectPass p{ranks, nullptr, nullptr, nullptr, gaps, first, space.rows, 0, 0};
    uint32_t left = space.rows;
    for (; left > kStretch; p.pass++) {
        const uint32_t before = left;
        left = candidates_left(left, a.top_k + 1);
        p.out_ranks = out + p.pass % 2 * 2 * part;
        p.out_rows = reinterpret_cast<int32_t *>(p.out_ranks + part);
        p.out_stride = left;
        select<false>(q, a, p, before, n);
        p.in_ranks = p.out_ranks;
        p.in_rows = p.out_rows;
        p.in_stride = left;
    }
    select<true>(q, a, p, left, n);
}

}  // namespace

void indexer(ds4_queue *q, const ds4_args_indexer *args) {
    if (!args->n) return;
    if (args->top_k >= kStretch / 2)
        return set_failed(q, DS4_E_UNSUPPORTED, "indexer: %u rows a token; up to %u can be chosen", args->top_k,
                          kStretch / 2 - 1);
    const ds4_args_indexer a = resolved(args);
    float *gaps = work_space<float>(q, kWorkExtra, a.n);
    if (!gaps) return;
    // Tokens from `scored` on have more rows than they take.
    const uint64_t from = (uint64_t{a.top_k} + 1) * a.ratio;
    const uint64_t behind = from > uint64_t{a.pos0} + 1 ? from - a.pos0 - 1 : 0;
    const uint32_t scored = static_cast<uint32_t>(std::min<uint64_t>(a.n, behind));
    for (uint32_t t = 0, n; t < scored; t += n) {
        n = std::min(kMostSlab, scored - t);
        select<true>(q, a, SelectPass{nullptr, nullptr, nullptr, nullptr, gaps + t, t, 0, 0, 0}, 0, n);
    }
    if (scored == a.n) return;
    const uint64_t each = Space((a.pos0 + a.n) / a.ratio, a.top_k).bytes();
    const uint32_t slab = static_cast<uint32_t>(std::clamp<uint64_t>(kSlabBytes / each, 1, kMostSlab));
    for (uint32_t t = scored, n; t < a.n && usable(q); t += n) {
        n = std::min(slab, a.n - t);
        choose(q, a, t, n, gaps + t);
    }
    DS4_LAUNCH(q, fold_gaps, 1, kMarginThreads, 0, gaps + scored, a.n - scored, q->margins);
}

uint64_t choice_work_bytes(const ds4_shape *s, uint32_t n_ctx, uint32_t chunk) {
    const uint64_t each = Space(n_ctx / 4, s->index_top_k).bytes();
    const uint64_t ranks = std::max(each, std::min(kSlabBytes, each * std::min(chunk, kMostSlab)));
    return ranks + chunk * sizeof(float) + 2 * kWorkGrain;
}

}  // namespace ds4::gpu
