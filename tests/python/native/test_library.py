"""The shared library as a whole: what it exports, what it never calls, and the calls that belong to no noun."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from support import native
from support.gguf_write import GGMLType

CORE = Path(__file__).resolve().parents[3] / "src" / "ds4core"


@pytest.fixture(scope="module")
def lib():
    return native.load_library()


def test_only_the_public_names_are_exported():
    """Nothing else may be bound to, also no symbol of the C++ standard library."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("needs nm (binutils)")
    listing = subprocess.run(
        [nm, "-D", "--defined-only", str(native.library_path())], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[-1] for line in listing.splitlines()}
    declared = set()
    for header in (CORE / "include" / "ds4").glob("*.h"):
        declared |= set(re.findall(r"^DS4_API [^;{]*?\b(ds4_\w+)\(", header.read_text(), re.MULTILINE))
    assert len(declared) > 10
    assert exported == declared


def test_the_core_never_prints_exits_or_reads_the_environment():
    forbidden = re.compile(r"\b(printf|fprintf|puts|abort|exit|_exit|getenv|assert)\s*\(|std::(cout|cerr|clog)")
    for path in CORE.rglob("*"):
        if path.suffix in {".cpp", ".h", ".inc"}:
            for number, line in enumerate(path.read_text().splitlines(), 1):
                code = line.split("//")[0].replace("static_assert(", "")
                assert not forbidden.search(code), f"{path.name}:{number}: {line.strip()}"


def test_the_library_and_the_package_have_one_version(lib):
    assert lib.ds4_version().decode() == version("ds4")


def test_every_status_has_its_name(lib):
    header = (CORE / "include" / "ds4" / "status.h").read_text()
    statuses = re.findall(r"^\s+(DS4_(?:OK|E_\w+)) = (\d+)", header, re.MULTILINE)
    assert [int(value) for _, value in statuses] == list(range(16))
    for name, value in statuses:
        assert lib.ds4_status_name(int(value)).decode() == name
    for value in (-1, 16, 1000):
        assert lib.ds4_status_name(value) == b"unknown status"


# --------------------------------------------------------------------------------------------- types and conversions


def dequantize(lib, type_, raw, n, room=None):
    out = np.full(n if room is None else room, -1, np.float32)
    error = native.Error()
    status = lib.ds4_dequantize(type_, raw.ctypes.data, raw.nbytes, n, 1, out.ctypes.data, ctypes.byref(error))
    return status, error.text, out


def quantize(lib, type_, values, n_bytes, options=None, n_rows=1):
    values = np.asarray(values, np.float32)
    out = np.zeros(n_bytes, np.uint8)
    error, place = native.Error(), native.Place()
    status = lib.ds4_quantize(
        type_,
        values.ctypes.data,
        n_rows,
        values.size // n_rows,
        options,
        out.ctypes.data,
        out.nbytes,
        ctypes.byref(place),
        ctypes.byref(error),
    )
    return status, error.text, out, (place.row, place.column)


def options_of(lib, **fields):
    options = native.QuantizeOptions()
    lib.ds4_quantize_options_init(ctypes.byref(options))
    for name, value in fields.items():
        setattr(options, name, value)
    return options


def test_type_names_and_blocks(lib):
    elements, n_bytes, error = ctypes.c_uint32(), ctypes.c_uint32(), native.Error()
    assert lib.ds4_type_name(GGMLType.IQ2_XXS) == b"IQ2_XXS"
    assert lib.ds4_type_block(GGMLType.IQ2_XXS, ctypes.byref(elements), ctypes.byref(n_bytes), None) == native.OK
    assert (elements.value, n_bytes.value) == (256, 66)
    for type_id, word in ((4, "removed"), (99, "not a type")):
        assert lib.ds4_type_name(type_id) is None
        assert lib.ds4_type_block(type_id, None, None, ctypes.byref(error)) == native.E_ARGUMENT
        assert f"tensor type {type_id}" in error.text and word in error.text


