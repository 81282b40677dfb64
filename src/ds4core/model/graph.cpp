// The layers. Section names follow docs/model.md; shapes are per token of the chunk.
#include "model/graph.h"

#include <cmath>

namespace ds4 {

void Graph::norm(ds4_ref x, ds4_ref w, ds4_ref y, uint32_t rows, uint32_t dim) {
    const Part part(profile_, DS4_PART_ROWS);
    ds4_args_rms_norm a{x, w, y, rows, dim, m_.shape.norm_eps};
    ops_.rms_norm(q_, &a);
}

void Graph::matmul(const ds4_weight &w, ds4_ref x, ds4_ref y, uint32_t n, uint32_t groups, bool accumulate) {
    ds4_args_matmul a{w, x, y, n, w.n_in * groups, w.n_out, groups, accumulate, cfg_.quantized};
    ops_.matmul(q_, &a);
}

void Graph::rope(ds4_ref x, ds4_ref freqs, uint32_t n, uint32_t heads, uint32_t dim, uint32_t pos0, float sign) {
    const Part part(profile_, DS4_PART_ROWS);
    ds4_args_rope a{x, freqs, n, heads, dim, m_.shape.n_rot, pos0, sign};
    ops_.rope(q_, &a);
}

// streams -> x, and the coefficients that hc_post will use.
void Graph::hc_pre(const HyperWeights &w, uint32_t n) {
    const Part part(profile_, DS4_PART_HYPER);
    const ds4_shape &c = m_.shape;
    matmul(w.fn, s_.streams, s_.mix, n);
    ds4_args_hc_pre a{s_.mix,  s_.streams, w.scale,  w.base,                s_.x,       s_.post, s_.comb,
                      n,       c.n_hc,     c.n_embd, c.sinkhorn_iterations, c.norm_eps, c.hc_eps};
    ops_.hc_pre(q_, &a);
}

void Graph::hc_post(uint32_t n) {
    const Part part(profile_, DS4_PART_HYPER);
    ds4_args_hc_post a{s_.y, s_.post, s_.comb, s_.streams, n, m_.shape.n_hc, m_.shape.n_embd};
    ops_.hc_post(q_, &a);
}

// Take the directions out of y, those that the layer has.
void Graph::steer(float SteeringDirection::*scale, uint32_t n) {
    if (!steering_ || layer_ == kNoLayer) return;
    const uint32_t dim = m_.shape.n_embd;
    ds4_args_steer a{};
    for (const SteeringDirection &d : steering_->directions) {
        if (d.*scale == 0.0f || !d.present[layer_]) continue;
        a.directions[a.count] = advance(d.values, uint64_t{layer_} * dim * 4);
        a.scales[a.count++] = d.*scale;
    }
    if (!a.count) return;
    const Part part(profile_, DS4_PART_ROWS);
    a.y = s_.y;
    a.n = n;
    a.dim = dim;
    ops_.steer(q_, &a);
}

// One KV row a token: normed -> kv_norm -> rotate -> round -> ring.
void Graph::window_rows(const LayerWeights &w, LayerCache &cache, uint32_t n, uint32_t pos0, ds4_ref freqs) {
    const ds4_shape &c = m_.shape;
    matmul(w.kv, s_.normed, s_.kv, n);
    norm(s_.kv, w.kv_norm, s_.kv, n, c.head_dim);
    rope(s_.kv, freqs, n, 1, c.head_dim, pos0, 1.0f);
    const Part part(profile_, DS4_PART_ROWS);
    if (cfg_.qat) {
        ds4_args_round_rows r{s_.kv, n, c.head_dim, c.n_rot, DS4_ROUND_FP8};
        ops_.round_rows(q_, &r);
    }
    ds4_args_store_rows st{s_.kv, cache.window, n, c.head_dim, pos0, cache.capacity, cfg_.row_type};
    ops_.store_rows(q_, &st);
}

void Graph::compress(const CompressorWeights &w, CompressorState &state, ds4_ref rows, uint32_t ratio, uint32_t dim,
                     uint32_t round, uint32_t n, uint32_t pos0) {
    const Part part(profile_, DS4_PART_COMPRESSOR);
    matmul(w.kv, s_.normed, s_.comp_k, n);
    matmul(w.gate, s_.normed, s_.comp_s, n);
    ds4_args_compress a{s_.comp_k, s_.comp_s,  w.ape, w.norm,     m_.freqs_compressed,
                        state.k,   state.s,    rows,  n,          dim,
                        state.width, ratio,    state.ring, pos0,  m_.shape.n_rot,
                        cfg_.qat ? round : uint32_t{DS4_ROUND_NONE}, cfg_.row_type, m_.shape.norm_eps};
    ops_.compress(q_, &a);
}

// The indexer: queries from the low-rank query, one weight a head from the layer input.
void Graph::choose_rows(const LayerWeights &w, LayerCache &cache, uint32_t n, uint32_t pos0, ds4_ref freqs) {
    const Part part(profile_, DS4_PART_INDEXER);
    const ds4_shape &c = m_.shape;
    matmul(w.index_q, s_.q_a, s_.index_q, n);
    rope(s_.index_q, freqs, n, c.n_index_head, c.index_dim, pos0, 1.0f);
    if (cfg_.qat) {
        ds4_args_round_rows r{s_.index_q, n * c.n_index_head, c.index_dim, c.n_rot, DS4_ROUND_FP4};
        ops_.round_rows(q_, &r);
    }
    matmul(w.index_weights, s_.normed, s_.index_w, n);
    const float scale = 1.0f / std::sqrt(static_cast<float>(c.index_dim * c.n_index_head));
    ds4_args_indexer a{s_.index_q,     s_.index_w, cache.index_rows, s_.selected, s_.counts, n,    c.n_index_head,
                       c.index_dim, c.index_top_k, cache.ratio,      pos0,        cfg_.row_type, scale};
    ops_.indexer(q_, &a);
}

// normed -> y
void Graph::attention(const LayerWeights &w, LayerCache &cache, uint32_t n, uint32_t pos0) {
    const Part projections(profile_, DS4_PART_PROJECTIONS);
    const ds4_shape &c = m_.shape;
    const ds4_ref freqs = w.ratio ? m_.freqs_compressed : m_.freqs_plain;
    matmul(w.q_a, s_.normed, s_.q_a, n);
    norm(s_.q_a, w.q_a_norm, s_.q_a, n, c.q_lora);
    matmul(w.q_b, s_.q_a, s_.q, n);
    norm(s_.q, {}, s_.q, n * c.n_head, c.head_dim);
    rope(s_.q, freqs, n, c.n_head, c.head_dim, pos0, 1.0f);
    seen(DS4_STAGE_Q, s_.q, n, c.n_head * c.head_dim);
    window_rows(w, cache, n, pos0, freqs);
    seen(DS4_STAGE_KV, s_.kv, n, c.head_dim);
    // Compressors first: a row that this chunk closes is visible to its closing token.
    if (w.ratio) compress(w.compressor, cache.attn, cache.compressed, w.ratio, c.head_dim, DS4_ROUND_FP8, n, pos0);
    const bool indexed = w.ratio == 4;
    if (indexed) {
        compress(w.index_compressor, cache.index, cache.index_rows, w.ratio, c.index_dim, DS4_ROUND_FP4, n, pos0);
        choose_rows(w, cache, n, pos0, freqs);
    }
    ds4_args_attention a{s_.q,
                         cache.window,
                         w.ratio ? cache.compressed : ds4_ref{},
                         indexed ? s_.selected : ds4_ref{},
                         indexed ? s_.counts : ds4_ref{},
                         w.sinks,
                         s_.attn,
                         n,
                         c.n_head,
                         c.head_dim,
                         c.window,
                         cache.capacity,
                         w.ratio,
                         c.index_top_k,
                         pos0,
                         cfg_.row_type,
                         1.0f / std::sqrt(static_cast<float>(c.head_dim))};
    {
        const Part part(profile_, DS4_PART_ATTENTION);
        ops_.attention(q_, &a);
    }
    rope(s_.attn, freqs, n, c.n_head, c.head_dim, pos0, -1.0f);
    matmul(w.out_a, s_.attn, s_.low, n, c.o_groups);
    matmul(w.out_b, s_.low, s_.y, n);
}

// normed -> y
void Graph::experts(const LayerWeights &w, uint32_t n, const ds4_importance *importance) {
    const ds4_shape &c = m_.shape;
    {
        const Part part(profile_, DS4_PART_ROUTER);
        matmul(w.router, s_.normed, s_.scores, n);
        seen(DS4_STAGE_ROUTER, s_.scores, n, c.n_expert);
        ds4_args_router r{s_.scores,      w.router_bias,     w.hash_table, s_.tokens,       s_.expert_ids,
                          s_.expert_weights, n,              c.n_expert,   c.n_expert_used, c.expert_scale};
        ops_.router(q_, &r);
    }
    ds4_args_experts e{w.gate_exps, w.up_exps,       w.down_exps, s_.normed,      s_.expert_ids, s_.expert_weights,
                       s_.y,        n,               c.n_expert_used, cfg_.quantized, c.swiglu_clamp,
                       importance ? *importance : ds4_importance{}, DS4_EXPERTS_GATE_UP | DS4_EXPERTS_DOWN, {}, {}};
    if (w.stream >= 0) {
        streamed_experts(w, e);  // a failure is seen by wait()
        return;
    }
    {
        const Part part(profile_, DS4_PART_EXPERTS_DOWN);
        ops_.experts(q_, &e);
        if (profile_) profile_->give(DS4_PART_EXPERTS_GATE_UP, ops_.gate_up_ns(q_));
    }
    const Part shared(profile_, DS4_PART_SHARED);
    shared_middle(w, n);
    matmul(w.down_shexp, s_.shared_gate, s_.y, n, 1, true);
}

// normed -> shared_gate: the input of the shared expert's down projection.
void Graph::shared_middle(const LayerWeights &w, uint32_t n) {
    matmul(w.gate_shexp, s_.normed, s_.shared_gate, n);
    matmul(w.up_shexp, s_.normed, s_.shared_up, n);
    ds4_args_swiglu g{s_.shared_gate, s_.shared_up, uint64_t{n} * m_.shape.n_ff, m_.shape.swiglu_clamp};
    ops_.swiglu(q_, &g);
}

void Graph::layer(const LayerWeights &w, LayerCache &cache, uint32_t n, uint32_t pos0,
                  const ds4_importance *importance) {
    const uint32_t dim = m_.shape.n_embd;
    hc_pre(w.hc_attn, n);
    seen(DS4_STAGE_ATTN_IN, s_.x, n, dim);
    norm(s_.x, w.attn_norm, s_.normed, n, dim);
    seen(DS4_STAGE_ATTN_NORM, s_.normed, n, dim);
    attention(w, cache, n, pos0);
    seen(DS4_STAGE_ATTN_OUT, s_.y, n, dim);
    steer(&SteeringDirection::attn, n);
    hc_post(n);
    hc_pre(w.hc_ffn, n);
    seen(DS4_STAGE_FFN_IN, s_.x, n, dim);
    norm(s_.x, w.ffn_norm, s_.normed, n, dim);
    seen(DS4_STAGE_FFN_NORM, s_.normed, n, dim);
    experts(w, n, importance);
    if (failure_ != DS4_OK) return;  // y holds nothing
    seen(DS4_STAGE_FFN_OUT, s_.y, n, dim);
    steer(&SteeringDirection::ffn, n);
    hc_post(n);
}

bool Graph::forward(uint32_t n, uint32_t pos0, std::vector<LayerCache> &cache,
                    const std::function<bool(uint32_t)> &between) {
    read_hashed(n);
    {
        const Part part(profile_, DS4_PART_EMBEDDING);
        ds4_args_embed e{m_.token_embd, s_.tokens, s_.streams, n, m_.shape.n_hc};
        ops_.embed(q_, &e);
    }
    for (uint32_t i = 0; i < m_.shape.n_layer; i++) {
        if (!between(i)) return false;
        if (profile_) profile_->block(i);
        layer_ = i;
        layer(m_.layers[i], cache[i], n, pos0, importance_ ? importance_ + i : nullptr);
        layer_ = kNoLayer;
        if (profile_) profile_->outside();
        if (failure_ != DS4_OK) return false;
    }
    return between(m_.shape.n_layer);
}

void Graph::head(const HyperWeights &hc, ds4_ref norm_weight, ds4_ref streams, uint32_t n) {
    const Part part(profile_, DS4_PART_HEAD);
    const ds4_shape &c = m_.shape;
    matmul(hc.fn, streams, s_.mix, n);
    ds4_args_hc_head h{s_.mix, streams, hc.scale, hc.base, s_.x, n, c.n_hc, c.n_embd, c.norm_eps, c.hc_eps};
    ops_.hc_head(q_, &h);
    norm(s_.x, norm_weight, s_.normed, n, c.n_embd);
    matmul(m_.output, s_.normed, s_.logits, n);
}

void Graph::mtp_input(ds4_ref streams_in, uint32_t n) {
    const Part part(profile_, DS4_PART_PROJECTIONS);
    const ds4_shape &c = m_.shape;
    const MtpWeights &w = *m_.mtp;
    norm(streams_in, w.hnorm, s_.normed, n * c.n_hc, c.n_embd);
    matmul(w.h_proj, s_.normed, s_.streams, n * c.n_hc);
    ds4_args_embed e{m_.token_embd, s_.tokens, s_.x, n, 1};
    ops_.embed(q_, &e);
    norm(s_.x, w.enorm, s_.normed, n, c.n_embd);
    matmul(w.e_proj, s_.normed, s_.y, n);
    ds4_args_add_rows add{s_.streams, s_.y, n, c.n_hc, c.n_embd};
    ops_.add_rows(q_, &add);
}

void Graph::mtp_rows(uint32_t n, uint32_t pos0, LayerCache &cache) {
    const LayerWeights &w = m_.mtp->block;
    hc_pre(w.hc_attn, n);
    norm(s_.x, w.attn_norm, s_.normed, n, m_.shape.n_embd);
    const Part part(profile_, DS4_PART_PROJECTIONS);
    window_rows(w, cache, n, pos0, m_.freqs_plain);
}

void Graph::mtp_block(uint32_t n, uint32_t pos0, LayerCache &cache, const ds4_importance *importance) {
    layer_ = kNoLayer;
    layer(m_.mtp->block, cache, n, pos0, importance);
}

}  // namespace ds4
