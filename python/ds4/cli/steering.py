"""Directions that commands steer by: their files and scales."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ds4 import Model, Steering, SteeringDirections
from ds4.steering import MAX_DIRECTIONS

from .options import FiniteFloat


def load_steering(
    model: Model, files: Sequence[Path], ffn: float | None = None, attn: float | None = None
) -> list[Steering]:
    """Read direction files that fit a model.

    Parameters
    ----------
    ffn, attn : float or None
        Scales of all of them. Without both, 1 at the outputs that a direction was made of, the FFN's if unknown;
        with one of them, the other is 0.

    Raises
    ------
    ValueError, OSError
        As `SteeringDirections.load`.
    """
    if len(files) > MAX_DIRECTIONS:
        raise click.UsageError(f"{len(files)} direction files; at most {MAX_DIRECTIONS} act at a time")
    shape = model.shape
    out = []
    for file in files:
        directions = SteeringDirections.load(file, n_layer=shape.n_layer, n_embd=shape.n_embd)
        if ffn is None and attn is None:
            out.append(Steering.in_place(directions))
        else:
            out.append(Steering(directions, ffn=ffn or 0.0, attn=attn or 0.0))
    return out


scale_type = FiniteFloat(-100.0, 100.0)
"""Of scales on a command line."""
