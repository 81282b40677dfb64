// Backends by name. Those that this build lacks answer with the reason, so nobody falls back in silence.
#include <cstring>

#include "backend/backend.h"
#include "base/error.h"

namespace ds4 {

ds4_status find_backend(const char *name, const ds4_backend_ops **out, ds4_error *err) {
    if (!name || !strcmp(name, "auto") || !strcmp(name, "cpu")) {
        *out = cpu_backend();
        return DS4_OK;
    }
    for (const char *gpu : {"cuda", "hip", "metal"})
        if (!strcmp(name, gpu))
            return fail(err, DS4_E_UNAVAILABLE, "backend '%s': this version of ds4 has no %s backend yet; use cpu", name,
                        name);
    return fail(err, DS4_E_ARGUMENT, "unknown backend '%s'; known are auto, cpu, cuda, hip, metal", name);
}

}  // namespace ds4
