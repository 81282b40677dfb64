// The experts, computed expert by expert for all their tokens, so a weight row is decoded once a chunk; a token's parts
// are added in ascending expert order whatever the chunk looks like.
#include <algorithm>
#include <chrono>
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
// order, so the sums depend neither on the number of threads nor on the chunks.
void add_squares(ds4_queue *q, const Grouping &groups, const float *rows, size_t width, double *sums) {
    q->pool.run(width, 2 * width * groups.token.size(), [&](size_t b, size_t e, unsigned) {
        groups.each([&](uint32_t expert, size_t s0, size_t m) {
            double *sum = sums + expert * width;
            for (const float *row = rows + s0 * width; m > 0; m--, row += width)
                for (size_t c = b; c < e; c++) sum[c] += static_cast<double>(row[c]) * static_cast<double>(row[c]);
        });
    });
}

void add_importance(ds4_queue *q, const Grouping &groups, const float *inputs, size_t dim, const float *middle,
                    size_t width, const ds4_importance &sums) {
    add_squares(q, groups, inputs, dim, ptr<double>(sums.sum_in));
    add_squares(q, groups, middle, width, ptr<double>(sums.sum_mid));
    uint64_t *counts = ptr<uint64_t>(sums.counts);
    groups.each([&](uint32_t expert, size_t, size_t m) { counts[expert] += m; });
}

}  // namespace

void experts(ds4_queue *q, const ds4_args_experts *a) {
    const size_t n = a->n, k = a->k, dim = a->gate.n_in, width = a->gate.n_out, n_expert = a->gate.n_matrices;
    const size_t pairs = n * k, longest = std::max(dim, width);
    const auto begin = std::chrono::steady_clock::now();
    const float *x = ptr(a->x);
    float *y = ptr(a->y);
    const Grouping groups(ptr<const int32_t>(a->ids), ptr(a->weights), n, k, n_expert);
    for (size_t p = 0; p < q->pool.size(); p++) grow(q->scratch[p], longest + 2 * pairs);
    float *mid = grow(q->shared, pairs * width);
    float *gathered = grow(q->shared2, pairs * dim);  // the inputs in pair order, so an expert's rows are adjacent
    for (size_t s = 0; s < pairs; s++) memcpy(gathered + s * dim, x + groups.token[s] * dim, dim * sizeof(float));

    const ActivationRows inputs(q, a->gate.type, gathered, pairs, dim, dim, a->quantized, q->packed);
    q->pool.run(width, width * dim * (2 * pairs + k), [&](size_t b, size_t e, unsigned thread) {
        float *tmp = q->scratch[thread].data(), *g = tmp + longest, *u = g + pairs;
        groups.each([&](uint32_t expert, size_t s0, size_t m) {
            for (size_t r = b; r < e; r++) {
                inputs.dot(weight_row(a->gate, expert, static_cast<uint32_t>(r)), s0, m, g, 1, tmp);
                inputs.dot(weight_row(a->up, expert, static_cast<uint32_t>(r)), s0, m, u, 1, tmp);
                // The routing weight goes in before the down projection, as the importance statistics expect.
                for (size_t j = 0; j < m; j++)
                    mid[(s0 + j) * width + r] = groups.weight[s0 + j] * swiglu_one(g[j], u[j], a->clamp);
            }
        });
    });

    if (a->importance.sum_in.buffer) add_importance(q, groups, gathered, dim, mid, width, a->importance);
    const auto spent = std::chrono::steady_clock::now() - begin;
    q->gate_up_ns = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count());
    const ActivationRows middle(q, a->down.type, mid, pairs, width, width, a->quantized, q->packed);
    q->pool.run(dim, width * dim * (pairs + k), [&](size_t b, size_t e, unsigned thread) {
        float *tmp = q->scratch[thread].data(), *part = tmp + longest;
        for (size_t t = 0; t < n; t++) memset(y + t * dim + b, 0, (e - b) * sizeof(float));
        groups.each([&](uint32_t expert, size_t s0, size_t m) {
            for (size_t r = b; r < e; r++) {
                middle.dot(weight_row(a->down, expert, static_cast<uint32_t>(r)), s0, m, part, 1, tmp);
                for (size_t j = 0; j < m; j++) y[groups.token[s0 + j] * dim + r] += part[j];
            }
        });
    });
}

}  // namespace ds4::cpu
