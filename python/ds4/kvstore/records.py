"""What the store knows of a file: the facts of its META section.

A *state* is what one key leads to: tokens, the part of the session that only its end has (`TAIL`), and the names of
the *rows* files that hold the rest, as consecutive ranges of positions from 0. Rows belong to tokens, not to a key:
all states whose tokens begin alike share them.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

from .errors import StoredFileError

__all__ = ["Entry", "Reason", "RowsEntry", "RowsRef", "context_of", "decode_meta", "rows_name", "state_name"]

Reason = Literal["cold", "continued", "evict", "shutdown"]
"""Why a state was stored: the start of a prompt nobody had computed, a point on the way, a session that made room,
the end of the program."""

REASONS: tuple[str, ...] = get_args(Reason)
MAX_META = 1 << 24
MAX_POSITIONS = 1 << 31
MAX_CHAIN = 4096
MAX_CALL_ID = 256
_NAME = re.compile(r"[0-9a-f]{64}")


def context_of(model: bytes, settings: bytes) -> bytes:
    """Return the digest of a model and its settings: states of different ones never meet."""
    return hashlib.sha256(struct.pack("<II", len(model), len(settings)) + model + settings).digest()


def state_hash(context: bytes) -> hashlib._Hash:
    """Return the hash that becomes a state's name once the key has been fed to it."""
    return hashlib.sha256(b"state" + context)


def state_name(context: bytes, key: bytes) -> str:
    """Return the name of the state with a key."""
    found = state_hash(context)
    found.update(key)
    return found.hexdigest()


def rows_name(context: bytes, before: str, digest: str) -> str:
    """Return the name of the rows between two token prefixes, given by their digests."""
    return hashlib.sha256(b"rows" + context + bytes.fromhex(before) + bytes.fromhex(digest)).hexdigest()


