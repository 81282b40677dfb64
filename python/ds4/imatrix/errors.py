"""What is wrong with an importance file or a corpus."""

from __future__ import annotations

from ds4.errors import DS4Error, ModelFileError


class ImatrixError(ModelFileError):
    """An importance file is damaged, is none at all, or belongs to another model.

    Attributes
    ----------
    path : str or None
        The file.
    entry : str or None
        Name of the entry, when it is about one.
    offset : int or None
        Where in the file, in bytes from its start, when that is known.
    """

    def __init__(
        self, message: str = "", *, path: str | None = None, entry: str | None = None, offset: int | None = None
    ) -> None:
        if entry is not None:
            message = f"entry {shown(entry)}: {message}"
        if offset is not None:
            message = f"{message} (at byte {offset})"
        super().__init__(message, path=path, offset=offset)
        self.entry = entry


class CorpusError(DS4Error, ValueError):
    """A file cannot be read as calibration text.

    Attributes
    ----------
    path : str
        The file.
    line : int or None
        Where in it, counted from 1, when that is known.
    """

    def __init__(self, message: str, *, path: str, line: int | None = None) -> None:
        super().__init__(f"{path}{'' if line is None else f', line {line}'}: {message}")
        self.path = path
        self.line = line


def shown(name: str) -> str:
    """Return a name from a file in a form that can be printed."""
    text = name if name.isprintable() else ascii(name)[1:-1]
    return text if len(text) <= 100 else text[:97] + "..."
