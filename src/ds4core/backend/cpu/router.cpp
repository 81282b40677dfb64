// The router: which experts a token gets, and their weights (docs/model.md, experts).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/cpu.h"

namespace ds4::cpu {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The smallest sum of weights that is divided by; keeps a dead router from giving infinity (docs/model.md, experts).
constexpr float kRouterFloor = 6.103515625e-5f;

// ids[k]: the k largest of n values z + bias, the largest first and of equal ones the lower id. NaN counts as the
// largest, so that damage shows in the output. Returns the gap between the last one chosen and the best one left.
// best: room for k + 1 values.
float choose(const float *z, const float *bias, size_t n, size_t k, int32_t *ids, float *best) {
    size_t count = 0;
    for (size_t e = 0; e < n; e++) {
        float v = bias ? z[e] + bias[e] : z[e];
        if (std::isnan(v)) v = kInfinity;
        if (count == k + 1 && !(v > best[k])) continue;
        size_t i = count <= k ? count++ : k;
        for (; i > 0 && v > best[i - 1]; i--) {
            best[i] = best[i - 1];
            if (i < k) ids[i] = ids[i - 1];
        }
        best[i] = v;
        if (i < k) ids[i] = static_cast<int32_t>(e);
    }
    return n > k ? best[k - 1] - best[k] : kInfinity;
}

}  // namespace

void router(ds4_queue *q, const ds4_args_router *a) {
    const float *scores = ptr(a->scores), *bias = ptr(a->bias);
    const int32_t *table = ptr<const int32_t>(a->table), *tokens = ptr<const int32_t>(a->tokens);
    int32_t *ids = ptr<int32_t>(a->ids);
    float *weights = ptr(a->weights);
    const size_t n_expert = a->n_expert, k = a->k;
    for (size_t p = 0; p < q->pool.size(); p++) grow(q->scratch[p], n_expert + k + 2)[n_expert + k + 1] = kInfinity;
    q->pool.run(a->n, static_cast<uint64_t>(a->n) * n_expert * 8, [&](size_t b, size_t e, unsigned thread) {
        float *z = q->scratch[thread].data(), *best = z + n_expert, margin = kInfinity;
        for (size_t t = b; t < e; t++) {
            int32_t *id = ids + t * k;
            float *w = weights + t * k, sum = 0;
            q->rows->router_scores(scores + t * n_expert, z, n_expert);
            if (table)
                memcpy(id, table + static_cast<size_t>(tokens[t]) * k, k * sizeof(int32_t));
            else
                margin = std::min(margin, choose(z, bias, n_expert, k, id, best));
            for (size_t j = 0; j < k; j++) sum += w[j] = z[id[j]];
            for (size_t j = 0; j < k; j++) w[j] = w[j] / std::max(sum, kRouterFloor) * a->scale;
        }
        best[k + 1] = std::min(best[k + 1], margin);  // a thread may get several pieces
    });
    for (size_t p = 0; p < q->pool.size(); p++)
        q->margins.router = std::min(q->margins.router, q->scratch[p][n_expert + k + 1]);
}

}  // namespace ds4::cpu
