"""Decoding of E4M3, E8M0 and packed FP4: every code, every width, and the regrouping into MXFP4."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import ds4.gguf
import numpy as np
import pytest
from ds4.quantize import Checkpoint, CheckpointError
from ds4.quantize.fp8 import decode_e2m1, decode_e4m3, decode_e8m0, e4m3_nan, fp4_to_mxfp4
from ds4.quantize.hfweights import FP4Weight, FP8Weight, pair_scales
from numpy.typing import NDArray
from support.released import E2M1, E4M3, E8M0, decode_fp4, decode_fp8, put

from .checkpoints import write_safetensors

CODES = np.arange(256, dtype=np.uint8)
NAN_CODES = (0x7F, 0xFF)
OTHER_CODES = np.delete(CODES, NAN_CODES)


def _bits(values: Any) -> NDArray[np.uint32]:
    return np.asarray(values, np.float32).view(np.uint32)


def test_every_e4m3_code() -> None:
    np.testing.assert_array_equal(_bits(decode_e4m3(OTHER_CODES)), _bits(E4M3[OTHER_CODES]))
    assert decode_e4m3(OTHER_CODES).max() == 448.0
    np.testing.assert_array_equal(np.flatnonzero(e4m3_nan(CODES)), NAN_CODES)


def test_every_e8m0_code() -> None:
    np.testing.assert_array_equal(_bits(decode_e8m0(CODES[:255])), _bits(E8M0[:255]))
    assert decode_e8m0(CODES).view(np.uint32)[0] == 0x00400000


def test_every_pair_of_fp4_codes() -> None:
    wanted = np.stack([E2M1[CODES & 15], E2M1[CODES >> 4]], axis=1).reshape(-1)
    np.testing.assert_array_equal(_bits(decode_e2m1(CODES)), _bits(wanted))


def test_tables_agree_with_ml_dtypes() -> None:
    """Somebody else's definition of the three number forms."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    e4m3 = CODES.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(e4m3), e4m3_nan(CODES))
    np.testing.assert_array_equal(_bits(decode_e4m3(OTHER_CODES)), _bits(e4m3[OTHER_CODES]))
    e8m0 = CODES.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    np.testing.assert_array_equal(_bits(decode_e8m0(CODES[:255])), _bits(e8m0[:255]))
    assert np.isnan(e8m0[255])
    low = CODES[:16].view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(_bits(decode_e2m1(CODES[:16])[0::2]), _bits(low))


