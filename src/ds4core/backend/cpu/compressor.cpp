// The compressor: pools the projected rows of a group of tokens into one KV row, and the simulated quantization.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/cpu.h"
#include "backend/cpu/rounding.h"

namespace ds4::cpu {

void round_rows(ds4_queue *q, const ds4_args_round_rows *a) {
    if (a->mode == DS4_ROUND_NONE) return;
    float *x = ptr(a->x);
    q->pool.run(a->n_rows, static_cast<uint64_t>(a->n_rows) * a->dim * 16, [&](size_t b, size_t e, unsigned) {
        for (size_t r = b; r < e; r++) {
            if (a->mode == DS4_ROUND_FP8)
                round_fp8(x + r * a->dim, a->dim, a->n_rot);
            else
                round_fp4(x + r * a->dim, a->dim);
        }
    });
}

namespace {

// One entry of a group: K and S (APE added) of a position, `half` of the width.
struct Entry {
    const float *k, *s;
};

// row[c] = sum_i softmax_i(S[i][c]) * K[i][c]
void pool_group(const Entry *entries, size_t n, size_t dim, float *row) {
    for (size_t c = 0; c < dim; c++) {
        float top = entries[0].s[c], sum = 0, acc = 0;
        for (size_t i = 1; i < n; i++) top = std::max(top, entries[i].s[c]);
        for (size_t i = 0; i < n; i++) {
            float e = std::exp(entries[i].s[c] - top);
            sum += e;
            acc += e * entries[i].k[c];
        }
        row[c] = acc / sum;
    }
}

}  // namespace

void compress(ds4_queue *q, const ds4_args_compress *a) {
    float *k = ptr(a->k), *s = ptr(a->s), *state_k = ptr(a->state_k), *state_s = ptr(a->state_s);
    const float *ape = ptr(a->ape), *norm = ptr(a->norm), *freqs = ptr(a->freqs);
    uint8_t *rows = ptr<uint8_t>(a->rows);
    const size_t dim = a->dim, width = a->width, r = a->ratio, ring = a->ring, pos0 = a->pos0, end = pos0 + a->n;
    for (size_t t = 0; t < a->n; t++) {
        const float *bias = ape + (pos0 + t) % r * width;
        for (size_t c = 0; c < width; c++) s[t * width + c] += bias[c];
    }
    // A position of this chunk is read from k, s; an earlier one from the rings, which are written last.
    auto entry = [&](size_t pos, size_t column) {
        if (pos >= pos0) return Entry{k + (pos - pos0) * width + column, s + (pos - pos0) * width + column};
        return Entry{state_k + pos % ring * width + column, state_s + pos % ring * width + column};
    };
    const size_t first = pos0 / r, last = end / r;  // groups first..last-1 close in this chunk
    for (size_t p = 0; p < q->pool.size(); p++) grow(q->scratch[p], dim);
    q->pool.run(last - first, (last - first) * r * dim * 16, [&](size_t b, size_t e, unsigned thread) {
        float *row = q->scratch[thread].data();
        float cosine[256], sine[256];
        Entry entries[128];  // the largest ratio of the family, or twice 4
        for (size_t g = first + b; g < first + e; g++) {
            size_t n = 0;
            if (width == 2 * dim) {  // overlapping groups: first half of the previous, second half of this one
                if (g > 0)
                    for (size_t i = 0; i < r; i++) entries[n++] = entry((g - 1) * r + i, 0);
                for (size_t i = 0; i < r; i++) entries[n++] = entry(g * r + i, dim);
            } else {
                for (size_t i = 0; i < r; i++) entries[n++] = entry(g * r + i, 0);
            }
            pool_group(entries, n, dim, row);
            rms_row(q->kernels, row, norm, row, dim, a->eps);
            rope_angles(static_cast<uint32_t>(g * r), freqs, a->n_rot / 2, 1.0f, cosine, sine);
            rope_row(row, dim, a->n_rot, cosine, sine);
            if (a->round == DS4_ROUND_FP8) round_fp8(row, dim, a->n_rot);
            if (a->round == DS4_ROUND_FP4) round_fp4(row, dim);
            store_row(a->row_type, rows, g, dim, row);
        }
    });
    for (size_t t = a->n > ring ? a->n - ring : 0; t < a->n; t++) {
        size_t slot = (pos0 + t) % ring * width;
        memcpy(state_k + slot, k + t * width, width * 4);
        memcpy(state_s + slot, s + t * width, width * 4);
    }
}

}  // namespace ds4::cpu
