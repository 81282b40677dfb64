// Attention over window and compressed rows with a sink.
//
// A token has three steps: scores of all heads and rows, softmax, sum of the rows. In a chunk every thread takes whole
// tokens; the tokens left over, and the one of a decode step, are done by all threads together: they share the rows
// in the first step, the heads in the second and the dims in the third, so no thread decodes what another one does.
#include "backend/cpu/attention.h"

#include <algorithm>
#include <cstring>

namespace ds4::cpu {

namespace {

constexpr size_t kRowBlock = 48;  // rows decoded at a time: 96 KB of 512 dims, in the L2 cache
constexpr size_t kRowUnit = 12;   // a multiple of every tile of rows
constexpr size_t kDimUnit = 64;

// Everything one token needs: the cache rows in their order of summation.
struct Keys {
    const ds4_args_attention *a;
    const uint8_t *window, *compressed;
    const int32_t *selected;
    size_t first, n_window, n_total, row_bytes, value_bytes;

    Keys(const ds4_args_attention *args, size_t t) : a(args) {
        const size_t pos = a->pos0 + t;
        first = pos + 1 > a->window ? pos + 1 - a->window : 0;
        n_window = pos + 1 - first;
        row_bytes = cache_row_bytes(a->row_type, a->dim);
        value_bytes = row_bytes / a->dim;
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
    const uint8_t *row(size_t i) const {
        if (i < n_window) return window + (first + i) % a->capacity * row_bytes;
        i -= n_window;
        return compressed + (selected ? static_cast<size_t>(selected[i]) : i) * row_bytes;
    }
    // The dims [d, d + dims) of the rows [b, b + n), decoded to dst [n][dims].
    void load(const Kernels *k, size_t b, size_t n, size_t d, size_t dims, float *dst) const {
        for (size_t i = 0; i < n; i++) {
            const uint8_t *src = row(b + i) + d * value_bytes;
            if (a->row_type == DS4_ROW_F16)
                k->f16_row(src, dst + i * dims, dims);
            else
                memcpy(dst + i * dims, src, dims * 4);
        }
    }
};

struct Attention {
    const Kernels *k;
    const ds4_args_attention *a;
    size_t lanes = lanes_of(a->heads);

    void transpose(size_t t, float *query) const {
        k->transpose_heads(ptr(a->q) + t * a->heads * a->dim, a->heads, a->dim, lanes, query);
    }
    // Scores [row][lanes] of the rows [b, e).
    void score(const Keys &keys, const float *query, size_t b, size_t e, float *block, float *scores) const {
        for (size_t i = b; i < e; i += kRowBlock) {
            const size_t n = std::min(kRowBlock, e - i);
            keys.load(k, i, n, 0, a->dim, block);
            k->head_scores(query, a->dim, lanes, block, n, scores + i * lanes);
        }
    }
    // Groups [b, e) of 16 heads.
    void soften(const Keys &keys, size_t b, size_t e, float *scores, float *inverse) const {
        for (size_t h = b * kLanes; h < e * kLanes; h += kLanes) {
            float sinks[kLanes] = {};
            memcpy(sinks, ptr(a->sinks) + h, std::min(kLanes, a->heads - h) * 4);
            k->softmax16(scores + h, keys.n_total, lanes, sinks, a->scale, inverse + h);
        }
    }
    // Dims [d, d + dims) of the output of token t.
    void sum(const Keys &keys, size_t t, size_t d, size_t dims, const float *scores, const float *inverse,
             float *block) const {
        float *out = ptr(a->out) + t * a->heads * a->dim + d;
        for (size_t i = 0; i < keys.n_total; i += kRowBlock) {
            const size_t n = std::min(kRowBlock, keys.n_total - i);
            keys.load(k, i, n, d, dims, block);
            k->sum_values(scores + i * lanes, lanes, a->heads, block, dims, n,
                          i + n == keys.n_total ? inverse : nullptr, i == 0, out, a->dim);
        }
    }
};

}  // namespace

void attention(ds4_queue *q, const ds4_args_attention *a) {
    const Attention op{q->kernels, a};
    const size_t dim = a->dim, lanes = op.lanes, threads = q->pool.size(), pos_end = a->pos0 + a->n;
    const size_t block = kRowBlock * dim, query_floats = dim * lanes;
    size_t most = std::min<size_t>(a->window, pos_end);
    if (a->ratio) most += a->selected.buffer ? std::min<size_t>(a->top_k, pos_end / a->ratio) : pos_end / a->ratio;
    const size_t floats = query_floats + lanes + most * lanes, alone = a->n - a->n % threads;
    const uint64_t work = uint64_t{most} * lanes * dim / 4;

    for (auto &scratch : q->scratch) grow(scratch, block + (alone ? floats : 0));
    if (alone)
        q->pool.run(alone, 1, alone * work, [&](size_t b, size_t e, unsigned thread) {
            float *rows = q->scratch[thread].data(), *query = rows + block;
            float *inverse = query + query_floats, *scores = inverse + lanes;
            for (size_t t = b; t < e; t++) {
                const Keys keys(a, t);
                op.transpose(t, query);
                op.score(keys, query, 0, keys.n_total, rows, scores);
                op.soften(keys, 0, lanes / kLanes, scores, inverse);
                op.sum(keys, t, 0, dim, scores, inverse, rows);
            }
        });
    for (size_t t = alone; t < a->n; t++) {
        const Keys keys(a, t);
        float *query = grow(q->shared, floats), *inverse = query + query_floats, *scores = inverse + lanes;
        op.transpose(t, query);
        q->pool.run(keys.n_total, piece(keys.n_total, threads, kRowUnit), work, [&](size_t b, size_t e, unsigned i) {
            op.score(keys, query, b, e, q->scratch[i].data(), scores);
        });
        q->pool.run(lanes / kLanes, 1, keys.n_total * lanes * 2, [&](size_t b, size_t e, unsigned) {
            op.soften(keys, b, e, scores, inverse);
        });
        q->pool.run(dim, piece(dim, threads, kDimUnit), work, [&](size_t b, size_t e, unsigned i) {
            op.sum(keys, t, b, e - b, scores, inverse, q->scratch[i].data());
        });
    }
}

uint64_t attention_floats(uint64_t heads, uint64_t dim, uint64_t keys) {
    return kRowBlock * dim + (dim + 1 + keys) * lanes_of(heads);
}

}  // namespace ds4::cpu