def _weight(folder: Path, kind: str, codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> Any:
    arrays: dict[str, Any] = {}
    records: dict[str, Any] = {}
    put(arrays, records, "a.weight", kind, codes, scales)
    write_safetensors(folder / "model.safetensors", arrays, records)
    weights, faults = pair_scales(Checkpoint(folder))
    assert faults == {}
    assert set(weights) == {"a.weight"}
    return weights["a.weight"]


@pytest.mark.parametrize(
    "shape", [(1, 1), (127, 129), (128, 128), (130, 64), (300, 257), (256, 4096), (5, 1000), (0, 8), (8, 0)]
)
def test_fp8_rows_of_any_width(tmp_path: Path, shape: tuple[int, int]) -> None:
    """Dimensions that 128 does not divide have a last block that is partly filled; any run of rows can be read.

    One row decoder for every width, with all its blocks (L019).
    """
    rng = np.random.default_rng(7)
    codes = rng.choice(OTHER_CODES, shape)
    scales = rng.integers(0, 247, (-(-shape[0] // 128), -(-shape[1] // 128)), dtype=np.uint8)
    weight = _weight(tmp_path, "FP8", codes, scales)
    assert isinstance(weight, FP8Weight)
    assert (weight.stored, weight.shape, weight.n_rows) == ("FP8", shape, shape[0])
    wanted = decode_fp8(codes, scales)
    for first in {0, 1, 127, 128, 129, 255, shape[0] - 1} & set(range(shape[0] + 1)):
        for count in {0, 1, 2, 128, 130, shape[0] - first} & set(range(shape[0] - first + 1)):
            found = weight.rows(first, count)
            assert found.shape == (count, shape[1])
            np.testing.assert_array_equal(_bits(found), _bits(wanted[first : first + count]))


@pytest.mark.parametrize("shape", [(1, 32), (3, 64), (70, 96), (129, 256), (64, 2048), (0, 64)])
def test_fp4_rows_and_their_mxfp4_blocks(tmp_path: Path, shape: tuple[int, int]) -> None:
    """Values are exact, and the MXFP4 blocks decode to the same values in ds4, and, byte by byte, by definition."""
    rng = np.random.default_rng(8)
    packed = rng.integers(0, 256, (shape[0], shape[1] // 2), dtype=np.uint8)
    scales = rng.integers(0, 253, (shape[0], shape[1] // 32), dtype=np.uint8)
    weight = _weight(tmp_path, "FP4", packed, scales)
    assert isinstance(weight, FP4Weight)
    assert (weight.stored, weight.shape, weight.n_rows) == ("FP4", shape, shape[0])
    wanted = decode_fp4(packed, scales)
    blocks = np.frombuffer(weight.mxfp4(0, shape[0]), np.uint8).reshape(shape[0], shape[1] // 32, 17)
    np.testing.assert_array_equal(blocks[:, :, 0], scales)
    for j in range(16):
        values = E2M1[[blocks[:, :, 1 + j] & 15, blocks[:, :, 1 + j] >> 4]] * E8M0[scales]
        groups = wanted.reshape(shape[0], shape[1] // 32, 32)
        np.testing.assert_array_equal(_bits(values[0]), _bits(groups[:, :, j]))
        np.testing.assert_array_equal(_bits(values[1]), _bits(groups[:, :, j + 16]))
    for first in range(0, shape[0], 23):
        count = min(40, shape[0] - first)
        np.testing.assert_array_equal(_bits(weight.rows(first, count)), _bits(wanted[first : first + count]))
        raw = weight.mxfp4(first, count)
        assert raw == blocks[first : first + count].tobytes()
        np.testing.assert_array_equal(ds4.gguf.dequantize("MXFP4", raw), wanted[first : first + count].reshape(-1))


def test_other_decoders_read_the_mxfp4_blocks() -> None:
    quants = pytest.importorskip("gguf.quants")
    gguf = pytest.importorskip("gguf")
    rng = np.random.default_rng(9)
    packed = rng.integers(0, 256, (5, 64), dtype=np.uint8)
    scales = rng.integers(1, 250, (5, 4), dtype=np.uint8)
    blocks = fp4_to_mxfp4(packed, scales).reshape(5, -1)
    found = quants.dequantize(blocks, gguf.GGMLQuantizationType.MXFP4)
    np.testing.assert_array_equal(found, decode_fp4(packed, scales))


def test_largest_scales(tmp_path: Path) -> None:
    """A product that is no float32 is refused with its place; the same scale with smaller codes is not."""
    codes = np.zeros((200, 130), np.uint8)
    codes[150, 129] = 0x76  # 224
    scales = np.full((2, 2), 120, np.uint8)
    scales[1, 1] = 247
    weight = _weight(tmp_path, "FP8", codes, scales)
    assert weight.rows(0, 200)[150, 129] == np.float32(224 * 2.0**120)
    codes[150, 129] = 0xF8  # -256
    with pytest.raises(CheckpointError, match=r"'a.weight', row 150, column 129: .*too large"):
        _weight(tmp_path, "FP8", codes, scales).rows(100, 100)

    packed = np.zeros((40, 32), np.uint8)
    packed[35, 20] = 0x50  # column 41: 3
    scales = np.full((40, 2), 253, np.uint8)
    assert _weight(tmp_path, "FP4", packed, scales).rows(30, 10)[5, 41] == np.float32(3 * 2.0**126)
    packed[35, 20] = 0x70
    weight = _weight(tmp_path, "FP4", packed, scales)
    for read in (weight.rows, weight.mxfp4):
        with pytest.raises(CheckpointError, match=r"'a.weight', row 35, column 41: .*too large"):
            read(30, 10)


@pytest.mark.parametrize("code", NAN_CODES)
def test_nan_has_its_place(tmp_path: Path, code: int) -> None:
    codes = np.zeros((300, 200), np.uint8)
    codes[260, 190] = code
    weight = _weight(tmp_path, "FP8", codes, np.full((3, 2), 127, np.uint8))
    assert not weight.rows(0, 260).any()
    with pytest.raises(
        CheckpointError, match=f"model.safetensors: tensor 'a.weight', row 260, column 190: .*0x{code:X}"
    ):
        weight.rows(250, 50)
    scales = np.full((3, 2), 127, np.uint8)
    scales[2, 1] = 255
    weight = _weight(tmp_path, "FP8", np.zeros((300, 200), np.uint8), scales)
    weight.rows(0, 256)
    with pytest.raises(CheckpointError, match=r"tensor 'a.scale', row 2, column 1: the scale byte 255 is NaN"):
        weight.rows(256, 1)
    scales = np.full((40, 2), 127, np.uint8)
    scales[33, 1] = 255
    weight = _weight(tmp_path, "FP4", np.zeros((40, 32), np.uint8), scales)
    for read in (weight.rows, weight.mxfp4):
        read(0, 33)
        with pytest.raises(CheckpointError, match=r"tensor 'a.scale', row 33, column 1: the scale byte 255 is NaN"):
            read(30, 10)


def test_header_of_the_example_is_what_the_format_says(tmp_path: Path) -> None:
    """The files of these tests have the element types and shapes of released ones."""
    _weight(tmp_path, "FP4", np.zeros((4, 32), np.uint8), np.zeros((4, 2), np.uint8))
    raw = (tmp_path / "model.safetensors").read_bytes()
    head = raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]].decode()
    assert '"dtype": "I8", "shape": [4, 32]' in head
    assert '"dtype": "F8_E8M0", "shape": [4, 2]' in head
