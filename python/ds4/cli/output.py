"""A file that a diagnostic writes at its end, after work that may have taken hours."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click

_CHECKPOINT_NAMES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


def keep_apart(outputs: Iterable[Path | None], inputs: Iterable[Path | None]) -> None:
    """Check that no file that is read, and none that another option writes, would be replaced by an output.

    Parameters
    ----------
    outputs, inputs : iterables
        Paths of the command line; None and ``-`` do not count, nor do devices and pipes. Of an input that is
        a checkpoint directory the files of the checkpoint count.

    Raises
    ------
    click.UsageError
        Two are the same file, whatever their names.
    """
    read = [p for p in inputs if p is not None]
    written: list[Path] = []
    for path in outputs:
        if path is None or str(path) == "-" or (path.exists() and not path.is_file()):
            continue
        for other in read:
            if _same(path, other) or _is_in_checkpoint(path, other):
                raise click.UsageError(f"{path} is read by this command and would be replaced; write to another file")
        for other in written:
            if _same(path, other):
                raise click.UsageError(f"{path} is the name of two outputs; give each its own")
        written.append(path)


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them does not exist
        return os.path.realpath(one) == os.path.realpath(other)


def _is_in_checkpoint(path: Path, directory: Path) -> bool:
    if path.name not in _CHECKPOINT_NAMES and not path.name.endswith((".safetensors", ".safetensors.index.json")):
        return False
    return directory.is_dir() and path.exists() and _same(path.parent, directory)


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
        """Write the whole text and give the file its name.

        Bytes of file names that are no UTF-8 become escapes that JSON knows: the work is done, and the report of it is
        not lost for a name.
        """
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
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

    def write_json(self, content: Any) -> None:
        """Write a report: JSON, which has no NaN and no infinity."""
        self.write(json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1) + "\n")

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


@contextlib.contextmanager
def report_file(path: Path | None) -> Iterator[OutputFile | None]:
    """Open the file of a report, if one is asked for, before the work begins."""
    if path is None:
        yield None
        return
    with OutputFile(path) as file:
        yield file
