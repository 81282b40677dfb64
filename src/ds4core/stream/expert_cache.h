// A cache of whole experts in memory, over a file that is read on demand. All sessions of a model share it.
//
// A slot holds gate, up and down of one expert, which are read together: in one read where the file has them side by
// side, else in three. A computation pins the experts that it needs (a Ticket), all or none; what is pinned, and what is
// being read, is never taken away. Nobody waits for slots while it holds a ticket, and those who wait are served in their
// order, so any number of sessions get on with a single slot.
//
// Which expert goes is decided by what was selected (ExpertHeat): the one that the next tokens will need least.
//
// The contents of an expert never depend on any of this.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/pages.h"
#include "stream/expert_heat.h"
#include "stream/reader.h"

namespace ds4::stream {

constexpr int kParts = 3;  // gate, up, down

// The experts of a layer in their file.
struct LayerSource {
    std::string name;  // "layer 3", for messages
    const SourceFile *file = nullptr;
    uint32_t n_expert = 0;
    uint64_t offset[kParts] = {}, bytes[kParts] = {}, stride[kParts] = {};  // of expert 0; to the next one
};

// Where the parts of an expert lie in the slab.
struct Place {
    uint64_t part[kParts] = {};
};

struct LayerStats {
    uint64_t asked = 0;       // experts that tickets were for
    uint64_t hits = 0;        // of these: were there
    uint64_t late = 0;        // were being read already
    uint64_t misses = 0;      // had to be read
    uint64_t prefetched = 0;  // experts whose reads were begun before anyone asked
    uint64_t guessed = 0;     // experts that were guessed while they were not in memory
    uint64_t guessed_right = 0;
    uint64_t evicted = 0;
    uint64_t bytes = 0;       // that arrived
    uint64_t wait_ns = 0;     // that computations waited for slots and reads
};

class ExpertCache;

// Experts of one layer that stay where they are for as long as it lives.
class Ticket {
public:
    Ticket() = default;
    ~Ticket() { release(); }
    Ticket(const Ticket &) = delete;
    Ticket &operator=(const Ticket &) = delete;
    Ticket(Ticket &&t) noexcept { *this = std::move(t); }
    Ticket &operator=(Ticket &&t) noexcept;

    void release();
    size_t size() const { return entries_.size(); }
    uint32_t layer() const { return layer_; }
    uint32_t expert(size_t i) const { return entries_[i].expert; }
    Place place(size_t i) const;
    // When it was made: how many were there, how many were being read already, and the bytes of those that were not.
    size_t hits() const { return hits_; }
    size_t late() const { return late_; }
    uint64_t read_bytes() const { return read_bytes_; }

private:
    friend class ExpertCache;
    struct Entry {
        uint32_t expert, slot;
        bool seen;
    };
    ExpertCache *cache_ = nullptr;
    uint32_t layer_ = 0;
    size_t hits_ = 0, late_ = 0;
    uint64_t read_bytes_ = 0;
    std::vector<Entry> entries_;
};

// Experts that will be asked for soon: they go only when nothing else can.
class Wish {
public:
    Wish() = default;
    ~Wish() { release(); }
    Wish(const Wish &) = delete;
    Wish &operator=(const Wish &) = delete;
    Wish(Wish &&w) noexcept { *this = std::move(w); }
    Wish &operator=(Wish &&w) noexcept;
    void release();

private:
    friend class ExpertCache;
    ExpertCache *cache_ = nullptr;
    std::vector<uint32_t> keys_;
};

// Experts that a layer may need, the likeliest first. What a guess reads is given up when it turns out wrong; how often
// guesses of a rank were right decides whether anything is read on them.
class Guess {
public:
    Guess() = default;
    ~Guess() { release(); }
    Guess(const Guess &) = delete;
    Guess &operator=(const Guess &) = delete;
    Guess(Guess &&g) noexcept { *this = std::move(g); }
    Guess &operator=(Guess &&g) noexcept;

