// The work space of a session: one buffer, cut into the regions of the graph.
#include <algorithm>

#include "model/graph.h"

namespace ds4 {

namespace {

// Visits every region with its bytes: once to add up, once to place.
template <class Visit> void regions(const ds4_shape &s, uint64_t n, Scratch &r, Visit visit) {
    const uint64_t e = s.n_embd, h = s.n_hc, heads = uint64_t{s.n_head} * s.head_dim;
    const uint64_t width = 2 * std::max<uint64_t>(s.head_dim, s.index_dim);
    auto floats = [&](ds4_ref &place, uint64_t count) { visit(place, count * 4); };
    floats(r.tokens, n);
    floats(r.streams, n * h * e);
    floats(r.x, n * e);
    floats(r.normed, n * std::max(e, h * e));  // the MTP input normalises all streams at once
    floats(r.y, n * e);
    floats(r.mix, n * (2 + h) * h);
    floats(r.post, n * h);
    floats(r.comb, n * h * h);
    floats(r.q_a, n * s.q_lora);
    floats(r.q, n * heads);
    floats(r.attn, n * heads);
    floats(r.low, n * s.o_groups * s.o_lora);
    floats(r.kv, n * s.head_dim);
    floats(r.comp_k, n * width);
    floats(r.comp_s, n * width);
    floats(r.index_q, n * s.n_index_head * s.index_dim);
    floats(r.index_w, n * s.n_index_head);
    floats(r.selected, n * s.index_top_k);
    floats(r.counts, n);
    floats(r.scores, n * s.n_expert);
    floats(r.expert_ids, n * s.n_expert_used);
    floats(r.expert_weights, n * s.n_expert_used);
    visit(r.places, s.n_expert * sizeof(ds4_expert_place));
    visit(r.chosen, s.n_expert);
    const uint64_t g = std::min<uint64_t>(n, Scratch::kGuessRows);
    floats(r.guess_x, g * e);
    floats(r.guess_mix, g * (2 + h) * h);
    floats(r.guess_post, g * h);
    floats(r.guess_comb, g * h * h);
    floats(r.guess_scores, g * s.n_expert);
    floats(r.shared_gate, n * s.n_ff);
    floats(r.shared_up, n * s.n_ff);
    floats(r.logits, uint64_t{Scratch::kLogitRows} * s.n_vocab);
}

uint64_t aligned(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

Scratch::~Scratch() {
    if (ops_) ops_->buffer_free(buffer_);
}

uint64_t Scratch::bytes(const ds4_shape &s, uint32_t chunk) {
    Scratch unplaced;
    uint64_t total = 0;
    regions(s, chunk, unplaced, [&](ds4_ref &, uint64_t b) { total += aligned(b); });
    return total;
}

ds4_status Scratch::create(const ds4_model &m, uint32_t chunk, ds4_error *err) {
    ops_ = m.ops;
    ds4_status st = ops_->buffer_alloc(m.device, bytes(m.shape, chunk), &buffer_, err);
    if (st != DS4_OK) return st;
    uint64_t at = 0;
    regions(m.shape, chunk, *this, [&](ds4_ref &place, uint64_t b) {
        place = ref(buffer_, at);
        at += aligned(b);
    });
    return DS4_OK;
}

}  // namespace ds4
