// Copies between a session's cache and the tail of its state in host memory.
#include "session/tail.h"

#include <cstring>

#include "session/session.h"

namespace ds4 {

uint64_t tail_bytes(const ds4_session &s, uint32_t pos) {
    uint64_t n = s.logits.size() * 4 + (s.mtp_streams ? stream_bytes(s.model->shape) : 0);
    s.cache.segments(pos, [&](const Segment &part) { n += part.lasting() ? 0 : part.bytes; });
    return n;
}

ds4_status take_tail(ds4_session &s, uint8_t *out, ds4_error *err) {
    const ds4_backend_ops *ops = s.model->ops;
    memcpy(out, s.logits.data(), s.logits.size() * 4);
    out += s.logits.size() * 4;
    s.cache.segments(static_cast<uint32_t>(s.tokens.size()), [&](const Segment &part) {
        if (part.lasting()) return;
        ops->download(s.queue, out, part.place, part.bytes);
        out += part.bytes;
    });
    if (s.mtp_streams) ops->download(s.queue, out, s.past.streams(s.tokens.size() - 1), stream_bytes(s.model->shape));
    return ops->queue_wait(s.queue, err);
}

ds4_status put_tail(ds4_session &s, uint32_t pos, const uint8_t *tail, ds4_error *err) {
    const ds4_backend_ops *ops = s.model->ops;
    s.ahead.drop();
    memcpy(s.logits.data(), tail, s.logits.size() * 4);
    tail += s.logits.size() * 4;
    s.cache.segments(pos, [&](const Segment &part) {
        if (part.lasting()) return;
        ops->upload(s.queue, part.place, tail, part.bytes);
        tail += part.bytes;
    });
    s.past.begin(pos);
    if (s.mtp_streams) ops->upload(s.queue, s.past.streams(pos - 1), tail, stream_bytes(s.model->shape));
    ops->margins_reset(s.queue);
    s.margins = ops->margins(s.queue);
    const ds4_status st = ops->queue_wait(s.queue, err);
    if (st != DS4_OK) reset_session(s);
    return st;
}

}  // namespace ds4
