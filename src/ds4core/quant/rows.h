// Many rows at once: the work of one call cut into pieces for a few threads.
#pragma once

#include <cstdint>

#include "ds4/quantize.h"

namespace ds4 {

// Rows to encode. Type, sizes and weights have been checked.
struct EncodeJob {
    uint32_t type;
    const float *src;
    uint64_t n_rows, n_columns;
    const float *weights;  // a weight for each column, or NULL
    bool allow_nonfinite;
    uint8_t *dst;
};

// DS4_E_DATA with the first value in reading order that the type cannot hold in *place; DS4_E_CANCELLED when the pulse
// said so. The message is the caller's part. May throw bad_alloc or system_error.
ds4_status encode_rows(const EncodeJob &job, unsigned n_threads, ds4_pulse pulse, void *ud, ds4_place *place);

// n values, whole blocks of a computable type.
void decode_values(uint32_t type, const uint8_t *src, float *dst, uint64_t n, unsigned n_threads);

}  // namespace ds4
