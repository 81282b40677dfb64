// Row helpers shared by the CPU operations: decoding, cache rows, normalisation, rotation.
#include <cmath>
#include <cstring>

#include "backend/cpu/cpu.h"
#include "base/half.h"
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

void store_row(uint32_t row_type, uint8_t *rows, size_t index, size_t dim, const float *src) {
    uint8_t *dst = rows + index * cache_row_bytes(row_type, dim);
    if (row_type == DS4_ROW_F16) {
        for (size_t i = 0; i < dim; i++) {
            uint16_t h = f32_to_f16(src[i]);
            memcpy(dst + 2 * i, &h, 2);
        }
    } else {
        memcpy(dst, src, dim * 4);
    }
}

void rms_row(const Kernels *k, const float *x, const float *w, float *y, size_t dim, float eps) {
    float inv = 1.0f / std::sqrt(k->sum_squares(x, dim) / static_cast<float>(dim) + eps);
    if (w)
        for (size_t i = 0; i < dim; i++) y[i] = x[i] * inv * w[i];
    else
        for (size_t i = 0; i < dim; i++) y[i] = x[i] * inv;
}

void rope_angles(uint32_t pos, const float *freqs, size_t n_pairs, float sign, float *cosine, float *sine) {
    for (size_t i = 0; i < n_pairs; i++) {
        float angle = static_cast<float>(pos) * freqs[i];
        cosine[i] = std::cos(angle);
        sine[i] = sign * std::sin(angle);
    }
}

void rope_row(float *x, size_t dim, size_t n_rot, const float *cosine, const float *sine) {
    float *p = x + dim - n_rot;
    for (size_t i = 0; i < n_rot / 2; i++) {
        float a = p[2 * i], b = p[2 * i + 1];
        p[2 * i] = a * cosine[i] - b * sine[i];
        p[2 * i + 1] = a * sine[i] + b * cosine[i];
    }
}

void rms_norm(ds4_queue *q, const ds4_args_rms_norm *a) {
    const float *x = ptr(a->x), *w = ptr(a->w);
    float *y = ptr(a->y);
    size_t dim = a->dim;
    q->pool.run(a->n_rows, static_cast<uint64_t>(a->n_rows) * dim, [&](size_t b, size_t e, unsigned) {
        for (size_t r = b; r < e; r++) rms_row(q->kernels, x + r * dim, w, y + r * dim, dim, a->eps);
    });
}

void embed(ds4_queue *q, const ds4_args_embed *a) {
    const int32_t *tokens = ptr<const int32_t>(a->tokens);
    float *out = ptr(a->out);
    size_t dim = a->table.n_in;
    for (size_t t = 0; t < a->n; t++) {
        float *first = out + t * a->copies * dim;
        decode_row(q->kernels, a->table.type, weight_row(a->table, 0, static_cast<uint32_t>(tokens[t])), first, dim);
        for (size_t c = 1; c < a->copies; c++) memcpy(first + c * dim, first, dim * 4);
    }
}

void rope(ds4_queue *q, const ds4_args_rope *a) {
    float *x = ptr(a->x);
    const float *freqs = ptr(a->freqs);
    size_t dim = a->dim, pairs = a->n_rot / 2;
    q->pool.run(a->n, static_cast<uint64_t>(a->n) * a->heads * a->n_rot * 4, [&](size_t b, size_t e, unsigned) {
        float cosine[256], sine[256];  // room for n_rot = 512; every registered shape has 64
        for (size_t t = b; t < e; t++) {
            rope_angles(a->pos0 + static_cast<uint32_t>(t), freqs, pairs, a->sign, cosine, sine);
            for (size_t h = 0; h < a->heads; h++) rope_row(x + (t * a->heads + h) * dim, dim, a->n_rot, cosine, sine);
        }
    });
}

void store_rows(ds4_queue *, const ds4_args_store_rows *a) {
    const float *x = ptr(a->x);
    uint8_t *rows = ptr<uint8_t>(a->rows);
    for (size_t t = 0; t < a->n; t++)
        store_row(a->row_type, rows, (a->pos0 + t) % a->capacity, a->dim, x + t * a->dim);
}

void add_rows(ds4_queue *, const ds4_args_add_rows *a) {
    float *x = ptr(a->x);
    const float *e = ptr(a->e);
    for (size_t t = 0; t < a->n; t++)
        for (size_t c = 0; c < a->copies; c++)
            for (size_t i = 0; i < a->dim; i++) x[(t * a->copies + c) * a->dim + i] += e[t * a->dim + i];
}

}  // namespace ds4::cpu
