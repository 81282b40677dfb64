"""A table that is written row by row, so that an interrupted run keeps what it has measured."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path
from types import TracebackType
from typing import Self


class RowFile:
    """Lines of text that are in the file as soon as they are written; the file only ever holds whole lines.

    It is opened at once, so that what is wrong with it is known before the work, but an older file of the name keeps
    its content until the first line comes. Without a path the lines go to standard output.

    Parameters
    ----------
    path : Path or None
        Where to write.

    Raises
    ------
    OSError
        It cannot be written; the error names it, as it does in `write`.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = None if path is None or str(path) == "-" else path
        self._fd: int | None = None
        self._is_new = self._is_regular = False
        self._length = 0
        if self._path is None:
            return
        try:
            self._is_new = not self._path.exists()
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)
            self._is_regular = stat.S_ISREG(os.fstat(self._fd).st_mode)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), str(self._path)) from None

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return "standard output" if self._path is None else str(self._path)

    def write(self, line: str) -> None:
        """Write one line."""
        data = (line.encode("utf-8", "backslashreplace").decode() + "\n").encode()
        if self._fd is None:
            sys.stdout.write(data.decode())
            sys.stdout.flush()
            return
        try:
            if self._is_regular and not self._length:
                os.ftruncate(self._fd, 0)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            if self._is_regular:
                with contextlib.suppress(OSError):  # half a line tells wrong numbers
                    os.ftruncate(self._fd, self._length)
                    os.lseek(self._fd, self._length, os.SEEK_SET)
            raise OSError(error.errno, os.strerror(error.errno or 0), self.name) from None
        self._length += len(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd is None:
            return
        os.close(self._fd)
        if self._is_new and self._is_regular and not self._length and self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