@dataclass(frozen=True, slots=True)
class RowsRef:
    """A rows file as a state names it: the positions it covers and its length in bytes."""

    name: str
    start: int
    stop: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class RowsEntry:
    """A rows file.

    Attributes
    ----------
    name : str
        File name without its ending, 64 hex digits.
    model, settings : bytes
        What computed the rows.
    start, stop : int
        Positions (start, stop].
    before, digest : str
        SHA-256 of the first `start` and the first `stop` tokens, as little-endian int32.
    n_bytes : int
        Length of the file.
    created : float
        Unix time.
    """

    name: str
    model: bytes
    settings: bytes
    start: int
    stop: int
    before: str
    digest: str
    n_bytes: int
    created: float

    @property
    def context(self) -> bytes:
        """Digest of model and settings."""
        return context_of(self.model, self.settings)

    @property
    def ref(self) -> RowsRef:
        """The form in which states name it."""
        return RowsRef(self.name, self.start, self.stop, self.n_bytes)

    def meta(self) -> bytes:
        """Return the META section."""
        return _dump({
            "kind": "rows", "model": self.model.hex(), "settings": self.settings.hex(), "start": self.start,
            "stop": self.stop, "before": self.before, "digest": self.digest, "created": self.created,
        })  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored state.

    Attributes
    ----------
    name : str
        File name without its ending, 64 hex digits: SHA-256 over model, settings and key.
    model, settings : bytes
        What computed it.
    n_tokens, n_key : int
        Positions of the state; bytes of its key.
    digest : str
        SHA-256 of the tokens, as little-endian int32.
    reason : str
        Why it was stored.
    rows : tuple of RowsRef
        Consecutive ranges from 0 to n_tokens.
    calls : tuple of str
        Ids of the tool calls whose exact text it holds.
    n_bytes : int
        Length of the file, without its rows files.
    created, last_used : float
        Unix times; they are equal until the state, or one that begins with it, is used.
    hits : int
        How often it was loaded.
    """

    name: str
    model: bytes
    settings: bytes
    n_tokens: int
    n_key: int
    digest: str
    reason: Reason
    rows: tuple[RowsRef, ...]
    calls: tuple[str, ...]
    n_bytes: int
    created: float
    last_used: float = 0.0
    hits: int = 0

    @property
    def context(self) -> bytes:
        """Digest of model and settings."""
        return context_of(self.model, self.settings)

    @property
    def total_bytes(self) -> int:
        """Length of the file and its rows files, which other states may share."""
        return self.n_bytes + sum(r.n_bytes for r in self.rows)

    def used(self, hits: int, last_used: float) -> Self:
        """Return the entry with other figures of its use."""
        return replace(self, hits=hits, last_used=max(last_used, self.created))

    def meta(self) -> bytes:
        """Return the META section."""
        return _dump({
            "kind": "state", "model": self.model.hex(), "settings": self.settings.hex(), "tokens": self.n_tokens,
            "key": self.n_key, "digest": self.digest, "reason": self.reason, "created": self.created,
            "rows": [[r.name, r.start, r.stop, r.n_bytes] for r in self.rows], "calls": list(self.calls),
        })  # fmt: skip


def _dump(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def decode_meta(name: str, data: bytes | bytearray, n_bytes: int) -> Entry | RowsEntry:
    """Read a META section.

    Parameters
    ----------
    name : str
        File name without its ending.
    data : bytes
        The section.
    n_bytes : int
        Length of the file.

    Raises
    ------
    StoredFileError
        A field is missing or holds what cannot be.
    """
    try:
        facts = json.loads(data)
        if not isinstance(facts, dict):
            raise ValueError("no object")
        return _rows(name, facts, n_bytes) if facts["kind"] == "rows" else _state(name, facts, n_bytes)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoredFileError(f"damaged: facts that cannot be: {error}") from error


def _rows(name: str, facts: Mapping[str, Any], n_bytes: int) -> RowsEntry:
    entry = RowsEntry(
        name=_hex64(name), model=bytes.fromhex(facts["model"]), settings=bytes.fromhex(facts["settings"]),
        start=_count(facts["start"]), stop=_count(facts["stop"]), before=_hex64(facts["before"]),
        digest=_hex64(facts["digest"]), n_bytes=n_bytes, created=_time(facts["created"]),
    )  # fmt: skip
    if not entry.start < entry.stop or rows_name(entry.context, entry.before, entry.digest) != name:
        raise ValueError("positions or digests do not fit the name")
    return entry


def _state(name: str, facts: Mapping[str, Any], n_bytes: int) -> Entry:
    if facts["kind"] != "state" or facts["reason"] not in REASONS:
        raise ValueError("kind or reason")
    if type(facts["rows"]) is not list or type(facts["calls"]) is not list:
        raise ValueError("rows or calls")
    rows = tuple(RowsRef(_hex64(n), _count(a), _count(b), _count(size)) for n, a, b, size in facts["rows"])
    calls = tuple(facts["calls"])
    if not all(isinstance(c, str) and 0 < len(c.encode("utf-8", "surrogatepass")) <= MAX_CALL_ID for c in calls):
        raise ValueError("calls")
    entry = Entry(
        name=_hex64(name), model=bytes.fromhex(facts["model"]), settings=bytes.fromhex(facts["settings"]),
        n_tokens=_count(facts["tokens"]), n_key=_count(facts["key"]), digest=_hex64(facts["digest"]),
        reason=facts["reason"], rows=rows, calls=calls, n_bytes=n_bytes, created=_time(facts["created"]),
        last_used=_time(facts["created"]),
    )  # fmt: skip
    at = 0
    for ref in rows:
        if ref.start != at or ref.stop <= at:
            raise ValueError("ranges of rows are not consecutive")
        at = ref.stop
    if len(rows) > MAX_CHAIN or at != entry.n_tokens or not entry.n_tokens or not entry.n_key:
        raise ValueError("rows, tokens or key")
    return entry


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r} is no count")
    return value


def _time(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e12:
        raise ValueError(f"{value!r} is no time")
    return float(value)


def _hex64(value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"{value!r} is no name")
    return value
