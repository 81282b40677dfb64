"""A state that was taken from a session and is to be written; the session may go on meanwhile."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from .format import Content, StoredFile, n_bytes_of
from .records import Entry, RowsEntry

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
        Bytes to be written.
    """

    def __init__(
        self,
        store: KVStore,
        entry: Entry,
        state: Content,
        rows: tuple[RowsEntry, Content] | None,
        pins: list[StoredFile],
        superseded: list[str],
        *,
        replace: bool = False,
    ) -> None:
        self.entry = entry
        self.state: Content = state
        self.rows = rows
        self.superseded = superseded
        self.replace = replace
        self.n_bytes = n_bytes_of(state) + (n_bytes_of(rows[1]) if rows else 0)
        self._store = store
        self._pins = pins

    def commit(self) -> Entry | None:
        """Write the state. Returns what `KVStore.save` does."""
        try:
            return self._store.commit(self)
        finally:
            self.discard()

    def discard(self) -> None:
        """Let go of everything without writing."""
        pins, self._pins = self._pins, []
        for file in pins:
            file.close()
        self.state, self.rows = [], None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()
