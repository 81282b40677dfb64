#include "stream/expert_cache.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/checked.h"
#include "base/error.h"

namespace ds4::stream {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kGuessPays = 0.25;    // right at least so often
constexpr double kGuessMemory = 0.98;  // of trust, at each guess
constexpr uint32_t kGuessEvery = 16;   // when guesses do not pay they are tried so often
constexpr double kNothing = -1;  // the worth of an empty slot: it goes first
constexpr auto kPollEvery = std::chrono::milliseconds(10);
const char *const kPartNames[kParts] = {"gate", "up", "down"};

uint64_t rounded(uint64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

uint64_t ns_since(Clock::time_point then) {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - then).count());
}

std::vector<uint32_t> first_keys(const std::vector<LayerSource> &layers) {
    std::vector<uint32_t> first(1);
    for (const LayerSource &l : layers) first.push_back(first.back() + l.n_expert);
    return first;
}

}  // namespace

// ------------------------------------------------------------------------------------------------ tickets, wishes

Ticket &Ticket::operator=(Ticket &&t) noexcept {
    release();
    cache_ = std::exchange(t.cache_, nullptr);
    layer_ = t.layer_;
    hits_ = t.hits_;
    late_ = t.late_;
    read_bytes_ = t.read_bytes_;
    entries_ = std::move(t.entries_);
    t.entries_.clear();
    return *this;
}

void Ticket::release() {
    if (!cache_) return;
    {
        const std::lock_guard<std::mutex> lock(cache_->mutex_);
        for (const Entry &e : entries_) cache_->unpin(cache_->slots_[e.slot]);
    }
    cache_->changed_.notify_all();
    cache_ = nullptr;
    entries_.clear();
}

Place Ticket::place(size_t i) const {
    const Entry &e = entries_[i];
    Place p = ExpertCache::layout(cache_->layers_[layer_], e.expert).place;
    for (uint64_t &at : p.part) at += e.slot * cache_->slot_bytes_;
    return p;
}

Wish &Wish::operator=(Wish &&w) noexcept {
    release();
    cache_ = std::exchange(w.cache_, nullptr);
    keys_ = std::move(w.keys_);
    w.keys_.clear();
    return *this;
}

void Wish::release() {
    if (!cache_) return;
    const std::lock_guard<std::mutex> lock(cache_->mutex_);
    for (uint32_t k : keys_) cache_->wishes_[k]--;
    cache_ = nullptr;
    keys_.clear();
}

Guess &Guess::operator=(Guess &&g) noexcept {
    release();
    cache_ = std::exchange(g.cache_, nullptr);
    layer_ = g.layer_;
    entries_ = std::move(g.entries_);
    g.entries_.clear();
    return *this;
}

void Guess::settle(const std::vector<uint32_t> &experts) {
    if (!cache_) return;
    {
        const std::lock_guard<std::mutex> lock(cache_->mutex_);
        for (const Entry &e : entries_) {
            const bool right = std::binary_search(experts.begin(), experts.end(), e.expert);
            ExpertCache::Trust &t = cache_->trust(layer_, e.rank);
            t.right = t.right * kGuessMemory + right;
            t.all = t.all * kGuessMemory + 1;
            t.tried = true;
            cache_->stats_[layer_].guessed_right += right;
            if (!right) cache_->give_up(e, layer_);
        }
    }
    cache_->changed_.notify_all();  // there may be room now
    cache_ = nullptr;
    entries_.clear();
}

void Guess::release() {
    if (!cache_) return;
    {
        const std::lock_guard<std::mutex> lock(cache_->mutex_);
        for (const Entry &e : entries_) cache_->give_up(e, layer_);
    }
    cache_->changed_.notify_all();
    cache_ = nullptr;
    entries_.clear();
}

// --------------------------------------------------------------------------------------------------------- making

ExpertCache::Layout ExpertCache::layout(const LayerSource &l, uint32_t expert) {
    Layout out;
    for (int i = 0; i < kParts; i++) {
        const uint64_t offset = l.offset[i] + expert * l.stride[i];
        Run *last = out.n_runs ? &out.runs[out.n_runs - 1] : nullptr;
        if (last && offset >= last->offset + last->bytes && offset - (last->offset + last->bytes) < kAlignment) {
            last->bytes = offset + l.bytes[i] - last->offset;
        } else {
            out.runs[out.n_runs] = {offset, l.bytes[i], out.bytes};
            last = &out.runs[out.n_runs++];
        }
        out.place.part[i] = last->at + last->offset % kAlignment + (offset - last->offset);
        out.bytes = last->at + rounded(last->offset % kAlignment + last->bytes);
    }
    return out;
}

