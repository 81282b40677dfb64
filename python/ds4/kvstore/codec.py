"""What the store needs of a session: its parts, and the settings that decide whether two fit each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["StoredSession", "session_settings", "session_tokens"]


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
    def export_rows(self, start: int, stop: int) -> bytes: ...
    def export_tail(self, at: int | None = None) -> bytes: ...
    def import_state(self, tokens: Any, rows: Any, tail: ReadableBuffer) -> Any: ...


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
