"""The directory of a store: names, locks, new files, files put aside.

::

    DIR/                      mode 0700 when ds4 makes it
      <64 hex digits>.state   what a key leads to
      <64 hex digits>.rows    rows of a range of tokens
      lock                    held (flock) while names appear and vanish
      index/                  the SQLite index, which can be made anew from the files
      tmp/                    files being written, each locked by its writer
      quarantine/             files that were damaged

Several processes may use one directory. A file appears under its name whole and on the disk; it never changes after
that. Whoever reads it holds a shared lock on it, and only files without one are deleted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ds4.gguf_writer import sync_directory

from .format import Content

__all__ = ["Directory", "Temporary"]

_FILE = re.compile(r"([0-9a-f]{64})\.(state|rows)")
_PIECE = 1 << 24
_MODE = 0o600
_MOST_ASIDE = 64
_PATIENCE = 30.0
_SETTLED_NS = 100_000_000  # time stamps of a file system may be some 10 ms coarse


@dataclass(slots=True)
class Temporary:
    """A file that is written and on the disk, but has no name in the store yet. Its lock tells that it is in use."""

    path: Path
    fd: int
    n_bytes: int
    inode: int

    def close(self) -> None:
        """Remove the file unless it has been named, and let go of it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            os.close(fd)


class Directory:
    """The files of a store.

    Parameters
    ----------
    path : Path
        Made, with mode 0700, when it does not exist.
    read_only : bool
        Change nothing.

    Raises
    ------
    OSError
        The directory does not exist and cannot be made, or is none.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.tmp, self.index, self.aside = path / "tmp", path / "index", path / "quarantine"
        self.problem: OSError | None = None
        self._lock_fd: int | None = None
        self._threads = threading.RLock()
        self._depth = 0
        if not read_only:
            try:
                self._prepare()
            except OSError as error:
                # A store that cannot be written can still be read.
                if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM) or not path.is_dir():
                    raise
                self.problem = error
                self._close_lock()
        self.read_only = read_only or self.problem is not None
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))

    def _prepare(self) -> None:
        for directory in (self.path, self.tmp, self.index, self.aside):
            if not directory.is_dir():
                directory.mkdir(mode=0o700, parents=directory is self.path, exist_ok=True)
        self._lock_fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
        # Permissions alone do not tell: root may write where the file system does not let anybody.
        self.write_temporary([b""]).close()

    def _close_lock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def close(self) -> None:
        """Let go of the directory."""
        self._close_lock()

    # Locks

    @contextlib.contextmanager
    def locked(self, seconds: float = _PATIENCE) -> Iterator[None]:
        """Keep other threads and processes from changing names.

        Who needs `Holdings.mutex` as well takes it inside, or waits here for a moment only.

        Raises
        ------
        TimeoutError
            Another process held the lock all the time; perhaps it was stopped.
        """
        deadline = time.monotonic() + seconds
        if not self._threads.acquire(timeout=seconds):
            raise self._waited(seconds)
        try:
            if self._lock_fd is not None and self._depth == 0:
                self._wait_for(self._lock_fd, deadline, seconds)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._lock_fd is not None and self._depth == 0:
                    fcntl.flock(self._lock_fd, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def _wait_for(self, fd: int, deadline: float, seconds: float) -> None:
        pause = 0.0005
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise self._waited(seconds) from None
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def _waited(self, seconds: float) -> TimeoutError:
        why = f"another process has held the lock of the store for {seconds:g} s"
        return TimeoutError(errno.ETIMEDOUT, why, str(self.path / "lock"))

    # Names

    def file(self, name: str, kind: str) -> Path:
        """Return the path of a file; kind is "state" or "rows"."""
        return self.path / f"{name}.{kind}"

    def stamp(self) -> tuple[int, bool]:
        """Return what changes when a name appears or vanishes, and whether it will change at the next one.

        Two changes within the resolution of the file system's clock look like one.
        """
        changed = os.stat(self.path).st_mtime_ns
        return changed, abs(time.time_ns() - changed) > _SETTLED_NS

    def names(self) -> dict[tuple[str, str], int]:
        """Return the inode of every file of the store by (name, kind)."""
        with os.scandir(self.path) as entries:
            return {(m[1], m[2]): e.inode() for e in entries if (m := _FILE.fullmatch(e.name))}

    # New files

    def write_temporary(self, content: Content) -> Temporary:
        """Write a file and have its bytes on the disk.

        Raises
        ------
        OSError
            It could not be written, for example because the disk is full; nothing is left.
        """
        made = self._new_temporary()
        try:
            for piece in content:
                view = memoryview(piece).cast("B")
                while view.nbytes:
                    done = os.write(made.fd, view[:_PIECE])
                    made.n_bytes += done
                    view = view[done:]
            os.fsync(made.fd)
        except OSError as error:
            made.close()
            raise OSError(error.errno, os.strerror(error.errno or 0), str(self.path)) from error
        except BaseException:
            made.close()
            raise
        return made

    def _new_temporary(self) -> Temporary:
        while True:
            path = self.tmp / f"{os.getpid()}-{os.urandom(8).hex()}"
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH)
                # Between the two calls a process that starts may have taken the file for one left behind.
                found = os.fstat(fd)
                if found.st_nlink:
                    return Temporary(path, fd, 0, found.st_ino)
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def publish(self, made: Temporary, name: str, kind: str) -> None:
        """Give a temporary file its name. The caller holds the lock, and calls `sync` when all are named."""
        os.replace(made.path, self.file(name, kind))
        made.path = self.file(name, kind)
        fd, made.fd = made.fd, -1
        os.close(fd)

    def sync(self) -> None:
        """Have the names on the disk."""
        sync_directory(self.path)

    def remove_stale(self) -> int:
        """Remove what writers that died have left in tmp/, and nothing that somebody is writing."""
        removed = 0
        with os.scandir(self.tmp) as entries:
            found = [e.path for e in entries if e.is_file(follow_symlinks=False)]
        for path in found:
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path)
                    removed += 1
                finally:
                    os.close(fd)
        return removed

    # Files that go

    def claim(self, name: str, kind: str) -> int | None:
        """Lock a file that is to be deleted. The caller holds the lock of the directory.

        Returns
        -------
        int or None
            A descriptor for `delete` or `os.close`; -1 when the file is gone already; None when somebody reads it.
        """
        try:
            fd = os.open(self.file(name, kind), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return -1
        except OSError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return None
        return fd

    def delete(self, name: str, kind: str, claimed: int) -> bool:
        """Delete a claimed file, let go of it, and return whether it is gone."""
        if claimed < 0:
            return True
        try:
            os.unlink(self.file(name, kind))
        except FileNotFoundError:
            return True
        except OSError:
            return False
        finally:
            os.close(claimed)
        return True

    def put_aside(self, name: str, kind: str) -> Path | None:
        """Move a file to the quarantine and return its new path, or None when it is gone or cannot be moved."""
        target = self.aside / f"{name}.{kind}.{time.time_ns()}"
        try:
            os.rename(self.file(name, kind), target)
        except OSError:
            return None
        with contextlib.suppress(OSError):
            self.sync()
        return target

    def quarantined(self) -> list[tuple[Path, int, int]]:
        """Return (path, bytes, time of the last change in ns) of the files put aside, the oldest first."""
        out = []
        with contextlib.suppress(OSError), os.scandir(self.aside) as entries:
            for e in entries:
                with contextlib.suppress(OSError):
                    found = e.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        out.append((Path(e.path), found.st_size, found.st_ctime_ns))
        return sorted(out, key=lambda f: (f[2], f[0]))

    def trim_quarantine(self, most_bytes: int) -> None:
        """Delete the oldest files put aside until the others take at most that many bytes and are not many."""
        files = self.quarantined()
        n_bytes = sum(size for _, size, _ in files)
        for left, (path, size, _) in zip(range(len(files), 0, -1), files, strict=True):
            if n_bytes <= most_bytes and left <= _MOST_ASIDE:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            n_bytes -= size