uint64_t ExpertCache::slot_bytes(const std::vector<LayerSource> &layers) {
    uint64_t most = 0;
    for (const LayerSource &l : layers)
        for (uint32_t e = 0; e < l.n_expert; e++) most = std::max(most, layout(l, e).bytes);
    return most;
}

uint64_t ExpertCache::expert_bytes(uint32_t layer) const {
    uint64_t n = 0;
    for (uint64_t part : layers_[layer].bytes) n += part;
    return n;
}

ExpertCache::ExpertCache(std::vector<LayerSource> layers, std::unique_ptr<Reader> reader, const HeatScales &heat)
    : layers_(std::move(layers)), first_(first_keys(layers_)), heat_(first_, heat), reader_(std::move(reader)) {
    where_.assign(n_experts(), kNone);
    wishes_.assign(n_experts(), 0);
    stats_.resize(layers_.size());
    trust_.resize(layers_.size() * kRanksOfGuess);
    guess_turns_.assign(layers_.size(), 0);
}

ExpertCache::~ExpertCache() = default;

ds4_status ExpertCache::create(std::vector<LayerSource> layers, std::unique_ptr<Reader> reader, const CacheOptions &o,
                               std::unique_ptr<ExpertCache> *out, ds4_error *err) {
    std::unique_ptr<ExpertCache> c(new ExpertCache(std::move(layers), std::move(reader), o.heat));
    c->slot_bytes_ = slot_bytes(c->layers_);
    if (!c->slot_bytes_) return fail(err, DS4_E_ARGUMENT, "a cache of experts for a model that has none");
    if (o.bytes < c->slot_bytes_)
        return fail(err, DS4_E_ARGUMENT, "an expert cache of %llu bytes holds no expert; the smallest possible one has %llu bytes",
                    static_cast<unsigned long long>(o.bytes), static_cast<unsigned long long>(c->slot_bytes_));
    const uint64_t n = std::min<uint64_t>(o.bytes / c->slot_bytes_, c->n_experts());
    uint64_t bytes = 0;
    if (!mul(n, c->slot_bytes_, &bytes) || !add(bytes, kAlignment, &bytes) || !c->memory_.allocate(bytes) ||
        !c->memory_.populate())  // now, so that a size that the system cannot give is refused and no read waits for memory
        return fail(err, DS4_E_MEMORY, "out of memory: an expert cache of %llu bytes was refused; use a smaller one",
                    static_cast<unsigned long long>(o.bytes));
    uint8_t *const data = c->memory_.data();
    c->slab_ = data + (kAlignment - reinterpret_cast<uintptr_t>(data) % kAlignment) % kAlignment;
    c->slots_ = std::vector<Slot>(static_cast<size_t>(n));
    for (Slot &s : c->slots_) s.cache = c.get();
    *out = std::move(c);
    return DS4_OK;
}

// ------------------------------------------------------------------------------------------------------ selections

void ExpertCache::selected(uint32_t layer, const int32_t *ids, size_t n, size_t k) {
    const std::lock_guard<std::mutex> lock(mutex_);
    counts_.assign(layers_[layer].n_expert, 0);
    for (size_t i = 0; i < n * k; i++) counts_[static_cast<size_t>(ids[i])]++;
    heat_.selected(layer, counts_, n);
    if (!tracing_) return;
    trace_k_ = k;
    for (size_t t = 0; t < n; t++) {
        if (trace_.size() >= trace_most_ * (k + 1)) {
            trace_lost_++;
            continue;
        }
        trace_.push_back(static_cast<int32_t>(layer));
        trace_.insert(trace_.end(), ids + t * k, ids + (t + 1) * k);
    }
}

void ExpertCache::heat(float *out) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    heat_.get(out);
}

void ExpertCache::set_heat(const float *values) {
    const std::lock_guard<std::mutex> lock(mutex_);
    heat_.set(values);
}

void ExpertCache::map(uint8_t *out) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t k = 0; k < where_.size(); k++) {
        if (where_[k] == kNone) {
            out[k] = 0;
            continue;
        }
        const Slot &s = slots_[where_[k]];
        out[k] = s.state != State::ready ? 1 : s.pins ? 3 : 2;
    }
}

LayerStats ExpertCache::stats(uint32_t layer) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stats_[layer];
}

