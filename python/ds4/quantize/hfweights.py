"""The weights of a checkpoint in whatever form they are stored: plain, FP8 or FP4, the latter with their scales.

A weight ``X.weight`` in FP8 or FP4 has its scales in ``X.scale``. `pair_scales` puts them together and names every
weight without scales, every scale without a weight, and every one of a wrong shape or type.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from .fp8 import (
    E8M0_NAN,
    FP4_GROUP,
    MAX_E4M3_EXPONENT,
    MAX_FP4_EXPONENT,
    decode_e2m1,
    decode_e4m3,
    decode_e8m0,
    e4m3_nan,
    fp4_to_mxfp4,
)
from .safetensors import Checkpoint, CheckpointError, TensorEntry, shown

FP8_BLOCK = 128
"""Rows and columns that share one scale of an FP8 weight."""

_BAND_ROWS = 64
"""Rows decoded at a time, so that what lies between two steps stays in the cache."""

_WEIGHT, _SCALE, _SCALE_DTYPE = ".weight", ".scale", "F8_E8M0"
_OTHER_SCALES = ("_scale_inv", "_scale")


class Weight(Protocol):
    """A tensor of a checkpoint that can be read by rows."""

    @property
    def name(self) -> str:
        """Official name."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape, outermost dimension first, however many values a stored element packs."""

    @property
    def stored(self) -> str:
        """How the values are stored: FP8, FP4, or an element type (BF16, F32, ...)."""

    @property
    def path(self) -> Path:
        """The file that holds the tensor."""

    @property
    def n_rows(self) -> int:
        """Number of rows as `rows` counts them."""

    def rows(self, first: int, count: int) -> NDArray[Any]:
        """Return rows as float32 (integers for I32 and I64), a fresh array of shape (count, width).

        Raises
        ------
        OSError
            The file cannot be read.
        CheckpointError
            A code or scale of an FP8 or FP4 weight is NaN, a value overflows float32 (the message says where), or
            the file was shortened. Values of plain tensors are handed out as they are.
        """


@dataclass(frozen=True, slots=True)
class _CodedWeight:
    """Codes with scales: what the two forms share."""

    codes: TensorEntry
    scales: TensorEntry

    @property
    def name(self) -> str:
        """Official name."""
        return self.codes.name

    @property
    def path(self) -> Path:
        """The file of the codes; the scales may be in another one."""
        return self.codes.path

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.codes.n_rows


