// A session's state in parts that can be stored one by one: the rows of closed groups by ranges of positions, and the
// tail at one position. docs/formats.md has the layout of both.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/hash.h"
#include "session/identity.h"
#include "session/pack.h"
#include "session/session.h"
#include "session/tail.h"

namespace ds4 {

namespace {

struct Header {
    char magic[8];
    uint32_t version;
    uint32_t start, stop;  // rows: of the groups that close in (start, stop]; a tail: 0 and its position
    uint32_t zero;
    Identity made_by;
    uint64_t steering;     // SteeringHistory::identity at `stop`
    uint64_t tokens_hash;  // of the ids [0, stop)
    uint64_t body_bytes;
    uint64_t body_hash;
    uint64_t head_hash;  // of the fields above
};
static_assert(sizeof(Header) == 88);

constexpr char kRows[8] = {'D', 'S', '4', 'R', 'O', 'W', 'S', '\n'};
constexpr char kTail[8] = {'D', 'S', '4', 'T', 'A', 'I', 'L', '\n'};
constexpr uint32_t kVersion = 1;
constexpr size_t kRowsAtOnce = 64;

using Number = unsigned long long;  // for printf

uint64_t head_hash(const Header &h) { return hash_bytes(&h, offsetof(Header, head_hash)); }
uint64_t tokens_hash(const int32_t *tokens, uint32_t n) { return hash_bytes(tokens, uint64_t{n} * 4); }

RowKind row_kind(const ds4_session &s, Segment::Kind kind) {
    const ds4_shape &c = s.model->shape;
    const bool index = kind == Segment::index;
    const uint32_t row_type = s.options.rows_f16 ? DS4_ROW_F16 : DS4_ROW_F32;
    return {row_type, index ? c.index_dim : c.head_dim, c.n_rot, index};
}

// Write the header of the body that lies behind it.
void seal(const ds4_session &s, const char (&magic)[8], uint32_t start, uint32_t stop, uint8_t *buf, uint64_t n_bytes) {
    Header h{};
    memcpy(h.magic, magic, 8);
    h.version = kVersion;
    h.start = start;
    h.stop = stop;
    h.made_by = identity_of(s);
    h.steering = s.steered.identity(stop);
    h.tokens_hash = tokens_hash(s.tokens.data(), stop);
    h.body_bytes = n_bytes - sizeof(Header);
    h.body_hash = hash_bytes(buf + sizeof(Header), h.body_bytes);
    h.head_hash = head_hash(h);
    memcpy(buf, &h, sizeof(h));
}

ds4_status check_room(const char *what, uint64_t most, const void *buf, uint64_t cap, ds4_error *err) {
    if (buf && cap >= most) return DS4_OK;
    return fail(err, DS4_E_ARGUMENT, "%s may take %llu bytes, the buffer has %llu", what, static_cast<Number>(most),
                static_cast<Number>(buf ? cap : 0));
}

// Everything about a part that its header alone tells, and the checksums.
ds4_status open_part(const ds4_session &s, const ds4_blob &blob, bool tail, const char *what, Header *h,
                     ds4_error *err) {
    if (!blob.data || blob.n_bytes < sizeof(Header))
        return fail(err, DS4_E_SNAPSHOT, "%s has %llu bytes, the header alone takes %zu", what,
                    static_cast<Number>(blob.data ? blob.n_bytes : 0), sizeof(Header));
    memcpy(h, blob.data, sizeof(Header));
    if (memcmp(h->magic, tail ? kTail : kRows, 8))
        return fail(err, DS4_E_SNAPSHOT, "%s: the first bytes are not those of %s", what, tail ? "a tail" : "rows");
    if (h->version != kVersion)
        return fail(err, DS4_E_SNAPSHOT, "%s has version %u; this ds4 reads version %u", what, h->version, kVersion);
    if (h->head_hash != head_hash(*h))
        return fail(err, DS4_E_SNAPSHOT, "%s is damaged: the header's checksum differs", what);
    const ds4_status st = check_identity(h->made_by, s, tail, what, err);
    if (st != DS4_OK) return st;
    if (h->start >= h->stop || h->zero || (tail && h->start))
        return fail(err, DS4_E_SNAPSHOT, "%s has positions %u..%u", what, h->start, h->stop);
    if (h->body_bytes != blob.n_bytes - sizeof(Header))
        return fail(err, DS4_E_SNAPSHOT, "%s is damaged: its body takes %llu bytes, found %llu", what,
                    static_cast<Number>(h->body_bytes), static_cast<Number>(blob.n_bytes - sizeof(Header)));
    if (hash_bytes(static_cast<const uint8_t *>(blob.data) + sizeof(Header), h->body_bytes) != h->body_hash)
        return fail(err, DS4_E_SNAPSHOT, "%s is damaged: the checksum differs", what);
    return DS4_OK;
}

ds4_status check_ids(const ds4_session &s, const int32_t *tokens, size_t n, const Header &h, const char *what,
                     ds4_error *err) {
    if (n < h.stop)
        return fail(err, DS4_E_ARGUMENT, "%s reaches position %u, but there are %zu tokens", what, h.stop, n);
    for (uint32_t i = h.start; i < h.stop; i++)
        if (tokens[i] < 0 || static_cast<uint32_t>(tokens[i]) >= s.model->shape.n_vocab)
            return fail(err, DS4_E_ARGUMENT, "token %u is %d, outside the vocabulary", i, tokens[i]);
    if (tokens_hash(tokens, h.stop) == h.tokens_hash) return DS4_OK;
    return fail(err, DS4_E_SNAPSHOT, "%s belongs to other tokens", what);
}

// Step over n packed rows; false when they are none, or not whole.
bool skip_rows(const RowKind &kind, uint64_t n, const uint8_t **in, const uint8_t *end) {
    for (; n; n--) {
        const size_t bytes = packed_bytes(kind, *in, static_cast<uint64_t>(end - *in));
        if (!bytes) return false;
        *in += bytes;
    }
    return true;
}

// Whether a body of rows is what its header says; nothing is unpacked.
bool whole_rows(const ds4_session &s, const Header &h, const uint8_t *in) {
    const uint8_t *end = in + h.body_bytes;
    bool whole = true;
    s.cache.lasting_rows([&](Segment::Kind kind, ds4_ref, uint32_t r) {
        whole = whole && skip_rows(row_kind(s, kind), h.stop / r - h.start / r, &in, end);
    });
    return whole && in == end;
}

bool whole_tail(const ds4_session &s, const Header &h, const uint8_t *in) {
    const uint8_t *end = in + h.body_bytes;
    bool whole = true;
    auto skip = [&](uint64_t bytes) {
        whole = whole && bytes <= static_cast<uint64_t>(end - in);
        if (whole) in += bytes;
    };
    skip(s.logits.size() * 4);
    s.cache.segments(h.stop, [&](const Segment &part) {
        const RowKind kind = row_kind(s, part.kind);
        if (part.kind == Segment::window)
            whole = whole && skip_rows(kind, part.bytes / row_bytes(kind), &in, end);
        else if (!part.lasting())
            skip(part.bytes);
    });
    if (s.mtp_streams) skip(stream_bytes(s.model->shape));
    return whole && in == end;
}

// Unpack rows into the cache, those that close at or before `at`. `portion`: room for kRowsAtOnce of any kind.
void upload_rows(ds4_session &s, const Header &h, const uint8_t *in, uint32_t at, std::vector<uint8_t> &portion) {
    const uint8_t *end = in + h.body_bytes;
    s.cache.lasting_rows([&](Segment::Kind of, ds4_ref place, uint32_t r) {
        const RowKind kind = row_kind(s, of);
        const size_t bytes = row_bytes(kind);
        const uint64_t last = std::min(h.stop, at) / r;
        for (uint64_t row = h.start / r; row < last;) {
            const uint64_t n = std::min<uint64_t>(last - row, kRowsAtOnce);
            for (uint64_t i = 0; i < n; i++) {
                unpack_row(kind, in, portion.data() + i * bytes);
                in += packed_bytes(kind, in, static_cast<uint64_t>(end - in));
            }
            s.model->ops->upload(s.queue, advance(place, row * bytes), portion.data(), n * bytes);
            row += n;
        }
        skip_rows(kind, h.stop / r - std::max<uint64_t>(last, h.start / r), &in, end);
    });
}

void unpack_tail(const ds4_session &s, uint32_t at, const uint8_t *in, uint8_t *out) {
    auto take = [&](uint64_t bytes) {
        memcpy(out, in, bytes);
        in += bytes;
        out += bytes;
    };
    take(s.logits.size() * 4);
    s.cache.segments(at, [&](const Segment &part) {
        if (part.lasting()) return;
        if (part.kind == Segment::state) return take(part.bytes);
        const RowKind kind = row_kind(s, part.kind);
        for (uint64_t n = part.bytes / row_bytes(kind); n; n--) {
            unpack_row(kind, in, out);
            in += packed_bytes(kind, in, most_packed_bytes(kind));
            out += row_bytes(kind);
        }
    });
    if (s.mtp_streams) take(stream_bytes(s.model->shape));
}

}  // namespace

uint64_t rows_bytes(const ds4_session &s, uint32_t start, uint32_t stop) {
    uint64_t n = sizeof(Header);
    if (start >= stop) return n;
    s.cache.lasting_rows([&](Segment::Kind kind, ds4_ref, uint32_t r) {
        n += (stop / r - start / r) * most_packed_bytes(row_kind(s, kind));
    });
    return n;
}

ds4_status export_rows(ds4_session &s, uint32_t start, uint32_t stop, void *buf, uint64_t cap, uint64_t *n_bytes,
                       ds4_error *err) {
    if (start >= stop || stop > s.tokens.size())
        return fail(err, DS4_E_ARGUMENT, "rows of positions (%u, %u]: the session holds %zu", start, stop,
                    s.tokens.size());
    ds4_status st = check_room("rows", rows_bytes(s, start, stop), buf, cap, err);
    if (st != DS4_OK) return st;
    uint8_t *out = static_cast<uint8_t *>(buf) + sizeof(Header);
    std::vector<uint8_t> portion(kRowsAtOnce * s.model->shape.head_dim * 4);
    s.cache.lasting_rows([&](Segment::Kind of, ds4_ref place, uint32_t r) {
        const RowKind kind = row_kind(s, of);
        const size_t bytes = row_bytes(kind);
        for (uint64_t row = start / r; row < stop / r;) {
            const uint64_t n = std::min<uint64_t>(stop / r - row, kRowsAtOnce);
            s.model->ops->download(s.queue, portion.data(), advance(place, row * bytes), n * bytes);
            for (uint64_t i = 0; i < n; i++) out += pack_row(kind, portion.data() + i * bytes, out);
            row += n;
        }
    });
    st = s.model->ops->queue_wait(s.queue, err);
    if (st != DS4_OK) return st;
    *n_bytes = static_cast<uint64_t>(out - static_cast<uint8_t *>(buf));
    seal(s, kRows, start, stop, static_cast<uint8_t *>(buf), *n_bytes);
    return DS4_OK;
}

uint64_t packed_tail_bytes(const ds4_session &s, uint32_t at) {
    uint64_t n = sizeof(Header) + tail_bytes(s, at);
    s.cache.segments(at, [&](const Segment &part) {  // the forms of the rows
        if (part.kind == Segment::window) n += part.bytes / row_bytes(row_kind(s, part.kind));
    });
    return n;
}

ds4_status export_tail(ds4_session &s, uint32_t at, void *buf, uint64_t cap, uint64_t *n_bytes, ds4_error *err) {
    if (!at) return fail(err, DS4_E_STATE, "an empty state has no tail");
    ds4_status st = check_room("the tail", packed_tail_bytes(s, at), buf, cap, err);
    if (st != DS4_OK) return st;
    std::vector<uint8_t> present;
    std::shared_ptr<const uint8_t[]> kept;
    const uint8_t *in;
    if (at == s.tokens.size()) {
        present.resize(tail_bytes(s, at));
        st = take_tail(s, present.data(), err);
        if (st != DS4_OK) return st;
        in = present.data();
    } else {
        const Checkpoint *c = s.checkpoints.newest(at);
        if (!c || c->pos != at) return fail(err, DS4_E_STATE, "there is no checkpoint at position %u", at);
        in = c->tail.get();
    }
    uint8_t *out = static_cast<uint8_t *>(buf) + sizeof(Header);
    auto give = [&](uint64_t bytes) {
        memcpy(out, in, bytes);
        in += bytes;
        out += bytes;
    };
    give(s.logits.size() * 4);
    s.cache.segments(at, [&](const Segment &part) {
        if (part.lasting()) return;
        if (part.kind == Segment::state) return give(part.bytes);
        const RowKind kind = row_kind(s, part.kind);
        for (uint64_t n = part.bytes / row_bytes(kind); n; n--) {
            out += pack_row(kind, in, out);
            in += row_bytes(kind);
        }
    });
    if (s.mtp_streams) give(stream_bytes(s.model->shape));
    *n_bytes = static_cast<uint64_t>(out - static_cast<uint8_t *>(buf));
    seal(s, kTail, 0, at, static_cast<uint8_t *>(buf), *n_bytes);
    return DS4_OK;
}

ds4_status import_state(ds4_session &s, const int32_t *tokens, size_t n_tokens, const ds4_blob *rows, size_t n_rows,
                        const ds4_blob &tail, size_t *pos, ds4_error *err) {
    Header head;
    ds4_status st = open_part(s, tail, true, "the tail", &head, err);
    if (st != DS4_OK) return st;
    const uint32_t at = head.stop;
    SteeringHistory history;
    st = accept_steering(s, head.steering, at, "the tail", &history, err);
    if (st != DS4_OK) return st;
    if (at > s.options.n_ctx)
        return fail(err, DS4_E_CONTEXT, "the state holds %u positions, this session's context is %u", at,
                    s.options.n_ctx);
    st = check_ids(s, tokens, n_tokens, head, "the tail", err);
    if (st != DS4_OK) return st;
    const uint8_t *body = static_cast<const uint8_t *>(tail.data) + sizeof(Header);
    if (!whole_tail(s, head, body))
        return fail(err, DS4_E_SNAPSHOT, "the tail is damaged: its body does not fit position %u", at);
    for (size_t i = 0; i < s.logits.size(); i++) {
        float logit;
        memcpy(&logit, body + 4 * i, 4);
        if (!std::isfinite(logit)) return fail(err, DS4_E_SNAPSHOT, "the tail's logit %zu is not finite", i);
    }
    std::vector<Header> heads(n_rows);
    uint32_t reached = 0;
    for (size_t i = 0; i < n_rows; i++) {
        const std::string what = "rows[" + std::to_string(i) + "]";
        st = open_part(s, rows[i], false, what.c_str(), &heads[i], err);
        if (st != DS4_OK) return st;
        if (heads[i].start != reached || reached >= at)
            return fail(err, DS4_E_SNAPSHOT, "%s begins at position %u; wanted are rows from %u to %u", what.c_str(),
                        heads[i].start, reached, at);
        reached = heads[i].stop;
        if (heads[i].steering != history.identity(reached))
            return fail(err, DS4_E_SNAPSHOT, "%s was made with other steering than the tail", what.c_str());
        st = check_ids(s, tokens, n_tokens, heads[i], what.c_str(), err);
        if (st != DS4_OK) return st;
        if (!whole_rows(s, heads[i], static_cast<const uint8_t *>(rows[i].data) + sizeof(Header)))
            return fail(err, DS4_E_SNAPSHOT, "%s is damaged: its body does not fit positions %u..%u", what.c_str(),
                        heads[i].start, heads[i].stop);
    }
    if (reached < at) return fail(err, DS4_E_SNAPSHOT, "the rows end at position %u, the tail is at %u", reached, at);
    // All is checked: from here on nothing can fail but memory, before the session changes, and the device.
    std::vector<uint8_t> portion(kRowsAtOnce * s.model->shape.head_dim * 4), unpacked(tail_bytes(s, at));
    s.tokens.reserve(at);
    unpack_tail(s, at, body, unpacked.data());
    reset_session(s);
    for (size_t i = 0; i < n_rows; i++)
        upload_rows(s, heads[i], static_cast<const uint8_t *>(rows[i].data) + sizeof(Header), at, portion);
    s.tokens.assign(tokens, tokens + at);
    history.cut(at);
    s.steered = std::move(history);
    st = put_tail(s, at, unpacked.data(), err);
    if (st != DS4_OK) return st;
    s.turn_end = at;
    if (pos) *pos = at;
    return DS4_OK;
}

}  // namespace ds4
