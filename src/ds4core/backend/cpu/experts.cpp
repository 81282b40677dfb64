// The routed experts, computed expert by expert for all their tokens, so a weight row is decoded once a chunk. A
// token's parts are added in ascending expert order whatever the chunk looks like.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "backend/cpu/cpu.h"

namespace ds4::cpu {

namespace {

// The (token, choice) pairs of a chunk sorted by expert, then token. Pair numbers index the rows of the middle layer.
struct Grouping {
    std::vector<uint32_t> first;   // [n_expert + 1]
    std::vector<uint32_t> token;   // [n * k]
    std::vector<float> weight;     // [n * k]

    Grouping(const int32_t *ids, const float *weights, size_t n, size_t k, size_t n_expert)
        : first(n_expert + 1), token(n * k), weight(n * k) {
        for (size_t i = 0; i < n * k; i++) first[static_cast<size_t>(ids[i]) + 1]++;
        for (size_t e = 0; e < n_expert; e++) first[e + 1] += first[e];
        std::vector<uint32_t> next(first.begin(), first.end() - 1);
        for (size_t i = 0; i < n * k; i++) {
            uint32_t pair = next[static_cast<size_t>(ids[i])]++;
            token[pair] = static_cast<uint32_t>(i / k);
            weight[pair] = weights[i];
        }
    }

    // fn(expert, first pair, number of pairs) for every expert that was chosen, in ascending order.
    template <class F> void each(F &&fn) const {
        for (size_t e = 0; e + 1 < first.size(); e++)
            if (first[e + 1] > first[e]) fn(static_cast<uint32_t>(e), first[e], first[e + 1] - first[e]);
    }
};

// Adds the squares of the rows of all pairs to the sums of their experts. A thread owns columns and pairs are in token
// order, so the sums depend neither on the number of threads nor on the chunks. Pair p is row index[p], or row p.
void add_squares(ds4_queue *q, const Grouping &groups, const float *rows, size_t width, const uint32_t *index, double *sums) {
    q->pool.run(width, 2 * width * groups.token.size(), [&](size_t b, size_t e, unsigned) {
        groups.each([&](uint32_t expert, size_t s0, size_t m) {
            double *sum = sums + expert * width;
            for (size_t s = s0; s < s0 + m; s++) {
                const float *row = rows + (index ? index[s] : s) * width;
                for (size_t c = b; c < e; c++) sum[c] += static_cast<double>(row[c]) * static_cast<double>(row[c]);
            }
        });
    });
}

void add_importance(ds4_queue *q, const Grouping &groups, const float *x, size_t dim, const float *middle, size_t width,
                    const ds4_importance &sums) {
    add_squares(q, groups, x, dim, groups.token.data(), ptr<double>(sums.sum_in));
    add_squares(q, groups, middle, width, nullptr, ptr<double>(sums.sum_mid));
    uint64_t *counts = ptr<uint64_t>(sums.counts);
    groups.each([&](uint32_t expert, size_t, size_t m) { counts[expert] += m; });
}

// One of the three matrices of the experts and the rows that it multiplies: in panels, or decoded to float32.
class Product {
public:
    // rows: n_in floats of every pair.
    Product(ds4_queue *q, const ds4_weight &w, const float *rows) : q_(q), w_(w), x_(rows) {}
    Product(ds4_queue *q, const ds4_weight &w, const PackedTokens &packed) : q_(q), w_(w), packed_(packed), panels_(true) {}
    // Another matrix of the same type for the rows that `p` has.
    Product(const ds4_weight &w, const Product &p) : q_(p.q_), w_(w), x_(p.x_), packed_(p.packed_), panels_(p.panels_) {}

    // sums[panel][pair][16] of rows [row, row + n_rows) of expert m and pairs [first, first + n). tmp: n_in floats.
    void rows(ProductWork &work, uint32_t m, size_t row, size_t n_rows, size_t first, size_t n, float *sums, float *tmp,
              const uint8_t *ahead) const {
        if (panels_) return packed_.multiply(q_, work, w_, m, row, n_rows, first, n, sums, ahead);
        for (size_t r = 0; r < n_rows; r++) {
            decode_row(q_->kernels, w_.type, weight_row(w_, m, static_cast<uint32_t>(row + r)), tmp, w_.n_in);
            q_->kernels->dot_many(tmp, x_ + first * w_.n_in, w_.n_in, n, w_.n_in,
                                  sums + r / kPanelRows * n * kPanelRows + r % kPanelRows, kPanelRows);
        }
    }

private:
    ds4_queue *q_;
    const ds4_weight &w_;
    const float *x_ = nullptr;
    PackedTokens packed_;
    bool panels_ = false;
};

// Where the rows of the next piece of work begin: the ones after these, or those of the next expert.
struct Ahead {
    const Grouping &groups;
    const ds4_weight &w;
    size_t begin;  // of the rows of this thread