@dataclass(frozen=True, slots=True)
class FP8Weight(_CodedWeight):
    """E4M3 codes of shape [out, in] with E8M0 scales of shape [ceil(out / 128), ceil(in / 128)]."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[out, in]."""
        return self.codes.shape

    @property
    def stored(self) -> str:
        """FP8."""
        return "FP8"

    def rows(self, first: int, count: int) -> NDArray[np.float32]:
        """Return rows as float32; see `Weight.rows`."""
        width = self.shape[1]
        codes = self.codes.raw_rows(first, count)
        first_block = first // FP8_BLOCK
        n_blocks = -(-(first + count) // FP8_BLOCK) - first_block
        exponents = _scale_rows(self.scales, first_block, n_blocks)
        out = np.empty((count, width), np.float32)
        for scale, begin, end in self._bands(first, count):
            band = codes[begin:end]
            nan = e4m3_nan(band)
            if nan.any():
                row, column = np.argwhere(nan)[0]
                _refuse(self.codes, first + begin + row, column, f"the FP8 code 0x{band[row, column]:02X} is NaN")
            factors = np.repeat(decode_e8m0(exponents[scale]), FP8_BLOCK)[:width]
            with np.errstate(over="ignore"):
                np.multiply(decode_e4m3(band), factors, out=out[begin:end])
        if exponents.size and exponents.max() > MAX_E4M3_EXPONENT:
            _refuse_overflow(self.codes, out, first)
        return out

    @staticmethod
    def _bands(first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Rows with the same scales: number of the scale row, first and last row, counted from `first`."""
        begin, scale = 0, 0
        while begin < count:
            end = min(count, begin + FP8_BLOCK - (first + begin) % FP8_BLOCK)
            yield scale, begin, end
            begin, scale = end, scale + 1


@dataclass(frozen=True, slots=True)
class FP4Weight(_CodedWeight):
    """Packed E2M1 codes, bytes of shape [out, in / 2], with E8M0 scales of shape [out, in / 32]."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[out, in]."""
        return (self.codes.shape[0], 2 * self.codes.shape[1])

    @property
    def stored(self) -> str:
        """FP4."""
        return "FP4"

    def rows(self, first: int, count: int) -> NDArray[np.float32]:
        """Return rows as float32; see `Weight.rows`."""
        return self._decode(self.codes.raw_rows(first, count), _scale_rows(self.scales, first, count), first)

    def mxfp4(self, first: int, count: int) -> bytes:
        """Return rows as MXFP4 blocks: the same codes and scales in another order. Errors as `Weight.rows`."""
        codes, exponents = self.codes.raw_rows(first, count), _scale_rows(self.scales, first, count)
        if exponents.size and exponents.max() > MAX_FP4_EXPONENT:
            self._decode(codes, exponents, first)
        return fp4_to_mxfp4(codes, exponents).tobytes()

    def _decode(self, codes: NDArray[np.uint8], exponents: NDArray[np.uint8], first: int) -> NDArray[np.float32]:
        """Values of rows from `first` on; overflow is refused."""
        count, n_groups = exponents.shape
        out = np.empty((count, n_groups, FP4_GROUP), np.float32)
        for begin in range(0, count, _BAND_ROWS):
            band = slice(begin, begin + _BAND_ROWS)
            values = decode_e2m1(codes[band]).reshape(-1, n_groups, FP4_GROUP)
            with np.errstate(over="ignore"):
                np.multiply(values, decode_e8m0(exponents[band])[:, :, None], out=out[band])
        rows: NDArray[np.float32] = out.reshape(count, self.shape[1])
        if exponents.size and exponents.max() > MAX_FP4_EXPONENT:
            _refuse_overflow(self.codes, rows, first)
        return rows


def pair_scales(checkpoint: Checkpoint) -> tuple[dict[str, Weight], dict[str, str]]:
    """Return the weights of a checkpoint by name, and what is wrong, by the name of the tensor it is wrong with.

    Scales are not among the weights; tensors with a fault are only among the faults.
    """
    tensors = checkpoint.tensors
    weights: dict[str, Weight] = {}
    faults: dict[str, str] = {}
    used = set()
    for name, entry in tensors.items():
        if entry.dtype not in ("F8_E4M3", "I8"):
            continue
        word = "FP8" if entry.dtype == "F8_E4M3" else "FP4"
        scale_name = name.removesuffix(_WEIGHT) + _SCALE
        scales = tensors.get(scale_name) if name.endswith(_WEIGHT) else None
        fault = _codes_fault(entry, word)
        if fault is not None:
            faults[name] = fault
        elif scales is None:
            faults[name] = f"{word} ({entry.dtype}) without its scales {scale_name}{_other_spelling(name, tensors)}"
        else:
            wanted = _scale_shape(entry, word)
            if scales.dtype != _SCALE_DTYPE:
                faults[scale_name] = f"type {scales.dtype}, expected {_SCALE_DTYPE} for the scales of an {word} weight"
            elif scales.shape != wanted:
                found = f"shape {list(scales.shape)}, expected {list(wanted)}"
                faults[scale_name] = f"{found} for an {word} weight stored as {list(entry.shape)}"
            else:
                weights[name] = FP8Weight(entry, scales) if word == "FP8" else FP4Weight(entry, scales)
        if scales is not None:
            used.add(scale_name)
    for name, entry in tensors.items():
        if name in weights or name in faults or name in used:
            continue
        if entry.dtype == _SCALE_DTYPE:
            faults[name] = "scales without an FP8 or FP4 weight"
        elif entry.dtype not in ("F8_E4M3", "I8"):
            weights[name] = entry
    return weights, faults


def _codes_fault(entry: TensorEntry, word: str) -> str | None:
    if len(entry.shape) != 2 or not entry.name.endswith(_WEIGHT):
        return f"type {entry.dtype}, shape {list(entry.shape)}; {word} is read for matrices named *{_WEIGHT}"
    if word == "FP4" and 2 * entry.shape[1] % FP4_GROUP:
        return f"an FP4 row of {entry.shape[1]} bytes is not a whole number of groups of {FP4_GROUP} values"
    return None


def _scale_shape(entry: TensorEntry, word: str) -> tuple[int, int]:
    rows, width = entry.shape
    return (-(-rows // FP8_BLOCK), -(-width // FP8_BLOCK)) if word == "FP8" else (rows, 2 * width // FP4_GROUP)


def _other_spelling(name: str, tensors: dict[str, TensorEntry]) -> str:
    for suffix in _OTHER_SCALES:
        if name + suffix in tensors:
            return f"; {shown(name + suffix)} is how other FP8 models name theirs"
    return ""


def _scale_rows(entry: TensorEntry, first: int, count: int) -> NDArray[np.uint8]:
    exponents = entry.raw_rows(first, count)
    nan = exponents == E8M0_NAN
    if nan.any():
        row, column = np.argwhere(nan)[0]
        _refuse(entry, first + row, column, f"the scale byte {E8M0_NAN} is NaN")
    return exponents


def _refuse_overflow(entry: TensorEntry, values: NDArray[np.float32], first: int) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        _refuse(entry, first + row, column, "code times scale is too large for float32")


def _refuse(entry: TensorEntry, row: int, column: int, problem: str) -> NoReturn:
    raise CheckpointError(f"{entry.path}: tensor {shown(entry.name)}, row {row}, column {column}: {problem}")
