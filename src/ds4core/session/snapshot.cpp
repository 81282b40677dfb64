// Snapshots: the state of a session as one checked byte string.
//
// Layout: Header, tokens int32 [n], logits float32 [n_vocab], the cache's segments in their order, with_mtp: streams
// of the last position. The header carries the length and a hash of all that follows it.
#include <cmath>
#include <cstddef>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "session/identity.h"
#include "session/session.h"

namespace ds4 {

namespace {

struct Header {
    char magic[8];
    uint32_t version;
    uint32_t n_tokens;
    Identity made_by;
    uint64_t steering;  // SteeringHistory::identity
    uint64_t body_bytes;
    uint64_t body_hash;
    uint64_t head_hash;  // of the fields above
};

constexpr char kMagic[8] = {'D', 'S', '4', 'S', 'N', 'A', 'P', '\n'};
constexpr uint32_t kVersion = 2;

uint64_t head_hash(const Header &h) { return hash_bytes(&h, offsetof(Header, head_hash)); }

uint64_t mtp_bytes(const ds4_session &s) {
    return s.mtp_streams ? stream_bytes(s.model->shape) : 0;
}

uint64_t body_bytes(const ds4_session &s, uint32_t n_tokens) {
    if (!n_tokens) return 0;
    uint64_t n = uint64_t{n_tokens} * 4 + s.logits.size() * 4 + mtp_bytes(s);
    s.cache.segments(n_tokens, [&](const Segment &part) { n += part.bytes; });
    return n;
}

}  // namespace

uint64_t snapshot_bytes(const ds4_session &s) {
    return sizeof(Header) + body_bytes(s, static_cast<uint32_t>(s.tokens.size()));
}

ds4_status write_snapshot(ds4_session &s, void *buf, uint64_t cap, uint64_t *n_bytes, ds4_error *err) {
    const uint64_t need = snapshot_bytes(s);
    if (n_bytes) *n_bytes = need;
    if (!buf || cap < need)
        return fail(err, DS4_E_ARGUMENT, "a snapshot of this session takes %llu bytes, the buffer has %llu",
                    static_cast<unsigned long long>(need), static_cast<unsigned long long>(buf ? cap : 0));
    const ds4_backend_ops *ops = s.model->ops;
    uint8_t *start = static_cast<uint8_t *>(buf), *p = start + sizeof(Header);
    const uint32_t n = static_cast<uint32_t>(s.tokens.size());
    if (n) {
        memcpy(p, s.tokens.data(), n * 4u);
        p += n * 4u;
        memcpy(p, s.logits.data(), s.logits.size() * 4);
        p += s.logits.size() * 4;
        s.cache.segments(n, [&](const Segment &part) {
            ops->download(s.queue, p, part.place, part.bytes);
            p += part.bytes;
        });
        if (mtp_bytes(s)) ops->download(s.queue, p, s.past.streams(n - 1), mtp_bytes(s));
    }
    ds4_status st = ops->queue_wait(s.queue, err);
    if (st != DS4_OK) return st;
    Header h;
    memset(&h, 0, sizeof(h));
    memcpy(h.magic, kMagic, 8);
    h.version = kVersion;
    h.n_tokens = n;
    h.made_by = identity_of(s);
    h.steering = s.steered.identity(n);
    h.body_bytes = need - sizeof(Header);
    h.body_hash = hash_bytes(start + sizeof(Header), h.body_bytes);
    h.head_hash = head_hash(h);
    memcpy(start, &h, sizeof(h));
    return DS4_OK;
}

ds4_status read_snapshot(ds4_session &s, const void *buf, uint64_t n_bytes, ds4_error *err) {
    Header h;
    if (!buf || n_bytes < sizeof(Header))
        return fail(err, DS4_E_SNAPSHOT, "a snapshot has at least %zu bytes, this one %llu", sizeof(Header),
                    static_cast<unsigned long long>(n_bytes));
    const uint8_t *p = static_cast<const uint8_t *>(buf);
    memcpy(&h, p, sizeof(h));
    p += sizeof(h);
    if (memcmp(h.magic, kMagic, 8)) return fail(err, DS4_E_SNAPSHOT, "not a snapshot: the first bytes are not its magic");
    if (h.version != kVersion)
        return fail(err, DS4_E_SNAPSHOT, "snapshot version %u; this ds4 reads version %u", h.version, kVersion);
    if (h.head_hash != head_hash(h)) return fail(err, DS4_E_SNAPSHOT, "damaged snapshot: the header's checksum differs");
    ds4_status st = check_identity(h.made_by, s, true, "the snapshot", err);
    if (st != DS4_OK) return st;
    SteeringHistory history;
    st = accept_steering(s, h.steering, h.n_tokens, "the snapshot", &history, err);
    if (st != DS4_OK) return st;
    history.cut(h.n_tokens);
    const uint32_t n_vocab = s.model->shape.n_vocab;
    if (h.n_tokens > s.options.n_ctx)
        return fail(err, DS4_E_CONTEXT, "the snapshot holds %u positions, this session's context is %u", h.n_tokens,
                    s.options.n_ctx);
    const uint64_t body = body_bytes(s, h.n_tokens);
    if (h.body_bytes != body || n_bytes - sizeof(h) != body)
        return fail(err, DS4_E_SNAPSHOT, "damaged snapshot: %u positions take %llu bytes, found %llu", h.n_tokens,
                    static_cast<unsigned long long>(body), static_cast<unsigned long long>(n_bytes - sizeof(h)));
    if (hash_bytes(p, body) != h.body_hash) return fail(err, DS4_E_SNAPSHOT, "damaged snapshot: the checksum differs");
    for (uint32_t i = 0; i < h.n_tokens; i++) {
        int32_t id;
        memcpy(&id, p + 4u * i, 4);
        if (id < 0 || static_cast<uint32_t>(id) >= n_vocab)
            return fail(err, DS4_E_SNAPSHOT, "the snapshot's token %u is %d, outside the vocabulary", i, id);
    }
    for (uint32_t i = 0; h.n_tokens && i < n_vocab; i++) {
        float logit;
        memcpy(&logit, p + 4u * h.n_tokens + 4u * i, 4);
        if (!std::isfinite(logit)) return fail(err, DS4_E_SNAPSHOT, "the snapshot's logit %u is not finite", i);
    }
    // All is checked: from here on nothing can fail but the device.
    const ds4_backend_ops *ops = s.model->ops;
    s.tokens.reserve(h.n_tokens);
    reset_session(s);
    s.tokens.resize(h.n_tokens);
    s.steered = std::move(history);
    if (h.n_tokens) {
        memcpy(s.tokens.data(), p, h.n_tokens * 4u);
        p += h.n_tokens * 4u;
        memcpy(s.logits.data(), p, s.logits.size() * 4);
        p += s.logits.size() * 4;
        s.cache.segments(h.n_tokens, [&](const Segment &part) {
            ops->upload(s.queue, part.place, p, part.bytes);
            p += part.bytes;
        });
        s.past.begin(h.n_tokens);
        if (mtp_bytes(s)) ops->upload(s.queue, s.past.streams(h.n_tokens - 1), p, mtp_bytes(s));
    }
    s.turn_end = h.n_tokens;
    ops->margins_reset(s.queue);
    s.margins = ops->margins(s.queue);
    return ops->queue_wait(s.queue, err);
}

}  // namespace ds4
