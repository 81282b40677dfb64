"""Intermediate values of prompts as arrays, for research and for steering."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .session import Session
from .token_ids import Tokens, as_ids

__all__ = ["At", "activations"]

Floats = NDArray[np.float32]
At = Literal["last", "mean", "all"]


def activations(
    session: Session,
    prompts: Sequence[Tokens],
    stage: str,
    layers: Collection[int] | None,
    at: At,
    progress: Callable[[int, int], object] | None,
) -> list[Floats]:
    """Return a stage of layers for each of some prompts; see `Model.activations`.

    The session ends at the last prompt, and without a tap. Its steering acts.

    Returns
    -------
    list of ndarray, shape (n_layers, width), or (n_tokens, n_layers, width) with at="all"
    """
    n_layer = session.model.shape.n_layer
    most = n_layer + (stage == "streams")
    wanted = list(range(n_layer)) if layers is None else [operator.index(layer) for layer in layers]
    if not wanted or not all(0 <= layer < most for layer in wanted):
        raise ValueError(f"layers of {stage} are 0..{most - 1}, not {wanted}")
    if at not in ("last", "mean", "all"):
        raise ValueError(f"at must be last, mean or all, not {at!r}")
    ids = [as_ids(prompt, session.n_vocab) for prompt in prompts]
    out = []
    for done, tokens in enumerate(ids):
        if progress is not None:
            progress(done, len(ids))
        if at == "last":  # all before it may be kept from the prompt before
            if len(tokens) > 1:
                session.sync(tokens[:-1])
            else:
                session.reset()
            rows = _observed(session, tokens[-1:], stage, wanted)[0]
        else:
            session.reset()
            rows = _observed(session, tokens, stage, wanted)
            if at == "mean":
                kept = rows[1:] if len(rows) > 1 else rows
                rows = kept.mean(axis=0, dtype=np.float64).astype(np.float32)
        out.append(rows)
    if progress is not None:
        progress(len(ids), len(ids))
    return out


def _observed(session: Session, tokens: NDArray[np.int32], stage: str, layers: list[int]) -> Floats:
    """Evaluate tokens and return the rows that a tap sees, (n_tokens, n_layers, width)."""
    seen: dict[int, list[Floats]] = {layer: [] for layer in layers}

    def tap(stage: str, layer: int, pos: int, values: Floats) -> None:
        if layer in seen:
            seen[layer].append(values)

    session.set_tap(tap, stages=(stage,))
    try:
        session.eval(tokens)
    finally:
        session.set_tap(None)
    return np.stack([np.concatenate(seen[layer]) for layer in layers], axis=1)
