"""How the state of a session becomes the sections of files, and back. The only place that knows the session."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["StoredSession", "export_rows", "export_tail", "import_state", "session_settings", "session_tokens"]


class _Model(Protocol):
    @property
    def fingerprint(self) -> bytes: ...


class StoredSession(Protocol):
    """What the store needs of a `ds4.Session`."""

    @property
    def model(self) -> Any: ...
    @property
    def n_ctx(self) -> int: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def qat(self) -> bool: ...
    @property
    def rows(self) -> str: ...
    @property
    def activations(self) -> str: ...
    @property
    def mtp(self) -> bool: ...
    def snapshot(self) -> bytes: ...
    def restore(self, snapshot: ReadableBuffer) -> None: ...


def session_settings(session: StoredSession) -> bytes:
    """Return the settings that decide a session's state, in one fixed form: JSON with sorted keys.

    Sessions of one model whose settings are equal may load each other's states.
    """
    facts: dict[str, Any] = {
        "activations": session.activations, "mtp": session.mtp, "qat": session.qat, "rows": session.rows,
    }  # fmt: skip
    steering = getattr(session, "steering_key", None)
    if steering:
        facts["steering"] = steering.hex() if isinstance(steering, bytes) else str(steering)
    return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode("ascii")


def session_tokens(tokens: Sequence[int]) -> bytes:
    """Return token ids as little-endian int32."""
    return np.asarray(tokens, dtype="<i4").tobytes()


def export_rows(session: StoredSession, start: int, stop: int) -> bytes | None:
    """Return the rows of the positions (start, stop], or None when the tail holds everything."""
    export = getattr(session, "export_rows", None)
    return None if export is None else export(start, stop)


def export_tail(session: StoredSession, at: int | None) -> bytes:
    """Return what only the end of the state has; `at` is the position, None is the present one."""
    export = getattr(session, "export_tail", None)
    if export is not None:
        tail: bytes = export(at)
        return tail
    if at is not None and at != len(session.tokens):
        raise ValueError(f"position {at} is not the end of the session, which is {len(session.tokens)}")
    return session.snapshot()


def import_state(
    session: StoredSession, tokens: list[int], rows: Sequence[ReadableBuffer], tail: ReadableBuffer
) -> None:
    """Bring a session to a stored state.

    Raises
    ------
    SnapshotError
        The session refuses it. It is unchanged.
    """
    bring = getattr(session, "import_state", None)
    if bring is not None:
        bring(tokens, rows, tail)
    else:
        session.restore(tail)
