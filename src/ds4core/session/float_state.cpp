// A state as plain float32 arrays, in the order that docs/formats.md gives: for other programs' files.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "session/pack.h"
#include "session/session.h"

namespace ds4 {

namespace {

constexpr float kNoScore = -1e30f;  // of an entry that is not there: it has no weight
constexpr float kMostF16 = 65504.0f;

// Where the arrays begin, counted in floats.
struct Layout {
    uint64_t at = 0;
    uint64_t take(uint64_t n) {
        at += n;
        return at - n;
    }
};

uint32_t live_rows(const ds4_shape &c, uint32_t pos) { return std::min(pos, c.window); }

// Visits every array of a state at pos in its order: rows of the cache as fn.rows(place, first float, number, dim), of
// which the oldest row of a full window is absent; entries of open groups as fn.entries(place, first float, state,
// ratio). Returns the number of floats.
template <class Visitor> uint64_t each_array(const ds4_session &s, uint32_t pos, Visitor &&fn) {
    const ds4_shape &c = s.model->shape;
    const uint64_t d = c.head_dim;
    Layout out;
    out.take(c.n_vocab);
    for (const LayerCache &l : s.cache.layers) {
        const uint64_t row = cache_row_bytes(s.options.rows_f16 ? DS4_ROW_F16 : DS4_ROW_F32, d);
        const uint32_t live = live_rows(c, pos);
        const uint64_t window = out.take(live * d);
        for (uint32_t i = live == c.window ? 1 : 0; i < live; i++)  // no later position sees the oldest of a full window
            fn.rows(advance(l.window, (pos - live + i) % l.capacity * row), window + i * d, 1, d);
        if (!l.ratio) continue;
        auto groups = [&](ds4_ref rows, const CompressorState &state, uint64_t dim) {
            const uint64_t n = pos / l.ratio;
            fn.rows(rows, out.take(n * dim), n, dim);
            for (ds4_ref place : {state.k, state.s})
                fn.entries(place, out.take(uint64_t{state_entries(l.ratio)} * state.width), state, l.ratio);
        };
        groups(l.compressed, l.attn, d);
        if (l.ratio == 4) groups(l.index_rows, l.index, c.index_dim);
    }
    return out.at;
}

// Calls fn(slot in the ring, row of the array) for the entries that an open group needs. Of ratio 4 the array has the
// closed group first and the open one behind it; else a row is the position in the group.
template <class F> void each_entry(uint32_t pos, uint32_t ratio, uint32_t ring, F &&fn) {
    const uint64_t open = pos / ratio * ratio;
    for (uint64_t p = first_entry(pos, ratio); p < pos; p++)
        fn(p % ring, p % ratio + (ratio == 4 && p >= open ? 4 : 0));
}

struct Count {
    void rows(ds4_ref, uint64_t, uint64_t, uint64_t) {}
    void entries(ds4_ref, uint64_t, const CompressorState &, uint32_t) {}
};

// Copies from the cache.
struct Read {
    ds4_session &s;
    float *out;
    uint32_t pos, row_type;
    std::vector<uint8_t> row;

    void rows(ds4_ref place, uint64_t at, uint64_t n, uint64_t dim) {
        const uint64_t bytes = cache_row_bytes(row_type, dim);
        for (uint64_t i = 0; i < n; i++) {
            s.model->ops->download(s.queue, row.data(), advance(place, i * bytes), bytes);
            to_floats(row_type, row.data(), dim, out + at + i * dim);
        }
    }
    void entries(ds4_ref place, uint64_t at, const CompressorState &state, uint32_t ratio) {
        const bool scores = place.buffer == state.s.buffer && place.offset == state.s.offset;
        std::fill_n(out + at, uint64_t{state_entries(ratio)} * state.width, scores ? kNoScore : 0.0f);
        each_entry(pos, ratio, state.ring, [&](uint64_t slot, uint64_t to) {
            s.model->ops->download(s.queue, out + at + to * state.width, advance(place, slot * state.width * 4),
                                   uint64_t{state.width} * 4);
        });
    }
};

// Looks for values that a cache cannot hold.
struct Check {
    const float *in;
    uint32_t pos;
    bool f16;
    uint64_t bad = UINT64_MAX;

    void values(uint64_t at, uint64_t n, float most) {
        for (uint64_t i = at; i < at + n && bad == UINT64_MAX; i++)
            if (!(std::fabs(in[i]) <= most)) bad = i;
    }
    void rows(ds4_ref, uint64_t at, uint64_t n, uint64_t dim) {
        values(at, n * dim, f16 ? kMostF16 : std::numeric_limits<float>::max());
    }
    void entries(ds4_ref, uint64_t at, const CompressorState &state, uint32_t ratio) {
        each_entry(pos, ratio, state.ring, [&](uint64_t, uint64_t from) {
            values(at + from * state.width, state.width, std::numeric_limits<float>::max());
        });
    }
};

// Copies to the cache.
struct Write {
    ds4_session &s;
    const float *in;
    uint32_t pos, row_type;
    std::vector<uint8_t> row;

