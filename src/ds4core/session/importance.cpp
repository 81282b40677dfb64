// Gathering importance statistics: start, read, stop.
#include "session/importance.h"

#include "base/error.h"
#include "session/session.h"

namespace ds4 {

namespace {

uint64_t in_bytes(const ds4_shape &s) { return uint64_t{s.n_expert} * s.n_embd * sizeof(double); }
uint64_t mid_bytes(const ds4_shape &s) { return uint64_t{s.n_expert} * s.n_ff * sizeof(double); }
uint64_t count_bytes(const ds4_shape &s) { return uint64_t{s.n_expert} * sizeof(uint64_t); }

}  // namespace

Importance::~Importance() {
    if (ops_) ops_->buffer_free(buffer_);
}

ds4_status Importance::create(const ds4_backend_ops *ops, ds4_device *device, const ds4_shape &s, bool with_mtp,
                              ds4_error *err) {
    const uint64_t block = in_bytes(s) + mid_bytes(s) + count_bytes(s);
    const uint32_t n = s.n_layer + (with_mtp ? 1 : 0);
    blocks_.resize(n);
    ops_ = ops;
    ds4_status st = ops->buffer_alloc(device, n * block, &buffer_, err);
    if (st != DS4_OK) return st;
    for (uint32_t i = 0; i < n; i++) {
        const ds4_ref at = ref(buffer_, i * block);
        blocks_[i] = {at, advance(at, in_bytes(s)), advance(at, in_bytes(s) + mid_bytes(s))};
    }
    return DS4_OK;
}

ds4_status start_importance(ds4_session &s, ds4_error *err) {
    stop_importance(s);  // the old sums go first: two sets of Flash take a gigabyte
    auto sums = std::make_unique<Importance>();
    const ds4_model &m = *s.model;
    ds4_status st = sums->create(m.ops, m.device, m.shape, s.options.with_mtp != 0, err);
    if (st != DS4_OK) return st;
    s.importance = std::move(sums);
    s.graph->gather(s.importance->layers());
    return DS4_OK;
}

void stop_importance(ds4_session &s) {
    s.graph->gather(nullptr);
    s.importance.reset();
}

ds4_status read_importance(ds4_session &s, uint32_t layer, double *sum_in, double *sum_mid, uint64_t *counts,
                           ds4_error *err) {
    if (!s.importance) return fail(err, DS4_E_STATE, "the session gathers no importance statistics");
    if (layer >= s.importance->n_blocks())
        return fail(err, DS4_E_ARGUMENT, "layer %u is outside 0..%u", layer, s.importance->n_blocks() - 1);
    const ds4_importance &block = s.importance->block(layer);
    const ds4_model &m = *s.model;
    m.ops->download(s.queue, sum_in, block.sum_in, in_bytes(m.shape));
    m.ops->download(s.queue, sum_mid, block.sum_mid, mid_bytes(m.shape));
    m.ops->download(s.queue, counts, block.counts, count_bytes(m.shape));
    return m.ops->queue_wait(s.queue, err);
}

}  // namespace ds4
