// Who may enter a session.
#pragma once

#include <unistd.h>

#include "api/guard.h"
#include "session/session.h"

namespace ds4 {

// One caller at a time, in the process that made the session; exceptions stop here.
template <class F> ds4_status enter(ds4_session *s, const char *what, ds4_error *err, F &&body) noexcept {
    if (!s) return fail(err, DS4_E_ARGUMENT, "%s: session is NULL", what);
    if (s->model->owner != getpid())
        return fail(err, DS4_E_STATE, "%s: the session belongs to the parent process; open the model again after fork",
                    what);
    Phase idle = Phase::idle;
    if (!s->phase.compare_exchange_strong(idle, Phase::running))
        return fail(err, DS4_E_BUSY, "%s: another thread is using this session", what);
    ds4_status st = guarded(what, err, body);
    s->phase.store(Phase::idle);
    return st;
}

}  // namespace ds4
