"""A state with all its rows in one file, to be carried to another store.

The file has the form of the store's own files (`ds4.kvstore.format`). Its section META names the state; the others
are whole files: ``STAT`` the state, then ``R000``, ``R001``, ... (hexadecimal) its rows in their order.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ds4.gguf_writer import sync_directory

from .errors import StoredFileError
from .files import check_whole, read_meta
from .format import Content, StoredFile, encode
from .records import MAX_META, Entry, RowsEntry
from .saving import Parts

__all__ = ["read_bundle", "write_bundle"]

MAX_ROWS = 0x1000


def write_bundle(path: Path, entry: Entry, state: bytes, rows: Sequence[bytes], *, force: bool = False) -> int:
    """Write a state and its rows as one file, readable for its owner only, and return its length; it appears whole.

    Parameters
    ----------
    path : Path
        The new file.
    entry : Entry
        The state.
    state : bytes
        Its file.
    rows : sequence of bytes
        Its files of rows.
    force : bool
        Replace a file of that name.

    Raises
    ------
    FileExistsError
        There is a file of that name, and `force` is not set.
    OSError
        It cannot be written; nothing is left.
    """
    facts = json.dumps({"kind": "export", "state": entry.name}).encode("ascii")
    numbered = [(f"R{n:03x}", data) for n, data in enumerate(rows)]
    content = encode([("META", facts), ("STAT", state), *numbered])
    if path.exists() and not force:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    try:
        return _write(path, content)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def _write(path: Path, content: Content) -> int:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as f:
            n_bytes = sum(f.write(piece) for piece in content)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(path.parent)
    return n_bytes


def read_bundle(path: Path) -> Parts:
    """Read what `write_bundle` wrote, to be committed to a store; every byte is checked.

    Raises
    ------
    StoredFileError
        It is damaged, or is none.
    OSError
        It cannot be read.
    """
    with contextlib.closing(StoredFile(path)) as file:
        tags = list(file.sections)
        if tags[:2] != ["META", "STAT"] or tags[2:] != [f"R{n:03x}" for n in range(len(tags) - 2)]:
            raise StoredFileError("not an exported state: it has other sections")
        try:
            name = json.loads(file.read("META", MAX_META))["state"]
            entry, state = _inner(file, "STAT", str(name), "state")
            assert isinstance(entry, Entry)
            if len(tags) - 2 != len(entry.rows):
                raise StoredFileError("damaged: it has not all rows of the state")
            rows: list[tuple[RowsEntry, Content]] = []
            for tag, ref in zip(tags[2:], entry.rows, strict=True):
                found, data = _inner(file, tag, ref.name, "rows")
                assert isinstance(found, RowsEntry)
                if found.ref != ref or found.context != entry.context:
                    raise StoredFileError("damaged: the rows are not those of the state")
                rows.append((found, [data]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if isinstance(error, StoredFileError):
                raise
            raise StoredFileError(f"damaged: facts that cannot be: {error}") from error
    return Parts(entry, [state], rows)


def _inner(file: StoredFile, tag: str, name: str, kind: str) -> tuple[Entry | RowsEntry, bytes]:
    """Check a file inside the file, and return it."""
    data = bytes(file.read(tag))
    with contextlib.closing(StoredFile(file.path, file.sections[tag])) as inner:
        entry = read_meta(inner, name, kind)
        check_whole(inner, entry)
    return entry, data
