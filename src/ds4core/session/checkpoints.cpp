// What to keep when the budget is full, and going back.
#include "session/checkpoints.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "base/error.h"
#include "session/session.h"
#include "session/tail.h"

namespace ds4 {

void Checkpoints::sweep() {
    std::erase_if(all_, [](const Checkpoint &c) { return c.why == 0; });
    uint64_t bytes = 0;
    for (const Checkpoint &c : all_) bytes += c.bytes;
    bytes_.store(bytes, std::memory_order_relaxed);
}

uint64_t Checkpoints::bytes_of(Checkpoint::Why why) const {
    uint64_t bytes = 0;
    for (const Checkpoint &c : all_) bytes += c.why & why ? c.bytes : 0;
    return bytes;
}

bool Checkpoints::thin() {
    auto only_automatic = [](const Checkpoint &c) { return c.why == Checkpoint::automatic; };
    const auto before = std::count_if(all_.begin(), all_.end(), only_automatic);
    if (!before) return false;
    do {  // positions are less than 2^21, so a stride of that leaves none
        stride_ *= 2;
        for (Checkpoint &c : all_)
            if (c.pos % stride_) c.why &= ~uint32_t{Checkpoint::automatic};
    } while (std::count_if(all_.begin(), all_.end(), only_automatic) == before);
    sweep();
    return true;
}

bool Checkpoints::forget_oldest(Checkpoint::Why why) {
    for (Checkpoint &c : all_) {
        if (!(c.why & why)) continue;
        c.why &= ~static_cast<uint32_t>(why);
        sweep();
        return true;
    }
    return false;
}

void Checkpoints::limit(Checkpoint::Why why, size_t most) {
    auto has = [&](const Checkpoint &c) { return (c.why & why) != 0; };
    while (static_cast<size_t>(std::count_if(all_.begin(), all_.end(), has)) > most) forget_oldest(why);
}

bool Checkpoints::make_room(uint32_t pos, uint64_t bytes, Checkpoint::Why why) {
    if (bytes > budget_) return false;
    if (why == Checkpoint::automatic) {
        while (due(pos) && !fits(bytes))
            if (!thin()) return false;
        return due(pos);
    }
    if (why == Checkpoint::turn) {  // at most half of the budget, so that a long turn keeps its automatic ones
        limit(why, kTurns - 1);
        while (bytes_of(why) + bytes > budget_ / 2 && forget_oldest(why)) {
        }
        while (!fits(bytes))
            if (!thin() && !forget_oldest(why)) return false;
        return true;
    }
    limit(why, kByHand - 1);
    while (!fits(bytes))
        if (!thin() && !forget_oldest(Checkpoint::turn)) forget_oldest(why);
    return true;
}

void Checkpoints::add(Checkpoint c) {
    all_.push_back(std::move(c));
    sweep();
}

bool Checkpoints::mark(uint32_t pos, Checkpoint::Why why) {
    for (Checkpoint &c : all_) {
        if (c.pos != pos) continue;
        c.why |= why;
        limit(Checkpoint::by_hand, kByHand);
        limit(Checkpoint::turn, kTurns);
        return true;
    }
    return false;
}

const Checkpoint *Checkpoints::newest(uint32_t pos) const {
    for (auto c = all_.rbegin(); c != all_.rend(); ++c)
        if (c->pos <= pos) return &*c;
    return nullptr;
}

void Checkpoints::cut(uint32_t pos) {
    for (Checkpoint &c : all_)
        if (c.pos > pos) c.why = 0;
    sweep();
    while (stride_ > every_ && bytes() <= budget_ / 4) stride_ /= 2;  // there is room again
}

void Checkpoints::share(const Checkpoints &other) {
    all_ = other.all_;
    stride_ = other.stride_;
    sweep();
}

ds4_status keep_checkpoint(ds4_session &s, Checkpoint::Why why, ds4_error *err) {
    const uint32_t pos = static_cast<uint32_t>(s.tokens.size());
    if (s.checkpoints.mark(pos, why)) return DS4_OK;
    const uint64_t bytes = tail_bytes(s, pos);
    const bool asked = why == Checkpoint::by_hand;
    if (!s.checkpoints.make_room(pos, bytes, why)) {
        if (!asked) return DS4_OK;
        return fail(err, DS4_E_STATE, "a checkpoint at position %u takes %llu bytes; checkpoint_bytes is %llu", pos,
                    static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(s.checkpoints.budget()));
    }
    std::shared_ptr<uint8_t[]> tail(new (std::nothrow) uint8_t[bytes]);
    if (!tail) {
        if (!asked) return DS4_OK;  // going back will take longer, that is all
        return fail(err, DS4_E_MEMORY, "no memory for a checkpoint of %llu bytes", static_cast<unsigned long long>(bytes));
    }
    const ds4_status st = take_tail(s, tail.get(), err);
    if (st == DS4_OK) s.checkpoints.add({pos, why, bytes, std::move(tail)});
    return st;
}

ds4_status checkpoint_session(ds4_session &s, ds4_error *err) {
    if (s.tokens.empty()) return fail(err, DS4_E_STATE, "an empty session needs no checkpoint");
    return keep_checkpoint(s, Checkpoint::by_hand, err);
}

namespace {

// To a position whose state is still in the cache: only its logits are computed.
ds4_status step_back(ds4_session &s, uint32_t pos, ds4_error *err) {
    const ds4_model &m = *s.model;
    s.graph->head(m.head, m.output_norm, s.past.streams(pos - 1), 1);
    m.ops->download(s.queue, s.next_logits.data(), s.scratch.logits, s.next_logits.size() * 4);
    const ds4_status st = m.ops->queue_wait(s.queue, err);
    if (st != DS4_OK) return st;
    for (size_t i = 0; i < s.next_logits.size(); i++)
        if (!std::isfinite(s.next_logits[i]))
            return fail(err, DS4_E_DATA, "logit %zu after position %u is not finite: the weights look damaged, check them",
                        i, pos - 1);
    s.logits.swap(s.next_logits);
    m.ops->margins_reset(s.queue);
    s.margins = m.ops->margins(s.queue);
    return DS4_OK;
}

}  // namespace

size_t steps_back(const ds4_session &s) {
    const uint64_t first = s.past.first(), pos = s.tokens.size();
    return pos > first ? pos - first : 0;
}

ds4_status rewind_session(ds4_session &s, size_t pos, size_t *reached, ds4_error *err) {
    const size_t held = s.tokens.size();
    if (pos > held)
        return fail(err, DS4_E_ARGUMENT, "cannot rewind to position %zu: the session holds %zu", pos, held);
    size_t to = pos;
    if (pos < held) {
        if (pos && held - pos <= steps_back(s)) {
            const ds4_status st = step_back(s, static_cast<uint32_t>(pos), err);
            if (st != DS4_OK) return st;
        } else if (const Checkpoint *c = s.checkpoints.newest(static_cast<uint32_t>(pos))) {
            to = c->pos;
            const std::shared_ptr<const uint8_t[]> tail = c->tail;
            const ds4_status st = put_tail(s, c->pos, tail.get(), err);
            if (st != DS4_OK) return st;
        } else {
            to = 0;
            s.past.begin(0);
        }
        s.ahead.drop();
        s.tokens.resize(to);
        s.steered.cut(static_cast<uint32_t>(to));
        s.checkpoints.cut(static_cast<uint32_t>(to));
        s.turn_end = 0;
    }
    if (reached) *reached = to;
    return DS4_OK;
}

}  // namespace ds4
