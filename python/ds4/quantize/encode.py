"""Encoding float32 rows into the tensor types of a GGUF file, refusing what a type cannot hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4 import gguf

_F16_LIMIT = 65520.0
"""Magnitudes from here on round to infinity in F16."""

_LIMITS = {"F16": _F16_LIMIT, "Q8_0": _F16_LIMIT * 127.0}
"""First magnitude that a type cannot hold. Q8_0 stores amax / 127 as F16."""


class UnencodableValueError(ValueError):
    """A value is NaN, infinite, or too large for the tensor type; .row and .column say where."""

    def __init__(self, problem: str, row: int, column: int) -> None:
        super().__init__(f"row {row}, column {column}: {problem}")
        self.row = row
        self.column = column


def encode(type_name: str, values: NDArray[np.float32], *, first_row: int = 0) -> bytes:
    """Encode rows of float32 values.

    Parameters
    ----------
    type_name : {"F32", "F16", "BF16", "Q8_0"}
        The tensor type.
    values : array of float32, shape (n_rows, row length)
        Rows; a row is a whole number of blocks.
    first_row : int
        Number of the first row, for messages.

    Raises
    ------
    UnencodableValueError
        NaN, an infinity, or a value outside the range of the type.
    """
    _refuse(~np.isfinite(values), values, first_row, "")
    limit = _LIMITS.get(type_name)
    if limit is not None:
        _refuse(np.abs(values) >= limit, values, first_row, f" does not fit {type_name}")
    return gguf.quantize(type_name, values)


def encode_ids(values: NDArray[Any], n_ids: int, *, first_row: int = 0) -> bytes:
    """Encode rows of expert ids as I32.

    Raises
    ------
    UnencodableValueError
        An id is outside 0 .. n_ids - 1.
    """
    _refuse((values < 0) | (values >= n_ids), values, first_row, f" is no expert id (there are {n_ids} experts)")
    return values.astype("<i4").tobytes()


def _refuse(bad: NDArray[np.bool_], values: NDArray[Any], first_row: int, why: str) -> None:
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        raise UnencodableValueError(f"{values[row, column]}{why}", first_row + row, column)
