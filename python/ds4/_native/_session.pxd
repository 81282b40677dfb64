from ds4._native._capi cimport ds4_error, ds4_session, ds4_status
from ds4._native._core cimport Pulse


cdef class Session:
    cdef ds4_session *session
    # State of the call that is running; the core gets its address once, at creation, and it lives as long.
    cdef Pulse pulse
    # The tap function, or None. Held because the core calls it back.
    cdef object tap
    # True while a call is inside the core (with the GIL released). Guarded by the GIL; the core has a flag of its own.
    cdef bint running
    cdef unsigned long thread
    cdef bint closed
    cdef readonly Py_ssize_t n_vocab
    cdef Py_ssize_t n_expert, n_embd, n_ff, n_layer

    cdef int adopt(self, ds4_session *made) except -1
    cdef int enter(self, object progress) except -1
    cdef int leave(self, ds4_status status, ds4_error *err) except -1
    cdef int idle(self) except -1


cdef class LogitsView:
    cdef const float *data
    cdef Py_ssize_t shape[1]
    cdef Py_ssize_t strides[1]
    # Keeps the logits alive for as long as a buffer is out.
    cdef Session session
