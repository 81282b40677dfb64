"""Encoding float32 rows into the tensor types of a GGUF file, refusing what a type cannot hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4 import gguf
from ds4.errors import UnencodableValueError

__all__ = ["UnencodableValueError", "encode", "encode_ids"]


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
    return gguf.quantize(type_name, values, first_row=first_row)


def encode_ids(values: NDArray[Any], n_ids: int, *, first_row: int = 0) -> bytes:
    """Encode rows of expert ids as I32.

    Raises
    ------
    UnencodableValueError
        An id is outside 0 .. n_ids - 1.
    """
    bad = (values < 0) | (values >= n_ids)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        problem = f"{values[row, column]} is no expert id (there are {n_ids} experts)"
        raise UnencodableValueError(f"row {first_row + row}, column {column}: {problem}", first_row + row, column)
    return values.astype("<i4").tobytes()
