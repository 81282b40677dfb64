// Operations on single rows, and decoding shared by all: embedding, norm, cache rows.
#include <cstring>

#include "backend/cpu/cpu.h"
#include "ds4/gguf.h"
#include "quant/quant.h"

namespace ds4::cpu {

void decode_row(const Kernels *k, uint32_t type, const void *src, float *dst, size_t n) {
    switch (type) {
        case DS4_TYPE_F32: memcpy(dst, src, n * 4); return;
        case DS4_TYPE_F16: k->f16_row(src, dst, n); return;
        case DS4_TYPE_BF16: k->bf16_row(src, dst, n); return;
        case DS4_TYPE_Q8_0: k->q8_0_row(src, dst, n); return;
        default: dequantize_row(type, src, dst, n);
    }
}

void load_row(const Kernels *k, uint32_t row_type, const uint8_t *rows, size_t index, size_t dim, float *dst) {
    const uint8_t *src = rows + index * cache_row_bytes(row_type, dim);
    if (row_type == DS4_ROW_F16)
        k->f16_row(src, dst, dim);
    else
        memcpy(dst, src, dim * 4);
}

void store_row(const RowKernels *k, uint32_t row_type, uint8_t *rows, size_t index, size_t dim, const float *src) {
    uint8_t *dst = rows + index * cache_row_bytes(row_type, dim);
    if (row_type == DS4_ROW_F16)
        k->to_f16(src, dst, dim);
    else
        memcpy(dst, src, dim * 4);
}

void rms_norm(ds4_queue *q, const ds4_args_rms_norm *a) {
    const float *x = ptr(a->x), *w = ptr(a->w);
    float *y = ptr(a->y);
    size_t dim = a->dim;
    q->pool.run(a->n_rows, static_cast<uint64_t>(a->n_rows) * dim, [&](size_t b, size_t e, unsigned) {
        for (size_t r = b; r < e; r++) q->rows->rms_row(x + r * dim, w, y + r * dim, dim, a->eps);
    });
}

void embed(ds4_queue *q, const ds4_args_embed *a) {
    const int32_t *tokens = ptr<const int32_t>(a->tokens);
    float *out = ptr(a->out);
    size_t dim = a->table.n_in;
    q->pool.run(a->n, static_cast<uint64_t>(a->n) * a->copies * dim, [&](size_t b, size_t e, unsigned) {
        for (size_t t = b; t < e; t++) {
            float *first = out + t * a->copies * dim;
            decode_row(q->kernels, a->table.type, weight_row(a->table, 0, static_cast<uint32_t>(tokens[t])), first, dim);
            for (size_t c = 1; c < a->copies; c++) memcpy(first + c * dim, first, dim * 4);
        }
    });
}

void store_rows(ds4_queue *q, const ds4_args_store_rows *a) {
    const float *x = ptr(a->x);
    uint8_t *rows = ptr<uint8_t>(a->rows);
    // More tokens than places: the later ones stay.
    const size_t skip = a->n > a->capacity ? a->n - a->capacity : 0;
    q->pool.run(a->n - skip, static_cast<uint64_t>(a->n) * a->dim / 2, [&](size_t b, size_t e, unsigned) {
        for (size_t t = skip + b; t < skip + e; t++)
            store_row(q->rows, a->row_type, rows, (a->pos0 + t) % a->capacity, a->dim, x + t * a->dim);
    });
}

void add_rows(ds4_queue *q, const ds4_args_add_rows *a) {
    float *x = ptr(a->x);
    const float *e = ptr(a->e);
    q->pool.run(a->n, static_cast<uint64_t>(a->n) * a->copies * a->dim / 2, [&](size_t begin, size_t end, unsigned) {
        for (size_t t = begin; t < end; t++)
            for (size_t c = 0; c < a->copies; c++)
                q->rows->add(x + (t * a->copies + c) * a->dim, e + t * a->dim, a->dim);
    });
}

void steer(ds4_queue *q, const ds4_args_steer *a) {
    float *y = ptr(a->y);
    const size_t dim = a->dim, count = a->count;
    q->pool.run(a->n, static_cast<uint64_t>(a->n) * count * dim * 2, [&](size_t begin, size_t end, unsigned) {
        float factor[DS4_MAX_STEERING];
        for (size_t t = begin; t < end; t++) {
            float *row = y + t * dim;
            for (size_t i = 0; i < count; i++)
                factor[i] = a->scales[i] * q->kernels->dot(ptr(a->directions[i]), row, dim);
            for (size_t i = 0; i < count; i++) q->rows->subtract(row, ptr(a->directions[i]), factor[i], dim);
        }
    });
}

}  // namespace ds4::cpu
