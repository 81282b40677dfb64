// An independent copy of a session: the same state and checkpoints, memory and threads of its own.
#include <vector>

#include "base/error.h"
#include "session/session.h"

namespace ds4 {

ds4_status fork_session(ds4_session &s, ds4_session **out, ds4_error *err) {
    const ds4_backend_ops *ops = s.model->ops;
    ds4_status st = ops->queue_wait(s.queue, err);
    if (st != DS4_OK) return st;
    ds4_session *made = nullptr;
    st = create_session(s.model, s.options, &made, err);
    if (st != DS4_OK) return st;
    struct Release {  // until the copy is whole
        ds4_session *session;
        ~Release() {
            if (!session) return;
            ds4_model *m = session->model;
            delete session;
            release_model(m);
        }
    } release{made};
    made->tokens = s.tokens;
    made->logits = s.logits;
    made->turn_end = s.turn_end;
    made->steering = s.steering;
    made->steered = s.steered;
    made->graph->steer(s.steering ? &s.steering->plan : nullptr);
    made->margins = s.margins;
    made->checkpoints.share(s.checkpoints);
    // Equal options make equal rings, so that the stretches of both are the same.
    const uint32_t pos = static_cast<uint32_t>(s.tokens.size());
    std::vector<ds4_ref> places;
    made->cache.segments(pos, [&](const Segment &part) { places.push_back(part.place); });
    size_t i = 0;
    s.cache.segments(pos, [&](const Segment &part) { ops->copy(s.queue, places[i++], part.place, part.bytes); });
    made->past.begin(pos);
    if (pos) ops->copy(s.queue, made->past.streams(pos - 1), s.past.streams(pos - 1), stream_bytes(s.model->shape));
    st = ops->queue_wait(s.queue, err);
    if (st != DS4_OK) return st;
    *out = made;
    release.session = nullptr;
    return DS4_OK;
}

}  // namespace ds4
