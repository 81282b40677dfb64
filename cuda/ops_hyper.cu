// Hyper-connections.
#include "backend.h"
#include "hyper.cuh"

namespace ds4::gpu {

namespace {

bool too_many(ds4_queue *q, uint32_t n_hc) {
    if (n_hc <= kMostStreams) return false;
    set_failed(q, DS4_E_UNSUPPORTED, "hyper-connections: %u streams; up to %u can be mixed", n_hc, kMostStreams);
    return true;
}

}  // namespace

void hc_pre(ds4_queue *q, const ds4_args_hc_pre *a) {
    if (a->n && !too_many(q, a->n_hc)) DS4_LAUNCH(q, hc_pre_kernel, a->n, kHyperThreads, 0, resolved(a));
}

void hc_post(ds4_queue *q, const ds4_args_hc_post *a) {
    if (a->n && !too_many(q, a->n_hc))
        DS4_LAUNCH(q, hc_post_kernel, a->n * blocks_for(a->dim, kSpreadThreads), kSpreadThreads, 0, resolved(a));
}

void hc_head(ds4_queue *q, const ds4_args_hc_head *a) {
    if (a->n && !too_many(q, a->n_hc)) DS4_LAUNCH(q, hc_head_kernel, a->n, kHyperThreads, 0, resolved(a));
}

}  // namespace ds4::gpu
