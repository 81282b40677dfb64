// Comparing a stored state's settings with a session's.
#include "session/identity.h"

#include <cstring>
#include <string>

#include "base/error.h"
#include "session/session.h"

namespace ds4 {

Identity identity_of(const ds4_session &s) {
    Identity id{};
    memcpy(id.fingerprint, s.model->fingerprint, sizeof(id.fingerprint));
    id.n_vocab = s.model->shape.n_vocab;
    id.qat = s.options.qat != 0;
    id.rows_f16 = s.options.rows_f16 != 0;
    id.with_mtp = s.mtp_streams != nullptr;
    id.quantized = s.options.activations == DS4_ACT_QUANTIZED;
    return id;
}

ds4_status check_identity(const Identity &there, const ds4_session &s, bool mtp_too, const char *what, ds4_error *err) {
    const Identity here = identity_of(s);
    if (memcmp(there.fingerprint, here.fingerprint, sizeof(here.fingerprint)) || there.n_vocab != here.n_vocab)
        return fail(err, DS4_E_SNAPSHOT, "%s was made with another model file", what);
    struct Setting {
        const char *name, *on, *off;
        uint8_t there, here;
    };
    std::string differences;
    for (const Setting &x : {Setting{"qat", "on", "off", there.qat, here.qat},
                             Setting{"rows", "f16", "f32", there.rows_f16, here.rows_f16},
                             Setting{"mtp", "on", "off", there.with_mtp, mtp_too ? here.with_mtp : there.with_mtp},
                             Setting{"activations", "quantized", "float32", there.quantized, here.quantized}}) {
        if (!x.there == !x.here) continue;
        differences += (differences.empty() ? "" : "; ") + std::string(x.name) + " is " + (x.there ? x.on : x.off) +
                       " in it and " + (x.here ? x.on : x.off) + " here";
    }
    if (differences.empty()) return DS4_OK;
    return fail(err, DS4_E_SNAPSHOT, "%s does not fit this session: %s", what, differences.c_str());
}

}  // namespace ds4