void ExpertCache::reset_stats() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::fill(stats_.begin(), stats_.end(), LayerStats{});
}

void ExpertCache::start_trace(size_t most_rows) {
    const std::lock_guard<std::mutex> lock(mutex_);
    trace_.clear();
    trace_lost_ = 0;
    trace_most_ = most_rows;
    tracing_ = true;
}

void ExpertCache::stop_trace() {
    const std::lock_guard<std::mutex> lock(mutex_);
    tracing_ = false;
}

size_t ExpertCache::trace(std::vector<int32_t> *rows, size_t *k, uint64_t *lost) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (rows) *rows = trace_;
    *k = trace_k_;
    *lost = trace_lost_;
    return trace_.size() / (trace_k_ + 1);
}

// ----------------------------------------------------------------------------------------------------------- slots

void ExpertCache::find_victims(size_t wanted) {
    victims_.clear();
    for (uint32_t i = 0; i < slots_.size(); i++) {
        const Slot &s = slots_[i];
        if (s.pins || s.state == State::reading || s.stamp == stamp_) continue;
        if (s.state == State::empty) {
            victims_.push_back({false, kNothing, i});
            continue;
        }
        const uint32_t k = key(s.layer, s.expert);
        victims_.push_back({wishes_[k] != 0, heat_.worth(s.layer, k), i});
    }
    if (wanted < victims_.size()) {
        std::nth_element(victims_.begin(), victims_.begin() + static_cast<ptrdiff_t>(wanted), victims_.end());
        std::sort(victims_.begin(), victims_.begin() + static_cast<ptrdiff_t>(wanted));
    } else {
        std::sort(victims_.begin(), victims_.end());
    }
}

void ExpertCache::clear(Slot &s) {
    where_[key(s.layer, s.expert)] = kNone;
    s.state = State::empty;
    s.bad = nullptr;
}

void ExpertCache::begin(uint32_t slot, uint32_t layer, uint32_t expert, Rank rank) {
    Slot &s = slots_[slot];
    if (s.state != State::empty) {
        stats_[s.layer].evicted++;
        clear(s);
    }
    s.state = State::reading;
    s.layer = layer;
    s.expert = expert;
    where_[key(layer, expert)] = slot;
    const Layout l = layout(layers_[layer], expert);
    s.left = static_cast<uint32_t>(l.n_runs);
    for (int i = 0; i < l.n_runs; i++) {
        Read &r = s.reads[i];
        r.file = layers_[layer].file;
        r.offset = l.runs[i].offset;
        r.bytes = l.runs[i].bytes;
        r.into = slab_ + slot * slot_bytes_ + l.runs[i].at + l.runs[i].offset % kAlignment;
        r.owner = &s;
        r.done = &ExpertCache::arrived;
        reader_->submit(r, rank);  // its end takes our lock: not before we are through
    }
}

void ExpertCache::arrived(Read &r) {
    Slot &s = *static_cast<Slot *>(r.owner);
    ExpertCache &c = *s.cache;
    {
        const std::lock_guard<std::mutex> lock(c.mutex_);
        if (!r.ok() && !s.bad) s.bad = &r;
        if (r.ok()) c.stats_[s.layer].bytes += r.bytes;
        if (--s.left) return;
        if (s.dropped) {
            s.dropped = false;
            s.state = State::empty;
            s.bad = nullptr;
        } else {
            s.state = s.bad ? State::failed : State::ready;
            if (s.bad && !s.pins) c.clear(s);
        }
    }
    c.changed_.notify_all();
}

void ExpertCache::unpin(Slot &s) {
    if (--s.pins == 0 && s.state == State::failed) clear(s);
}

bool ExpertCache::pin(uint32_t layer, const uint32_t *experts, size_t n, Ticket *out) {
    const size_t missing = count_missing(layer, experts, n);
    victims_.clear();
    if (missing) find_victims(missing);
    if (victims_.size() < missing) return false;
    out->entries_.reserve(n);  // what follows does not throw
    out->cache_ = this;
    out->layer_ = layer;
    LayerStats &stats = stats_[layer];
    stats.asked += n;
    out->hits_ = out->late_ = 0;
    out->read_bytes_ = 0;
    size_t next = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t slot = where_[key(layer, experts[i])];
        if (slot == kNone) {
            slot = victims_[next++].slot;
            begin(slot, layer, experts[i], Rank::urgent);
            stats.misses++;
            out->read_bytes_ += expert_bytes(layer);
        } else if (slots_[slot].state == State::reading) {
            stats.late++;
            out->late_++;
            for (Read &r : slots_[slot].reads) reader_->hurry(r);
        } else {
            stats.hits++;
            out->hits_++;
        }
        slots_[slot].pins++;
        out->entries_.push_back({experts[i], slot, false});
    }
    return true;
}

