"""The two kinds of files: which sections they have, and how far these are checked."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .catalogue import token_digests
from .errors import StoredFileError
from .format import Content, StoredFile, encode
from .records import MAX_CALL_ID, MAX_META, MAX_POSITIONS, Entry, RowsEntry, decode_meta, state_name

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = [
    "boundaries",
    "check_whole",
    "encode_blocks",
    "encode_rows",
    "encode_state",
    "open_entry",
    "read_blocks",
    "read_meta",
    "read_rows",
    "read_state",
    "verify",
]

STATE_SECTIONS = {"META", "KEY ", "TOKS", "CALL", "TAIL"}
ROWS_SECTIONS = {"META", "ROWS"}
MAX_KEY = 1 << 30
MAX_BLOCKS = 1 << 29


def encode_state(entry: Entry, key: ReadableBuffer, tokens: bytes, blocks: bytes, tail: ReadableBuffer) -> Content:
    """Return a state file as pieces."""
    return encode([("META", entry.meta()), ("KEY ", key), ("TOKS", tokens), ("CALL", blocks), ("TAIL", tail)])


def encode_rows(entry: RowsEntry, rows: ReadableBuffer) -> Content:
    """Return a rows file as pieces."""
    return encode([("META", entry.meta()), ("ROWS", rows)])


def encode_blocks(blocks: Mapping[str, str]) -> bytes:
    """Return the exact texts of tool calls by call id; calls that share a text store it once.

    Raises
    ------
    ValueError
        An id is empty or longer than 256 bytes.
    """
    texts = {text: i for i, text in enumerate(dict.fromkeys(blocks.values()))}
    for call in blocks:
        if not 0 < len(call.encode("utf-8", "surrogatepass")) <= MAX_CALL_ID:
            raise ValueError(f"a call id has 1 to {MAX_CALL_ID} bytes, not {call!r}")
    return json.dumps({"texts": list(texts), "calls": {c: texts[t] for c, t in blocks.items()}}).encode("ascii")


def open_entry(path: Path, *, lock: bool = True) -> tuple[StoredFile, Entry | RowsEntry]:
    """Open a file, read what it says of itself, and hold it so that nobody deletes it.

    Raises
    ------
    StoredFileError
        It is damaged.
    OSError
        It is not there, or cannot be read.
    """
    file = StoredFile(path)
    try:
        if lock:
            fcntl.flock(file.fd, fcntl.LOCK_SH)
        return file, read_meta(file, path.stem, path.suffix[1:])
    except BaseException:
        file.close()
        raise


def read_meta(file: StoredFile, name: str, kind: str) -> Entry | RowsEntry:
    """Return what a file says of itself, and check that it has the sections of its kind, "state" or "rows".

    Raises
    ------
    StoredFileError
        It is damaged, or of another kind.
    """
    entry = decode_meta(name, file.read("META", MAX_META), file.n_bytes)
    found, wanted = ("state", STATE_SECTIONS) if isinstance(entry, Entry) else ("rows", ROWS_SECTIONS)
    if set(file.sections) != wanted or found != kind:
        raise StoredFileError("damaged: it has not the sections of its kind")
    return entry


def read_state(file: StoredFile, entry: Entry) -> tuple[bytes, list[int], dict[str, str]]:
    """Return key, tokens and tool calls of a state; all three are checked.

    Raises
    ------
    StoredFileError
        One of them is damaged, or does not fit the name.
    """
    key = bytes(file.read("KEY ", MAX_KEY))
    if len(key) != entry.n_key or state_name(entry.context, key) != entry.name:
        raise StoredFileError("damaged: the key does not fit the name")
    raw = file.read("TOKS", 4 * MAX_POSITIONS)
    if len(raw) != 4 * entry.n_tokens or token_digests(raw, [entry.n_tokens])[entry.n_tokens] != entry.digest:
        raise StoredFileError("damaged: the tokens do not fit their digest")
    return key, np.frombuffer(raw, dtype="<i4").tolist(), read_blocks(file, entry)


def read_blocks(file: StoredFile, entry: Entry) -> dict[str, str]:
    """Return the exact texts of tool calls by call id.

    Raises
    ------
    StoredFileError
        The section is damaged.
    """
    try:
        facts: Any = json.loads(file.read("CALL", MAX_BLOCKS))
        texts, calls = facts["texts"], facts["calls"]
        out = {call: texts[i] for call, i in calls.items()}
        if not all(isinstance(t, str) for t in out.values()) or tuple(out) != entry.calls:
            raise ValueError("calls")
    except StoredFileError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise StoredFileError(f"damaged: tool calls that cannot be: {error}") from error
    return out


def read_rows(file: StoredFile, entry: RowsEntry, digests: Mapping[int, str]) -> bytearray:
    """Return the rows of a file.

    Parameters
    ----------
    file, entry
        From `open_entry`.
    digests : mapping
        Digests of the token prefixes that the rows must begin and end with.

    Raises
    ------
    StoredFileError
        They are damaged, or belong to other tokens.
    """
    if digests.get(entry.start) != entry.before or digests.get(entry.stop) != entry.digest:
        raise StoredFileError("the rows belong to other tokens")
    return file.read("ROWS")


def verify(path: Path) -> Entry | RowsEntry:
    """Read a whole file and check everything that can be checked without a model.

    Raises
    ------
    StoredFileError
        What is wrong.
    OSError
        It cannot be read.
    """
    file, entry = open_entry(path, lock=False)
    try:
        check_whole(file, entry)
    finally:
        file.close()
    return entry


def check_whole(file: StoredFile, entry: Entry | RowsEntry) -> None:
    """Read every section of a file, and check what can be checked without a model.

    Raises
    ------
    StoredFileError
        What is wrong.
    """
    if isinstance(entry, Entry):
        read_state(file, entry)
        file.read("TAIL")
    else:
        file.read("ROWS")


def boundaries(entry: Entry, tokens: Sequence[int]) -> dict[int, str]:
    """Return the digests of the token prefixes where the rows of a state meet."""
    raw = np.asarray(tokens, dtype="<i4").tobytes()
    return token_digests(raw, sorted({0, *(r.stop for r in entry.rows)}))
