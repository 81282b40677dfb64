from libc.stdint cimport uint8_t, uint64_t

from ds4._native._capi cimport ds4_gguf


cdef class File:
    cdef const ds4_gguf *gguf
    # True when this object opened the file and closes it. A flag of its own, because the garbage collector may
    # clear `owner` before the file is freed.
    cdef bint owned
    # The object whose directory this is (a _model.Model), else None: keeps the mapping alive.
    cdef object owner
    cdef str path

    # The directory of an open model, borrowed.
    @staticmethod
    cdef File borrow(const ds4_gguf *gguf, object owner, str path)


cdef class Bytes:
    # Bytes of the mapped file as a read-only buffer.
    cdef const uint8_t *data
    cdef uint64_t n_bytes
    cdef Py_ssize_t shape[1]
    # Keeps the mapping alive for as long as a buffer is out.
    cdef File file
