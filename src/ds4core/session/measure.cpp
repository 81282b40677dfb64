// What benchmarks need of a session: the times of its parts, and a long context without computing it.
#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "session/session.h"

namespace ds4 {

const char *part_name(uint32_t part) {
    static const char *const names[] = {"other",      "embedding", "hyper",   "projections", "attention",
                                        "compressor", "indexer",   "router",  "experts_gate_up",
                                        "experts_down", "shared",  "rows",    "head", "expert_wait"};
    static_assert(sizeof(names) / sizeof(names[0]) == DS4_N_PARTS, "a name for every part");
    return part < DS4_N_PARTS ? names[part] : nullptr;
}

void start_profile(ds4_session &s) {
    stop_profile(s);
    s.profile = std::make_unique<Profile>(*s.model->ops, s.queue, s.model->shape.n_layer);
    s.graph->measure(s.profile.get());
}

void stop_profile(ds4_session &s) {
    s.graph->measure(nullptr);
    s.profile.reset();
}

ds4_status read_profile(ds4_session &s, uint32_t phase, uint64_t *tokens, uint64_t *ns, uint64_t *entries,
                        ds4_error *err) {
    if (!s.profile) return fail(err, DS4_E_STATE, "the session takes no times");
    if (phase >= DS4_N_PHASES)
        return fail(err, DS4_E_ARGUMENT, "phase is %u; known are 0 (prefill) and 1 (decode)", phase);
    *tokens = s.profile->tokens(phase);
    for (const Profile::Row &row : s.profile->rows(phase))
        for (const Profile::Cell &cell : row) {
            *ns++ = cell.ns;
            *entries++ = cell.entries;
        }
    return DS4_OK;
}

namespace {

// Pseudo-random 16-bit patterns of either sign that are finite both as F16 (0.25 to 2) and, two by two, as float32
// (2^-23 to 2): a stretch of the cache does not say which of both it holds.
void fill_pattern(uint16_t *out, uint64_t n, uint64_t *state) {
    for (uint64_t i = 0; i < n; i++) {
        *state = hash_mix(*state, 1);
        const uint64_t bits = *state >> 32;
        out[i] = static_cast<uint16_t>((bits & 0x8000) | (0x3400 + bits % 0x0C00));
    }
}

}  // namespace

ds4_status fill_session(ds4_session &s, size_t n, uint64_t seed, ds4_error *err) {
    if (n == 0) return fail(err, DS4_E_ARGUMENT, "a context of 0 positions cannot be filled");
    if (n > s.options.n_ctx)
        return fail(err, DS4_E_CONTEXT, "%zu positions do not fit a context of %u", n, s.options.n_ctx);
    const ds4_backend_ops *ops = s.model->ops;
    uint64_t state = hash_mix(kHashSeed, seed);
    std::vector<uint16_t> pattern(size_t{1} << 20);
    std::vector<int32_t> tokens(n);
    for (int32_t &token : tokens) {
        state = hash_mix(state, 1);
        token = static_cast<int32_t>(state % s.model->shape.n_vocab);
    }
    auto fill = [&](ds4_ref place, uint64_t bytes) {
        for (uint64_t done = 0; done < bytes;) {
            const uint64_t part = std::min<uint64_t>(bytes - done, pattern.size() * sizeof(uint16_t));
            fill_pattern(pattern.data(), (part + 1) / 2, &state);
            ops->upload(s.queue, advance(place, done), pattern.data(), part);
            done += part;
        }
    };
    reset_session(s);
    s.tokens.swap(tokens);
    s.steered.note(0, s.steering_digest());
    std::fill(s.logits.begin(), s.logits.end(), 0.0f);
    s.cache.segments(static_cast<uint32_t>(n), [&](const Segment &part) { fill(part.place, part.bytes); });
    s.past.begin(n);
    if (s.mtp_streams) fill(s.past.streams(n - 1), stream_bytes(s.model->shape));
    ops->margins_reset(s.queue);
    s.margins = ops->margins(s.queue);
    const ds4_status st = ops->queue_wait(s.queue, err);
    if (st != DS4_OK) reset_session(s);
    return st;
}

}  // namespace ds4
