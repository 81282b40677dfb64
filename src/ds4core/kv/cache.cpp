// Sizes, places and segments of the KV cache.
#include "kv/cache.h"

#include <algorithm>

namespace ds4 {

namespace {

uint32_t ring_rows(uint32_t ratio) { return state_entries(ratio) + kSlack; }
uint64_t state_width(uint32_t ratio, uint64_t dim) { return ratio == 4 ? 2 * dim : dim; }

// A chunk of `chunk` rows and the window - 1 rows before it must be present together, wherever it begins in the slack.
uint32_t window_capacity(const ds4_shape &s, uint32_t chunk) { return s.window - 1 + kSlack + chunk; }
// Drafts write rows behind the last position.
uint32_t mtp_capacity(const ds4_shape &s, uint32_t chunk) { return window_capacity(s, chunk) + kSlack; }

}  // namespace

void plan_cache(const ds4_shape &s, const CacheSizes &z, ds4_memory_plan *out) {
    const uint64_t rows = uint64_t{window_capacity(s, z.chunk)} * s.n_layer + (z.with_mtp ? mtp_capacity(s, z.chunk) : 0);
    out->window_bytes = rows * cache_row_bytes(z.row_type, s.head_dim);
    out->compressed_bytes = out->indexer_bytes = out->compressor_bytes = 0;
    for (uint32_t i = 0; i < s.n_layer; i++) {
        const uint32_t r = s.compress_ratio[i];
        if (!r) continue;
        out->compressed_bytes += z.n_ctx / r * cache_row_bytes(z.row_type, s.head_dim);
        uint64_t widths = state_width(r, s.head_dim);
        if (r == 4) {
            out->indexer_bytes += z.n_ctx / r * cache_row_bytes(z.row_type, s.index_dim);
            widths += state_width(r, s.index_dim);
        }
        out->compressor_bytes += 2 * 2 * ring_rows(r) * widths * 4;  // K and S, and their saved copies
    }
}

KvCache::~KvCache() {
    if (ops_)
        for (ds4_buffer *b : buffers_) ops_->buffer_free(b);
}

ds4_status KvCache::alloc(uint64_t bytes, ds4_ref *out, ds4_error *err) {
    buffers_.push_back(nullptr);
    ds4_status st = ops_->buffer_alloc(device_, bytes, &buffers_.back(), err);
    if (st == DS4_OK) *out = ref(buffers_.back());
    return st;
}

ds4_status KvCache::create(const ds4_shape &s, const CacheSizes &z, const ds4_backend_ops *ops, ds4_device *device,
                           ds4_error *err) {
    shape_ = s;
    sizes_ = z;
    ops_ = ops;
    device_ = device;
    const uint32_t capacity = window_capacity(s, z.chunk);
    const uint64_t row = cache_row_bytes(z.row_type, s.head_dim), index_row = cache_row_bytes(z.row_type, s.index_dim);
    ds4_status st = DS4_OK;
    auto state = [&](CompressorState &c, uint32_t ratio, uint32_t dim) {
        c.ring = ring_rows(ratio);
        c.width = static_cast<uint32_t>(state_width(ratio, dim));
        const uint64_t bytes = uint64_t{c.ring} * c.width * 4;
        if (st == DS4_OK) st = alloc(bytes, &c.k, err);
        if (st == DS4_OK) st = alloc(bytes, &c.s, err);
        for (int i = 0; i < 2 && st == DS4_OK; i++) {
            saved_.emplace_back();
            st = alloc(bytes, &saved_.back(), err);
        }
    };
    layers.resize(s.n_layer);
    for (uint32_t i = 0; i < s.n_layer && st == DS4_OK; i++) {
        LayerCache &l = layers[i];
        l.ratio = s.compress_ratio[i];
        l.capacity = capacity;
        st = alloc(capacity * row, &l.window, err);
        if (!l.ratio) continue;
        if (st == DS4_OK) st = alloc(z.n_ctx / l.ratio * row, &l.compressed, err);
        state(l.attn, l.ratio, s.head_dim);
        if (l.ratio != 4) continue;
        if (st == DS4_OK) st = alloc(z.n_ctx / l.ratio * index_row, &l.index_rows, err);
        state(l.index, l.ratio, s.index_dim);
    }
    if (z.with_mtp && st == DS4_OK) {
        mtp.capacity = mtp_capacity(s, z.chunk);
        st = alloc(mtp.capacity * row, &mtp.window, err);
    }
    return st;
}

// fn(state, its saved copy, bytes) for every ring.
template <class F> void KvCache::each_state(F &&fn) {
    size_t i = 0;
    for (const LayerCache &l : layers)
        for (const CompressorState *c : {&l.attn, &l.index})
            for (ds4_ref place : {c->k, c->s})
                if (place.buffer) fn(place, saved_[i++], uint64_t{c->ring} * c->width * 4);
}

void KvCache::save_states(ds4_queue *q) {
    each_state([&](ds4_ref state, ds4_ref saved, uint64_t bytes) { ops_->copy(q, saved, state, bytes); });
}

void KvCache::restore_states(ds4_queue *q) {
    each_state([&](ds4_ref state, ds4_ref saved, uint64_t bytes) { ops_->copy(q, state, saved, bytes); });
}

namespace {

using Visit = std::function<void(const Segment &)>;

// Rows of positions [begin, end) of a ring, in order: one stretch, or two where the ring wraps.
void ring_segments(Segment::Kind kind, ds4_ref ring, uint64_t capacity, uint64_t bytes, uint64_t begin, uint64_t end,
                   const Visit &fn) {
    for (uint64_t p = begin; p < end;) {
        const uint64_t slot = p % capacity, n = std::min(end - p, capacity - slot);
        fn({kind, advance(ring, slot * bytes), n * bytes});
        p += n;
    }
}

}  // namespace

uint64_t KvCache::most_tail_bytes(const ds4_shape &s, uint32_t row_type, bool with_mtp) {
    const uint64_t window = (s.window - 1) * cache_row_bytes(row_type, s.head_dim);
    uint64_t bytes = window * (s.n_layer + (with_mtp ? 1 : 0));
    for (uint32_t i = 0; i < s.n_layer; i++) {
        const uint32_t r = s.compress_ratio[i];
        if (!r) continue;
        const uint64_t widths = state_width(r, s.head_dim) + (r == 4 ? state_width(r, s.index_dim) : 0);
        bytes += 2 * (state_entries(r) - 1) * widths * 4;  // K and S; the entry that would fill the ring closes the group
    }
    return bytes;
}

void KvCache::segments(uint32_t pos, const Visit &fn) const {
    const uint64_t row = cache_row_bytes(sizes_.row_type, shape_.head_dim);
    const uint64_t index_row = cache_row_bytes(sizes_.row_type, shape_.index_dim);
    auto window = [&](const LayerCache &l, uint64_t end) {
        // The next position sees window - 1 rows before its own.
        const uint64_t kept = shape_.window - 1;
        ring_segments(Segment::window, l.window, l.capacity, row, end > kept ? end - kept : 0, end, fn);
    };
    auto state = [&](const CompressorState &c, uint32_t ratio) {
        const uint64_t begin = first_entry(pos, ratio);
        for (ds4_ref place : {c.k, c.s})
            ring_segments(Segment::state, place, c.ring, uint64_t{c.width} * 4, begin, pos, fn);
    };
    for (const LayerCache &l : layers) {
        window(l, pos);
        if (!l.ratio) continue;
        if (pos / l.ratio) fn({Segment::compressed, l.compressed, pos / l.ratio * row});
        state(l.attn, l.ratio);
        if (l.ratio != 4) continue;
        if (pos / l.ratio) fn({Segment::index, l.index_rows, pos / l.ratio * index_row});
        state(l.index, l.ratio);
    }
    if (sizes_.with_mtp && pos) window(mtp, pos - 1);  // the last position waits for its next token
}

void KvCache::lasting_rows(const std::function<void(Segment::Kind, ds4_ref, uint32_t)> &fn) const {
    for (const LayerCache &l : layers) {
        if (l.ratio) fn(Segment::compressed, l.compressed, l.ratio);
        if (l.ratio == 4) fn(Segment::index, l.index_rows, l.ratio);
    }
}

}  // namespace ds4
