"""The state of a session as arrays, in the order in which files of other programs have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .model import Shape

__all__ = ["LayerState", "State", "join_arrays", "split_values"]

Floats = NDArray[np.float32]
_INDEXED = 4  # the ratio of layers that have an indexer, and whose groups overlap


@dataclass(frozen=True, slots=True)
class LayerState:
    """State of one layer at a position, float32; n positions, ratio r, head dimension D, indexer dimension I.

    Attributes
    ----------
    window : ndarray, shape (min(n, window), D)
        Rows of the last positions, the oldest first. The oldest of a full window is 0: no later position sees it.
    rows : ndarray, shape (n // r, D), or None
        Compressed rows; None when r = 0, as all that follows.
    group, scores : ndarray, shape (128, D), or for r = 4 (8, 2 D)
        What the compressor holds of the open group: values, and scores with the position's bias added. Row i is
        position i of the group; for r = 4 the closed group comes first, the open one behind it. 0 and -1e30 where there
        is no position.
    index_rows, index_group, index_scores : ndarray or None
        The same of the indexer, with I for D; None unless r = 4.
    """

    window: Floats
    rows: Floats | None = None
    group: Floats | None = None
    scores: Floats | None = None
    index_rows: Floats | None = None
    index_group: Floats | None = None
    index_scores: Floats | None = None

    def arrays(self) -> list[Floats]:
        """Return what there is, in the order of the fields."""
        fields = (
            self.window, self.rows, self.group, self.scores, self.index_rows, self.index_group, self.index_scores
        )  # fmt: skip
        return [a for a in fields if a is not None]


@dataclass(frozen=True, slots=True)
class State:
    """A state, without the MTP block.

    Attributes
    ----------
    tokens : list of int
        The ids of all positions.
    logits : ndarray of float32, shape (n_vocab,)
        Scores of the next token.
    layers : sequence of LayerState
        One a layer.
    """

    tokens: list[int]
    logits: Floats
    layers: Sequence[LayerState]


def _layer_shapes(shape: Shape, n: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the shapes of the arrays of each layer at a position."""
    for ratio in shape.compress_ratio:
        out = [(min(n, shape.window), shape.head_dim)]
        if ratio:
            c = 2 if ratio == _INDEXED else 1
            for dim in (shape.head_dim, shape.index_dim)[: 2 if ratio == _INDEXED else 1]:
                out += [(n // ratio, dim), (c * ratio, c * dim), (c * ratio, c * dim)]
        yield out


def split_values(shape: Shape, tokens: list[int], values: Floats) -> State:
    """Return the arrays that lie one behind the other in `values`, as views."""
    at = shape.n_vocab
    layers = []
    for wanted in _layer_shapes(shape, len(tokens)):
        arrays = []
        for rows, width in wanted:
            arrays.append(values[at : at + rows * width].reshape(rows, width))
            at += rows * width
        layers.append(LayerState(*arrays))
    return State(tokens, values[: shape.n_vocab], layers)


def join_arrays(shape: Shape, state: State) -> Floats:
    """Return the arrays one behind the other.

    Raises
    ------
    ValueError
        One has not the shape that follows from the tokens; the text names it.
    """
    n = len(state.tokens)
    parts = [_checked("logits", state.logits, (shape.n_vocab,))]
    if len(state.layers) != shape.n_layer:
        raise ValueError(f"the state has {len(state.layers)} layers, the model has {shape.n_layer}")
    for number, (layer, wanted) in enumerate(zip(state.layers, _layer_shapes(shape, n), strict=True)):
        arrays = layer.arrays()
        if len(arrays) != len(wanted):
            raise ValueError(f"layer {number} has {len(arrays)} arrays, its ratio asks for {len(wanted)}")
        parts += [
            _checked(f"array {i} of layer {number}", array, dims)
            for i, (array, dims) in enumerate(zip(arrays, wanted, strict=True))
        ]
    return np.concatenate(parts)


def _checked(name: str, array: Floats, wanted: tuple[int, ...]) -> Floats:
    if array.shape != wanted:
        raise ValueError(f"{name} has the shape {array.shape}, {wanted} is wanted")
    return np.ascontiguousarray(array, dtype=np.float32).reshape(-1)
