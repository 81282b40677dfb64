"""A state that was taken from a session and is to be written; the session may go on meanwhile."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from .records import Entry
from .saving import Parts, close_all

if TYPE_CHECKING:
    from .store import KVStore

__all__ = ["Staged"]


class Staged:
    """Bytes of a state, in memory. Made by `KVStore.stage`; `commit` writes them, in any thread.

    Attributes
    ----------
    entry : Entry
        What the state will be.
    n_bytes : int
        Bytes to be written; 0 when the state is stored already.
    """

    def __init__(self, store: KVStore, parts: Parts) -> None:
        self.entry, self.n_bytes = parts.entry, parts.n_bytes
        self._store = store
        self._parts: Parts | None = parts

    def commit(self) -> Entry | None:
        """Write the state, once. Returns what `KVStore.save` does.

        Raises
        ------
        ValueError
            It was written or discarded.
        """
        if self._parts is None:
            raise ValueError("the state was written or discarded")
        try:
            return self._store.commit(self._parts)
        finally:
            self.discard()

    def discard(self) -> None:
        """Let go of everything without writing."""
        parts, self._parts = self._parts, None
        if parts is not None:
            close_all(parts.pins)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()
