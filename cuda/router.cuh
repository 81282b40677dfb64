// The router: which experts a token gets, and their weights. A warp takes a token.
#pragma once

#include "values.cuh"

namespace ds4::gpu {

constexpr uint32_t kRouterWarps = 4;
constexpr uint32_t kRouterThreads = kRouterWarps * kWarp;
constexpr float kRouterFloor = 6.103515625e-5f;  // the smallest sum of weights that is divided by

// A value and its expert in one number, in the order of choosing: the larger value, of equal ones the lower id.
__device__ __forceinline__ uint64_t candidate(float value, uint32_t id) {
    return static_cast<uint64_t>(rank_of(value)) << 32 | (0xffffffffu - id);
}

// gaps [n]: between the last expert chosen and the best one left. Dynamic shared memory: kRouterWarps * n_expert
// floats.
static __global__ void __launch_bounds__(kRouterThreads) router_kernel(ds4_args_router a, float *gaps) {
    DS4_DYNAMIC_SHARED(float, scores);
    const uint32_t t = blockIdx.x * kRouterWarps + static_cast<uint32_t>(warp_index());
    if (t >= a.n) return;
    const auto z = scores + warp_index() * static_cast<int>(a.n_expert);
    const float *x = at<const float>(a.scores) + static_cast<uint64_t>(t) * a.n_expert;
    const float *bias = at<const float>(a.bias);
    const int32_t *table = at<const int32_t>(a.table);
    const uint32_t me = static_cast<uint32_t>(lane());
    for (uint32_t e = me; e < a.n_expert; e += kWarp) z[e] = router_score(x[e]);
    sync_warp();

    int32_t id = 0;  // of the expert in the place of this lane
    float gap = INFINITY;
    if (table) {
        if (me < a.k) id = table[static_cast<uint64_t>(at<const int32_t>(a.tokens)[t]) * a.k + me];
    } else {
        uint64_t last = ~uint64_t{0};
        const uint32_t rounds = a.k < a.n_expert ? a.k + 1 : a.k;
        for (uint32_t round = 0; round < rounds; round++) {
            uint64_t best = 0;
            for (uint32_t e = me; e < a.n_expert; e += kWarp) {
                const float v = bias ? float(z[e]) + bias[e] : float(z[e]);
                // NaN is the largest, so that damage shows in the output.
                const uint64_t c = candidate(v != v ? INFINITY : v, e);
                if (c < last && c > best) best = c;
            }
            best = warp_max(best);
            const float before = value_of_rank(static_cast<uint32_t>(last >> 32));
            if (round == a.k) gap = before - value_of_rank(static_cast<uint32_t>(best >> 32));
            if (round == me) id = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(best));
            last = best;
        }
    }
    float own = me < a.k ? float(z[id]) : 0.0f, sum = 0.0f;
    for (uint32_t j = 0; j < a.k; j++) sum += warp_from(own, static_cast<int>(j));
    if (me < a.k) {
        at<int32_t>(a.ids)[static_cast<uint64_t>(t) * a.k + me] = id;
        at<float>(a.weights)[static_cast<uint64_t>(t) * a.k + me] = own / greater(sum, kRouterFloor) * a.scale;
    }
    if (me == 0) gaps[t] = gap;
}

}  // namespace ds4::gpu
