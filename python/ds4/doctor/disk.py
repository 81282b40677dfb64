"""How fast the disk under a model is read, the way streamed experts are: large pieces at places far apart, several at
once.

The page cache is left out: it would tell the speed of the memory.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

PIECE = 4 << 20
_DEPTH = 4
_MOST_SECONDS = 1.0
_MOST_BYTES = 512 << 20
_WRITTEN = 64 << 20
_ROOM_LEFT = 1 << 30


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """What was measured.

    Attributes
    ----------
    path : str
        The file or folder.
    free_bytes : int
        Room on that disk.
    read_bytes : int
        How much was read; 0 when nothing could be.
    seconds : float
        For how long.
    direct : bool
        Whether the page cache was certainly not asked.
    problem : str
        Why nothing was measured, or "".
    """

    path: str
    free_bytes: int
    read_bytes: int = 0
    seconds: float = 0.0
    direct: bool = False
    problem: str = ""

    @property
    def bytes_per_second(self) -> float:
        """The speed; 0 when nothing was read."""
        return self.read_bytes / self.seconds if self.seconds > 0 else 0.0


def measure_disk(path: Path, *, most_seconds: float = _MOST_SECONDS, most_bytes: int = _MOST_BYTES) -> DiskFacts:
    """Read for a second at most.

    Parameters
    ----------
    path : Path
        A file, or a folder: then 64 MiB are written to a nameless file in it first, if there is room. The nearest
        folder that exists counts.
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        room = os.statvfs(path)
    except OSError as error:
        return DiskFacts(str(path), 0, problem=error.strerror or str(error))
    free = room.f_bavail * room.f_frsize
    try:
        if path.is_file():
            return _read(path, path, free, most_seconds, most_bytes)
        if free < _WRITTEN + _ROOM_LEFT:
            return DiskFacts(str(path), free, problem="there is no room to write a file to read")
        with tempfile.NamedTemporaryFile(prefix=".ds4-doctor-", dir=path) as f:
            block = os.urandom(1 << 20)
            for _ in range(_WRITTEN >> 20):
                f.write(block)
            f.flush()
            os.fsync(f.fileno())
            return _read(Path(f.name), path, free, most_seconds, most_bytes)
    except OSError as error:
        return DiskFacts(str(path), free, problem=error.strerror or str(error))


def _read(file: Path, shown: Path, free: int, most_seconds: float, most_bytes: int) -> DiskFacts:
    direct = getattr(os, "O_DIRECT", 0)
    try:
        fd = os.open(file, os.O_RDONLY | direct)
        if direct:
            os.preadv(fd, [mmap.mmap(-1, 4096)], 0)
    except OSError:  # this file system has no direct reads
        fd, direct = os.open(file, os.O_RDONLY), 0
    try:
        size = os.fstat(fd).st_size
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        n_pieces = max(size // PIECE, 1)
        step = next(s for s in (7919, 104_729, 1) if n_pieces % s)  # prime to the number: every piece comes once
        begin = time.perf_counter()

        def work(first: int) -> int:
            buffer, done = mmap.mmap(-1, PIECE), 0
            for i in range(first, n_pieces, _DEPTH):
                if time.perf_counter() - begin > most_seconds or done * _DEPTH > most_bytes:
                    break
                done += os.preadv(fd, [buffer], i * step % n_pieces * PIECE)
            return done

        with ThreadPoolExecutor(_DEPTH) as pool:
            total = sum(pool.map(work, range(_DEPTH)))
        return DiskFacts(str(shown), free, total, time.perf_counter() - begin, bool(direct))
    finally:
        os.close(fd)
