# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False, autotestdict=False
"""Encoding and decoding of tensor types."""

from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from ds4._native._capi cimport (
    DS4_E_DATA,
    ds4_add_column_squares,
    ds4_dequantize,
    ds4_error,
    ds4_place,
    ds4_quantize,
    ds4_quantize_options,
    ds4_quantize_options_init,
    ds4_status,
    ds4_unweighted_blocks,
)
from ds4._native._core cimport Pulse, check, pulse_trampoline

from ds4.errors import UnencodableValueError


def dequantize(uint32_t kind, const uint8_t[::1] data not None, float[::1] out not None, uint32_t threads) -> None:
    """Decode `len(out)` values from the stored bytes `data` into `out`."""
    cdef ds4_error err
    cdef ds4_status status
    cdef uint64_t n_bytes = <uint64_t>data.shape[0], n = <uint64_t>out.shape[0]
    cdef const uint8_t *src = &data[0] if n_bytes else NULL
    cdef float *dst = &out[0] if n else NULL
    with nogil:
        status = ds4_dequantize(kind, src, n_bytes, n, threads, dst, &err)
    check(status, &err)


def quantize(
    uint32_t kind,
    const float[:, ::1] values not None,
    const float[::1] importance,
    uint64_t n_bytes,
    uint32_t threads,
    uint64_t first_row,
    bint allow_nonfinite,
) -> bytes:
    """Encode rows of values, all with the same weights, into `n_bytes` stored bytes."""
    cdef ds4_error err
    cdef ds4_status status
    cdef ds4_place place
    cdef ds4_quantize_options options
    cdef uint64_t n_rows = <uint64_t>values.shape[0], n_columns = <uint64_t>values.shape[1]
    cdef const float *src = &values[0, 0] if n_rows and n_columns else NULL
    cdef float none = 0  # an empty view has no address, but it is importance all the same
    if importance is not None and <uint64_t>importance.shape[0] != n_columns:
        raise ValueError(f"rows of {n_columns} values need as many weights, not {importance.shape[0]}")
    cdef bytes out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>n_bytes)
    cdef char *dst = PyBytes_AsString(out)
    cdef Pulse pulse = Pulse()
    ds4_quantize_options_init(&options)
    options.n_threads = threads
    if importance is not None:
        options.importance = &importance[0] if n_columns else &none
    options.first_row = first_row
    options.allow_nonfinite = allow_nonfinite
    options.pulse = pulse_trampoline
    options.ud = <void *>pulse
    pulse.begin(None)
    with nogil:
        status = ds4_quantize(kind, src, n_rows, n_columns, &options, dst, n_bytes, &place, &err)
    if status == DS4_E_DATA and pulse.error is None:
        raise UnencodableValueError(err.message.decode("utf-8", "replace"), place.row, place.column)
    pulse.end(status, &err)
    return out


def unweighted_blocks(const float[::1] importance not None) -> int:
    """Return how many blocks of 256 weights have none that is positive."""
    cdef uint64_t n = <uint64_t>importance.shape[0]
    return ds4_unweighted_blocks(&importance[0], n) if n else 0


def add_column_squares(const float[:, ::1] values not None, float[::1] sums not None) -> None:
    """Add the squares of each column to `sums`, row by row."""
    cdef uint64_t n_rows = <uint64_t>values.shape[0], n_columns = <uint64_t>values.shape[1]
    if <uint64_t>sums.shape[0] != n_columns:
        raise ValueError(f"rows of {n_columns} values need as many sums, not {sums.shape[0]}")
    if n_rows and n_columns:
        with nogil:
            ds4_add_column_squares(&values[0, 0], n_rows, n_columns, &sums[0])