    // What the layer needs after all, ascending: the reads of all others end. To be called before they are acquired.
    void settle(const std::vector<uint32_t> &experts);
    void release();  // all reads end, nothing is learned

private:
    friend class ExpertCache;
    struct Entry {
        uint32_t expert, rank, slot;
    };
    ExpertCache *cache_ = nullptr;
    uint32_t layer_ = 0;
    std::vector<Entry> entries_;
};

struct CacheOptions {
    uint64_t bytes = 0;  // of all slots
    HeatScales heat;
};

class ExpertCache {
public:
    // Asked about every 10 ms while something is waited for, without locks; false gives up.
    using Poll = std::function<bool()>;

    // The memory that one slot takes: room for the largest expert.
    static uint64_t slot_bytes(const std::vector<LayerSource> &layers);

    // DS4_E_ARGUMENT: bytes is less than a slot; the message names the smallest number. DS4_E_MEMORY.
    static ds4_status create(std::vector<LayerSource> layers, std::unique_ptr<Reader> reader, const CacheOptions &o,
                             std::unique_ptr<ExpertCache> *out, ds4_error *err);
    ~ExpertCache();
    ExpertCache(const ExpertCache &) = delete;
    ExpertCache &operator=(const ExpertCache &) = delete;

    uint8_t *slab() const { return slab_; }
    uint64_t slab_bytes() const { return slots_.size() * slot_bytes_; }
    uint64_t slot_bytes() const { return slot_bytes_; }
    uint32_t n_slots() const { return static_cast<uint32_t>(slots_.size()); }
    uint32_t n_layers() const { return static_cast<uint32_t>(layers_.size()); }
    uint32_t n_experts() const { return first_.back(); }
    uint32_t n_experts(uint32_t layer) const { return layers_[layer].n_expert; }
    uint64_t expert_bytes(uint32_t layer) const;
    Reader &reader() { return *reader_; }

    // Counts what the router chose for n tokens: ids int32 [n][k].
    void selected(uint32_t layer, const int32_t *ids, size_t n, size_t k);

    // Pins experts (each once, ascending) and begins to read those that are missing. Waits for slots when others have
    // pinned them; n must not exceed n_slots(), and the caller holds no ticket. False: poll gave up.
    bool acquire(uint32_t layer, const uint32_t *experts, size_t n, Ticket *out, const Poll &poll);
    // The same for a caller who may hold a ticket: false when it would have to wait.
    bool try_acquire(uint32_t layer, const uint32_t *experts, size_t n, Ticket *out);
    // Waits until experts of the ticket have arrived that were not reported before; their indices go to `fresh`, and none
    // when all have been. DS4_E_IO names layer, expert, part, file and offset. DS4_E_CANCELLED: poll gave up.
    ds4_status wait(Ticket &t, std::vector<size_t> *fresh, const Poll &poll, ds4_error *err);

    Wish wish(uint32_t layer, const uint32_t *experts, size_t n);
    // Reads what is missing and sure to be needed, in the order given, while there are slots that nobody uses or wishes for.
    void prefetch(uint32_t layer, const uint32_t *experts, size_t n);
    // Reads what is missing if guesses of its rank pay, into slots that nobody uses or wishes for and whose experts are
    // less likely to be needed than the guess is to be right, leaving `spare` slots to those who know what they need.
    // experts: each once; rank: of each, below kRanksOfGuess, else it is as good as the last.
    Guess guess(uint32_t layer, const uint32_t *experts, const uint32_t *ranks, size_t n, size_t spare);
    // Whether it is worth while to make up a guess for the layer: when the last ones paid, and now and then anyway.
    bool guesses_pay(uint32_t layer);
    // Fills up to n_slots slots with the experts that are worth most, then with the first ones.
    ds4_status preload(uint32_t n_slots, const std::function<bool(uint64_t done, uint64_t total)> &progress, ds4_error *err);

    // Decayed numbers of selections (the far ones of ExpertHeat), [all experts of all layers in order].
    void heat(float *out) const;
    void set_heat(const float *values);
    // 0: not there; 1: being read; 2: there; 3: pinned. In the same order.
    void map(uint8_t *out) const;
    LayerStats stats(uint32_t layer) const;
    void reset_stats();

