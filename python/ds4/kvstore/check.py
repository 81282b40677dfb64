"""Checking the files of a store without opening it: nothing is changed, and no index is believed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .directory import Directory
from .errors import StoredFileError
from .files import verify
from .records import Entry

__all__ = ["Finding", "check_files"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a file.

    Attributes
    ----------
    name, kind : str
        Name without ending; "state" or "rows".
    path : Path
        The file.
    problem : str
        What is wrong.
    damaged : bool
        Whether the file itself is: else what it needs is missing, or it could not be read.
    """

    name: str
    kind: str
    path: Path
    problem: str
    damaged: bool


def check_files(directory: Path) -> Iterator[tuple[str, Finding | None]]:
    """Read every file of a store to the last byte, and yield (file name, what is wrong with it or None).

    Raises
    ------
    OSError
        The directory cannot be read.
    """
    files = Directory(directory, read_only=True)
    names = files.names()
    for name, kind in sorted(names):
        path = files.file(name, kind)
        finding = None
        try:
            entry = verify(path)
            if isinstance(entry, Entry):
                missing = [r.name for r in entry.rows if (r.name, "rows") not in names]
                if missing:
                    finding = Finding(name, kind, path, f"its rows {missing[0][:12]} are missing", False)
        except StoredFileError as error:
            finding = Finding(name, kind, path, str(error), True)
        except FileNotFoundError:
            continue  # deleted meanwhile
        except OSError as error:
            finding = Finding(name, kind, path, str(error), False)
        yield path.name, finding
