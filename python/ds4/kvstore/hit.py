"""A state that was found, held so that nobody deletes it until it is released."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ds4 import ContextFullError, SnapshotError

from .codec import StoredSession, session_settings
from .errors import StoreDamageError, StoredFileError
from .files import boundaries, read_rows
from .format import StoredFile
from .records import Entry, RowsEntry

if TYPE_CHECKING:
    from .store import KVStore

__all__ = ["Hit"]


class Hit:
    """A stored state whose key is a prefix of the one that was looked up. Made by `KVStore.lookup`.

    Release it after loading; a with block does.

    Attributes
    ----------
    entry : Entry
        Facts of the state.
    key : bytes
        Its key.
    tokens : list of int
        Its tokens.
    tool_blocks : dict
        Exact texts of tool calls, by call id.
    """

    def __init__(
        self,
        store: KVStore,
        entry: Entry,
        state: StoredFile,
        rows: list[tuple[StoredFile, RowsEntry]],
        content: tuple[bytes, list[int], dict[str, str]],
    ) -> None:
        self.entry = entry
        self.key, self.tokens, self.tool_blocks = content
        self._store = store
        self._state: StoredFile | None = state
        self._rows = rows
        self._data: tuple[list[bytearray], bytearray] | None = None

    @property
    def n_tokens(self) -> int:
        """Positions of the state."""
        return self.entry.n_tokens

    def read(self) -> None:
        """Read and check what `load` needs; may run in another thread, before it.

        Raises
        ------
        StoreDamageError
            The state cannot be used; it was put aside.
        """
        if self._state is None:
            raise ValueError("the hit was released")
        if self._data is not None:
            return
        digests = boundaries(self.entry, self.tokens)
        blobs: list[bytearray] = []
        for file, rows in self._rows:
            with self._checked(file, rows.name, "rows"):
                blobs.append(read_rows(file, rows, digests))
        with self._checked(self._state, self.entry.name, "state"):
            self._data = (blobs, self._state.read("TAIL"))

    @contextlib.contextmanager
    def _checked(self, file: StoredFile, name: str, kind: str) -> Iterator[None]:
        try:
            yield
        except (StoredFileError, OSError) as error:
            self._store.put_aside(name, kind, str(error))
            raise StoreDamageError(str(error), path=file.path) from error

    def load(self, session: StoredSession) -> int:
        """Bring a session to the state and return its positions; what follows is bit-identical.

        Raises
        ------
        StoreDamageError
            A file is damaged, or the session refused it. It was put aside and is never tried again; the session is
            unchanged, unless the text says otherwise.
        ContextFullError
            The session has no room for it.
        ValueError
            The session has another model or other settings than the state.
        """
        if session.model.fingerprint != self.entry.model or session_settings(session) != self.entry.settings:
            raise ValueError("the session has another model or other settings than the stored state")
        if self.n_tokens > session.n_ctx:
            raise ContextFullError(
                f"the stored state has {self.n_tokens} positions, the session has room for {session.n_ctx}"
            )
        self.read()
        assert self._data is not None
        rows, tail = self._data
        try:
            session.import_state(self.tokens, rows, tail)
        except SnapshotError as error:
            raise self.reject(f"the session refused it: {error}") from error
        if session.tokens != self.tokens:
            raise self.reject("the session holds other tokens after loading it; reset the session")
        self._store.note_hit(self)
        return self.n_tokens

    def reject(self, why: str) -> StoreDamageError:
        """Put the state and its rows aside, because what was loaded proved to be of no use; return an error to raise.

        Parameters
        ----------
        why : str
            For the log and the text of the error.
        """
        path = str(self._store.path / f"{self.entry.name}.state")
        for _, rows in self._rows:
            self._store.put_aside(rows.name, "rows", why)
        self._store.put_aside(self.entry.name, "state", why)
        return StoreDamageError(why, path=path)

    def release(self) -> None:
        """Let go of the files. Releasing again does nothing."""
        state, self._state = self._state, None
        self._data = None
        if state is not None:
            state.close()
            for file, _ in self._rows:
                file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
