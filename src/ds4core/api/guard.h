// The edge of the core: no exception leaves an extern "C" function.
#pragma once

#include <cstring>
#include <exception>
#include <new>

#include "base/error.h"

namespace ds4 {

template <class F> ds4_status guarded(const char *what, ds4_error *err, F &&body) noexcept {
    try {
        return body();
    } catch (const std::bad_alloc &) {
        return fail(err, DS4_E_MEMORY, "%s: out of memory", what);
    } catch (const std::exception &e) {
        return fail(err, DS4_E_INTERNAL, "%s: %s", what, e.what());
    } catch (...) {
        return fail(err, DS4_E_INTERNAL, "%s: unknown exception", what);
    }
}

// Lay a caller's options over the defaults in *out. A caller compiled against an older header has a shorter struct: the
// rest keeps its defaults. NULL: nothing to lay.
template <class Options> ds4_status take_options(const char *name, const Options *given, Options *out, ds4_error *err) {
    if (!given) return DS4_OK;
    if (given->struct_size < sizeof(given->struct_size) || given->struct_size > sizeof(Options))
        return fail(err, DS4_E_ARGUMENT, "%s has size %u, this library knows %zu", name, given->struct_size,
                    sizeof(Options));
    memcpy(out, given, given->struct_size);
    return DS4_OK;
}

}  // namespace ds4
