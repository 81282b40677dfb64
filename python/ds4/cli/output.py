"""A file that a diagnostic writes at its end, after work that may have taken hours."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self


class OutputFile:
    """A file to be written, opened before the work so that what is wrong with it is known at once.

    A regular file gets its name when it is complete; until then the text is in a temporary one beside it, and an older
    file of that name stays as it is. Devices and pipes are written directly, and ``-`` is standard output.

    Parameters
    ----------
    path : Path
        Where to write.

    Raises
    ------
    OSError
        It cannot be written; the error names it, as it does in `write`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._temporary: Path | None = None
        with self._named():
            self._open()

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return "standard output" if str(self.path) == "-" else str(self.path)

    def write(self, text: str) -> None:
        """Write the whole text and give the file its name."""
        with self._named():
            if self._fd is None:
                sys.stdout.write(text)
                sys.stdout.flush()
                return
            fd, self._fd = self._fd, None
            with open(fd, "w", encoding="utf-8") as f:
                f.write(text)
                if self._temporary is not None:
                    f.flush()
                    os.fsync(fd)
            if self._temporary is not None:
                self._temporary.replace(os.path.realpath(self.path))
                self._temporary = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd is not None:
            os.close(self._fd)
        if self._temporary is not None:
            with contextlib.suppress(OSError):
                self._temporary.unlink()

    def _open(self) -> None:
        if str(self.path) == "-":
            return
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            mode = None
        else:
            if os.path.samestat(found, os.fstat(1)):
                return  # /dev/stdout
            if not stat.S_ISREG(found.st_mode):
                self._fd = os.open(self.path, os.O_WRONLY)
                return
            if not os.access(self.path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            mode = stat.S_IMODE(found.st_mode)
        target = Path(os.path.realpath(self.path))  # a link stays one
        temporary = target.with_name(f".ds4-{os.getpid()}-{os.urandom(4).hex()}")
        self._fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._temporary = temporary
        if mode is not None:
            with contextlib.suppress(OSError):
                os.fchmod(self._fd, mode)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            if error.errno is None:
                raise
            raise OSError(error.errno, os.strerror(error.errno), self.name) from error
