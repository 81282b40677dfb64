// Positions behind the timeline that were computed on the guess that they will be asked for.
//
// The tokens are not part of the session: its position, state and logits are those without them. Whoever evaluates the
// token that was guessed gets its logits without computing, with the bits that computing would give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/cache.h"

namespace ds4 {

// More would use up the slack of the rings.
constexpr uint32_t kMostAhead = kSlack - 1;

struct Ahead {
    std::vector<int32_t> tokens;  // after the last position of the timeline
    std::vector<float> logits;    // [1 + kMostAhead][n_vocab]: row i is that before tokens[i]
    size_t next = 0;              // of tokens that were not taken yet

    static uint64_t bytes(uint64_t n_vocab) { return (1 + kMostAhead) * n_vocab * 4; }
    size_t ready() const { return tokens.size() - next; }
    bool holds(int32_t token) const { return next < tokens.size() && tokens[next] == token; }
    void drop() {
        tokens.clear();
        next = 0;
    }
};

}  // namespace ds4
