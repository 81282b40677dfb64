"""One file on its way from the hub to the disk.

`NAME.TAG.part` holds its bytes from the first one on; TAG tells contents apart, so that a file that changed on the hub
is never put together from two. A later run goes on behind what is there. The file gets its name when all bytes are
there and the checksum is right.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ds4.budget import show_size

from .hub import ConnectionBrokenError, DownloadError, RemoteFile

HEAD_PIECE = 16 << 20
"""How much is asked for first: enough to know what a model file is, before days are spent on it."""
_PIECE = 1 << 30
_READ = 8 << 20
_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)

Source = Callable[[int, int], Iterator[bytes]]
Report = Callable[[int, int], None]


class Transfer:
    """The download of a file.

    Parameters
    ----------
    remote : RemoteFile
        What to get.
    target : Path
        The final name.
    source : callable
        Called with (begin, end), yields bytes of the file from `begin` on, see `read_from`.
    pause : callable
        Called with seconds before another attempt.

    Raises
    ------
    OSError
        The folder cannot be written, or another process downloads the same file.
    """

    def __init__(
        self, remote: RemoteFile, target: Path, source: Source, *, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self.remote, self.target = remote, target
        self.part = part_path(target, remote)
        self._source, self._pause = source, pause
        self._fd = _open_locked(self.part)
        self.n_bytes = os.fstat(self._fd).st_size
        if self.n_bytes > remote.n_bytes:
            os.ftruncate(self._fd, 0)
            self.n_bytes = 0
        self.resumed = self.n_bytes
        self._hash = hashlib.sha256()

    def check_room(self) -> None:
        """Check that the rest fits on the disk.

        Raises
        ------
        OSError
            It does not; the text says how much is missing.
        """
        room = os.fstatvfs(self._fd)
        free, needed = room.f_bavail * room.f_frsize, self.remote.n_bytes - self.n_bytes
        if free < needed:
            raise DownloadError(
                f"{self.target.parent}: {show_size(needed)} are still to come and {show_size(free)} are free on this "
                f"disk; make room, or choose another folder with --dir"
            )

    def read_back(self, report: Report) -> None:
        """Add what an earlier run left to the checksum."""
        done = 0
        while done < self.n_bytes:
            piece = os.pread(self._fd, min(_READ, self.n_bytes - done), done)
            if not piece:
                raise OSError(errno.EIO, "the file became shorter while it was read", str(self.part))
            self._hash.update(piece)
            done += len(piece)
            report(done, self.n_bytes)

    def run(self, report: Report, check_head: Callable[[Path], None]) -> None:
        """Get the rest, check everything and give the file its name.

        Parameters
        ----------
        report : callable
            Called with (done, total), in bytes.
        check_head : callable
            Called once with the unfinished file, when its first `HEAD_PIECE` bytes are there; may raise.

        Raises
        ------
        DownloadError
            The hub refuses, the connection broke for good, or the checksum is wrong.
        OSError
            The disk is full or fails.
        """
        total, failures, checked = self.remote.n_bytes, 0, False
        while True:
            if not checked and self.n_bytes >= min(HEAD_PIECE, total):
                check_head(self.part)
                checked = True
            if self.n_bytes == total:
                break
            before = self.n_bytes
            end = min(HEAD_PIECE, total) if before < HEAD_PIECE else min(before + _PIECE, total)
            try:
                for piece in self._source(before, end):
                    self._append(piece)
                    report(self.n_bytes, total)
            except ConnectionBrokenError as error:
                failures = failures + 1 if self.n_bytes == before else 1
                if failures > len(_PAUSES):
                    raise DownloadError(
                        f"{error}; tried {failures} times without a byte. What is there stays in {self.part}, and the "
                        "same command goes on from there"
                    ) from None
                self._pause(_PAUSES[failures - 1])
        self._finish()

    def _append(self, piece: bytes) -> None:
        rest = memoryview(piece)
        try:
            while rest:
                n = os.pwrite(self._fd, rest, self.n_bytes)
                self._hash.update(rest[:n])
                self.n_bytes += n
                rest = rest[n:]
        except OSError as error:
            raise OSError(
                error.errno, f"{os.strerror(error.errno or 0)} after {show_size(self.n_bytes)} of "
                f"{show_size(self.remote.n_bytes)}; what is there stays, and the same command goes on from there",
                str(self.part),
            ) from None  # fmt: skip

    def _finish(self) -> None:
        found = self._hash.hexdigest()
        if self.remote.sha256 is not None and found != self.remote.sha256:
            self.discard()
            raise DownloadError(
                f"{self.target.name}: the SHA-256 of what came is {found}, the hub says {self.remote.sha256}; it was "
                "removed, and the same command begins again"
            )
        os.fsync(self._fd)
        os.replace(self.part, self.target)
        folder = os.open(self.target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def discard(self) -> None:
        """Remove what there is."""
        with contextlib.suppress(OSError):
            self.part.unlink()

    def close(self) -> None:
        """Let go of the file; what there is stays, unless there is nothing."""
        if self._fd >= 0:
            if not self.n_bytes:
                self.discard()
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Transfer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def part_path(target: Path, remote: RemoteFile) -> Path:
    """Return where a file is kept until it is complete."""
    tag = hashlib.sha256(f"{remote.etag} {remote.n_bytes}".encode()).hexdigest()[:12]
    return target.with_name(f"{target.name}.{tag}.part")


def other_parts(target: Path, remote: RemoteFile) -> list[Path]:
    """Return unfinished files of the same name and of other contents."""
    mine, head = part_path(target, remote).name, target.name + "."
    try:
        found = [p for p in target.parent.iterdir() if p.name.startswith(head) and p.name.endswith(".part")]
    except OSError:
        return []
    return sorted(p for p in found if p.name != mine)


def has_content(path: Path, remote: RemoteFile, report: Report) -> bool:
    """Whether a file has the size and the checksum that the hub tells (the size alone, if it tells none)."""
    if path.stat().st_size != remote.n_bytes:
        return False
    if remote.sha256 is None:
        return True
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as f:
        while piece := f.read(_READ):
            digest.update(piece)
            done += len(piece)
            report(done, remote.n_bytes)
    return digest.hexdigest() == remote.sha256


def _open_locked(path: Path) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except BlockingIOError:
            os.close(fd)
            raise OSError(errno.EBUSY, "another process is downloading this file", str(path)) from None
        except FileNotFoundError:
            pass  # the other process finished before the lock was ours
        os.close(fd)
