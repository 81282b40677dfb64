// The router: which experts a token gets, and their weights (docs/model.md, experts).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/cpu.h"

namespace ds4::cpu {

namespace {

// sqrt(softplus(x)); softplus is linear above 20, where float32 cannot tell the difference.
float router_score(float x) { return std::sqrt(x > 20.0f ? x : std::log1p(std::exp(x))); }

// The smallest sum of weights that is divided by; keeps a dead router from giving infinity (docs/model.md, experts).
constexpr float kRouterFloor = 6.103515625e-5f;

}  // namespace

void router(ds4_queue *q, const ds4_args_router *a) {
    const float *scores = ptr(a->scores), *bias = ptr(a->bias);
    const int32_t *table = ptr<const int32_t>(a->table), *tokens = ptr<const int32_t>(a->tokens);
    int32_t *ids = ptr<int32_t>(a->ids);
    float *weights = ptr(a->weights);
    const size_t n_expert = a->n_expert, k = a->k;
    float *z = grow(q->shared, 2 * n_expert), *ranked = z + n_expert;
    for (size_t t = 0; t < a->n; t++) {
        int32_t *id = ids + t * k;
        float *w = weights + t * k, sum = 0;
        for (size_t e = 0; e < n_expert; e++) z[e] = router_score(scores[t * n_expert + e]);
        if (table) {
            memcpy(id, table + static_cast<size_t>(tokens[t]) * k, k * sizeof(int32_t));
        } else {
            for (size_t e = 0; e < n_expert; e++) ranked[e] = z[e] + (bias ? bias[e] : 0.0f);
            float last = 0;
            for (size_t j = 0; j < k; j++) {  // k is small (6 in Flash and Pro): repeated maxima, the lowest id wins ties
                size_t best = 0;
                for (size_t e = 1; e < n_expert; e++)
                    if (ranked[e] > ranked[best]) best = e;
                id[j] = static_cast<int32_t>(best);
                last = ranked[best];
                ranked[best] = -std::numeric_limits<float>::infinity();
            }
            float left = *std::max_element(ranked, ranked + n_expert);
            q->margins.router = std::min(q->margins.router, last - left);
        }
        for (size_t j = 0; j < k; j++) sum += w[j] = z[id[j]];
        for (size_t j = 0; j < k; j++) w[j] = w[j] / std::max(sum, kRouterFloor) * a->scale;
    }
}

}  // namespace ds4::cpu
