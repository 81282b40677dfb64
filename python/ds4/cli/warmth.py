"""The expert cache begins with what was used last time, and what is used this time is remembered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ds4 import Model
from ds4.hotness import hotness_file, read_hotness, write_hotness

from .terminal import ProgressLine, describe, note


@contextmanager
def warmed_up(model: Model) -> Iterator[None]:
    """Read the experts that earlier runs used most; remember at the end, however it comes, what was used.

    A file that cannot be used or written is told of, and the work goes on without it.

    Raises
    ------
    OSError
        An expert cannot be read.
    """
    try:
        path = hotness_file(model.fingerprint)
    except RuntimeError as error:
        note(f"warning: which experts are used is not remembered: {error}")
        yield
        return
    _load(model)
    try:
        yield
    finally:
        if model.expert_stats().total("asked"):
            try:
                write_hotness(path, model.fingerprint, model.expert_heat())
            except OSError as error:
                note(f"warning: which experts were used is not remembered: {describe(error)}")


def _load(model: Model) -> None:
    try:
        path = hotness_file(model.fingerprint)
        heat = read_hotness(path, model.fingerprint, model.expert_stats().n_experts)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        note(f"which experts were used before is not known: {describe(error)}")
        return
    model.set_expert_heat(heat)
    n = int(np.count_nonzero(heat))
    line = ProgressLine("reading experts", "experts")
    try:
        model.preload_experts(n, progress=line)
    finally:
        line.finish()