bool ExpertCache::try_acquire(uint32_t layer, const uint32_t *experts, size_t n, Ticket *out) {
    out->release();
    const std::lock_guard<std::mutex> lock(mutex_);
    return waiting_.empty() && pin(layer, experts, n, out);
}

bool ExpertCache::acquire(uint32_t layer, const uint32_t *experts, size_t n, Ticket *out, const Poll &poll) {
    out->release();
    Lock lock(mutex_);
    if (waiting_.empty() && pin(layer, experts, n, out)) return true;
    const auto start = Clock::now();
    const uint64_t turn = ++turns_;
    waiting_.push_back(turn);
    bool got = false, go_on = true;
    while (go_on && !(got = waiting_.front() == turn && pin(layer, experts, n, out))) {
        changed_.wait_for(lock, kPollEvery);
        lock.unlock();
        go_on = poll();
        lock.lock();
    }
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), turn));
    stats_[layer].wait_ns += ns_since(start);
    lock.unlock();
    changed_.notify_all();  // the next one in the row
    return got;
}

ds4_status ExpertCache::explain(const Slot &s, ds4_error *err) const {
    const LayerSource &l = layers_[s.layer];
    const uint64_t at = s.bad->offset + std::min(s.bad->got, s.bad->bytes - 1);
    int part = 0;
    for (int i = 0; i < kParts; i++)
        if (at >= l.offset[i] + s.expert * l.stride[i] && at < l.offset[i] + s.expert * l.stride[i] + l.bytes[i]) part = i;
    const std::string what = l.name + ", expert " + std::to_string(s.expert) + " (" + kPartNames[part] + ")";
    return describe(*s.bad, what.c_str(), err);
}

ds4_status ExpertCache::wait(Ticket &t, std::vector<size_t> *fresh, const Poll &poll, ds4_error *err) {
    fresh->clear();
    Clock::time_point start{};
    Lock lock(mutex_);
    for (;;) {
        size_t unseen = 0;
        for (size_t i = 0; i < t.entries_.size(); i++) {
            Ticket::Entry &e = t.entries_[i];
            if (e.seen) continue;
            const Slot &s = slots_[e.slot];
            if (s.state == State::failed) return explain(s, err);
            e.seen = s.state == State::ready;
            if (e.seen)
                fresh->push_back(i);
            else
                unseen++;
        }
        if (!fresh->empty() || !unseen) break;
        if (start == Clock::time_point{}) start = Clock::now();
        changed_.wait_for(lock, kPollEvery);
        lock.unlock();
        const bool go_on = poll();
        lock.lock();
        if (!go_on) return fail(err, DS4_E_CANCELLED, "stopped while experts were being read");
    }
    if (start != Clock::time_point{}) stats_[t.layer_].wait_ns += ns_since(start);
    return DS4_OK;
}

// ----------------------------------------------------------------------------------------------------------- ahead

Wish ExpertCache::wish(uint32_t layer, const uint32_t *experts, size_t n) {
    Wish out;
    for (size_t i = 0; i < n; i++) out.keys_.push_back(key(layer, experts[i]));
    const std::lock_guard<std::mutex> lock(mutex_);
    out.cache_ = this;
    for (uint32_t k : out.keys_) wishes_[k]++;
    return out;
}

size_t ExpertCache::count_missing(uint32_t layer, const uint32_t *experts, size_t n) {
    stamp_++;
    size_t missing = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t slot = where_[key(layer, experts[i])];
        if (slot == kNone)
            missing++;
        else
            slots_[slot].stamp = stamp_;
    }
    return missing;
}

void ExpertCache::prefetch(uint32_t layer, const uint32_t *experts, size_t n) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!waiting_.empty()) return;
    const size_t missing = count_missing(layer, experts, n);
    if (!missing) return;
    find_victims(missing);
    size_t next = 0;
    for (size_t i = 0; i < n && next < victims_.size(); i++) {
        if (where_[key(layer, experts[i])] != kNone) continue;
        const Victim &v = victims_[next++];
        if (v.wished) return;
        begin(v.slot, layer, experts[i], Rank::soon);
        stats_[layer].prefetched++;
    }
}

