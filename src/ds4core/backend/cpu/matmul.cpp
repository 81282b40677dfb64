// Matrix products of the CPU backend: those in panels, and which of both kinds a product is.
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu.h"
#include "quant/quant.h"

namespace ds4::cpu {

namespace {

constexpr size_t kPieceBytes = 512 << 10;  // of weights, 10 to 20 us of reading

void matmul_panels(ds4_queue *q, const ds4_args_matmul *a) {
    const ds4_weight &w = a->w;
    float *y = ptr(a->y);
    const size_t n = a->n, n_in = w.n_in, per_group = w.n_out / a->groups, slab = std::min(kSlab, n);
    const size_t at_once = n < q->panels->block ? 1 : kPanelsAtOnce, unit = at_once * kPanelRows;
    const size_t units_per_group = (per_group + unit - 1) / unit;
    TokenBlocks blocks(q->panels->block);
    for (size_t t = 0; t < n; t += kSlab) blocks.add_run(t, std::min(kSlab, n - t));
    for (size_t p = 0; p < q->pool.size(); p++) grow(q->work[p].sums, at_once * slab * kPanelRows);
    const PackedTokens tokens =
        PackedTokens::round(q, w.type, blocks, ptr(a->x), a->x_stride, n_in, q->blocks, a->groups);

    // One unit: a few panels of rows for all tokens.
    auto multiply = [&](size_t g, size_t first, unsigned thread) {
        const size_t rows = std::min(unit, per_group - first), row = g * per_group + first;
        float *sums = q->work[thread].sums.data();
        const uint8_t *ahead = row + rows < w.n_out ? weight_row(w, 0, static_cast<uint32_t>(row + rows)) : nullptr;
        const PackedTokens own = tokens.group(g);
        for (size_t t0 = 0; t0 < n; t0 += slab) {
            const size_t m = std::min(slab, n - t0);
            own.multiply(q, q->work[thread], w, 0, row, rows, t0, m, sums, ahead);
            for (size_t t = 0; t < m; t++)
                for (size_t r = 0; r < rows; r += kPanelRows) {
                    float *out = y + (t0 + t) * a->y_stride + row + r;
                    const float *s = sums + (r / kPanelRows * m + t) * kPanelRows;
                    const size_t k = std::min(kPanelRows, rows - r);
                    for (size_t i = 0; i < k; i++) out[i] = a->accumulate ? out[i] + s[i] : s[i];
                }
        }
    };
    // Pieces small enough that no thread waits long for the last one of another.
    const size_t n_units = a->groups * units_per_group, most = std::max<size_t>(n_units / (8 * q->pool.size()), 1);
    const size_t grain = std::clamp<size_t>(kPieceBytes / (w.row_stride * unit), 1, most);
    q->pool.run(n_units, grain, static_cast<uint64_t>(w.n_out) * n_in * (n + 1) / 8,
                [&](size_t b, size_t e, unsigned thread) {
                    for (; b < e; b++) multiply(b / units_per_group, b % units_per_group * unit, thread);
                });
}

}  // namespace

void matmul(ds4_queue *q, const ds4_args_matmul *a) {
    if (a->quantized && PackedTokens::supports(a->w.type))
        matmul_panels(q, a);
    else
        matmul_float(q, a);
}

}  // namespace ds4::cpu
