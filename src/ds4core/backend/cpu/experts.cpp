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
    const uint8_t *chosen;         // [n_expert], or NULL: all

    Grouping(const int32_t *ids, const float *weights, size_t n, size_t k, size_t n_expert, const uint8_t *only)
        : first(n_expert + 1), token(n * k), weight(n * k), chosen(only) {
        for (size_t i = 0; i < n * k; i++) first[static_cast<size_t>(ids[i]) + 1]++;
        for (size_t e = 0; e < n_expert; e++) first[e + 1] += first[e];
        std::vector<uint32_t> next(first.begin(), first.end() - 1);
        for (size_t i = 0; i < n * k; i++) {
            uint32_t pair = next[static_cast<size_t>(ids[i])]++;
            token[pair] = static_cast<uint32_t>(i / k);
            weight[pair] = weights[i];
        }
    }

    bool has(size_t e) const { return first[e + 1] > first[e] && (!chosen || chosen[e]); }

    // fn(expert, first pair, number of pairs) for every expert of the call that has pairs, in ascending order.
    template <class F> void each(F &&fn) const {
        for (size_t e = 0; e + 1 < first.size(); e++)
            if (has(e)) fn(static_cast<uint32_t>(e), first[e], first[e + 1] - first[e]);
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

// One of the three matrices of all experts, stacked or each at its place.
struct Stack {
    const ds4_weight &w;
    const ds4_expert_place *places;
    uint64_t ds4_expert_place::*part;

    ds4_weight matrix(uint32_t expert) const {
        ds4_weight one = w;
        one.data.offset += places ? places[expert].*part : expert * w.matrix_stride;
        return one;
    }
};

// One of the three matrices of the experts and the rows that it multiplies: in panels, or decoded to float32.
class Product {
public:
    // rows: n_in floats of every pair.
    Product(ds4_queue *q, const float *rows) : q_(q), x_(rows) {}
    Product(ds4_queue *q, const PackedTokens &packed) : q_(q), packed_(packed), panels_(true) {}

    // sums[panel][pair][16] of rows [row, row + n_rows) of an expert's matrix and pairs [first, first + n). tmp: n_in
    // floats.
    void rows(ProductWork &work, const ds4_weight &w, size_t row, size_t n_rows, size_t first, size_t n, float *sums, float *tmp,
              const uint8_t *ahead) const {
        if (panels_) return packed_.multiply(q_, work, w, 0, row, n_rows, first, n, sums, ahead);
        for (size_t r = 0; r < n_rows; r++) {
            decode_row(q_->kernels, w.type, weight_row(w, 0, static_cast<uint32_t>(row + r)), tmp, w.n_in);
            q_->kernels->dot_many(tmp, x_ + first * w.n_in, w.n_in, n, w.n_in,
                                  sums + r / kPanelRows * n * kPanelRows + r % kPanelRows, kPanelRows);
        }
    }

private:
    ds4_queue *q_;
    const float *x_ = nullptr;
    PackedTokens packed_;
    bool panels_ = false;
};

// Where the rows of the next piece of work begin: the ones after these, or those of the next expert.
struct Ahead {
    const Grouping &groups;
    const Stack &stack;
    size_t begin;  // of the rows of this thread

    const uint8_t *after(const ds4_weight &w, uint32_t expert, size_t row, size_t end) const {
        if (row < end) return weight_row(w, 0, static_cast<uint32_t>(row));
        for (size_t e = expert + 1; e + 1 < groups.first.size(); e++)
            if (groups.has(e)) return weight_row(stack.matrix(static_cast<uint32_t>(e)), 0, static_cast<uint32_t>(begin));
        return nullptr;
    }
};

// What the halves of a call share.
struct Call {
    ds4_queue *q;
    const ds4_args_experts *a;
    const size_t n, dim, width, pairs, slab;
    const Grouping groups;
    TokenBlocks blocks;
    size_t own_pairs = 0, own_experts = 0;  // of the experts of this call
    float *mid;                             // [pairs][width]

    Call(ds4_queue *queue, const ds4_args_experts *args)
        : q(queue), a(args), n(args->n), dim(args->gate.n_in), width(args->gate.n_out), pairs(n * args->k), slab(std::min(kSlab, n)),
          groups(ptr<const int32_t>(args->ids), ptr(args->weights), n, args->k, args->gate.n_matrices, ptr<const uint8_t>(args->chosen)),
          blocks(queue->panels->block) {
        groups.each([&](uint32_t, size_t s0, size_t m) {
            for (size_t j = 0; j < m; j += kSlab) blocks.add_run(s0 + j, std::min(kSlab, m - j));
            own_pairs += m;
            own_experts++;
        });
        for (size_t p = 0; p < q->pool.size(); p++) {
            grow(q->scratch[p], std::max(dim, width));
            grow(q->work[p].sums, kPanelsAtOnce * slab * kPanelRows);
        }
        mid = grow(q->shared, pairs * width);
    }

    // Regions of n_items panels. With few tokens memory is the bound, and each piece begins with rows that nobody has asked
    // for: two pieces a thread are enough to share the work.
    template <class F> void run(size_t n_items, uint64_t work, F &&fn) const {
        if (n < q->panels->block)
            q->pool.run(n_items, (n_items - 1) / (2 * size_t{q->pool.size()}) + 1, work, fn);
        else
            q->pool.run(n_items, work, fn);
    }

    Stack stack(const ds4_weight &w, uint64_t ds4_expert_place::*part) const {
        return {w, ptr<const ds4_expert_place>(a->places), part};
    }
};

void gate_and_up(Call &c) {
    ds4_queue *const q = c.q;
    const ds4_args_experts *const a = c.a;
    const size_t n = c.n, dim = c.dim, width = c.width, slab = c.slab;
    const Grouping &groups = c.groups;
    const float *x = ptr(a->x);
    const uint32_t *token = groups.token.data();
    // Few tokens: the shortest pieces share the work best. Many: panels together read a block of tokens once.
    const size_t at_once = n < q->panels->block ? 1 : 2, rows_at_once = at_once * kPanelRows;

    float *gathered = nullptr;
    auto of_inputs = [&](const ds4_weight &w, std::vector<uint8_t> &store) {
        if (a->quantized && PackedTokens::supports(w.type))
            return Product(q, PackedTokens::gather(q, w.type, c.blocks, x, n, dim, token, store));
        if (!gathered) {  // so that the inputs of an expert are adjacent
            gathered = grow(q->shared2, c.pairs * dim);
            groups.each([&](uint32_t, size_t s0, size_t m) {
                for (size_t s = s0; s < s0 + m; s++) memcpy(gathered + s * dim, x + token[s] * dim, dim * sizeof(float));
            });
        }
        return Product(q, gathered);
    };
    const Stack gates = c.stack(a->gate, &ds4_expert_place::gate), ups = c.stack(a->up, &ds4_expert_place::up);
    const Product gate = of_inputs(a->gate, q->blocks);
    const Product up = a->up.type == a->gate.type ? gate : of_inputs(a->up, q->blocks2);
    c.run((width + rows_at_once - 1) / rows_at_once, width * dim * (2 * c.own_pairs + c.own_experts),
          [&](size_t b, size_t e, unsigned thread) {
        ProductWork &work = q->work[thread];
        float *tmp = q->scratch[thread].data(), *g = work.sums.data(), *u = g + 2 * slab * kPanelRows;
        const size_t begin = b * rows_at_once, end = std::min(width, e * rows_at_once);
        const Ahead next_gate{groups, gates, begin}, next_up{groups, ups, begin};
        groups.each([&](uint32_t expert, size_t s0, size_t m) {
            const ds4_weight of_gate = gates.matrix(expert), of_up = ups.matrix(expert);
            for (size_t row = begin; row < end; row += rows_at_once) {
                const size_t n_rows = std::min(rows_at_once, end - row);
                for (size_t j0 = 0; j0 < m; j0 += kSlab) {
                    const size_t count = std::min(kSlab, m - j0), first = s0 + j0;
                    gate.rows(work, of_gate, row, n_rows, first, count, g, tmp, next_gate.after(of_gate, expert, row + n_rows, end));
                    up.rows(work, of_up, row, n_rows, first, count, u, tmp, next_up.after(of_up, expert, row + n_rows, end));
                    // The routing weight goes in before the down projection, as the importance statistics expect.
                    for (size_t j = 0; j < count; j++)
                        for (size_t r = 0; r < n_rows; r += kPanelRows) {
                            const size_t at = (r / kPanelRows * count + j) * kPanelRows;
                            q->rows->swiglu(g + at, u + at, groups.weight[first + j], a->clamp,
                                            c.mid + (first + j) * width + row + r, std::min(kPanelRows, n_rows - r));
                        }
                }
            }
        });
    });
    if (a->importance.sum_in.buffer) add_importance(q, groups, x, dim, c.mid, width, a->importance);
}

void down(Call &c, bool add) {
    ds4_queue *const q = c.q;
    const ds4_args_experts *const a = c.a;
    const size_t n = c.n, dim = c.dim, width = c.width;
    const Grouping &groups = c.groups;
    float *const y = ptr(a->y);
    const Stack downs = c.stack(a->down, &ds4_expert_place::down);
    const Product product = a->quantized && PackedTokens::supports(a->down.type)
                                ? Product(q, PackedTokens::round(q, a->down.type, c.blocks, c.mid, width, width, q->blocks))
                                : Product(q, c.mid);
    const size_t out_at_once = n < q->panels->block ? 1 : kPanelsAtOnce, out_rows = out_at_once * kPanelRows;
    c.run((dim + out_rows - 1) / out_rows, width * dim * (c.own_pairs + c.own_experts), [&](size_t b, size_t e, unsigned thread) {
        ProductWork &work = q->work[thread];
        float *tmp = q->scratch[thread].data(), *part = work.sums.data();
        const size_t begin = b * out_rows, end = std::min(dim, e * out_rows);
        const Ahead next{groups, downs, begin};
        for (size_t t = 0; t < n && !add; t++) memset(y + t * dim + begin, 0, (end - begin) * sizeof(float));
        groups.each([&](uint32_t expert, size_t s0, size_t m) {
            const ds4_weight of_down = downs.matrix(expert);
            for (size_t row = begin; row < end; row += out_rows) {
                const size_t n_rows = std::min(out_rows, end - row);
                for (size_t j0 = 0; j0 < m; j0 += kSlab) {
                    const size_t count = std::min(kSlab, m - j0), first = s0 + j0;
                    product.rows(work, of_down, row, n_rows, first, count, part, tmp, next.after(of_down, expert, row + n_rows, end));
                    for (size_t j = 0; j < count; j++) {
                        float *out = y + groups.token[first + j] * dim + row;
                        for (size_t r = 0; r < n_rows; r++) out[r] += part[(r / kPanelRows * count + j) * kPanelRows + r % kPanelRows];
                    }
                }
            }
        });
    });
}

}  // namespace

void experts(ds4_queue *q, const ds4_args_experts *a) {
    const auto start = std::chrono::steady_clock::now();
    Call c(q, a);
    if (a->work & DS4_EXPERTS_GATE_UP) {
        gate_and_up(c);
        const auto spent = std::chrono::steady_clock::now() - start;
        q->gate_up_ns = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count());
    }
    if (a->work & DS4_EXPERTS_DOWN) down(c, (a->work & DS4_EXPERTS_ADD) != 0);
}

}  // namespace ds4::cpu
