// Sampling; see ds4_sample in ds4/session.h for the contract.
#pragma once

#include "ds4/session.h"

namespace ds4 {

ds4_status sample(const float *logits, size_t n, const ds4_sampling &p, uint64_t *rng, int32_t *token, float *logprob,
                  ds4_error *err);

}  // namespace ds4