bool ExpertCache::guesses_pay(uint32_t layer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    bool tried = false;
    for (uint32_t rank = 0; rank < kRanksOfGuess; rank++) {
        const Trust &t = trust(layer, rank);
        if (t.tried && t.rate() >= kGuessPays) return true;
        tried = tried || t.tried;
    }
    return !tried || ++guess_turns_[layer] % kGuessEvery == 0;
}

Guess ExpertCache::guess(uint32_t layer, const uint32_t *experts, const uint32_t *ranks, size_t n, size_t spare) {
    Guess out;
    out.entries_.reserve(n);
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t missing = count_missing(layer, experts, n);
    victims_.clear();
    size_t loose = 0;  // being read for nobody: no room for those who need some
    for (const Slot &s : slots_) loose += s.state == State::reading && !s.pins;
    const size_t room = slots_.size() > loose + spare ? slots_.size() - loose - spare : 0;
    if (missing && waiting_.empty() && room) find_victims(missing);
    size_t next = 0;
    for (size_t i = 0; i < n; i++) {
        if (where_[key(layer, experts[i])] != kNone) continue;
        stats_[layer].guessed++;
        uint32_t slot = kNone;
        const double chance = trust(layer, ranks[i]).rate();
        if (chance >= kGuessPays && next < std::min(victims_.size(), room) && !victims_[next].wished &&
            victims_[next].worth < chance) {
            slot = victims_[next++].slot;
            begin(slot, layer, experts[i], Rank::guess);
            stats_[layer].prefetched++;
        }
        out.entries_.push_back({experts[i], ranks[i], slot});
    }
    out.cache_ = this;
    out.layer_ = layer;
    return out;
}

// Ends the reads of a guess, unless somebody wants the expert by now.
void ExpertCache::give_up(const Guess::Entry &e, uint32_t layer) {
    if (e.slot == kNone || where_[key(layer, e.expert)] != e.slot) return;
    Slot &s = slots_[e.slot];
    if (s.state != State::reading || s.pins) return;
    bool cut = false;
    const Layout l = layout(layers_[layer], e.expert);
    for (int i = 0; i < l.n_runs; i++) {
        const uint32_t before = s.left;
        if (reader_->withdraw(s.reads[i])) s.left--;
        cut = cut || s.left < before || s.reads[i].withdrawn;
    }
    if (!cut) return;
    where_[key(layer, e.expert)] = kNone;
    s.dropped = s.left > 0;
    if (!s.left) {
        s.state = State::empty;
        s.bad = nullptr;
    }
}

ds4_status ExpertCache::preload(uint32_t n_slots, const std::function<bool(uint64_t, uint64_t)> &progress, ds4_error *err) {
    struct Wanted {
        double worth;
        uint32_t layer, expert;
    };
    std::vector<Wanted> list;
    Lock lock(mutex_);
    for (uint32_t l = 0; l < n_layers(); l++)
        for (uint32_t e = 0; e < layers_[l].n_expert; e++)
            list.push_back({heat_.worth(l, key(l, e)), l, e});
    std::stable_sort(list.begin(), list.end(), [](const Wanted &a, const Wanted &b) { return a.worth > b.worth; });
    uint32_t slot = 0, taken = 0;
    std::vector<uint32_t> begun;
    for (const Slot &s : slots_) taken += s.state != State::empty;
    for (const Wanted &w : list) {
        if (taken >= std::min<size_t>(n_slots, slots_.size())) break;
        if (where_[key(w.layer, w.expert)] != kNone) continue;
        while (slots_[slot].state != State::empty) slot++;
        begin(slot, w.layer, w.expert, Rank::soon);
        stats_[w.layer].prefetched++;
        slots_[slot].pins++;  // a failure stays until it is reported
        begun.push_back(slot);
        taken++;
    }
    ds4_status st = DS4_OK;
    for (;;) {
        uint64_t done = 0;
        for (uint32_t i : begun) done += slots_[i].state != State::reading;
        for (uint32_t i : begun)
            if (st == DS4_OK && slots_[i].state == State::failed) st = explain(slots_[i], err);
        if (st != DS4_OK || done == begun.size()) break;
        changed_.wait_for(lock, kPollEvery);
        lock.unlock();
        const bool go_on = progress(done, begun.size());
        lock.lock();
        if (!go_on) st = fail(err, DS4_E_CANCELLED, "stopped while experts were being read");
        if (!go_on) break;
    }
    for (uint32_t i : begun) unpin(slots_[i]);
    lock.unlock();
    changed_.notify_all();
    return st;
}

}  // namespace ds4::stream
