// Routed experts that have to be read first. Reads and computation overlap, and no bit depends on how:
//   - while the experts of a layer are on their way the shared expert computes, whose result is added last as ever;
//   - gate and up of an expert run as soon as it is there, in any order, since experts do not meet before the sums;
//   - down runs when all are there, in ascending order of the experts, as the operation adds them anyway;
//   - when the cache is too small for all experts of a chunk they go through it in waves, lowest experts first.
// What comes next is read ahead: the experts of hash-routed layers, which follow from the tokens, when a chunk begins;
// in a long chunk, which uses nearly all experts, those of the next layer while this one computes; in a short one those
// that the next layer is guessed to need (graph_guess.cpp).
#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "model/graph.h"

namespace ds4 {

namespace {

// A chunk whose tokens choose this many experts for every one that there is uses nearly all of them.
constexpr uint64_t kUsesOfAll = 3;

uint64_t ns_since(std::chrono::steady_clock::time_point then) {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - then).count());
}

}  // namespace

ds4_status Graph::wait(ds4_error *err) {
    const ds4_status st = ops_.queue_wait(q_, err), failed = failure_;
    failure_ = DS4_OK;
    wishes_.clear();
    guess_.release();
    if (st != DS4_OK || failed == DS4_OK) return st;
    if (err && error_) *err = *error_;
    return failed;
}

bool Graph::fail_stream(ds4_status st) {
    failure_ = st;
    return false;
}

// The experts of the hash-routed layers follow from the tokens alone: their reads begin before anything is computed.
void Graph::read_hashed(uint32_t n) {
    wishes_.clear();
    if (!m_.stream) return;
    stream::ExpertCache &cache = m_.stream->cache();
    std::vector<int32_t> tokens;
    for (const LayerWeights &w : m_.layers) {
        if (!w.hash_ids) continue;
        if (tokens.empty()) {
            tokens.resize(n);
            ops_.download(q_, tokens.data(), s_.tokens, uint64_t{n} * 4);
        }
        const uint32_t layer = static_cast<uint32_t>(w.stream), k = m_.shape.n_expert_used;
        used_.assign(m_.shape.n_expert, 0);
        for (int32_t token : tokens)
            for (uint32_t i = 0; i < k; i++) used_[static_cast<size_t>(w.hash_ids[uint64_t(token) * k + i])] = 1;
        list_used();
        wishes_.push_back(cache.wish(layer, wanted_.data(), wanted_.size()));
        cache.prefetch(layer, wanted_.data(), wanted_.size());
    }
}

// wanted_ := the experts that used_ marks, ascending.
void Graph::list_used() {
    wanted_.clear();
    for (uint32_t e = 0; e < used_.size(); e++)
        if (used_[e]) wanted_.push_back(e);
}

// Reads experts of the layer after this one, if the chunk is long enough to know that they will be used.
void Graph::read_ahead(const LayerWeights &w, uint32_t n) {
    const size_t i = static_cast<size_t>(&w - m_.layers.data());
    if (uint64_t{n} * m_.shape.n_expert_used < kUsesOfAll * m_.shape.n_expert || i + 1 >= m_.layers.size()) return;
    const LayerWeights &next = m_.layers[i + 1];
    if (next.hash_ids) return;  // under way already
    stream::ExpertCache &cache = m_.stream->cache();
    std::vector<uint32_t> experts(m_.shape.n_expert);
    for (uint32_t e = 0; e < experts.size(); e++) experts[e] = e;
    cache.prefetch(static_cast<uint32_t>(next.stream), experts.data(), experts.size());
}

// Waits for experts of the ticket and computes gate and up of those that came; false when reads failed or were stopped.
bool Graph::take_arrived(stream::Ticket &ticket, ds4_args_experts &e, size_t *left) {
    std::vector<size_t> fresh;
    const auto start = std::chrono::steady_clock::now();
    {
        const Part part(profile_, DS4_PART_EXPERT_WAIT);
        if (!error_) error_ = std::make_unique<ds4_error>();
        const ds4_status st = m_.stream->cache().wait(ticket, &fresh, poll_, error_.get());
        use_.wait_ns += ns_since(start);
        if (st != DS4_OK) return fail_stream(st);
    }
    *left -= fresh.size();
    used_.assign(m_.shape.n_expert, 0);
    for (size_t i : fresh) used_[ticket.expert(i)] = 1;
    if (m_.mirror)
        for (size_t i : fresh) m_.mirror->show(ops_, q_, e.gate.data, ticket.place(i).part[0], ticket.layer(), ticket.expert(i));
    ops_.upload(q_, s_.chosen, used_.data(), used_.size());
    const Part part(profile_, DS4_PART_EXPERTS_GATE_UP);
    e.work = DS4_EXPERTS_GATE_UP;
    ops_.experts(q_, &e);
    return true;
}

