// Matrix products of the CPU backend: each row of the weight is decoded once and meets every token of the chunk.
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu.h"
#include "quant/quant.h"

namespace ds4::cpu {

ActivationRows::ActivationRows(ds4_queue *q, uint32_t type, const float *x, size_t n, size_t x_stride, size_t n_in,
                               bool quantized, std::vector<uint8_t> &store)
    : k_(q->kernels), type_(type), x_(x), x_stride_(x_stride), n_in_(n_in) {
    uint32_t kind = quantized ? activation_kind(type) : kActivationNone;
    if (kind == kActivationNone) return;
    packed_bytes_ = activation_bytes(kind, n_in);
    if (store.size() < n * packed_bytes_) store.resize(n * packed_bytes_);
    uint8_t *dst = store.data();
    packed_ = dst;
    q->pool.run(n, n * n_in * 4, [&](size_t b, size_t e, unsigned) {
        for (size_t t = b; t < e; t++) {
            if (kind == kActivationQ8K)
                quantize_q8_k(x + t * x_stride, reinterpret_cast<BlockQ8K *>(dst + t * packed_bytes_), n_in);
            else
                quantize_q8_a(x + t * x_stride, reinterpret_cast<BlockQ8A *>(dst + t * packed_bytes_), n_in);
        }
    });
}

void ActivationRows::dot(const uint8_t *w_row, size_t first, size_t n, float *out, size_t out_stride,
                         float *tmp) const {
    if (packed_) {
        for (size_t j = 0; j < n; j++)
            out[j * out_stride] = vec_dot(type_, w_row, packed_ + (first + j) * packed_bytes_, n_in_);
        return;
    }
    decode_row(k_, type_, w_row, tmp, n_in_);
    k_->dot_many(tmp, x_ + first * x_stride_, x_stride_, n, n_in_, out, out_stride);
}

void matmul(ds4_queue *q, const ds4_args_matmul *a) {
    const ds4_weight &w = a->w;
    const float *x = ptr(a->x);
    float *y = ptr(a->y);
    size_t n_in = w.n_in, per_group = w.n_out / a->groups;
    for (size_t p = 0; p < q->pool.size(); p++) grow(q->scratch[p], n_in + a->n);
    for (size_t g = 0; g < a->groups; g++) {
        ActivationRows rows(q, w.type, x + g * n_in, a->n, a->x_stride, n_in, a->quantized, q->packed);
        uint64_t work = static_cast<uint64_t>(per_group) * n_in * (a->n + 1) / 4;
        q->pool.run(per_group, work, [&](size_t b, size_t e, unsigned thread) {
            float *tmp = q->scratch[thread].data(), *sums = tmp + n_in;
            for (size_t i = b; i < e; i++) {
                size_t r = g * per_group + i;
                const uint8_t *row = weight_row(w, 0, static_cast<uint32_t>(r));
                if (!a->accumulate) {
                    rows.dot(row, 0, a->n, y + r, a->y_stride, tmp);
                    continue;
                }
                rows.dot(row, 0, a->n, sums, 1, tmp);
                for (size_t t = 0; t < a->n; t++) y[t * a->y_stride + r] += sums[t];
            }
        });
    }
}

}  // namespace ds4::cpu
