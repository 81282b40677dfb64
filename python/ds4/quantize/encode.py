"""The payload of one tensor, piece by piece: stored bytes, or rows read ahead and encoded by all threads."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4 import gguf
from ds4.errors import UnencodableValueError
from ds4.file_range import FileRange

from .importance import MAX_WEIGHT, NEEDS_WEIGHTS, Importance
from .plan import TensorPlan
from .prefetch import ahead
from .sources import SourceTensor, n_rows_of

CHUNK_VALUES = 4 * 1024 * 1024
"""Values that are read, and encoded, at a time."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of a matrix, and the importance of its columns."""

    matrix: int
    first: int
    values: NDArray[Any]
    importance: NDArray[np.float32] | None


def chunks(tensor: SourceTensor, kind: str, importance: Importance) -> Iterator[Chunk]:
    """Yield the rows of a tensor with the importance that a type is to use for them."""
    width, n_rows = tensor.ne[0], n_rows_of(tensor)
    step = max(1, CHUNK_VALUES // width)
    for matrix in range(tensor.n_matrices):
        weights = importance.vector(tensor.name, width, tensor.n_matrices, matrix)
        if weights is None and kind in NEEDS_WEIGHTS:
            weights = column_squares(tensor, matrix)
        for first in range(0, n_rows, step):
            yield Chunk(matrix, first, tensor.rows(matrix, first, min(step, n_rows - first)), weights)


def column_squares(tensor: SourceTensor, matrix: int) -> NDArray[np.float32]:
    """Return the sums of squares of the columns of a matrix, float32 (width,), summed in row order.

    Raises
    ------
    CheckpointError, ModelFileError
        A value is not finite, or a sum is more than `MAX_WEIGHT`; the message says where.
    """
    width, n_rows = tensor.ne[0], n_rows_of(tensor)
    step = max(1, CHUNK_VALUES // width)
    sums = np.zeros(width, np.float32)
    for first in range(0, n_rows, step):
        values = tensor.rows(matrix, first, min(step, n_rows - first))
        gguf.add_column_squares(values, sums)
        good = sums <= MAX_WEIGHT  # a NaN is not
        if good.all():
            continue
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            row, column = bad[0]
            raise tensor.fault(matrix, f"row {first + row}, column {column}: {values[row, column]} is not finite")
        raise tensor.fault(matrix, f"column {int(good.argmin())}: its values are too large to be weighted by")
    return sums


def payload(
    plan: TensorPlan, importance: Importance, *, n_experts: int, threads: int
) -> Generator[bytes | FileRange, None, None]:
    """Yield the payload of a tensor.

    Raises
    ------
    OSError
        The source cannot be read.
    CheckpointError, ModelFileError
        It is damaged, or a value is not finite or too large for the type; the message says where.
    """
    if plan.how == "copy":
        yield from plan.source.stored_bytes()
        return
    used = importance if plan.by_importance else Importance()
    for chunk in ahead(chunks(plan.source, plan.type, used)):
        if plan.how == "table":
            yield encode_table(plan.source, chunk, n_experts)
        else:
            yield encode(plan.source, plan.type, chunk, threads=threads)


def encode(tensor: SourceTensor, kind: str, chunk: Chunk, *, threads: int = 1) -> bytes:
    """Encode rows; a value that the type cannot hold is an error that tells its place."""
    try:
        return gguf.quantize(kind, chunk.values, chunk.importance, threads=threads, first_row=chunk.first)
    except UnencodableValueError as error:
        raise tensor.fault(chunk.matrix, str(error)) from None


def encode_table(tensor: SourceTensor, chunk: Chunk, n_experts: int) -> bytes:
    """Encode rows of expert ids, all of which must exist."""
    bad = (chunk.values < 0) | (chunk.values >= n_experts)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        problem = f"{chunk.values[row, column]} is no expert id (there are {n_experts} experts)"
        raise tensor.fault(chunk.matrix, f"row {chunk.first + row}, column {column}: {problem}")
    return chunk.values.astype("<i4").tobytes()
