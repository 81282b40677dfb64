# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False, autotestdict=False
"""GGUF files and tensor types."""

cimport cython
from cpython.buffer cimport Py_buffer, PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport (
    int8_t,
    int16_t,
    int32_t,
    int64_t,
    uint8_t,
    uint16_t,
    uint32_t,
    uint64_t,
)
from libc.string cimport memcpy

from ds4._native._capi cimport (
    DS4_KV_ARRAY,
    DS4_KV_BOOL,
    DS4_KV_F32,
    DS4_KV_F64,
    DS4_KV_I8,
    DS4_KV_I16,
    DS4_KV_I32,
    DS4_KV_I64,
    DS4_KV_STRING,
    DS4_KV_U8,
    DS4_KV_U16,
    DS4_KV_U32,
    DS4_KV_U64,
    ds4_error,
    ds4_gguf,
    ds4_gguf_close,
    ds4_gguf_get_info,
    ds4_gguf_get_kv,
    ds4_gguf_get_tensor,
    ds4_gguf_info,
    ds4_gguf_kv,
    ds4_gguf_open,
    ds4_gguf_tensor,
    ds4_status,
    ds4_type_block,
    ds4_type_name,
)
from ds4._native._core cimport check

from ds4.errors import ModelFileError


# Elements of an array whose elements have a fixed size.
ctypedef fused number:
    uint8_t
    int8_t
    uint16_t
    int16_t
    uint32_t
    int32_t
    uint64_t
    int64_t
    float
    double


cdef list _numbers(const uint8_t *data, uint64_t n, number zero):
    """Read n numbers, which need not be aligned in the file."""
    cdef list out = [None] * <Py_ssize_t>n
    cdef number value = zero
    cdef uint64_t i
    for i in range(n):
        memcpy(&value, data + i * sizeof(number), sizeof(number))
        out[i] = value
    return out


cdef str _text(const char *data, uint64_t n):
    # surrogateescape: bytes that are not UTF-8 survive, and encode back with the same handler.
    return PyUnicode_DecodeUTF8(data, <Py_ssize_t>n, "surrogateescape")


cdef list _texts(const uint8_t *data, uint64_t n_bytes, uint64_t n):
    """Read n strings. The core has checked them; the bounds are kept here again because reading is cheap."""
    cdef list out = []
    cdef uint64_t at = 0, length = 0, _i
    for _i in range(n):
        if n_bytes - at < 8:
            raise ModelFileError("a string array ends early")
        memcpy(&length, data + at, 8)
        at += 8
        if length > n_bytes - at:
            raise ModelFileError("a string in an array is longer than the array")
        out.append(_text(<const char *>(data + at), length))
        at += length
    return out


cdef uint64_t _extent(uint32_t kind, const uint8_t *data, uint64_t n_bytes, uint64_t n) except? 0:
    """Return the bytes of n elements in a checked file."""
    cdef uint64_t at = 0, length = 0, _i
    cdef uint32_t inner = 0
    if kind in (DS4_KV_U8, DS4_KV_I8, DS4_KV_BOOL):
        return n
    if kind in (DS4_KV_U16, DS4_KV_I16):
        return 2 * n
    if kind in (DS4_KV_U32, DS4_KV_I32, DS4_KV_F32):
        return 4 * n
    if kind in (DS4_KV_U64, DS4_KV_I64, DS4_KV_F64):
        return 8 * n
    for _i in range(n):
        if n_bytes - at < 12 and (kind != DS4_KV_STRING or n_bytes - at < 8):
            raise ModelFileError("a nested array ends early")
        if kind == DS4_KV_STRING:
            memcpy(&length, data + at, 8)
            at += 8
        elif kind == DS4_KV_ARRAY:
            memcpy(&inner, data + at, 4)
            memcpy(&length, data + at + 4, 8)
            at += 12
            length = _extent(inner, data + at, n_bytes - at, length)
        else:
            raise ModelFileError(f"metadata values of type {kind} cannot be read")
        if length > n_bytes - at:
            raise ModelFileError("a nested array ends early")
        at += length
    return at


cdef list _arrays(const uint8_t *data, uint64_t n_bytes, uint64_t n):
    """Read n arrays: each a u32 element type, a u64 count, and the elements. The core has bounded the depth."""
    cdef list out = []
    cdef uint64_t at = 0, count = 0, extent, _i
    cdef uint32_t kind = 0
    for _i in range(n):
        if n_bytes - at < 12:
            raise ModelFileError("a nested array ends early")
        memcpy(&kind, data + at, 4)
        memcpy(&count, data + at + 4, 8)
        at += 12
        extent = _extent(kind, data + at, n_bytes - at, count)
        if extent > n_bytes - at:
            raise ModelFileError("a nested array ends early")
        out.append(_elements(kind, data + at, extent, count))
        at += extent
    return out


cdef list _elements(uint32_t kind, const uint8_t *data, uint64_t n_bytes, uint64_t n):
    if kind == DS4_KV_U8:
        return _numbers[uint8_t](data, n, 0)
    if kind == DS4_KV_I8:
        return _numbers[int8_t](data, n, 0)
    if kind == DS4_KV_U16:
        return _numbers[uint16_t](data, n, 0)
    if kind == DS4_KV_I16:
        return _numbers[int16_t](data, n, 0)
    if kind == DS4_KV_U32:
        return _numbers[uint32_t](data, n, 0)
    if kind == DS4_KV_I32:
        return _numbers[int32_t](data, n, 0)
    if kind == DS4_KV_U64:
        return _numbers[uint64_t](data, n, 0)
    if kind == DS4_KV_I64:
        return _numbers[int64_t](data, n, 0)
    if kind == DS4_KV_F32:
        return _numbers[float](data, n, 0)
    if kind == DS4_KV_F64:
        return _numbers[double](data, n, 0)
    if kind == DS4_KV_BOOL:
        return [value != 0 for value in _numbers[uint8_t](data, n, 0)]
    if kind == DS4_KV_STRING:
        return _texts(data, n_bytes, n)
    if kind == DS4_KV_ARRAY:
        return _arrays(data, n_bytes, n)
    raise ModelFileError(f"metadata values of type {kind} cannot be read")


