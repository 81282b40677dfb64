// The router.
#include "backend.h"
#include "margins.cuh"
#include "router.cuh"

namespace ds4::gpu {

void router(ds4_queue *q, const ds4_args_router *args) {
    if (!args->n) return;
    constexpr uint32_t kMostChosen = 32, kMostExperts = 48 * 1024 / (kRouterWarps * sizeof(float));
    if (args->k > kMostChosen || args->k > args->n_expert || args->n_expert > kMostExperts)
        return set_failed(q, DS4_E_UNSUPPORTED, "router: %u of %u experts; up to %u of up to %u can be chosen", args->k,
                          args->n_expert, kMostChosen, kMostExperts);
    const ds4_args_router a = resolved(args);
    float *gaps = work_space<float>(q, kWorkExtra, a.n);
    if (!gaps) return;
    DS4_LAUNCH(q, router_kernel, blocks_for(a.n, kRouterWarps), kRouterThreads,
               kRouterWarps * a.n_expert * sizeof(float), a, gaps);
    if (!a.table.buffer) DS4_LAUNCH(q, fold_gaps, 1, kMarginThreads, 0, gaps, a.n, q->margins + 1);
}

}  // namespace ds4::gpu
