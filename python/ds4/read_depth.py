"""How many reads at a time a disk wants: measured once for each file system, and remembered in a file.

The file is JSON: `format`, `version`, and under `disks` for each file system and size of reads (`disk_key`) the depth,
the bytes a second that it gave, and when that was measured (seconds since 1970).
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .experts import ReadOptions
from .model_experts import measure_reads
from .user_cache import user_cache, write_private

__all__ = ["ReadDepth", "choose_depth", "depth_file", "disk_key", "measure_depth", "read_depths", "remember_depth"]

DEPTHS = (1, 2, 4, 8, 16, 32, 64)
_ENOUGH = 0.95  # of the best speed: reads of one depth differ by some percent from time to time
_ROUNDS = 2
_SECONDS = 0.6
_WHOLE = 1 << 30  # smaller files are measured for less time

_FORMAT, _VERSION = "ds4-read-depth", 1
_MOST_DISKS = 64
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ReadDepth:
    """What was found out about a file system.

    Attributes
    ----------
    depth : int
        Reads under way at a time.
    speed : float
        Bytes a second that they gave.
    """

    depth: int
    speed: float


# Measuring


def choose_depth(speeds: dict[int, float]) -> ReadDepth:
    """Return the smallest depth whose speed is close to the best; more reads at a time only make each one wait longer.

    Parameters
    ----------
    speeds : dict of int to float
        Bytes a second by depth.
    """
    best = max(speeds.values())
    return next(ReadDepth(depth, speed) for depth, speed in sorted(speeds.items()) if speed >= _ENOUGH * best)


def measure_depth(
    path: str | os.PathLike[str],
    n_bytes: int,
    *,
    reads: ReadOptions | None = None,
    seconds: float = _SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> ReadDepth:
    """Read a file at several depths, from random places, and return the depth to use.

    Takes about `seconds`, for small files less. Nothing is written.

    Parameters
    ----------
    path : path-like
        A file of the file system.
    n_bytes : int
        Size of a read.
    reads : ReadOptions, optional
        How to read; its depth is not looked at.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        It is empty.
    BackendUnavailableError
        io_uring was asked for and the system has none.
    """
    reads = reads or ReadOptions()
    size = os.stat(path).st_size
    if not size:
        raise ValueError(f"{os.fsdecode(path)} is empty")
    n_bytes = min(n_bytes, size)
    seconds *= min(1.0, max(0.2, size / _WHOLE))
    pieces = -(-n_bytes // reads.piece_bytes)
    end = clock() + seconds
    share = seconds / (_ROUNDS * len(DEPTHS))
    found: dict[int, float] = {}
    fastest = 0.0
    for i in range(_ROUNDS):
        # To and fro, so that a disk that is busy for a while does not make one end of the list look slow.
        for depth in DEPTHS[:: 1 if i % 2 == 0 else -1]:
            count = max(2 * -(-depth // pieces), math.ceil(share * fastest / n_bytes), 2)
            if fastest and clock() + count * n_bytes / fastest > end:
                continue
            speed = measure_reads(path, n_bytes, count, reads=replace(reads, depth=depth), seed=i * 1024 + depth)
            found[depth] = max(found.get(depth, 0.0), speed)
            fastest = max(fastest, speed)
    return choose_depth(found)


# Remembering


def depth_file() -> Path:
    """Return the name of the file, in the user's cache directory.

    Raises
    ------
    RuntimeError
        The user has no home directory.
    """
    return user_cache() / "disks.json"


def disk_key(path: str | os.PathLike[str], n_bytes: int, reads: ReadOptions | None = None) -> str:
    """Return what the depth depends on, as text: the file system of a file, and how it is read.

    Reads that are longer than a piece are all of a kind; of shorter ones the power of two counts.

    Raises
    ------
    OSError
        There is no such file.
    """
    reads = reads or ReadOptions()
    found = os.statvfs(path)
    # The number of the device changes from start to start on some systems, and the size of some file systems varies.
    which = f"{found.f_fsid:x}" if found.f_fsid else f"dev{os.stat(path).st_dev:x}"
    size = (found.f_blocks * found.f_frsize).bit_length()
    length = max(1, min(n_bytes, reads.piece_bytes)).bit_length()
    return f"{which}-{size}-{length}-{reads.io}{'-cached' if reads.cached else ''}"


def read_depths(path: Path) -> dict[str, ReadDepth]:
    """Return what a file remembers, by `disk_key`.

    Raises
    ------
    OSError
        It cannot be read; FileNotFoundError when there is none.
    ValueError
        It is damaged or of another version; the text says which.
    """
    return {key: ReadDepth(e["depth"], float(e["bytes_per_second"])) for key, e in _entries(path).items()}


def remember_depth(path: Path, key: str, found: ReadDepth) -> None:
    """Add to a file, or replace what it has under that key; one that is damaged is written anew.

    Raises
    ------
    OSError
        It cannot be written.
    """
    try:
        disks = _entries(path)
    except (FileNotFoundError, ValueError):
        disks = {}
    disks.pop(key, None)
    newest = sorted(disks.items(), key=lambda item: item[1]["measured"])[1 - _MOST_DISKS :]
    entry = {"depth": found.depth, "bytes_per_second": round(found.speed), "measured": int(time.time())}
    content = {"format": _FORMAT, "version": _VERSION, "disks": {**dict(newest), key: entry}}
    write_private(path, (json.dumps(content, indent=1) + "\n").encode())


def _entries(path: Path) -> dict[str, dict[str, Any]]:
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    try:
        content = json.loads(data) if len(data) <= _MOST_BYTES else None
    except (ValueError, RecursionError):  # no UTF-8 is a ValueError too
        content = None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"{path}: damaged, or no file of read depths")
    if content.get("version") != _VERSION:
        raise ValueError(f"{path}: version {content.get('version')!r}; this release reads {_VERSION}")
    disks = content.get("disks")
    if not isinstance(disks, dict) or not all(_sound(entry) for entry in disks.values()):
        raise ValueError(f"{path}: damaged")
    return disks


def _sound(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    depth, speed, measured = (entry.get(name, -1) for name in ("depth", "bytes_per_second", "measured"))
    if not all(type(value) in (int, float) and 0 <= value < 1e18 for value in (speed, measured)):
        return False
    return type(depth) is int and 1 <= depth <= 1024 and bool(speed > 0)
