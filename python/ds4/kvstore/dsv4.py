"""The payload "DSV4" version 2: a session's state as the other engine of this model stores it, little-endian.

::

    13 u32: magic "DSV4", 2, context, prefill chunk, capacity of the window's ring, window, capacity of compressed rows,
            tokens, layers, width of a row, width of an indexer row, vocabulary, rows in the window
    u32 tokens, f32 logits, u32 compressed rows per layer, u32 indexer rows per layer
    per layer: the window's rows, the oldest first; with a ratio R its compressed rows, the values and the scores of the
            unfinished group; with R = 4 indexer rows and the same of the indexer

All rows are f32. The arrays of an unfinished group have c * R rows of c * width values, c = 2 for R = 4 (groups
overlap) and 1 otherwise.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ds4.state_arrays import LayerState, State

from .errors import StoredFileError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from ds4 import Shape

__all__ = ["Dims", "Payload", "group_shape", "payload_bytes"]

MAGIC, VERSION = 0x34565344, 2
MAX_LAYERS, MAX_WIDTH, MAX_VOCAB, MAX_TOKENS = 1024, 1 << 16, 1 << 24, 1 << 28
_HEAD = struct.Struct("<13I")
_INDEXED = 4  # the ratio of layers that have an indexer

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Dims:
    """What a payload must agree with.

    Attributes
    ----------
    ratios : tuple of int
        Per layer: positions that share a compressed row, or 0.
    head_dim, index_dim : int
        Widths of a row and of an indexer row.
    window : int
        Exact rows that attention sees.
    n_vocab : int
        Token ids.
    """

    ratios: tuple[int, ...]
    head_dim: int
    index_dim: int
    window: int
    n_vocab: int

    @classmethod
    def of(cls, shape: Shape) -> Dims:
        """Return what a model of this shape wants."""
        return cls(shape.compress_ratio, shape.head_dim, shape.index_dim, shape.window, shape.n_vocab)


def group_shape(ratio: int, width: int) -> tuple[int, int]:
    """Return rows and columns of the unfinished group of a layer."""
    c = 2 if ratio == _INDEXED else 1
    return c * ratio, c * width


def payload_bytes(dims: Dims, n_tokens: int) -> int:
    """Return the size of the payload of a state: 13,764 bytes per token on Flash, and what the end has."""
    n = _HEAD.size + 4 * n_tokens + 4 * dims.n_vocab + 8 * len(dims.ratios)
    for ratio in dims.ratios:
        n += 4 * min(n_tokens, dims.window) * dims.head_dim
        for width in _widths(dims, ratio):
            rows, columns = group_shape(ratio, width)
            n += 4 * (n_tokens // ratio) * width + 2 * 4 * rows * columns
    return n


def _widths(dims: Dims, ratio: int) -> tuple[int, ...]:
    if not ratio:
        return ()
    return (dims.head_dim, dims.index_dim) if ratio == _INDEXED else (dims.head_dim,)


@dataclass(frozen=True, slots=True)
class Payload:
    """A state.

    Attributes
    ----------
    n_ctx, chunk, ring, row_capacity : int
        Context, prefill chunk, and capacities of the session that was stored.
    tokens : list of int
        Its tokens.
    logits : ndarray of float32, shape (n_vocab,)
        Scores of the next token.
    layers : sequence of LayerState
        Its rows.
    """

    n_ctx: int
    chunk: int
    ring: int
    row_capacity: int
    tokens: list[int]
    logits: Floats
    layers: Sequence[LayerState]

    @classmethod
    def of(cls, state: State, dims: Dims) -> Payload:
        """Return the payload of a state; it says that the smallest context and capacities were used that can be."""
        n = len(state.tokens)
        least = min((r for r in dims.ratios if r), default=1)
        return cls(n + 1, 1, dims.window, n // least + 1, state.tokens, state.logits, state.layers)

    def state(self) -> State:
        """Return the state, for `Session.load_state`."""
        return State(self.tokens, self.logits, self.layers)

    def to_bytes(self, dims: Dims) -> bytes:
        """Return the payload.

        Raises
        ------
        ValueError
            An array has not the shape that follows from the tokens and `dims`.
        """
        live, n = min(len(self.tokens), dims.window), len(self.tokens)
        head = _HEAD.pack(
            MAGIC, VERSION, self.n_ctx, self.chunk, self.ring, dims.window, self.row_capacity, n, len(dims.ratios),
            dims.head_dim, dims.index_dim, dims.n_vocab, live,
        )  # fmt: skip
        if len(self.layers) != len(dims.ratios):
            raise ValueError(f"{len(self.layers)} layers instead of {len(dims.ratios)}")
        counts = [n // r if r else 0 for r in dims.ratios]
        index_counts = [n // r if r == _INDEXED else 0 for r in dims.ratios]
        parts = [head, np.asarray(self.tokens, dtype="<u4").tobytes(), _raw(self.logits, (dims.n_vocab,))]
        parts += [np.asarray(c, dtype="<u4").tobytes() for c in (counts, index_counts)]
        for number, (layer, ratio) in enumerate(zip(self.layers, dims.ratios, strict=True)):
            shapes = _shapes(dims, ratio, live, n // ratio if ratio else 0)
            arrays = layer.arrays()
            if len(arrays) != len(shapes):
                raise ValueError(f"layer {number} has {len(arrays)} arrays instead of {len(shapes)}")
            parts += [_raw(a, shape) for a, shape in zip(arrays, shapes, strict=True)]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: ReadableBuffer, dims: Dims) -> Payload:
        """Read a payload; every length and count is checked before it is used.

        Parameters
        ----------
        data : bytes-like
            The payload, and nothing behind it.
        dims : Dims
            Of the model.

        Raises
        ------
        StoredFileError
            It is damaged, or of another model.
        """
        view = memoryview(data).cast("B")
        if view.nbytes < _HEAD.size:
            raise StoredFileError(f"cut short: {view.nbytes} bytes are too few for a payload's head")
        head = _HEAD.unpack_from(view)
        magic, version, n_ctx, chunk, ring, window, capacity, n, n_layer, head_dim, index_dim, n_vocab, live = head
        if magic != MAGIC or version != VERSION:
            raise StoredFileError(f"no DSV4 payload of version {VERSION}: magic {magic:#x}, version {version}")
        found = (n_layer, head_dim, index_dim, window, n_vocab)
        wanted = (len(dims.ratios), dims.head_dim, dims.index_dim, dims.window, dims.n_vocab)
        for name, there, here in zip(
            ("layers", "width of rows", "width of indexer rows", "window", "vocabulary"), found, wanted, strict=True
        ):
            if there != here:
                raise StoredFileError(f"another model: {name} is {there}, this model has {here}")
        if not 0 < n < n_ctx or n > MAX_TOKENS:
            raise StoredFileError(f"{n} tokens in a context of {n_ctx}")
        if live != min(n, window) or live > ring:
            raise StoredFileError(f"{live} rows in the window, {min(n, window)} expected, capacity {ring}")
        size = payload_bytes(dims, n)
        if view.nbytes != size:
            raise StoredFileError(f"{n} tokens take {size} bytes, found {view.nbytes}")
        reader = _Reader(view, _HEAD.size)
        tokens = reader.take((n,), "<u4")
        if int(tokens.max()) >= n_vocab:
            raise StoredFileError(f"token {int(tokens.max())} is outside the vocabulary of {n_vocab}")
        logits = reader.take((n_vocab,), "<f4").astype(np.float32)
        counts, index_counts = reader.take((n_layer,), "<u4"), reader.take((n_layer,), "<u4")
        layers = []
        for number, ratio in enumerate(dims.ratios):
            rows = n // ratio if ratio else 0
            if int(counts[number]) != rows or int(index_counts[number]) != (rows if ratio == _INDEXED else 0):
                raise StoredFileError(
                    f"layer {number} has {counts[number]} rows and {index_counts[number]} of the indexer, {rows} "
                    f"of each kind follow from {n} tokens"
                )
            if rows > capacity:
                raise StoredFileError(f"layer {number} has {rows} rows, more than the capacity {capacity}")
            arrays = [reader.take(s, "<f4").astype(np.float32) for s in _shapes(dims, ratio, live, rows)]
            layers.append(LayerState(*arrays))
        return cls(n_ctx, chunk, ring, capacity, tokens.tolist(), logits, layers)


def _shapes(dims: Dims, ratio: int, live: int, rows: int) -> list[tuple[int, ...]]:
    out: list[tuple[int, ...]] = [(live, dims.head_dim)]
    for width in _widths(dims, ratio):
        out += [(rows, width), group_shape(ratio, width), group_shape(ratio, width)]
    return out


def _raw(array: Floats, shape: tuple[int, ...]) -> bytes:
    if array.shape != shape:
        raise ValueError(f"an array has the shape {array.shape}, {shape} is expected")
    return np.ascontiguousarray(array, dtype="<f4").tobytes()


class _Reader:
    """Takes arrays one behind the other from bytes whose number was checked."""

    def __init__(self, view: memoryview, offset: int) -> None:
        self._view, self._offset = view, offset

    def take(self, shape: tuple[int, ...], dtype: str) -> NDArray[np.generic]:
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(self._view, dtype=dtype, count=count, offset=self._offset)
        self._offset += 4 * count
        return array.reshape(shape)
