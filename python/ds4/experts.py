"""Expert streaming: how a model reads routed experts that are not in memory, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["ExpertBlock", "ExpertRecorder", "ExpertStats", "ExpertUse", "ReadOptions"]

_IO = {"auto": 0, "io_uring": 1, "threads": 2}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How files are read for streaming.

    Attributes
    ----------
    io : {"auto", "io_uring", "threads"}
        io_uring where the system has it, else threads that wait for their reads; or one of them.
    depth : int
        Reads under way at a time, 1..1024; with threads, their number.
    piece_bytes : int
        Longer reads are cut into pieces of this size, which are read side by side; a multiple of 4096.
    cached : bool
        Read through the page cache even where the file system could do without.
    guess : bool
        Read experts that the next layer is guessed to need, where guesses were right often enough to pay.
    """

    io: Literal["auto", "io_uring", "threads"] = "auto"
    depth: int = 16
    piece_bytes: int = 1 << 20
    cached: bool = False
    guess: bool = True

    def numbers(self) -> tuple[int, int, int, bool]:
        """Return the values that the core takes, checked for what it could not tell from its defaults."""
        if self.io not in _IO:
            raise ValueError(f"io must be one of {', '.join(_IO)}, not {self.io!r}")
        if not 1 <= self.depth <= 1024:
            raise ValueError(f"depth must be in 1..1024, not {self.depth}")
        if not 4096 <= self.piece_bytes <= 1 << 30:
            raise ValueError(f"piece_bytes must be in 4096..{1 << 30}, not {self.piece_bytes}")
        return _IO[self.io], self.depth, self.piece_bytes, bool(self.cached)


@dataclass(frozen=True, slots=True)
class ExpertBlock:
    """What one block asked of the cache. An expert counts once for every chunk that needs it.

    Attributes
    ----------
    n_experts, expert_bytes : int
        Routed experts of the block, and the size of one in the file.
    asked : int
        How often experts were needed: hits + late + misses.
    hits, late, misses : int
        They were in memory; were being read already; had to be read.
    prefetched : int
        Experts whose reads were begun before anyone asked for them.
    evicted : int
        Experts that gave their place to others.
    read_bytes, wait_ns : int
        Bytes that were read, and nanoseconds that computations waited.
    guessed, guessed_right : int
        Guesses of experts that the next layer would need and that were not in memory, and those that it did need. They
        are read ahead only where the last guesses of their rank were right often enough to pay.
    """

    n_experts: int
    expert_bytes: int
    asked: int
    hits: int
    late: int
    misses: int
    prefetched: int
    evicted: int
    read_bytes: int
    wait_ns: int
    guessed: int
    guessed_right: int


@dataclass(frozen=True, slots=True)
class ExpertStats:
    """The expert cache of a model, since it was opened.

    Attributes
    ----------
    n_slots, slot_bytes : int
        Places for one expert each.
    n_blocks, n_experts : int
        Blocks with routed experts (layers, then the MTP block), and experts of all blocks.
    resident_bytes : int
        All other weights, which are always in memory.
    reads, read_bytes, failed_reads : int
        Reads of the files; those of the other weights count too.
    read_ns, busy_ns : int
        Sum of the times of all reads, and the time while any was under way.
    read_depth, read_io : int, str
        Reads under way at a time, and "io_uring" or "threads".
    blocks : tuple of ExpertBlock
        The figures of each block.
    """

    n_slots: int
    slot_bytes: int
    n_blocks: int
    n_experts: int
    resident_bytes: int
    reads: int
    read_bytes: int
    failed_reads: int
    read_ns: int
    busy_ns: int
    read_depth: int
    read_io: str
    blocks: tuple[ExpertBlock, ...]

    def total(self, name: str) -> int:
        """Return the sum of a field of `blocks` ("hits", "misses", ...)."""
        return sum(int(getattr(block, name)) for block in self.blocks)

    @property
    def hit_rate(self) -> float:
        """Part of the needed experts that were in memory, 0 when none was needed."""
        asked = self.total("asked")
        return self.total("hits") / asked if asked else 0.0

    @property
    def read_speed(self) -> float:
        """Bytes a second while anything was being read."""
        return self.read_bytes / (self.busy_ns * 1e-9) if self.busy_ns else 0.0


@dataclass(frozen=True, slots=True)
class ExpertUse:
    """What streamed experts cost one session.

    Attributes
    ----------
    asked, hits, late, misses, read_bytes, wait_ns : int
        As those of `ExpertBlock`; `read_bytes` is the size of its misses.
    file_bytes, file_ns : int
        Of the model, whoever the reads were for: bytes that were read, and the time while there were reads.
    """

    asked: int
    hits: int
    late: int
    misses: int
    read_bytes: int
    wait_ns: int
    file_bytes: int = 0
    file_ns: int = 0

    def minus(self, earlier: ExpertUse) -> ExpertUse:
        """Return what came after an earlier state."""
        return ExpertUse(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))

    def plus(self, other: ExpertUse) -> ExpertUse:
        """Return the sum of two."""
        return ExpertUse(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def hit_rate(self) -> float:
        """Part of the needed experts that were in memory, 0 when none was needed."""
        return self.hits / self.asked if self.asked else 0.0

    @property
    def read_speed(self) -> float:
        """What the disk gave: bytes a second while there were reads, 0 when there were none."""
        return self.file_bytes / (self.file_ns * 1e-9) if self.file_ns else 0.0

    def describe(self) -> str:
        """Return the figures as a part of a line."""
        speed = f" at {self.read_speed / 1e9:.2f} GB/s" if self.misses and self.read_speed else ""
        return (
            f"experts: {100 * self.hit_rate:.1f} % of {self.asked} in memory, {self.misses} read "
            f"({self.read_bytes / 1e6:.1f} MB{speed}), {self.wait_ns * 1e-9:.2f} s waited"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the figures as an object for machines."""
        return {
            "asked": self.asked,
            "hits": self.hits,
            "late": self.late,
            "misses": self.misses,
            "hit_rate": round(self.hit_rate, 6),
            "read_bytes": self.read_bytes,
            "wait_ms": round(self.wait_ns * 1e-6, 3),
            "file_bytes": self.file_bytes,
            "reading_ms": round(self.file_ns * 1e-6, 3),
            "read_gb_per_s": round(self.read_speed / 1e9, 3) if self.file_ns else None,
        }


def stats_of(native: Any) -> ExpertStats:
    """Collect the figures of a native model that streams."""
    found = native.expert_stats()
    blocks = tuple(ExpertBlock(**native.expert_block(i)) for i in range(found["n_blocks"]))
    return ExpertStats(**found, blocks=blocks)


class ExpertRecorder:
    """Reads what the routers of a model selected; see `Model.record_experts`."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def read(self) -> tuple[NDArray[np.int32], int]:
        """Return what was recorded so far.

        Returns
        -------
        rows : ndarray of int32, shape (n_rows, 1 + n_used)
            The block and the experts of one token there, in the order of the computation.
        lost : int
            Rows that there was no room for.
        """
        data, n, length, lost = self._native.expert_trace()
        return np.frombuffer(data, np.int32).reshape(n, length), lost
