// The last positions of a session, to which it can step back without a checkpoint.
//
// Every ring of the cache has kSlack positions more than it needs, so the state of the last positions is still there.
// What is missing are their logits; they are computed from the residual streams, which are kept here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kv/cache.h"

namespace ds4 {

class Past {
public:
    Past() = default;
    Past(const Past &) = delete;
    Past &operator=(const Past &) = delete;
    ~Past() {
        if (ops_) ops_->buffer_free(buffer_);
    }

    // row: bytes of the streams of a position.
    static uint64_t bytes(uint64_t row) { return (kSlack + 1) * row; }
    ds4_status create(const ds4_backend_ops *ops, ds4_device *device, uint64_t row, ds4_error *err) {
        ops_ = ops;
        row_ = row;
        return ops->buffer_alloc(device, bytes(row), &buffer_, err);
    }

    // The place of a position's streams, float32 [n_hc * n_embd].
    ds4_ref streams(uint64_t pos) const { return ref(buffer_, pos % (kSlack + 1) * row_); }

    // The state was put at pos from elsewhere: nothing before it is here.
    void begin(uint64_t pos) {
        written_ = pos;
        floor_ = pos ? pos + 1 : 0;
    }
    // Cache rows before `end` are being written.
    void reach(uint64_t end) { written_ = std::max(written_, end); }
    // Keep the streams [n] of positions pos.. that ended well.
    void keep(ds4_queue *q, uint64_t pos, ds4_ref from, uint64_t n) {
        for (uint64_t i = n > kSlack + 1 ? n - kSlack - 1 : 0; i < n; i++)
            ops_->copy(q, streams(pos + i), advance(from, i * row_), row_);
        reach(pos + n);
    }

    // The first position that can be stepped back to.
    uint64_t first() const { return std::max(floor_, written_ > kSlack ? written_ - kSlack : 0); }

private:
    const ds4_backend_ops *ops_ = nullptr;
    ds4_buffer *buffer_ = nullptr;
    uint64_t row_ = 0;
    uint64_t floor_ = 0;    // no state before it is here
    uint64_t written_ = 0;  // cache rows before it may have replaced those of positions a ring's length before
};

}  // namespace ds4
