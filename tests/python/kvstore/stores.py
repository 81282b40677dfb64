"""The few words that most tests of the store use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ds4.kvstore import Hit, KVStore, session_settings
from support.stored_session import PlainSession


def find(store: KVStore, key: bytes, session: Any = None, n_ctx: int = 1 << 20) -> Hit | None:
    """Look a key up as a session with the usual settings would."""
    session = session or PlainSession()
    return store.lookup(key, model=session.model.fingerprint, settings=session_settings(session), n_ctx=n_ctx)


def load(store: KVStore, key: bytes, session: Any = None) -> int:
    """Look a key up, load it, and return the positions; 0 for a miss."""
    session = session or PlainSession()
    hit = find(store, key, session, session.n_ctx)
    if hit is None:
        return 0
    with hit:
        return hit.load(session)


def files(where: Path) -> dict[str, bytes]:
    """The files of a store and their bytes."""
    return {p.name: p.read_bytes() for p in sorted(where.iterdir()) if p.suffix in (".state", ".rows")}
