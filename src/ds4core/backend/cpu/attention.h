// What attention and indexer share, and their work space for the memory plan.
#pragma once

#include "backend/cpu/cpu.h"

namespace ds4::cpu {

constexpr uint64_t lanes_of(uint64_t heads) { return (heads + kLanes - 1) / kLanes * kLanes; }

// Items of a piece when threads share n of them: about four pieces a thread, in whole units.
inline size_t piece(size_t n, size_t threads, size_t unit) { return (n / (4 * threads) / unit + 1) * unit; }

// Floats of work space: as much may be held once for the queue and once a thread.
uint64_t indexer_floats(uint64_t heads, uint64_t dim, uint64_t rows);
uint64_t attention_floats(uint64_t heads, uint64_t dim, uint64_t keys);

}  // namespace ds4::cpu
