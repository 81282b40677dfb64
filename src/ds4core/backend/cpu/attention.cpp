// The indexer's choice of compressed rows, and attention over window and compressed rows with a sink.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/cpu.h"

namespace ds4::cpu {

namespace {

constexpr size_t kRowBlock = 32;  // cache rows decoded at a time; 32 rows of 512 floats stay in the L2 cache

// Ids of the k best of n scores in ascending order; equal scores: the lower id. Returns the gap at the boundary.
float select_top(const float *scores, size_t n, size_t k, uint32_t *order, int32_t *out) {
    for (size_t i = 0; i < n; i++) order[i] = static_cast<uint32_t>(i);
    auto better = [&](uint32_t x, uint32_t y) { return scores[x] != scores[y] ? scores[x] > scores[y] : x < y; };
    std::nth_element(order, order + (k - 1), order + n, better);
    float kept = scores[order[k - 1]], best_left = -std::numeric_limits<float>::infinity();
    for (size_t i = k; i < n; i++) best_left = std::max(best_left, scores[order[i]]);
    std::sort(order, order + k);
    for (size_t i = 0; i < k; i++) out[i] = static_cast<int32_t>(order[i]);
    return kept - best_left;
}

}  // namespace

void indexer(ds4_queue *q, const ds4_args_indexer *a) {
    const float *query = ptr(a->q), *weights = ptr(a->weights);
    const uint8_t *rows = ptr<const uint8_t>(a->rows);
    int32_t *selected = ptr<int32_t>(a->selected), *counts = ptr<int32_t>(a->counts);
    const size_t heads = a->heads, dim = a->dim, k = a->top_k;
    for (size_t t = 0; t < a->n; t++) {
        const size_t visible = (a->pos0 + t + 1) / a->ratio;
        int32_t *out = selected + t * k;
        counts[t] = static_cast<int32_t>(std::min(visible, k));
        if (visible <= k) {
            for (size_t i = 0; i < visible; i++) out[i] = static_cast<int32_t>(i);
            continue;
        }
        float *scores = grow(q->shared, visible);
        if (q->lists.size() < visible) q->lists.resize(visible);
        for (size_t p = 0; p < q->pool.size(); p++) grow(q->scratch[p], dim + heads);
        const float *qt = query + t * heads * dim, *wt = weights + t * heads;
        q->pool.run(visible, visible * heads * dim / 4, [&](size_t b, size_t e, unsigned thread) {
            float *row = q->scratch[thread].data(), *dots = row + dim;
            for (size_t s = b; s < e; s++) {
                load_row(q->kernels, a->row_type, rows, s, dim, row);
                q->kernels->dot_many(row, qt, dim, heads, dim, dots, 1);
                float sum = 0;
                for (size_t h = 0; h < heads; h++) sum += std::max(dots[h], 0.0f) * (wt[h] * a->scale);
                // NaN has no order; it shows in the logits all the same, through attention.
                scores[s] = std::isnan(sum) ? -std::numeric_limits<float>::infinity() : sum;
            }
        });
        q->margins.indexer = std::min(q->margins.indexer, select_top(scores, visible, k, q->lists.data(), out));
    }
}

namespace {

// Everything one token needs: the cache rows in their order of summation.
struct Keys {
    const ds4_args_attention *a;
    const uint8_t *window, *compressed;
    const int32_t *selected;
    size_t first, n_window, n_total;

    Keys(const ds4_args_attention *args, size_t t) : a(args) {
        size_t pos = a->pos0 + t;
        first = pos + 1 > a->window ? pos + 1 - a->window : 0;
        n_window = pos + 1 - first;
        window = ptr<const uint8_t>(a->window_rows);
        compressed = a->ratio ? ptr<const uint8_t>(a->compressed_rows) : nullptr;
        selected = a->ratio ? ptr<const int32_t>(a->selected) : nullptr;
        n_total = n_window;
        if (selected) {
            n_total += static_cast<size_t>(ptr<const int32_t>(a->counts)[t]);
            selected += t * a->top_k;
        } else if (compressed) {
            n_total += (pos + 1) / a->ratio;
        }
    }
    void load(const Kernels *k, size_t i, float *dst) const {
        if (i < n_window)
            load_row(k, a->row_type, window, (first + i) % a->capacity, a->dim, dst);
        else
            load_row(k, a->row_type, compressed, selected ? static_cast<size_t>(selected[i - n_window]) : i - n_window,
                     a->dim, dst);
    }
};

// Heads [h0, h1) of one token. Scores of all keys first, so the softmax needs no running maximum.
void attend(const Kernels *k, const Keys &keys, const float *q, const float *sinks, float *out, size_t h0, size_t h1,
            float *scores, float *block) {
    const ds4_args_attention *a = keys.a;
    const size_t dim = a->dim, n = keys.n_total;
    for (size_t b = 0; b < n; b += kRowBlock) {
        size_t m = std::min(kRowBlock, n - b);
        for (size_t i = 0; i < m; i++) keys.load(k, b + i, block + i * dim);
        for (size_t h = h0; h < h1; h++) k->dot_many(q + h * dim, block, dim, m, dim, scores + (h - h0) * n + b, 1);
    }
    for (size_t h = h0; h < h1; h++) {
        float *s = scores + (h - h0) * n, top = sinks[h], sum = 0;
        for (size_t i = 0; i < n; i++) top = std::max(top, s[i] *= a->scale);
        for (size_t i = 0; i < n; i++) sum += s[i] = std::exp(s[i] - top);
        sum += std::exp(sinks[h] - top);  // the sink takes weight and gives no value
        for (size_t i = 0; i < n; i++) s[i] /= sum;
        memset(out + h * dim, 0, dim * 4);
    }
    for (size_t b = 0; b < n; b += kRowBlock) {
        size_t m = std::min(kRowBlock, n - b);
        if (n > kRowBlock)  // a single block is still decoded
            for (size_t i = 0; i < m; i++) keys.load(k, b + i, block + i * dim);
        for (size_t h = h0; h < h1; h++)
            for (size_t i = 0; i < m; i++) k->axpy(out + h * dim, block + i * dim, scores[(h - h0) * n + b + i], dim);
    }
}

}  // namespace

void attention(ds4_queue *q, const ds4_args_attention *a) {
    const float *query = ptr(a->q), *sinks = ptr(a->sinks);
    float *out = ptr(a->out);
    const size_t heads = a->heads, dim = a->dim, pos_end = a->pos0 + a->n;
    size_t most = std::min<size_t>(a->window, pos_end);
    if (a->ratio) most += a->selected.buffer ? a->top_k : pos_end / a->ratio;
    // Heads share decoded rows, so cut a token's heads only as far as the threads need.
    const size_t per_job = std::max<size_t>(1, a->n >= q->pool.size() ? heads : heads * a->n / q->pool.size());
    const size_t jobs_per_token = (heads + per_job - 1) / per_job;
    for (size_t p = 0; p < q->pool.size(); p++) grow(q->scratch[p], kRowBlock * dim + per_job * most);
    q->pool.run(a->n * jobs_per_token, a->n * heads * dim * most, [&](size_t b, size_t e, unsigned thread) {
        float *block = q->scratch[thread].data(), *scores = block + kRowBlock * dim;
        for (size_t j = b; j < e; j++) {
            size_t t = j / jobs_per_token, h0 = j % jobs_per_token * per_job, h1 = std::min(heads, h0 + per_job);
            Keys keys(a, t);
            attend(q->kernels, keys, query + t * heads * dim, sinks, out + t * heads * dim, h0, h1, scores, block);
        }
    });
}

}  // namespace ds4::cpu
