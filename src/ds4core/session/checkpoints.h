// Places of a timeline to which a session can go back: the tails of its states there, within a budget of bytes.
//
// Three reasons to keep one: its position is a multiple of the stride (automatic); a call ended there and the next one
// went on (the end of a turn, to which an agent returns when it drops its reasoning or asks again); it was asked for by
// hand. By hand goes before the end of a turn, and that before automatic.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace ds4 {

struct Checkpoint {
    enum Why : uint32_t { automatic = 1, turn = 2, by_hand = 4 };
    uint32_t pos = 0;
    uint32_t why = 0;  // of the above, or several
    uint64_t bytes = 0;
    std::shared_ptr<const uint8_t[]> tail;  // never changes; a fork shares it
};

class Checkpoints {
public:
    static constexpr uint32_t kByHand = 16, kTurns = 8;  // the newest so many are kept

    // every: positions between automatic ones, 0: none. budget: bytes of all.
    void configure(uint32_t every, uint64_t budget) {
        every_ = stride_ = every;
        budget_ = budget;
    }

    // Where a chunk that begins at pos and could reach `end` is to end: at its last multiple of the stride.
    uint32_t chunk_end(uint32_t pos, uint32_t end) const {
        const uint32_t last = stride_ ? end / stride_ * stride_ : 0;
        return last > pos ? last : end;
    }
    bool due(uint32_t pos) const { return stride_ && pos % stride_ == 0; }

    // Make room for a tail of that many bytes, dropping what counts less. False: it cannot be kept.
    bool make_room(uint32_t pos, uint64_t bytes, Checkpoint::Why why);
    // Keep one more, for which there is room; its position is behind all others.
    void add(Checkpoint c);
    // Say that the one at pos is also kept for this reason. False: there is none.
    bool mark(uint32_t pos, Checkpoint::Why why);

    // The newest at or before pos, or NULL.
    const Checkpoint *newest(uint32_t pos) const;
    // Forget all behind pos, because the timeline goes on from there.
    void cut(uint32_t pos);
    // Take over those of another timeline that is the same.
    void share(const Checkpoints &other);

    const std::vector<Checkpoint> &all() const { return all_; }
    uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }  // readable from any thread
    uint64_t budget() const { return budget_; }

private:
    bool fits(uint64_t bytes) const { return bytes <= budget_ && this->bytes() <= budget_ - bytes; }
    uint64_t bytes_of(Checkpoint::Why why) const;
    // Double the stride until an automatic one falls out. False: there is none.
    bool thin();
    // Take this reason from the oldest that has it. False: none has.
    bool forget_oldest(Checkpoint::Why why);
    void limit(Checkpoint::Why why, size_t most);
    // Drop what has no reason left.
    void sweep();

    std::vector<Checkpoint> all_;  // ascending positions, one each
    std::atomic<uint64_t> bytes_{0};
    uint32_t every_ = 0, stride_ = 0;
    uint64_t budget_ = 0;
};

}  // namespace ds4
