# What every call into the core shares: turning a status into an exception, and the pulse.

from ds4._native._capi cimport ds4_error, ds4_progress, ds4_status


cdef int check(ds4_status status, ds4_error *err, object path=*) except -1


cdef class Pulse:
    # The progress function of the call that is running. Held because the core calls it back; dropped when the
    # call ends, so that a closure over a session does not keep it alive.
    cdef object progress
    # What the progress function (or a signal handler, or a tap) raised; re-raised when the call has returned.
    cdef object error
    # Set from any thread while the call runs: stop at the next pulse.
    cdef bint stop

    cdef int begin(self, object progress) except -1
    cdef int end(self, ds4_status status, ds4_error *err, object path=*) except -1


# A ds4_pulse; ud is a Pulse that outlives the call.
cdef int pulse_trampoline(void *ud, const ds4_progress *p) noexcept with gil
