// Drafts: the MTP block guesses several tokens one after the other, fed with its own output.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "session/sample.h"
#include "session/session.h"

namespace ds4 {

namespace {

// How far the best logit is above the second best.
float lead(const std::vector<float> &logits) {
    float best = -std::numeric_limits<float>::infinity(), second = best;
    for (float x : logits) {
        if (x > best) {
            second = best;
            best = x;
        } else if (x > second) {
            second = x;
        }
    }
    return best - second;
}

}  // namespace

ds4_status check_mtp(const ds4_session &s, int32_t next_token, ds4_error *err) {
    if (!s.mtp_streams)
        return fail(err, DS4_E_STATE, s.model->mtp ? "the session was created without with_mtp"
                                                   : "the model has no MTP block");
    if (s.tokens.empty()) return fail(err, DS4_E_STATE, "the session holds no position yet");
    return check_tokens(s, &next_token, 1, err);
}

ds4_status draft_session(ds4_session &s, int32_t next_token, const ds4_drafting &how, int32_t *tokens, size_t *n,
                         ds4_error *err) {
    ds4_status st = check_mtp(s, next_token, err);
    if (st != DS4_OK) return st;
    if (how.most < 1 || how.most > kMostAhead)
        return fail(err, DS4_E_ARGUMENT, "%u drafts were asked for, it must be 1..%u", how.most, kMostAhead);
    if (!(how.margin >= 0))
        return fail(err, DS4_E_ARGUMENT, "margin is %g, it must be 0 or more", static_cast<double>(how.margin));
    const ds4_model &m = *s.model;
    const uint32_t pos = static_cast<uint32_t>(s.tokens.size()) - 1;
    uint64_t rng = how.rng;
    *n = 0;
    m.ops->upload(s.queue, s.scratch.tokens, &next_token, 4);
    s.graph->mtp_input(s.past.streams(pos), 1);
    while (*n < how.most) {
        // The window rows lie at and behind the last position, where nothing is yet: real tokens will write them again.
        s.graph->mtp_block(1, pos + static_cast<uint32_t>(*n), s.cache.mtp);
        s.graph->head(m.mtp->head, m.mtp->norm, s.scratch.streams, 1);
        m.ops->download(s.queue, s.next_logits.data(), s.scratch.logits, s.next_logits.size() * 4);
        st = s.graph->wait(err);
        if (st != DS4_OK) return st;
        if (s.phase.load() == Phase::stopping) return fail(err, DS4_E_CANCELLED, "stopped while drafting");
        if (how.margin > 0 && !(lead(s.next_logits) >= how.margin)) return DS4_OK;
        int32_t token = 0;
        st = sample(s.next_logits.data(), s.next_logits.size(), how.sampling, &rng, &token, nullptr, err);
        if (st == DS4_E_DATA) return DS4_OK;  // no guess; what the model itself says is checked elsewhere
        if (st != DS4_OK) return st;
        tokens[(*n)++] = token;
        if (*n == how.most) break;
        m.ops->upload(s.queue, s.scratch.tokens, &token, 4);
        s.graph->mtp_input(s.scratch.streams, 1);
    }
    return DS4_OK;
}

}  // namespace ds4
