// Where the time of a session goes: nanoseconds and entries of every part of the graph, by phase and block.
//
// One part is current at any moment, so the cells of a phase add up to the time between begin() and end(). A part that
// is entered inside another one stops the clock of the outer one. Every change waits for the queue: that costs a
// backend that works ahead some of its speed, and the CPU nothing.
#pragma once

#include <array>
#include <chrono>
#include <vector>

#include "backend/backend.h"
#include "ds4/session.h"

namespace ds4 {

class Profile {
public:
    struct Cell {
        uint64_t ns = 0, entries = 0;
    };
    using Row = std::array<Cell, DS4_N_PARTS>;

    // ops and q are borrowed and must outlive the profile. Blocks: n_layer layers, the MTP block, all outside of both.
    Profile(const ds4_backend_ops &ops, ds4_queue *q, uint32_t n_layer)
        : ops_(ops), q_(q), outside_(n_layer + 1), rows_{std::vector<Row>(n_layer + 2), std::vector<Row>(n_layer + 2)} {}

    // A chunk of n tokens begins: the phase is decode for one and prefill for more.
    void begin(uint32_t n);
    void end();
    // The chunk that ran is good.
    void count(uint32_t n) { tokens_[phase_] += n; }

    // Makes a block current, and outside() none of them.
    void block(uint32_t i) { switch_to(i, DS4_PART_OTHER); }
    void outside() { switch_to(outside_, DS4_PART_OTHER); }

    // Makes a part current; leave() takes what enter() returned.
    uint32_t enter(uint32_t part);
    void leave(uint32_t before) { switch_to(block_, before); }
    // Says that ns of what the current part has run up belong to another one.
    void give(uint32_t part, uint64_t ns);

    const std::vector<Row> &rows(uint32_t phase) const { return rows_[phase]; }
    uint64_t tokens(uint32_t phase) const { return tokens_[phase]; }

private:
    using Clock = std::chrono::steady_clock;
    void switch_to(uint32_t block, uint32_t part);
    void charge();

    const ds4_backend_ops &ops_;
    ds4_queue *q_;
    uint32_t outside_, phase_ = 0, block_ = 0, part_ = DS4_PART_OTHER;
    bool running_ = false;
    Clock::time_point since_{};
    uint64_t tokens_[DS4_N_PHASES] = {};
    std::vector<Row> rows_[DS4_N_PHASES];
};

// One chunk under the clock, however its scope is left.
class MeasuredChunk {
public:
    MeasuredChunk(Profile *p, uint32_t n) : profile_(p) {
        if (p) p->begin(n);
    }
    ~MeasuredChunk() {
        if (profile_) profile_->end();
    }
    MeasuredChunk(const MeasuredChunk &) = delete;
    MeasuredChunk &operator=(const MeasuredChunk &) = delete;

private:
    Profile *profile_;
};

// The work of a scope belongs to a part. Without a profile it does nothing.
class Part {
public:
    Part(Profile *p, uint32_t part) : profile_(p), before_(p ? p->enter(part) : 0) {}
    ~Part() {
        if (profile_) profile_->leave(before_);
    }
    Part(const Part &) = delete;
    Part &operator=(const Part &) = delete;

private:
    Profile *profile_;
    uint32_t before_;
};

}  // namespace ds4