// One wave: e.chosen and e.places are filled in here. first: whether y is set or added to.
bool Graph::run_wave(stream::Ticket &ticket, ds4_args_experts &e, bool first) {
    places_.resize(m_.shape.n_expert);
    for (size_t i = 0; i < ticket.size(); i++) {
        const stream::Place p = ticket.place(i);
        places_[ticket.expert(i)] = {p.part[0], p.part[1], p.part[2]};
    }
    ops_.upload(q_, s_.places, places_.data(), places_.size() * sizeof(ds4_expert_place));
    for (size_t left = ticket.size(); left;)
        if (!take_arrived(ticket, e, &left)) return false;
    used_.assign(m_.shape.n_expert, 0);
    for (size_t i = 0; i < ticket.size(); i++) used_[ticket.expert(i)] = 1;
    ops_.upload(q_, s_.chosen, used_.data(), used_.size());
    const Part part(profile_, DS4_PART_EXPERTS_DOWN);
    e.work = DS4_EXPERTS_DOWN | (first ? 0u : uint32_t{DS4_EXPERTS_ADD});
    ops_.experts(q_, &e);
    return true;
}

// normed -> y, the shared expert included.
bool Graph::streamed_experts(const LayerWeights &w, ds4_args_experts &e) {
    const ds4_shape &c = m_.shape;
    stream::ExpertCache &cache = m_.stream->cache();
    const uint32_t layer = static_cast<uint32_t>(w.stream), n = e.n, k = e.k;
    e.places = s_.places;
    e.chosen = s_.chosen;

    ids_.resize(size_t{n} * k);
    ops_.download(q_, ids_.data(), e.ids, ids_.size() * 4);
    cache.selected(layer, ids_.data(), n, k);
    used_.assign(c.n_expert, 0);
    for (int32_t id : ids_) used_[static_cast<size_t>(id)] = 1;
    list_used();
    const std::vector<uint32_t> experts = wanted_;
    guess_.settle(experts);
    const size_t slots = cache.n_slots(), half = std::max<size_t>(slots / 2, 1);
    // Few experts go at once if they can. Many leave room for those that come after them.
    const bool at_once = experts.size() <= (experts.size() <= 8 * k ? slots : half);
    const size_t wave = at_once ? experts.size() : half;

    auto count = [&](const stream::Ticket &t) {
        use_.asked += t.size();
        use_.hits += t.hits();
        use_.late += t.late();
        use_.misses += t.size() - t.hits() - t.late();
        use_.read_bytes += t.read_bytes();
    };
    stream::Wish later = experts.size() > wave ? cache.wish(layer, experts.data(), experts.size()) : stream::Wish();
    stream::Ticket now, next;
    auto acquire = [&](size_t at) {
        const Part part(profile_, DS4_PART_EXPERT_WAIT);
        const auto start = std::chrono::steady_clock::now();
        const bool got = cache.acquire(layer, experts.data() + at, std::min(wave, experts.size() - at), &now, poll_);
        use_.wait_ns += ns_since(start);
        if (got) count(now);
        return got;
    };
    auto stopped = [&] {
        if (!error_) error_ = std::make_unique<ds4_error>();
        return fail_stream(fail(error_.get(), DS4_E_CANCELLED, "stopped while experts were waited for"));
    };
    if (!acquire(0)) return stopped();

    {
        const Part shared(profile_, DS4_PART_SHARED);
        shared_middle(w, n);
        matmul(w.down_shexp, s_.shared_gate, s_.x, n);
    }
    guess_next(w, n);  // costs nothing while reads are waited for
    for (size_t at = 0; at < experts.size(); at += wave) {
        if (!now.size() && !acquire(at)) return stopped();
        const size_t after = at + wave;
        if (after < experts.size()) {
            if (cache.try_acquire(layer, experts.data() + after, std::min(wave, experts.size() - after), &next)) count(next);
            later = cache.wish(layer, experts.data() + after, experts.size() - after);
        } else {
            later.release();
            read_ahead(w, n);
        }
        if (!run_wave(now, e, at == 0)) return false;
        ops_.drain(q_);  // a backend that works ahead still reads from the slots
        now = std::move(next);
    }
    read_ahead(w, n);
    const Part shared(profile_, DS4_PART_SHARED);
    ds4_args_add_rows add{s_.y, s_.x, n, 1, c.n_embd};
    ops_.add_rows(q_, &add);
    return true;
}

}  // namespace ds4