    void rows(ds4_ref place, uint64_t at, uint64_t n, uint64_t dim) {
        const uint64_t bytes = cache_row_bytes(row_type, dim);
        for (uint64_t i = 0; i < n; i++) {
            from_floats(row_type, in + at + i * dim, dim, row.data());
            s.model->ops->upload(s.queue, advance(place, i * bytes), row.data(), bytes);
        }
    }
    void entries(ds4_ref place, uint64_t at, const CompressorState &state, uint32_t ratio) {
        each_entry(pos, ratio, state.ring, [&](uint64_t slot, uint64_t from) {
            s.model->ops->upload(s.queue, advance(place, slot * state.width * 4), in + at + from * state.width,
                                 uint64_t{state.width} * 4);
        });
    }
};

uint32_t row_type_of(const ds4_session &s) { return s.options.rows_f16 ? DS4_ROW_F16 : DS4_ROW_F32; }

}  // namespace

uint64_t state_floats(const ds4_session &s, uint32_t pos) { return each_array(s, pos, Count{}); }

ds4_status read_state(ds4_session &s, float *out, uint64_t n, ds4_error *err) {
    const uint32_t pos = static_cast<uint32_t>(s.tokens.size());
    if (!pos) return fail(err, DS4_E_STATE, "an empty session has no state");
    if (s.steered.identity(pos))
        return fail(err, DS4_E_STATE, "the state was computed with steering, which its arrays could not say");
    const uint64_t need = state_floats(s, pos);
    if (!out || n != need)
        return fail(err, DS4_E_ARGUMENT, "the state is %llu values, there is room for %llu",
                    static_cast<unsigned long long>(need), static_cast<unsigned long long>(out ? n : 0));
    std::fill_n(out, n, 0.0f);
    std::copy(s.logits.begin(), s.logits.end(), out);
    each_array(s, pos, Read{s, out, pos, row_type_of(s), std::vector<uint8_t>(s.model->shape.head_dim * 4)});
    return s.model->ops->queue_wait(s.queue, err);
}

ds4_status load_state(ds4_session &s, const int32_t *tokens, size_t n_tokens, const float *in, uint64_t n,
                      ds4_error *err) {
    ds4_status st = check_tokens(s, tokens, n_tokens, err);
    if (st != DS4_OK) return st;
    if (n_tokens > s.options.n_ctx)
        return fail(err, DS4_E_CONTEXT, "the state holds %zu positions, this session's context is %u", n_tokens,
                    s.options.n_ctx);
    if (s.mtp_streams)
        return fail(err, DS4_E_STATE, "a session with MTP needs the rows of that block, which the state does not have");
    if (s.steering)
        return fail(err, DS4_E_STATE, "the state does not say what it was steered with: load it without steering");
    const uint32_t pos = static_cast<uint32_t>(n_tokens);
    const uint64_t need = state_floats(s, pos);
    if (!in || n != need)
        return fail(err, DS4_E_ARGUMENT, "a state of %u positions is %llu values, found %llu", pos,
                    static_cast<unsigned long long>(need), static_cast<unsigned long long>(in ? n : 0));
    Check check{in, pos, s.options.rows_f16 != 0};
    check.values(0, s.logits.size(), std::numeric_limits<float>::max());
    each_array(s, pos, check);
    if (check.bad != UINT64_MAX)
        return fail(err, DS4_E_SNAPSHOT, "value %llu of the state is %g, which a session%s cannot hold",
                    static_cast<unsigned long long>(check.bad), static_cast<double>(in[check.bad]),
                    s.options.rows_f16 ? " with F16 rows" : "");
    std::vector<uint8_t> row(s.model->shape.head_dim * 4);
    s.tokens.reserve(n_tokens);
    reset_session(s);
    s.tokens.assign(tokens, tokens + n_tokens);
    s.past.begin(n_tokens);
    std::copy_n(in, s.logits.size(), s.logits.begin());
    each_array(s, pos, Write{s, in, pos, row_type_of(s), std::move(row)});
    s.turn_end = n_tokens;
    s.model->ops->margins_reset(s.queue);
    s.margins = s.model->ops->margins(s.queue);
    st = s.model->ops->queue_wait(s.queue, err);
    if (st != DS4_OK) reset_session(s);
    return st;
}

}  // namespace ds4
