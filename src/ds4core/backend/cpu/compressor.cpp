// The compressor: pools the projected rows of a group of tokens into one KV row, and the simulated quantization.
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

// The most rows of a group: the largest ratio of the family, or twice 4.
constexpr size_t kMostEntries = 128;

}  // namespace

void compress(ds4_queue *q, const ds4_args_compress *a) {
    float *k = ptr(a->k), *s = ptr(a->s), *state_k = ptr(a->state_k), *state_s = ptr(a->state_s);
    const float *ape = ptr(a->ape), *norm = ptr(a->norm), *freqs = ptr(a->freqs);
    uint8_t *rows = ptr<uint8_t>(a->rows);
    const size_t dim = a->dim, width = a->width, r = a->ratio, ring = a->ring, pos0 = a->pos0, end = pos0 + a->n;
    q->pool.run(a->n, a->n * width / 2, [&](size_t b, size_t e, unsigned) {
        for (size_t t = b; t < e; t++) q->rows->add(s + t * width, ape + (pos0 + t) % r * width, width);
    });
    // A position of this chunk is read from k, s; an earlier one from the rings, which are written last.
    auto place = [&](const float *chunk, const float *state, size_t pos) {
        return pos >= pos0 ? chunk + (pos - pos0) * width : state + pos % ring * width;
    };
    const size_t first = pos0 / r, last = end / r;  // groups first..last-1 close in this chunk
    for (size_t p = 0; p < q->pool.size(); p++) grow(q->scratch[p], dim);
    q->pool.run(last - first, (last - first) * r * dim * 4, [&](size_t b, size_t e, unsigned thread) {
        float *row = q->scratch[thread].data();
        float cosine[512], sine[512];
        const float *group_k[kMostEntries], *group_s[kMostEntries];
        for (size_t g = first + b; g < first + e; g++) {
            size_t n = 0;
            auto add = [&](size_t group, size_t column) {
                for (size_t i = 0; i < r; i++, n++) {
                    group_k[n] = place(k, state_k, group * r + i) + column;
                    group_s[n] = place(s, state_s, group * r + i) + column;
                }
            };
            if (width == 2 * dim) {  // overlapping groups: first half of the previous, second half of this one
                if (g > 0) add(g - 1, 0);
                add(g, dim);
            } else {
                add(g, 0);
            }
            q->rows->pool(group_k, group_s, n, dim, row);
            q->rows->rms_row(row, norm, row, dim, a->eps);
            rope_angles(static_cast<uint32_t>(g * r), freqs, a->n_rot / 2, cosine, sine);
            q->rows->rope(row + dim - a->n_rot, 1, dim, a->n_rot, cosine, sine, 1.0f);
            if (a->round == DS4_ROUND_FP8) round_fp8(row, dim, a->n_rot);
            if (a->round == DS4_ROUND_FP4) round_fp4(row, dim);
            store_row(q->rows, a->row_type, rows, g, dim, row);
        }
    });
    for (size_t t = a->n > ring ? a->n - ring : 0; t < a->n; t++) {
        size_t slot = (pos0 + t) % ring * width;
        memcpy(state_k + slot, k + t * width, width * 4);
        memcpy(state_s + slot, s + t * width, width * 4);
    }
}

}  // namespace ds4::cpu