    const uint8_t *after(uint32_t expert, size_t row, size_t end) const {
        if (row < end) return weight_row(w, expert, static_cast<uint32_t>(row));
        for (size_t e = expert + 1; e + 1 < groups.first.size(); e++)
            if (groups.first[e + 1] > groups.first[e]) return weight_row(w, static_cast<uint32_t>(e), static_cast<uint32_t>(begin));
        return nullptr;
    }
};

}  // namespace

void experts(ds4_queue *q, const ds4_args_experts *a) {
    const size_t n = a->n, k = a->k, dim = a->gate.n_in, width = a->gate.n_out, n_expert = a->gate.n_matrices;
    const size_t pairs = n * k, longest = std::max(dim, width), slab = std::min(kSlab, n);
    const auto start = std::chrono::steady_clock::now();
    const float *x = ptr(a->x);
    float *y = ptr(a->y);
    const Grouping groups(ptr<const int32_t>(a->ids), ptr(a->weights), n, k, n_expert);
    TokenBlocks blocks(q->panels->block);
    groups.each([&](uint32_t, size_t s0, size_t m) {
        for (size_t j = 0; j < m; j += kSlab) blocks.add_run(s0 + j, std::min(kSlab, m - j));
    });
    for (size_t p = 0; p < q->pool.size(); p++) {
        grow(q->scratch[p], longest);
        grow(q->work[p].sums, kPanelsAtOnce * slab * kPanelRows);
    }
    float *mid = grow(q->shared, pairs * width);
    // Few tokens: the shortest pieces share the work best. Many: panels together read a block of tokens once.
    const size_t at_once = n < q->panels->block ? 1 : 2, rows_at_once = at_once * kPanelRows;

    const uint32_t *token = groups.token.data();
    float *gathered = nullptr;
    auto of_inputs = [&](const ds4_weight &w, std::vector<uint8_t> &store) {
        if (a->quantized && PackedTokens::supports(w.type))
            return Product(q, w, PackedTokens::gather(q, w.type, blocks, x, n, dim, token, store));
        if (!gathered) {  // so that the inputs of an expert are adjacent
            gathered = grow(q->shared2, pairs * dim);
            for (size_t s = 0; s < pairs; s++) memcpy(gathered + s * dim, x + token[s] * dim, dim * sizeof(float));
        }
        return Product(q, w, gathered);
    };
    const Product gate = of_inputs(a->gate, q->blocks);
    const Product up = a->up.type == a->gate.type ? Product(a->up, gate) : of_inputs(a->up, q->blocks2);
    q->pool.run((width + rows_at_once - 1) / rows_at_once, width * dim * (2 * pairs + k), [&](size_t b, size_t e, unsigned thread) {
        ProductWork &work = q->work[thread];
        float *tmp = q->scratch[thread].data(), *g = work.sums.data(), *u = g + 2 * slab * kPanelRows;
        const size_t begin = b * rows_at_once, end = std::min(width, e * rows_at_once);
        const Ahead next_gate{groups, a->gate, begin}, next_up{groups, a->up, begin};
        groups.each([&](uint32_t expert, size_t s0, size_t m) {
            for (size_t row = begin; row < end; row += rows_at_once) {
                const size_t n_rows = std::min(rows_at_once, end - row);
                for (size_t j0 = 0; j0 < m; j0 += kSlab) {
                    const size_t c = std::min(kSlab, m - j0), first = s0 + j0;
                    gate.rows(work, expert, row, n_rows, first, c, g, tmp, next_gate.after(expert, row + n_rows, end));
                    up.rows(work, expert, row, n_rows, first, c, u, tmp, next_up.after(expert, row + n_rows, end));
                    // The routing weight goes in before the down projection, as the importance statistics expect.
                    for (size_t j = 0; j < c; j++)
                        for (size_t r = 0; r < n_rows; r += kPanelRows) {
                            const size_t at = (r / kPanelRows * c + j) * kPanelRows;
                            q->rows->swiglu(g + at, u + at, groups.weight[first + j], a->clamp,
                                        mid + (first + j) * width + row + r, std::min(kPanelRows, n_rows - r));
                        }
                }
            }
        });
    });

    if (a->importance.sum_in.buffer) add_importance(q, groups, x, dim, mid, width, a->importance);
    const auto spent = std::chrono::steady_clock::now() - start;
    q->gate_up_ns = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count());
    const Product down = a->quantized && PackedTokens::supports(a->down.type)
                             ? Product(q, a->down, PackedTokens::round(q, a->down.type, blocks, mid, width, width, q->blocks))
                             : Product(q, a->down, mid);
    const size_t out_at_once = n < q->panels->block ? 1 : kPanelsAtOnce, out_rows = out_at_once * kPanelRows;
    q->pool.run((dim + out_rows - 1) / out_rows, width * dim * (pairs + k), [&](size_t b, size_t e, unsigned thread) {
        ProductWork &work = q->work[thread];
        float *tmp = q->scratch[thread].data(), *part = work.sums.data();
        const size_t begin = b * out_rows, end = std::min(dim, e * out_rows);
        const Ahead next{groups, a->down, begin};
        for (size_t t = 0; t < n; t++) memset(y + t * dim + begin, 0, (end - begin) * sizeof(float));
        groups.each([&](uint32_t expert, size_t s0, size_t m) {
            for (size_t row = begin; row < end; row += out_rows) {
                const size_t n_rows = std::min(out_rows, end - row);
                for (size_t j0 = 0; j0 < m; j0 += kSlab) {
                    const size_t c = std::min(kSlab, m - j0), first = s0 + j0;
                    down.rows(work, expert, row, n_rows, first, c, part, tmp, next.after(expert, row + n_rows, end));
                    for (size_t j = 0; j < c; j++) {
                        float *out = y + groups.token[first + j] * dim + row;
                        for (size_t r = 0; r < n_rows; r++) out[r] += part[(r / kPanelRows * c + j) * kPanelRows + r % kPanelRows];
                    }
                }
            }
        });
    });
}

}  // namespace ds4::cpu
