// The forward pass, written once over the backend table. It never asks which backend it runs on.
//
// One call feeds a chunk of n tokens at positions pos0.. through all layers; prefill and decode differ only in n.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/cache_view.h"
#include "ds4/experts.h"
#include "model/model.h"
#include "model/profile.h"
#include "model/steering.h"

namespace ds4 {

// What a session chooses about the arithmetic.
struct GraphSettings {
    bool qat = true;             // FP8 / FP4 round trips of cache rows and indexer
    bool quantized = false;      // 8-bit activations for quantized weights
    uint32_t row_type = DS4_ROW_F16;
};

// Bytes of the residual streams of one position, float32 [n_hc][n_embd].
inline uint64_t stream_bytes(const ds4_shape &s) { return uint64_t{s.n_hc} * s.n_embd * 4; }

// Work space of one queue for chunks of up to `chunk` tokens. Sizes in floats are n * the width named.
class Scratch {
public:
    Scratch() = default;
    Scratch(const Scratch &) = delete;
    Scratch &operator=(const Scratch &) = delete;
    ~Scratch();
    ds4_status create(const ds4_model &m, uint32_t chunk, ds4_error *err);
    static uint64_t bytes(const ds4_shape &s, uint32_t chunk);

    ds4_ref tokens;                      // int32
    ds4_ref streams;                     // n_hc * n_embd
    ds4_ref x, normed, y;                // n_embd
    ds4_ref mix, post, comb;             // (2 + n_hc) * n_hc, n_hc, n_hc^2
    ds4_ref q_a, q, attn, low, kv;       // q_lora, n_head * head_dim (twice), o_groups * o_lora, head_dim
    ds4_ref comp_k, comp_s;              // widest compressor
    ds4_ref index_q, index_w, selected, counts;
    ds4_ref scores, expert_ids, expert_weights;
    ds4_ref places, chosen;              // of streamed experts: ds4_expert_place [n_expert], uint8 [n_expert]
    ds4_ref guess_x, guess_mix, guess_post, guess_comb, guess_scores;  // as x, mix, post, comb, scores; up to kGuessRows
    ds4_ref shared_gate, shared_up;      // n_ff
    ds4_ref logits;                      // n_vocab * kLogitRows

    static constexpr uint32_t kLogitRows = 16;  // rows of logits computed at a time
    static constexpr uint32_t kGuessRows = 8;   // tokens of the longest chunk whose next experts are guessed

private:
    const ds4_backend_ops *ops_ = nullptr;
    ds4_buffer *buffer_ = nullptr;
};

class Graph {
public:
    // Everything is borrowed and must outlive the graph.
    Graph(const ds4_model &m, const GraphSettings &settings, ds4_queue *q, Scratch &scratch)
        : m_(m), ops_(*m.ops), cfg_(settings), q_(q), s_(scratch) {}

    // tokens must be uploaded to scratch.tokens. Afterwards scratch.streams holds the input of the head.
    // between(layer) runs before each layer, and once more after the last; false stops, and so does the result.
    bool forward(uint32_t n, uint32_t pos0, std::vector<LayerCache> &cache, const std::function<bool(uint32_t)> &between);
    // When all that was asked for has run: DS4_OK or its first failure, with streamed experts DS4_E_IO when one could not
    // be read and DS4_E_CANCELLED when poll gave up meanwhile. A failed result is not to be used.
    ds4_status wait(ds4_error *err);
    // Asked while experts are waited for; false gives up.
    void poll_with(std::function<bool()> poll) { poll_ = std::move(poll); }
    // What the streamed experts cost this graph since it was made.
    const ds4_expert_use &expert_use() const { return use_; }

    // Logits of n rows of `streams` into scratch.logits; n <= Scratch::kLogitRows.
    void head(const HyperWeights &hc, ds4_ref norm, ds4_ref streams, uint32_t n);

    // MTP: scratch.streams := e_proj rms(embed[token]) + h_proj rms(streams_in), for n rows; tokens in scratch.tokens.
    void mtp_input(ds4_ref streams_in, uint32_t n);
    // Only what later positions can see of the block: its window rows.
    void mtp_rows(uint32_t n, uint32_t pos0, LayerCache &cache);
    // The whole block in place on scratch.streams. Its statistics are gathered only when asked for here.
    void mtp_block(uint32_t n, uint32_t pos0, LayerCache &cache, const ds4_importance *importance = nullptr);

