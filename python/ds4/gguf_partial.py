"""A GGUF file on its way, and the journal that lets an interrupted write go on where it stopped.

`NAME.part` has the layout of the final file. `NAME.part.journal` is text: a line that identifies the work, then one
line for every tensor that is whole, with the CRC-32 of its payload. A later write with the same identity reads the
finished tensors back and believes only what matches: neither a torn line nor a disk that lost power can leave a
damaged tensor behind.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

_PIECE = 8 * 1024 * 1024


def partial_path(path: Path) -> Path:
    """Return where the unfinished form of a file is kept."""
    return path.with_name(path.name + ".part")


def partial_bytes(path: Path) -> int:
    """Return the bytes on the disk that an unfinished form of this file takes already."""
    try:
        return os.stat(partial_path(path)).st_blocks * 512
    except OSError:
        return 0


class PartialFile:
    """The unfinished form of one file, locked against other processes.

    Parameters
    ----------
    path : Path
        The final name.
    header : bytes
        The directory of the file.
    payloads : sequence of (int, int)
        Offset and size of every payload.
    key : str
        What the payloads depend on besides the directory.

    Attributes
    ----------
    n_done : int
        Number of leading tensors that are whole.

    Raises
    ------
    OSError
        Another process is writing the file, or the directory is not writable.
    """

    def __init__(self, path: Path, header: bytes, payloads: Sequence[tuple[int, int]], key: str) -> None:
        self.path = partial_path(path)
        self.n_done = 0
        self._journal = self.path.with_name(self.path.name + ".journal")
        self._identity = hashlib.sha256(header + key.encode()).hexdigest()
        self._fd: int | None = None
        self._open_locked()
        try:
            self._read_back(header, payloads)
        except BaseException:
            self.close()
            raise

    def open(self) -> int:
        """Return a descriptor of the file for writing, its position at the start; the caller closes it."""
        assert self._fd is not None
        if not self.n_done:
            os.ftruncate(self._fd, 0)
            self._journal.write_text(json.dumps({"identity": self._identity}) + "\n", encoding="ascii")
        fd = os.dup(self._fd)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def note_done(self, index: int, crc: int) -> None:
        """Record that the payload of a tensor was handed to the operating system whole."""
        with open(self._journal, "a", encoding="ascii") as f:
            f.write(json.dumps({"tensor": index, "crc": crc}) + "\n")

    def close(self) -> None:
        """Let go of the file, keeping what is finished; a file without a finished tensor is removed."""
        if self._fd is None:
            return
        if not self._records():
            self.discard()
            return
        os.close(self._fd)
        self._fd = None

    def discard(self) -> None:
        """Remove the file and its journal."""
        for path in (self._journal, self.path):
            with contextlib.suppress(OSError):
                path.unlink()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open_locked(self) -> None:
        while self._fd is None:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _has_name(fd, self.path):  # else a writer finished and took the name away before the lock was ours
                    fd, self._fd = -1, fd
            except BlockingIOError:
                raise OSError(errno.EBUSY, "another process is writing this file", str(self.path)) from None
            finally:
                if fd >= 0:
                    os.close(fd)

    def _records(self) -> list[int]:
        """CRCs of the finished tensors by the journal, in order; none when it is of other work."""
        try:
            lines = self._journal.read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):
            return []
        out: list[int] = []
        for i, line in enumerate(lines):
            try:
                record = json.loads(line)
                if i == 0 and record["identity"] != self._identity:
                    return []
                if i and record["tensor"] == i - 1:
                    out.append(record["crc"])
            except (ValueError, KeyError, TypeError):
                break
            if len(out) != i:
                break
        return out

    def _read_back(self, header: bytes, payloads: Sequence[tuple[int, int]]) -> None:
        assert self._fd is not None
        crcs = self._records()[: len(payloads)]
        if not crcs or os.pread(self._fd, len(header), 0) != header:
            return
        for (offset, n_bytes), crc in zip(payloads, crcs, strict=False):
            if _crc_at(self._fd, offset, n_bytes) != crc:
                break
            self.n_done += 1
        # What follows is written again, and the journal goes on behind the tensors that are believed.
        lines = [{"identity": self._identity}] + [{"tensor": i, "crc": crcs[i]} for i in range(self.n_done)]
        self._journal.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="ascii")


def _has_name(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _crc_at(fd: int, offset: int, n_bytes: int) -> int:
    crc = 0
    while n_bytes:
        piece = os.pread(fd, min(_PIECE, n_bytes), offset)
        if not piece:
            return -1
        crc = zlib.crc32(piece, crc)
        offset += len(piece)
        n_bytes -= len(piece)
    return crc