@cython.final
cdef class File:
    """The directory of one mapped GGUF file. It is unmapped when the last object that needs it is gone."""

    def __init__(self, bytes path not None, str shown not None):
        cdef ds4_error err
        cdef ds4_gguf *out = NULL
        cdef const char *c_path = path
        cdef ds4_status status
        if self.gguf != NULL:
            raise RuntimeError("this file is open already")
        with nogil:
            status = ds4_gguf_open(c_path, &out, &err)
        check(status, &err, shown)
        self.gguf = out
        self.owned = True
        self.path = shown

    def __dealloc__(self):
        if self.gguf != NULL and self.owned:
            with nogil:
                ds4_gguf_close(<ds4_gguf *>self.gguf)

    @staticmethod
    cdef File borrow(const ds4_gguf *gguf, object owner, str path):
        cdef File self = File.__new__(File)
        self.gguf = gguf
        self.owner = owner
        self.path = path
        return self

    def info(self) -> dict:
        """Return the numbers of the file's header."""
        cdef ds4_gguf_info info
        ds4_gguf_get_info(self.gguf, &info)
        return {
            "version": info.version,
            "file_bytes": info.file_bytes,
            "data_offset": info.data_offset,
            "alignment": info.alignment,
            "n_kv": info.n_kv,
            "n_tensors": info.n_tensors,
        }

    def keys(self) -> list:
        """Return the keys of the metadata in file order."""
        cdef ds4_gguf_info info
        cdef ds4_gguf_kv kv
        cdef ds4_error err
        cdef uint64_t i
        ds4_gguf_get_info(self.gguf, &info)
        cdef list out = []
        for i in range(info.n_kv):
            check(ds4_gguf_get_kv(self.gguf, i, &kv, &err), &err, self.path)
            out.append(_text(kv.key, kv.key_len))
        return out

    def kind(self, uint64_t index) -> tuple:
        """Return the value type, the element type and the element count of record `index`."""
        cdef ds4_gguf_kv kv
        cdef ds4_error err
        check(ds4_gguf_get_kv(self.gguf, index, &kv, &err), &err, self.path)
        return kv.type, kv.elem_type, kv.count

    def value(self, uint64_t index):
        """Return the value of record `index` as a plain Python value; arrays become lists."""
        cdef ds4_gguf_kv kv
        cdef ds4_error err
        check(ds4_gguf_get_kv(self.gguf, index, &kv, &err), &err, self.path)
        cdef list values = _elements(kv.elem_type, kv.data, kv.n_bytes, kv.count)
        return values if kv.type == DS4_KV_ARRAY else values[0]

    def record(self, uint64_t index) -> bytes:
        """Return the whole record `index` as the file has it: key, type and value."""
        cdef ds4_gguf_kv kv
        cdef ds4_error err
        check(ds4_gguf_get_kv(self.gguf, index, &kv, &err), &err, self.path)
        # A record is contiguous in the file, and its key's length stands before its key.
        cdef const char *start = kv.key - 8
        return PyBytes_FromStringAndSize(start, <const char *>kv.data + kv.n_bytes - start)

    def tensors(self) -> list:
        """Return (name, type id, dimensions as written, bytes, file offset) of every tensor, in file order."""
        cdef ds4_gguf_info info
        cdef ds4_gguf_tensor t
        cdef ds4_error err
        cdef uint64_t i
        cdef uint32_t d
        ds4_gguf_get_info(self.gguf, &info)
        cdef list out = []
        for i in range(info.n_tensors):
            check(ds4_gguf_get_tensor(self.gguf, i, &t, &err), &err, self.path)
            ne = tuple([t.ne[d] for d in range(min(t.n_dims, 4))])
            out.append((_text(t.name, t.name_len), t.type, ne, t.n_bytes, t.offset))
        return out

    def data(self, uint64_t index) -> Bytes:
        """Return the stored bytes of tensor `index` without copying them."""
        cdef ds4_gguf_tensor t
        cdef ds4_error err
        check(ds4_gguf_get_tensor(self.gguf, index, &t, &err), &err, self.path)
        cdef Bytes out = Bytes.__new__(Bytes)
        out.data = t.data
        out.n_bytes = t.n_bytes
        out.file = self
        return out


@cython.final
cdef class Bytes:
    """Stored bytes of one tensor; `memoryview` and numpy read them in place."""

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, <void *>self.data, <Py_ssize_t>self.n_bytes, True, flags)


def type_name(uint32_t kind) -> str | None:
    """Return the name of a tensor type, or None for an id that the format does not define."""
    cdef const char *name = ds4_type_name(kind)
    return None if name == NULL else name.decode()


def type_block(uint32_t kind) -> tuple:
    """Return (elements, bytes) of one block of a tensor type."""
    cdef uint32_t n_elems = 0, n_bytes = 0
    cdef ds4_error err
    check(ds4_type_block(kind, &n_elems, &n_bytes, &err), &err)
    return n_elems, n_bytes