    // From now on forward() adds to the statistics of each layer, [n_layer]; NULL ends that.
    void gather(const ds4_importance *layers) { importance_ = layers; }
    // From now on the outputs of the layers' sublayers are steered; NULL ends that. The MTP block is not steered.
    void steer(const Steering *steering) { steering_ = steering; }
    // From now on show(stage, layer, rows, width) is called for the stages in `mask` of every layer, but for the streams,
    // which `between` can see; an empty function ends that.
    using Show = std::function<void(uint32_t stage, uint32_t layer, ds4_ref rows, uint32_t n, uint32_t width)>;
    void show(uint32_t mask, Show show) {
        stages_ = show ? mask : 0;
        show_ = std::move(show);
    }
    // From now on the time of every part is taken; NULL ends that.
    void measure(Profile *profile) { profile_ = profile; }

private:
    void layer(const LayerWeights &w, LayerCache &cache, uint32_t n, uint32_t pos0, const ds4_importance *importance);
    void attention(const LayerWeights &w, LayerCache &cache, uint32_t n, uint32_t pos0);
    void window_rows(const LayerWeights &w, LayerCache &cache, uint32_t n, uint32_t pos0, ds4_ref freqs);
    void compress(const CompressorWeights &w, CompressorState &state, ds4_ref rows, uint32_t ratio, uint32_t dim,
                  uint32_t round, uint32_t n, uint32_t pos0);
    void choose_rows(const LayerWeights &w, LayerCache &cache, uint32_t n, uint32_t pos0, ds4_ref freqs);
    void experts(const LayerWeights &w, uint32_t n, const ds4_importance *importance);
    void shared_middle(const LayerWeights &w, uint32_t n);

    // graph_stream.cpp
    void read_hashed(uint32_t n);
    void read_ahead(const LayerWeights &w, uint32_t n);
    void list_used();
    bool streamed_experts(const LayerWeights &w, ds4_args_experts &e);
    bool run_wave(stream::Ticket &ticket, ds4_args_experts &e, bool first);
    bool take_arrived(stream::Ticket &ticket, ds4_args_experts &e, size_t *left);
    bool fail_stream(ds4_status st);

    // graph_guess.cpp
    void guess_next(const LayerWeights &w, uint32_t n);
    void rank_guesses(const LayerWeights &next, uint32_t n);

    void norm(ds4_ref x, ds4_ref w, ds4_ref y, uint32_t rows, uint32_t dim);
    void matmul(const ds4_weight &w, ds4_ref x, ds4_ref y, uint32_t n, uint32_t groups = 1, bool accumulate = false);
    void rope(ds4_ref x, ds4_ref freqs, uint32_t n, uint32_t heads, uint32_t dim, uint32_t pos0, float sign);
    void hc_pre(const HyperWeights &w, uint32_t n);
    void hc_post(uint32_t n);
    void steer(float SteeringDirection::*scale, uint32_t n);
    void seen(uint32_t stage, ds4_ref rows, uint32_t n, uint32_t width) {
        if (stages_ >> stage & 1 && layer_ != kNoLayer) show_(stage, layer_, rows, n, width);
    }

    const ds4_model &m_;
    const ds4_backend_ops &ops_;
    GraphSettings cfg_;
    ds4_queue *q_;
    Scratch &s_;
    const ds4_importance *importance_ = nullptr;
    Profile *profile_ = nullptr;
    const Steering *steering_ = nullptr;
    uint32_t stages_ = 0;
    Show show_;
    static constexpr uint32_t kNoLayer = UINT32_MAX;
    uint32_t layer_ = kNoLayer;  // of the model that runs; the MTP block is none

    // Of streamed experts.
    std::function<bool()> poll_ = [] { return true; };
    ds4_status failure_ = DS4_OK;
    std::unique_ptr<ds4_error> error_;  // of failure_
    ds4_expert_use use_{};
    std::vector<stream::Wish> wishes_;  // of the chunk that runs
    stream::Guess guess_;               // of the next layer's experts
    std::vector<float> scores_;
    std::vector<uint32_t> guessed_, ranks_;
    std::vector<int32_t> ids_;
    std::vector<uint8_t> used_;
    std::vector<uint32_t> wanted_;
    std::vector<ds4_expert_place> places_;
};

}  // namespace ds4
