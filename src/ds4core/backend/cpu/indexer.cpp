// The indexer's choice of compressed rows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "backend/cpu/attention.h"

namespace ds4::cpu {

namespace {

constexpr size_t kRowBlock = 24;  // rows decoded at a time: 12 KB, beside 32 KB of queries

// Ids of the k best of n > k scores in ascending order; equal scores: the lower id. Returns the gap at the boundary.
// ranked: n values of work space.
float select_top(const float *scores, size_t n, size_t k, float *ranked, int32_t *out) {
    memcpy(ranked, scores, n * 4);
    std::nth_element(ranked, ranked + (k - 1), ranked + n, std::greater<float>());
    const float kept = ranked[k - 1], best_left = *std::max_element(ranked + k, ranked + n);
    size_t equal = k - static_cast<size_t>(std::count_if(ranked, ranked + k, [=](float s) { return s > kept; }));
    for (size_t i = 0, chosen = 0; chosen < k; i++) {
        const bool tie = scores[i] == kept && equal > 0;
        equal -= tie;
        out[chosen] = static_cast<int32_t>(i);
        chosen += scores[i] > kept || tie;
    }
    return kept - best_left;
}

struct Indexer {
    const Kernels *k;
    const ds4_args_indexer *a;
    size_t lanes = lanes_of(a->heads);

    size_t visible(size_t t) const { return (a->pos0 + t + 1) / a->ratio; }
    size_t query_floats() const { return (a->dim + 1) * lanes; }

    // The query of token t for the kernel, [dim][lanes], and behind it the heads' weights.
    void prepare(size_t t, float *query) const {
        k->transpose_heads(ptr(a->q) + t * a->heads * a->dim, a->heads, a->dim, lanes, query);
        float *weights = query + a->dim * lanes;
        const float *w = ptr(a->weights) + t * a->heads;
        for (size_t h = 0; h < lanes; h++) weights[h] = h < a->heads ? w[h] * a->scale : 0.0f;
    }
    // Scores of the rows [b, e); block: kRowBlock rows.
    void score(const float *query, size_t b, size_t e, float *block, float *scores) const {
        const uint8_t *rows = ptr<const uint8_t>(a->rows);
        for (size_t i = b; i < e; i += kRowBlock) {
            const size_t n = std::min(kRowBlock, e - i);
            for (size_t j = 0; j < n; j++) load_row(k, a->row_type, rows, i + j, a->dim, block + j * a->dim);
            k->index_scores(query, query + a->dim * lanes, a->dim, lanes, block, n, scores + i);
        }
        // NaN has no order; it shows in the logits all the same, through attention.
        for (size_t i = b; i < e; i++)
            if (std::isnan(scores[i])) scores[i] = -std::numeric_limits<float>::infinity();
    }
};

}  // namespace

void indexer(ds4_queue *q, const ds4_args_indexer *a) {
    const Indexer op{q->kernels, a};
    const size_t k = a->top_k, threads = q->pool.size(), most = op.visible(a->n - 1), block = kRowBlock * a->dim;
    int32_t *selected = ptr<int32_t>(a->selected), *counts = ptr<int32_t>(a->counts);
    size_t first = 0;  // the first token with more rows than it takes
    for (; first < a->n && op.visible(first) <= k; first++) {
        counts[first] = static_cast<int32_t>(op.visible(first));
        for (size_t i = 0; i < op.visible(first); i++) selected[first * k + i] = static_cast<int32_t>(i);
    }
    if (first == a->n) return;
    for (size_t t = first; t < a->n; t++) counts[t] = static_cast<int32_t>(k);

    // Whole tokens for every thread, then the rest together.
    const size_t n = a->n - first, alone = n - n % threads;
    const uint64_t work = uint64_t{most} * a->heads * a->dim / 4;
    std::vector<float> margins(threads, std::numeric_limits<float>::infinity());
    for (auto &scratch : q->scratch) grow(scratch, block + op.query_floats() + 2 * most);
    if (alone)
        q->pool.run(alone, 1, alone * work, [&](size_t b, size_t e, unsigned thread) {
            float *rows = q->scratch[thread].data(), *query = rows + block, *scores = query + op.query_floats();
            for (size_t t = first + b; t < first + e; t++) {
                op.prepare(t, query);
                op.score(query, 0, op.visible(t), rows, scores);
                const float gap = select_top(scores, op.visible(t), k, scores + most, selected + t * k);
                margins[thread] = std::min(margins[thread], gap);
            }
        });
    for (size_t t = first + alone; t < a->n; t++) {
        float *query = grow(q->shared, op.query_floats() + 2 * most), *scores = query + op.query_floats();
        op.prepare(t, query);
        const size_t visible = op.visible(t);
        q->pool.run(visible, piece(visible, threads, kRowBlock), work, [&](size_t b, size_t e, unsigned thread) {
            op.score(query, b, e, q->scratch[thread].data(), scores);
        });
        margins[0] = std::min(margins[0], select_top(scores, visible, k, scores + most, selected + t * k));
    }
    for (float margin : margins) q->margins.indexer = std::min(q->margins.indexer, margin);
}

uint64_t indexer_floats(uint64_t heads, uint64_t dim, uint64_t rows) {
    return kRowBlock * dim + (dim + 1) * lanes_of(heads) + 2 * rows;
}

}  // namespace ds4::cpu
