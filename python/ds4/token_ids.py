"""Token ids as callers give them, made into one array and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Tokens", "as_ids"]

Tokens = Sequence[int] | NDArray[Any]
"""Token ids: a list or tuple of int, a numpy integer array of one dimension, or an `array`."""


def as_ids(tokens: int | Tokens, n_vocab: int) -> NDArray[np.int32]:
    """Return token ids as a contiguous int32 array of one dimension, each checked to be in [0, n_vocab).

    Raises
    ------
    ValueError
        There is no token, or an id is out of range; the text names its index.
    TypeError
        Something is no integer.
    """
    if isinstance(tokens, (bool, str, bytes, bytearray)) or not (
        hasattr(tokens, "__len__") or isinstance(tokens, (int, np.integer))
    ):
        raise TypeError(f"tokens must be a sequence of int, not {type(tokens).__name__}")
    if isinstance(tokens, (int, np.integer)):
        tokens = (int(tokens),)
    found = np.asarray(tokens)
    if found.ndim != 1:
        raise TypeError(f"tokens must be one sequence of int, not an array of shape {found.shape}")
    if found.size == 0:
        raise ValueError("there are no tokens; at least one is needed")
    if found.dtype.kind not in "iu":
        # Also reached by integers too large for any dtype, which are ids out of range.
        for i, token in enumerate(tokens):
            if isinstance(token, (bool, np.bool_)) or not isinstance(token, (int, np.integer)):
                raise TypeError(f"tokens[{i}] must be int, not {type(token).__name__}")
            if not 0 <= token < n_vocab:
                raise ValueError(f"tokens[{i}] is {token}, which is not in 0..{n_vocab - 1}")
        found = np.array([int(token) for token in tokens])
    bad = np.flatnonzero((found < 0) | (found >= n_vocab))
    if bad.size:
        raise ValueError(f"tokens[{bad[0]}] is {found[bad[0]]}, which is not in 0..{n_vocab - 1}")
    return np.ascontiguousarray(found, dtype=np.int32)