def test_decoding_checks_its_arguments(lib):
    raw = np.zeros(68, np.uint8)
    assert dequantize(lib, GGMLType.Q8_0, raw, 64)[0] == native.OK
    assert dequantize(lib, GGMLType.Q8_0, raw, 0)[0] == native.OK
    status, text, _ = dequantize(lib, GGMLType.Q8_0, raw, 33)
    assert status == native.E_ARGUMENT and "33 values are not whole Q8_0 blocks of 32" in text
    status, text, out = dequantize(lib, GGMLType.Q8_0, raw, 96)
    assert status == native.E_ARGUMENT and "need 102 bytes, 68 were given" in text and (out == -1).all()
    status, text, _ = dequantize(lib, GGMLType.F32, raw, 2**62, room=1)
    assert status == native.E_ARGUMENT
    status, text, _ = dequantize(lib, GGMLType.Q6_K, raw, 256)
    assert status == native.E_UNSUPPORTED and "Q6_K" in text
    assert lib.ds4_dequantize(GGMLType.F32, None, 4, 1, 1, None, None) == native.E_ARGUMENT


def test_encoding_checks_its_arguments(lib):
    assert quantize(lib, GGMLType.Q8_0, np.ones(32), 34)[0] == native.OK
    status, text, *_ = quantize(lib, GGMLType.Q8_0, np.ones(64), 67, n_rows=2)
    assert status == native.E_ARGUMENT and "2 rows of 32 values of Q8_0 need 68 bytes, there is room for 67" in text
    status, text, *_ = quantize(lib, GGMLType.Q8_0, np.ones(66), 68, n_rows=2)
    assert status == native.E_ARGUMENT and "33 values are not whole Q8_0 blocks" in text
    status, text, *_ = quantize(lib, GGMLType.Q6_K, np.ones(256), 210)
    assert status == native.E_UNSUPPORTED and "not Q6_K" in text
    status, text, *_ = quantize(lib, GGMLType.IQ2_XXS, np.ones(256), 66)
    assert status == native.E_ARGUMENT and "IQ2_XXS needs importance" in text
    status, text, *_ = quantize(lib, GGMLType.Q2_K, np.ones(256), 84, options_of(lib, struct_size=1000))
    assert status == native.E_ARGUMENT and "has size 1000" in text
    assert lib.ds4_quantize(GGMLType.F32, None, 1, 1, None, None, 4, None, None) == native.E_ARGUMENT
    assert lib.ds4_quantize(GGMLType.F32, None, 2**33, 2**33, None, None, 4, None, None) == native.E_ARGUMENT


def test_encoding_stops_when_the_pulse_says_so(lib):
    seen = []

    def pulse(_ud, progress):
        seen.append(ctypes.cast(progress, ctypes.POINTER(ctypes.c_uint64 * 2)).contents[:])
        return 1

    # The slowest type, in one thread: the pulse comes after 50 ms, and all of it takes several times as long.
    values, weights = np.random.default_rng(1).standard_normal(2**23), np.ones(2**11, np.float32)
    options = options_of(
        lib, pulse=native.QuantizeOptions._fields_[5][1](pulse), n_threads=1, importance=weights.ctypes.data
    )
    assert quantize(lib, GGMLType.IQ2_XXS, values, 2**23 // 256 * 66, options, 2**12)[0] == native.E_CANCELLED
    assert len(seen) == 1 and 0 < seen[0][0] < seen[0][1] == 2**23


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e7])
def test_q8_0_refuses_values_it_cannot_hold(lib, bad):
    """One such value would spoil the 32 that share its scale."""
    values = np.ones(128)
    values[64 + 40] = bad
    status, text, _, place = quantize(lib, GGMLType.Q8_0, values, 136, options_of(lib, first_row=10), 2)
    assert status == native.E_DATA and "row 11, column 40: " in text and "does not fit Q8_0" in text
    assert place == (11, 40)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0"])
def test_encode_then_decode_is_close(lib, name):
    values = np.linspace(-3, 3, 256, dtype=np.float32)
    error = {"F32": 0, "F16": 2**-10, "BF16": 2**-7, "Q8_0": 1.5 / 127}[name]
    n_bytes = {"F32": 1024, "F16": 512, "BF16": 512, "Q8_0": 272}[name]
    status, _, raw, _ = quantize(lib, GGMLType[name], values, n_bytes)
    assert status == native.OK
    assert np.abs(dequantize(lib, GGMLType[name], raw, 256)[2] - values).max() <= error * 3
