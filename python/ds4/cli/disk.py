"""How many reads at a time: what was asked for, what is remembered of the disk, or what is measured now."""

from __future__ import annotations

import time
from pathlib import Path

from ds4 import ReadOptions
from ds4.read_depth import ReadDepth, depth_file, disk_key, measure_depth, read_depths, remember_depth

from .terminal import describe, note

__all__ = ["best_reads"]


def best_reads(path: Path, n_bytes: int, asked: int | None) -> ReadOptions:
    """Return how to read a file in reads of `n_bytes`; measures its disk when that was not done before.

    What keeps that from being remembered is told, and the work goes on without it.

    Raises
    ------
    OSError
        There is no such file.
    """
    if asked is not None:
        return ReadOptions(depth=asked)
    key = disk_key(path, n_bytes)
    try:
        memory = depth_file()
    except RuntimeError as error:
        note(f"warning: the disk is not measured, that could not be remembered: {error}")
        return ReadOptions()
    try:
        known = read_depths(memory).get(key)
    except FileNotFoundError:
        known = None
    except (OSError, ValueError) as error:
        note(f"how the disk is best read is not known: {describe(error)}")
        known = None
    if known is None:
        known = _measured(path, n_bytes, memory, key)
    return ReadOptions() if known is None else ReadOptions(depth=known.depth)


def _measured(path: Path, n_bytes: int, memory: Path, key: str) -> ReadDepth | None:
    start = time.monotonic()
    try:
        found = measure_depth(path, n_bytes)
    except (OSError, ValueError) as error:
        note(f"warning: the disk could not be measured: {describe(error)}")
        return None
    note(
        f"the disk of {path} gives {found.speed / 1e9:.2f} GB/s with {found.depth} reads at a time "
        f"(measured once, in {time.monotonic() - start:.1f} s)"
    )
    try:
        remember_depth(memory, key, found)
    except OSError as error:
        note(f"warning: how the disk is best read is not remembered: {describe(error)}")
    return found