    // A record of the selections: rows of layer and the ids that a token got there, ascending in time.
    void start_trace(size_t most_rows);
    void stop_trace();
    // Numbers of the rows so far, and how many rows did not fit. k: ids in a row.
    size_t trace(std::vector<int32_t> *rows, size_t *k, uint64_t *lost) const;

private:
    friend class Ticket;
    friend class Wish;
    friend class Guess;
    enum class State : uint8_t { empty, reading, ready, failed };
    static constexpr uint32_t kNone = UINT32_MAX;

    struct Slot {
        ExpertCache *cache = nullptr;
        State state = State::empty;
        uint32_t layer = 0, expert = 0, pins = 0, left = 0;  // left: reads under way
        uint64_t stamp = 0;
        Read reads[kParts];
        const Read *bad = nullptr;
        bool dropped = false;  // a wrong guess whose last pieces are awaited
    };
    // How often guesses were right lately, of one rank and layer.
    struct Trust {
        double right = 1, all = 2;
        bool tried = false;
        double rate() const { return right / all; }
    };
    static constexpr uint32_t kRanksOfGuess = 8;
    // Neighbouring parts that are read at once.
    struct Run {
        uint64_t offset, bytes, at;  // in the file; in the slot, less what goes before for the alignment
    };
    struct Layout {
        Run runs[kParts];
        int n_runs = 0;
        Place place;  // in the slot
        uint64_t bytes = 0;
    };
    struct Victim {
        bool wished;
        double worth;  // -1: an empty slot
        uint32_t slot;
        bool operator<(const Victim &o) const {
            if (wished != o.wished) return o.wished;
            return worth != o.worth ? worth < o.worth : slot < o.slot;
        }
    };
    using Lock = std::unique_lock<std::mutex>;

    ExpertCache(std::vector<LayerSource> layers, std::unique_ptr<Reader> reader, const HeatScales &heat);
    static Layout layout(const LayerSource &l, uint32_t expert);
    uint32_t key(uint32_t layer, uint32_t expert) const { return first_[layer] + expert; }
    // Slots that may be taken now, except those stamped now, those of least worth first for the first `wanted` of them.
    void find_victims(size_t wanted);
    // Stamps those that have slots, and returns how many have none.
    size_t count_missing(uint32_t layer, const uint32_t *experts, size_t n);
    void begin(uint32_t slot, uint32_t layer, uint32_t expert, Rank rank);
    void clear(Slot &s);
    bool pin(uint32_t layer, const uint32_t *experts, size_t n, Ticket *out);
    void unpin(Slot &s);
    void give_up(const Guess::Entry &e, uint32_t layer);
    Trust &trust(uint32_t layer, uint32_t rank) { return trust_[layer * kRanksOfGuess + std::min(rank, kRanksOfGuess - 1)]; }
    static void arrived(Read &r);
    ds4_status explain(const Slot &s, ds4_error *err) const;

    const std::vector<LayerSource> layers_;
    std::vector<uint32_t> first_;  // key of each layer's expert 0, and the number of all
    uint64_t slot_bytes_ = 0;
    ZeroedMemory memory_;
    uint8_t *slab_ = nullptr;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<Slot> slots_;
    std::vector<uint32_t> where_;   // by key: slot or kNone
    std::vector<uint32_t> wishes_;  // by key
    ExpertHeat heat_;
    std::vector<Trust> trust_;           // by layer and rank
    std::vector<uint32_t> guess_turns_;  // by layer: how often a guess was not worth while
    std::vector<LayerStats> stats_;
    std::deque<uint64_t> waiting_;  // turns of those who wait for slots
    uint64_t turns_ = 0, stamp_ = 0;
    std::vector<Victim> victims_;
    std::vector<uint32_t> counts_;

    bool tracing_ = false;
    size_t trace_most_ = 0, trace_k_ = 0;
    uint64_t trace_lost_ = 0;
    std::vector<int32_t> trace_;

    std::unique_ptr<Reader> reader_;  // last: ends before the rest does
};

}  // namespace ds4::stream
