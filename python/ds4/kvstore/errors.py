"""The exceptions of the store."""

from __future__ import annotations

from ds4 import DS4Error

__all__ = ["StoreDamageError", "StoredFileError"]


class StoreDamageError(DS4Error, ValueError):
    """A stored state cannot be used: damaged, cut short, gone, or refused by the session.

    It was put aside, so that it is not tried again; go on without it.

    Attributes
    ----------
    path : str or None
        The file.
    """

    def __init__(self, message: str = "", *, path: str | None = None) -> None:
        super().__init__(message if path is None or path in message else f"{path}: {message}")
        self.path = path


class StoredFileError(DS4Error, ValueError):
    """A file is not a sound file of the store: a wrong checksum, length, or field; the text says which."""
