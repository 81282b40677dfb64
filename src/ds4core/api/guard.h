// The edge of the core: no exception leaves an extern "C" function.
#pragma once

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

}  // namespace ds4
