// Matrix products of the CPU backend: each row of the weight is decoded once and meets every token of the chunk.
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu.h"
#include "quant/quant.h"

namespace ds4::cpu {

namespace {

// A float32 activation is multiplied as it is, with decoded rows.
void matmul_float(ds4_queue *q, const ds4_args_matmul *a) {
    const ds4_weight &w = a->w;
    const float *x = ptr(a->x);
    float *y = ptr(a->y);
    const size_t n_in = w.n_in, per_group = w.n_out / a->groups;
    for (size_t p = 0; p < q->pool.size(); p++) grow(q->scratch[p], n_in + a->n);
    for (size_t g = 0; g < a->groups; g++) {
        const uint64_t work = static_cast<uint64_t>(per_group) * n_in * (a->n + 1) / 4;
        q->pool.run(per_group, work, [&](size_t b, size_t e, unsigned thread) {
            float *tmp = q->scratch[thread].data(), *sums = tmp + n_in;
            for (size_t i = b; i < e; i++) {
                const size_t r = g * per_group + i;
                decode_row(q->kernels, w.type, weight_row(w, 0, static_cast<uint32_t>(r)), tmp, n_in);
                if (!a->accumulate) {
                    q->kernels->dot_many(tmp, x + g * n_in, a->x_stride, a->n, n_in, y + r, a->y_stride);
                    continue;
                }
                q->kernels->dot_many(tmp, x + g * n_in, a->x_stride, a->n, n_in, sums, 1);
                for (size_t t = 0; t < a->n; t++) y[t * a->y_stride + r] += sums[t];
            }
        });
    }
}

void matmul_panels(ds4_queue *q, const ds4_args_matmul *a) {
    const ds4_weight &w = a->w;
    float *y = ptr(a->y);
    const size_t n = a->n, n_in = w.n_in, per_group = w.n_out / a->groups;
    const size_t at_once = n < q->panels->block ? 1 : kPanelsAtOnce;
    const size_t n_panels = (per_group + kPanelRows - 1) / kPanelRows, n_units = (n_panels + at_once - 1) / at_once;
    TokenBlocks blocks(q->panels->block);
    for (size_t t = 0; t < n; t += kSlab) blocks.add_run(t, std::min(kSlab, n - t));
    for (size_t p = 0; p < q->pool.size(); p++) grow(q->work[p].sums, at_once * std::min(kSlab, n) * kPanelRows);
    for (size_t g = 0; g < a->groups; g++) {
        const PackedTokens tokens = PackedTokens::round(q, w.type, blocks, ptr(a->x) + g * n_in, a->x_stride, n_in, q->blocks);
        q->pool.run(n_units, static_cast<uint64_t>(per_group) * n_in * (n + 1) / 8, [&](size_t b, size_t e, unsigned thread) {
            ProductWork &work = q->work[thread];
            float *sums = work.sums.data();
            for (; b < e; b++) {
                const size_t first = b * at_once * kPanelRows, rows = std::min(at_once * kPanelRows, per_group - first);
                const size_t row = g * per_group + first;
                for (size_t t0 = 0; t0 < n; t0 += kSlab) {
                    const size_t m = std::min(kSlab, n - t0);
                    const uint8_t *ahead = first + rows < per_group ? weight_row(w, 0, static_cast<uint32_t>(row + rows)) : nullptr;
                    tokens.multiply(q, work, w, 0, row, rows, t0, m, sums, ahead);
                    for (size_t t = 0; t < m; t++) {
                        float *out = y + (t0 + t) * a->y_stride + row;
                        for (size_t r = 0; r < rows; r += kPanelRows) {
                            const float *s = sums + (r / kPanelRows * m + t) * kPanelRows;
                            const size_t k = std::min(kPanelRows, rows - r);
                            if (a->accumulate)
                                for (size_t i = 0; i < k; i++) out[r + i] += s[i];
                            else
                                memcpy(out + r, s, k * sizeof(float));
                        }
                    }
                }
            }
        });
    }
}

}  // namespace

void matmul(ds4_queue *q, const ds4_args_matmul *a) {
    if (a->quantized && PackedTokens::supports(a->w.type))
        matmul_panels(q, a);
    else
        matmul_float(q, a);
}

}  // namespace ds4::cpu
