// What a stored state is bound to: the model, and the settings that change numbers.
#pragma once

#include <cstdint>

#include "ds4/status.h"

struct ds4_session;

namespace ds4 {

// As it stands in the headers of stored states.
struct Identity {
    uint8_t fingerprint[16];
    uint32_t n_vocab;
    uint8_t qat, rows_f16, with_mtp, quantized;
};

Identity identity_of(const ds4_session &s);

// DS4_E_SNAPSHOT with every difference in words. `what` names the stored state ("the snapshot"). Rows of groups are
// the same with and without MTP: mtp_too is false for them.
ds4_status check_identity(const Identity &there, const ds4_session &s, bool mtp_too, const char *what, ds4_error *err);

}  // namespace ds4
