"""Reaching the native library below the Python package: the internal test module and the bare C interface."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_OFFSET = 2**64 - 1

OK, E_ARGUMENT, E_IO, E_FORMAT, E_UNSUPPORTED = range(5)
E_CANCELLED, E_DATA = 8, 13


def kernels_module() -> ModuleType:
    """The module built from tests/native; skips the calling test file when it was not built.

    Continuous integration sets DS4_REQUIRE_NATIVE_TESTS, so that a missing module fails there.
    """
    try:
        import ds4_kernels
    except ImportError as error:
        if os.environ.get("DS4_REQUIRE_NATIVE_TESTS") == "1":
            raise
        pytest.skip(
            f"needs the native test module, built by scripts/build and put on PYTHONPATH ({error})",
            allow_module_level=True,
        )
    return ds4_kernels


class Error(ctypes.Structure):
    """ds4_error of ds4/status.h."""

    _fields_ = (
        ("status", ctypes.c_int32),
        ("os_errno", ctypes.c_int32),
        ("offset", ctypes.c_uint64),
        ("message", ctypes.c_char * 32768),
    )

    @property
    def text(self) -> str:
        return self.message.decode("utf-8")


class Info(ctypes.Structure):
    """ds4_gguf_info of ds4/gguf.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("file_bytes", "data_offset", "alignment", "n_kv", "n_tensors")),
        ("version", ctypes.c_uint32),
    )


class QuantizeOptions(ctypes.Structure):
    """ds4_quantize_options of ds4/quantize.h; a field added there is missing here."""

    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("n_threads", ctypes.c_uint32),
        ("importance", ctypes.c_void_p),
        ("first_row", ctypes.c_uint64),
        ("allow_nonfinite", ctypes.c_int32),
        ("pulse", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
        ("ud", ctypes.c_void_p),
    )


class Place(ctypes.Structure):
    """ds4_place of ds4/quantize.h."""

    _fields_ = (("row", ctypes.c_uint64), ("column", ctypes.c_uint64))


def library_path() -> Path:
    """libds4core as installed beside the Cython modules."""
    spec = importlib.util.find_spec("ds4._native._gguf")
    assert spec is not None
    assert spec.origin is not None
    found = sorted(Path(spec.origin).parent.glob("libds4core.*"))
    assert found, f"no libds4core beside {spec.origin}"
    return found[0]


def load_library() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(library_path()))
    err = ctypes.POINTER(Error)
    lib.ds4_gguf_open.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), err]
    lib.ds4_gguf_close.argtypes = [ctypes.c_void_p]
    lib.ds4_gguf_close.restype = None
    lib.ds4_gguf_get_info.argtypes = [ctypes.c_void_p, ctypes.POINTER(Info)]
    lib.ds4_gguf_get_info.restype = None
    lib.ds4_status_name.restype = ctypes.c_char_p
    lib.ds4_version.restype = ctypes.c_char_p
    lib.ds4_type_name.argtypes = [ctypes.c_uint32]
    lib.ds4_type_name.restype = ctypes.c_char_p
    u32 = ctypes.POINTER(ctypes.c_uint32)
    lib.ds4_type_block.argtypes = [ctypes.c_uint32, u32, u32, err]
    sizes = [ctypes.c_uint64, ctypes.c_uint64]
    anything = ctypes.c_void_p
    lib.ds4_dequantize.argtypes = [ctypes.c_uint32, anything, *sizes, ctypes.c_uint32, anything, err]
    options, place = ctypes.POINTER(QuantizeOptions), ctypes.POINTER(Place)
    lib.ds4_quantize_options_init.argtypes = [options]
    lib.ds4_quantize_options_init.restype = None
    lib.ds4_quantize.argtypes = [ctypes.c_uint32, anything, *sizes, options, anything, sizes[0], place, err]
    lib.ds4_unweighted_blocks.argtypes = [anything, sizes[0]]
    lib.ds4_unweighted_blocks.restype = ctypes.c_uint64
    return lib


class ScratchFile:
    """A file that is rewritten thousands of times; in memory where the system can do that."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def write(self, data: bytes) -> None:
        os.ftruncate(self._fd, 0)
        assert os.pwrite(self._fd, data, 0) == len(data)


@contextmanager
def scratch_file() -> Iterator[ScratchFile]:
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    fd, path = tempfile.mkstemp(suffix=".gguf", dir=folder)
    try:
        yield ScratchFile(path, fd)
    finally:
        os.close(fd)
        os.unlink(path)
