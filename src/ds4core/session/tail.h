// The tail of a state: what cannot be had from the rows of closed groups and is overwritten as a session goes on.
//
// In host memory: logits float32 [n_vocab]; the cache's segments that do not last, in their order; with_mtp: streams
// of the last position, float32 [n_hc * n_embd].
#pragma once

#include <cstdint>

#include "ds4/status.h"

struct ds4_session;

namespace ds4 {

uint64_t tail_bytes(const ds4_session &s, uint32_t pos);
// Copy the tail of the present position to `out`.
ds4_status take_tail(ds4_session &s, uint8_t *out, ds4_error *err);
// Put a tail of `pos` in place: logits and cache. The tokens, and the rows of closed groups, are the caller's. When the
// device fails the session is empty.
ds4_status put_tail(ds4_session &s, uint32_t pos, const uint8_t *tail, ds4_error *err);

}  // namespace ds4
