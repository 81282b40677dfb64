# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False, autotestdict=False
"""The core as a whole: its version, its CPU kernels, and what every call shares.

`check` is the only place where a status becomes an exception. `Pulse` carries progress out of a long call and
signals, exceptions and cancellation into it.
"""

cimport cython
from libc.stdlib cimport calloc, free
from cpython.exc cimport PyErr_CheckSignals

from ds4._native._capi cimport (
    DS4_NO_OFFSET,
    DS4_OK,
    ds4_backend_info,
    ds4_backend_list,
    ds4_backend_load,
    ds4_cpu_isa,
    ds4_error,
    ds4_progress,
    ds4_set_cpu_isa,
    ds4_status,
    ds4_status_name,
    ds4_version,
)

from ds4 import errors


cdef int check(ds4_status status, ds4_error *err, object path=None) except -1:
    """Raise the exception of `status`, described by `err`; return 0 when it is DS4_OK."""
    if status == DS4_OK:
        return 0
    raise errors.error_of_status(
        <int>status,
        err.message.decode("utf-8", "replace"),
        os_errno=err.os_errno,
        offset=None if err.offset == DS4_NO_OFFSET else err.offset,
        path=path,
    )


@cython.final
cdef class Pulse:
    """State of one running call: its progress function, its stop request, and what went wrong in Python."""

    cdef int begin(self, object progress) except -1:
        if progress is not None and not callable(progress):
            raise TypeError(f"progress must be callable, not {type(progress).__name__}")
        self.progress = progress
        self.error = None
        self.stop = False
        return 0

    cdef int end(self, ds4_status status, ds4_error *err, object path=None) except -1:
        """Raise what Python raised meanwhile, else what the status says."""
        error, self.error = self.error, None
        self.progress = None
        if error is not None:
            raise error
        return check(status, err, path)


cdef int pulse_trampoline(void *ud, const ds4_progress *p) noexcept with gil:
    cdef Pulse pulse = <Pulse>ud
    if pulse.error is not None:
        return 1
    try:
        PyErr_CheckSignals()  # does nothing outside the main thread
        if pulse.progress is not None:
            pulse.progress(p.done, p.total)
    except BaseException as error:  # KeyboardInterrupt too: it is raised again after the call
        pulse.error = error
        return 1
    return pulse.stop


def version() -> str:
    """Return the version of the native library."""
    return ds4_version().decode()


def status_name(int status) -> str:
    """Return the identifier of a status code, such as "DS4_E_IO"."""
    return ds4_status_name(status).decode()


def cpu_isa() -> str:
    """Return the CPU kernel variant in use."""
    return ds4_cpu_isa().decode()


def set_cpu_isa(str name not None) -> None:
    """Use at most this kernel variant in sessions created from now on."""
    cdef ds4_error err
    cdef bytes text = name.encode()
    if b"\0" in text:
        raise ValueError("a kernel variant's name holds no NUL")
    check(ds4_set_cpu_isa(text, &err), &err)


def load_backend(bytes path not None) -> str:
    """Open the shared object of a backend and return the name that it has from now on."""
    cdef ds4_error err
    cdef ds4_status status
    cdef char name[64]
    cdef const char *c_path = path
    if b"\0" in path:
        raise ValueError("a path holds no NUL")
    with nogil:
        status = ds4_backend_load(c_path, name, sizeof(name), &err)
    check(status, &err)
    return (<const char *>name).decode("utf-8", "replace")


def backends() -> list:
    """Return what is known of every backend, as dictionaries."""
    cdef size_t i, n, cap = 64
    cdef ds4_backend_info *found = <ds4_backend_info *>calloc(cap, sizeof(ds4_backend_info))
    if found == NULL:
        raise MemoryError
    try:
        with nogil:
            n = ds4_backend_list(found, cap)
        return [
            {
                "name": (<const char *>found[i].name).decode("utf-8", "replace"),
                "available": found[i].available != 0,
                "reason": (<const char *>found[i].reason).decode("utf-8", "replace"),
                "device": (<const char *>found[i].device).decode("utf-8", "replace"),
                "arch": (<const char *>found[i].arch).decode("utf-8", "replace"),
                "total_bytes": found[i].total_bytes,
                "free_bytes": found[i].free_bytes,
                "unified": found[i].unified != 0,
            }
            for i in range(min(n, cap))
        ]
    finally:
        free(found)
