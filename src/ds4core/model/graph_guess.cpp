// Guesses of the experts of the next layer. Their reads follow those of this layer and fill the time in which the disk
// would wait for the last experts of this layer and for the next one's attention.
//
// The next layer's way into its router (hyper-connection, norm, router) is gone with the streams as they are now: without
// the experts of this layer and the attention of the next. Waiting for the experts would make better guesses, of 74 %
// instead of 53 % on a file of random weights, but leave the disk idle meanwhile, which costs more. How often guesses are
// right depends on the model; the cache keeps count and reads only on those that pay. No result depends on a guess.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "model/graph.h"

namespace ds4 {

namespace {

float selection_score(float x) { return std::sqrt(std::max(x, 0.0f) + std::log1p(std::exp(-std::fabs(x)))); }

}  // namespace

// guessed_ and ranks_ := the experts that n rows of scores choose, best ranks first. Not by the operation `router`, whose
// margins tell of the choices that results depend on.
void Graph::rank_guesses(const LayerWeights &next, uint32_t n) {
    const uint32_t n_expert = m_.shape.n_expert, k = m_.shape.n_expert_used;
    scores_.resize(size_t{n} * n_expert);
    ops_.download(q_, scores_.data(), s_.guess_scores, scores_.size() * 4);
    std::vector<uint32_t> order(n_expert);
    std::vector<uint32_t> best;
    for (uint32_t t = 0; t < n; t++) {
        float *const z = scores_.data() + size_t{t} * n_expert;
        for (uint32_t e = 0; e < n_expert; e++) {
            z[e] = selection_score(z[e]) + (next.bias ? next.bias[e] : 0.0f);
            order[e] = e;
        }
        std::partial_sort(order.begin(), order.begin() + k, order.end(),
                          [z](uint32_t a, uint32_t b) { return z[a] != z[b] ? z[a] > z[b] : a < b; });
        best.insert(best.end(), order.begin(), order.begin() + k);
    }
    used_.assign(n_expert, 0);
    guessed_.clear();
    ranks_.clear();
    for (uint32_t rank = 0; rank < k; rank++)
        for (uint32_t t = 0; t < n; t++) {
            const uint32_t e = best[size_t{t} * k + rank];
            if (std::exchange(used_[e], uint8_t{1})) continue;
            guessed_.push_back(e);
            ranks_.push_back(rank);
        }
}

void Graph::guess_next(const LayerWeights &w, uint32_t n) {
    const size_t i = static_cast<size_t>(&w - m_.layers.data());
    if (!m_.stream->guesses() || n > Scratch::kGuessRows || i + 1 >= m_.layers.size()) return;
    const LayerWeights &next = m_.layers[i + 1];
    stream::ExpertCache &cache = m_.stream->cache();
    const uint32_t layer = static_cast<uint32_t>(next.stream);
    if (next.hash_ids || cache.n_slots() == cache.n_experts() || !cache.guesses_pay(layer)) return;
    {
        const Part part(profile_, DS4_PART_ROUTER);
        const ds4_shape &c = m_.shape;
        matmul(next.hc_ffn.fn, s_.streams, s_.guess_mix, n);
        ds4_args_hc_pre a{s_.guess_mix,  s_.streams, next.hc_ffn.scale, next.hc_ffn.base,
                          s_.guess_x,    s_.guess_post, s_.guess_comb,
                          n,             c.n_hc,     c.n_embd,          c.sinkhorn_iterations,
                          c.norm_eps,    c.hc_eps};
        ops_.hc_pre(q_, &a);
        ds4_args_rms_norm r{s_.guess_x, next.ffn_norm, s_.guess_x, n, c.n_embd, c.norm_eps};
        ops_.rms_norm(q_, &r);
        matmul(next.router, s_.guess_x, s_.guess_scores, n);
        rank_guesses(next, n);
    }
    guess_ = cache.guess(layer, guessed_.data(), ranks_.data(), guessed_.size(), size_t{n} * m_.shape.n_expert_used);
}

}  // namespace ds4
