"""Directions that commands steer by: their files and scales."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ds4 import Model, Steering, SteeringDirections

from .settings import Settings


def load_steering(
    model: Model, files: Sequence[Path], ffn: Sequence[float] = (), attn: Sequence[float] = ()
) -> tuple[Steering, ...]:
    """Read direction files that fit a model.

    Parameters
    ----------
    ffn, attn : sequence of float
        Scales: none, one for all files, or one for each. Without any, 1 at the outputs that a direction was made of,
        the FFN's if unknown; with some of them only, the others are 0.

    Raises
    ------
    ValueError, OSError
        As `SteeringDirections.load`.
    """
    shape = model.shape
    out = []
    for i, file in enumerate(files):
        directions = SteeringDirections.load(file, n_layer=shape.n_layer, n_embd=shape.n_embd)
        if ffn or attn:
            scales = [(scales[i] if len(scales) > 1 else scales[0]) if scales else 0.0 for scales in (ffn, attn)]
            out.append(Steering(directions, *scales))
        else:
            out.append(Steering.in_place(directions))
    return tuple(out)


def chosen_steering(model: Model, settings: Settings) -> tuple[Steering, ...]:
    """Return what the options ask for; errors as `load_steering`."""
    return load_steering(model, settings.dir_steering_file, settings.dir_steering_ffn, settings.dir_steering_attn)
