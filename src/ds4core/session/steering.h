// Steering of a session: the directions on the device, and which steering each stretch of the timeline was computed with.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "ds4/session.h"
#include "model/steering.h"

namespace ds4 {

// What a session steers with. Never changes once made; forks share it.
struct SessionSteering {
    explicit SessionSteering(const ds4_backend_ops *ops) : ops_(ops) {}
    SessionSteering(const SessionSteering &) = delete;
    ~SessionSteering();

    Steering plan;
    uint64_t digest = 0;  // of directions and scales; never 0
    uint64_t bytes = 0;   // on the device
    ds4_buffer *buffer = nullptr;

private:
    const ds4_backend_ops *ops_;
};

// Stretches of a timeline: from position `from` on it was computed with the steering of this digest, 0: none.
struct SteeredStretch {
    uint32_t from;
    uint64_t digest;
};

class SteeringHistory {
public:
    // The next position to be computed is pos, with this steering.
    void note(uint32_t pos, uint64_t digest);
    // Positions from pos on are gone.
    void cut(uint32_t pos);
    // All positions are of one steering.
    void make_uniform(uint64_t digest) {
        all_.clear();
        note(0, digest);
    }

    // What binds the state of the first n positions: 0 if none is steered, the digest if all are steered alike, else a
    // hash of the stretches.
    uint64_t identity(uint32_t n) const;
    // Positions from the start on that were computed with this steering, of n.
    uint32_t uniform(uint64_t digest, uint32_t n) const;

private:
    std::vector<SteeredStretch> all_;  // ascending; neighbours differ, and the first is steered
};

ds4_status set_steering(ds4_session &s, const ds4_steering *directions, size_t n, ds4_error *err);

// Whether a state of n positions with this identity may be taken: it is all of the session's present steering, or the
// history of the session itself up to there. On DS4_OK *history is the session's with it.
ds4_status accept_steering(const ds4_session &s, uint64_t identity, uint32_t n, const char *what,
                           SteeringHistory *history, ds4_error *err);

}  // namespace ds4
