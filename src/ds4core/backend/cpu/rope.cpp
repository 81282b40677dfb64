// Rotation by position. The angles of a chunk are computed once and serve every layer.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/cpu.h"

namespace ds4::cpu {

void rope_angles(uint32_t pos, const float *freqs, size_t n_pairs, float *cosine, float *sine) {
    for (size_t i = 0; i < n_pairs; i++) {
        const float angle = static_cast<float>(pos) * freqs[i], s = std::sin(angle);
        cosine[2 * i] = cosine[2 * i + 1] = std::cos(angle);
        sine[2 * i] = -s;
        sine[2 * i + 1] = s;
    }
}

namespace {

// The table of these frequencies that covers positions [pos0, pos0 + n), computed if there is none. Layers use two sets
// of frequencies in turn.
const RopeTable &table_of(ds4_queue *q, const float *freqs, size_t n_pairs, size_t pos0, size_t n) {
    RopeTable *table = nullptr;
    for (RopeTable &t : q->rope)
        if (t.freqs.size() == n_pairs && !memcmp(t.freqs.data(), freqs, n_pairs * sizeof(float))) table = &t;
    if (table && pos0 >= table->pos0 && pos0 + n <= table->pos0 + table->n) return *table;
    if (!table) {
        table = &q->rope[0];
        std::swap(q->rope[0], q->rope[1]);  // the one that was used before the last goes
        table->n = 0;
        table->freqs.assign(freqs, freqs + n_pairs);
    }
    const size_t width = 2 * n_pairs;
    table->n = 0;
    grow(table->cosine, n * width);
    grow(table->sine, n * width);
    table->pos0 = pos0;
    table->n = n;
    q->pool.run(n, static_cast<uint64_t>(n) * width * 32, [&](size_t b, size_t e, unsigned) {
        for (size_t t = b; t < e; t++)
            rope_angles(static_cast<uint32_t>(pos0 + t), freqs, n_pairs, table->cosine.data() + t * width,
                        table->sine.data() + t * width);
    });
    return *table;
}

}  // namespace

void rope(ds4_queue *q, const ds4_args_rope *a) {
    float *x = ptr(a->x);
    const size_t dim = a->dim, n_rot = a->n_rot, heads = a->heads;
    const RopeTable &table = table_of(q, ptr(a->freqs), n_rot / 2, a->pos0, a->n);
    const size_t first = a->pos0 - table.pos0;
    q->pool.run(a->n * heads, static_cast<uint64_t>(a->n) * heads * n_rot, [&](size_t b, size_t e, unsigned) {
        while (b < e) {  // the heads of one token at a time
            const size_t t = b / heads, m = std::min(heads - b % heads, e - b), at = (first + t) * n_rot;
            q->rows->rope(x + b * dim + dim - n_rot, m, dim, n_rot, table.cosine.data() + at, table.sine.data() + at, a->sign);
            b += m;
        }
    });
}

}  // namespace ds4::cpu
