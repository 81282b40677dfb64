// The KV cache of a session: window rings, compressed rows and compressor states of every layer, and the MTP block's
// window. Guarantees: appending a position never moves an older row; the rings are kSlack positions longer than one
// position needs, so that the state of up to kSlack positions ago is still there; the bytes of a state are listed in
// one place (segments) that all saving and restoring shares.
#pragma once

#include <functional>
#include <vector>

#include "backend/backend.h"
#include "backend/cache_view.h"
#include "ds4/model.h"

namespace ds4 {

struct CacheSizes {
    uint32_t n_ctx = 0, chunk = 1, row_type = DS4_ROW_F16;
    bool with_mtp = false;
};

// Positions that a session can take back because no ring has overwritten what they need.
constexpr uint32_t kSlack = 8;

// Bytes per kind, before anything is allocated; fills the cache fields of `out`.
void plan_cache(const ds4_shape &s, const CacheSizes &sizes, ds4_memory_plan *out);

// A stretch of memory of a state. Compressed and indexer rows never change once their group is closed; what the
// other kinds hold is overwritten as the session goes on.
struct Segment {
    enum Kind { window, state, compressed, index };
    Kind kind;
    ds4_ref place;
    uint64_t bytes;

    bool lasting() const { return kind == compressed || kind == index; }
};

// The first of the positions whose compressor entries are needed at `pos`: its open group, for ratio 4 also the closed
// one before it.
inline uint64_t first_entry(uint32_t pos, uint32_t ratio) {
    const uint64_t begin = uint64_t{pos} / ratio * ratio;
    return ratio == 4 && begin ? begin - 4 : begin;
}

// Entries of a compressor that one position can need: ratio 4 pools the previous group with the current one.
inline uint32_t state_entries(uint32_t ratio) { return ratio == 4 ? 8 : ratio; }

class KvCache {
public:
    KvCache() = default;
    KvCache(const KvCache &) = delete;
    KvCache &operator=(const KvCache &) = delete;
    ~KvCache();

    ds4_status create(const ds4_shape &s, const CacheSizes &sizes, const ds4_backend_ops *ops, ds4_device *device,
                      ds4_error *err);

    std::vector<LayerCache> layers;
    LayerCache mtp;

    // A chunk of more than kSlack tokens overwrites compressor entries that its first token still needs. save_states
    // before it and restore_states make a stopped chunk undone.
    void save_states(ds4_queue *q);
    void restore_states(ds4_queue *q);

    // Every stretch of memory that holds the state at `pos` positions, in an order that does not depend on the sizes
    // of the rings.
    void segments(uint32_t pos, const std::function<void(const Segment &)> &fn) const;
    // The stretches that last, layer by layer: kind, place of row 0, and how many positions make a row.
    void lasting_rows(const std::function<void(Segment::Kind, ds4_ref, uint32_t ratio)> &fn) const;
    // The most bytes that the segments which do not last take at any position.
    static uint64_t most_tail_bytes(const ds4_shape &s, uint32_t row_type, bool with_mtp);

private:
    template <class F> void each_state(F &&fn);
    ds4_status alloc(uint64_t bytes, ds4_ref *out, ds4_error *err);

    ds4_shape shape_{};
    CacheSizes sizes_;
    const ds4_backend_ops *ops_ = nullptr;
    ds4_device *device_ = nullptr;
    std::vector<ds4_buffer *> buffers_;
    std::vector<ds4_ref> saved_;
};

}  // namespace ds4
