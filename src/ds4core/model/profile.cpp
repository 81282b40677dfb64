// The clock of a profile.
#include "model/profile.h"

#include <algorithm>

namespace ds4 {

// What ran since the last change goes to the current part.
void Profile::charge() {
    ops_.drain(q_);
    const Clock::time_point now = Clock::now();
    const auto spent = std::chrono::duration_cast<std::chrono::nanoseconds>(now - since_).count();
    rows_[phase_][block_][part_].ns += static_cast<uint64_t>(spent);
    since_ = now;
}

void Profile::switch_to(uint32_t block, uint32_t part) {
    if (!running_) return;
    charge();
    block_ = block;
    part_ = part;
}

void Profile::begin(uint32_t n) {
    ops_.drain(q_);
    phase_ = n == 1 ? DS4_PHASE_DECODE : DS4_PHASE_PREFILL;
    block_ = outside_;
    part_ = DS4_PART_OTHER;
    running_ = true;
    since_ = Clock::now();
}

void Profile::end() {
    if (running_) charge();
    running_ = false;
}

uint32_t Profile::enter(uint32_t part) {
    const uint32_t before = part_;
    switch_to(block_, part);
    if (running_) rows_[phase_][block_][part].entries++;
    return before;
}

void Profile::give(uint32_t part, uint64_t ns) {
    if (!running_) return;
    charge();
    Row &row = rows_[phase_][block_];
    ns = std::min(ns, row[part_].ns);
    row[part_].ns -= ns;
    row[part].ns += ns;
    row[part].entries++;
}

}  // namespace ds4
