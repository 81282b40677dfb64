// The router: which experts a token gets, and their weights (docs/model.md, experts). A token a simdgroup.
#pragma once

#include "common.metal"

// sqrt(softplus(x)): softplus = max(x, 0) + log(1 + e), e = exp(-|x|); log(1 + e) = 2 artanh(s), s = e / (2 + e), by an odd
// polynomial, since a plain logarithm of 1 + e loses the small values.
inline float router_score(float x) {
    const float e = exp_of(-fabs(x)), s = e / (2.0f + e), q = s * s;
    float p = q * 0.280121565f + 0.280017734f;
    p = p * q + 0.400215298f;
    p = p * q + 0.666664183f;
    return precise::sqrt((x < 0 ? 0.0f : x) + (s * 2.0f + s * q * p));
}

kernel void router(constant ds4_metal_router &m [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    threadgroup float z[DS4_METAL_MAX_EXPERTS];
    constant ds4_args_router &a = m.a;
    const uint t = group.x;
    device const float *scores = at<float>(a.scores) + ulong(t) * a.n_expert;
    device const float *bias = at<float>(a.bias);
    device const int *table = at<int>(a.table);
    device int *ids = at<int>(a.ids) + ulong(t) * a.k;
    for (uint e = lane; e < a.n_expert; e += kSimd) z[e] = router_score(scores[e]);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    int chosen[DS4_METAL_MAX_CHOSEN];
    float gap = INFINITY;
    if (table) {
        device const int *row = table + ulong(at<int>(a.tokens)[t]) * a.k;
        for (uint j = 0; j < a.k; j++) chosen[j] = row[j];
    } else {
        // The largest first, of equal ones the lower id; NaN counts as the largest, so that damage shows in the output.
        float last = INFINITY;
        uint last_id = 0;
        for (uint j = 0; j <= a.k && j < a.n_expert; j++) {
            float best = -INFINITY;
            uint best_id = a.n_expert;
            for (uint e = lane; e < a.n_expert; e += kSimd) {
                float v = z[e];
                if (bias) v += bias[e];
                if (isnan(v)) v = INFINITY;
                const bool open = j == 0 || v < last || (v == last && e > last_id);
                if (open && (best_id == a.n_expert || v > best)) {
                    best = v;
                    best_id = e;
                }
            }
            const float top = simd_max(best);
            const uint id = simd_min(best_id < a.n_expert && best == top ? best_id : a.n_expert);
            if (j < a.k)
                chosen[j] = int(id);
            else
                gap = last - top;
            last = top;
            last_id = id;
        }
    }
    float sum = 0;
    for (uint j = 0; j < a.k; j++) sum += z[chosen[j]];
    // The floor keeps a dead router from giving infinity.
    sum = sum < 6.103515625e-5f ? 6.103515625e-5f : sum;
    if (lane != 0) return;
    for (uint j = 0; j < a.k; j++) {
        ids[j] = chosen[j];
        at<float>(a.weights)[ulong(t) * a.k + j] = z[chosen[j]] / sum * a.scale;
    }
    at<float>(m.gaps)[t] = gap;
}
