"""The store: look up, save, make room."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, get_args

from ds4 import ClosedError

from .codec import StoredSession
from .errors import StoreDamageError, StoredFileError
from .files import check_whole, encode_blocks, open_entry, read_blocks, read_state
from .format import StoredFile
from .hit import Hit
from .holdings import Holdings
from .records import Entry, Reason, RowsEntry, context_of
from .retention import Retention
from .saving import NotSavedError, Parts, Saver, close_all
from .staged import Staged
from .transfer import read_bundle, write_bundle

__all__ = ["UNLIMITED", "KVStore", "StoreStats"]

_log = logging.getLogger("ds4.kvstore")

DEFAULT_BUDGET = 4096 << 20
UNLIMITED = 1 << 62
"""A budget that no disk exhausts."""
MAX_CHAIN = 32
_REASONS = get_args(Reason)


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Figures of a store.

    Attributes
    ----------
    states, n_bytes, budget_bytes : int
        States, bytes of all files, and how many these may be.
    quarantined_bytes : int
        Bytes of the files put aside, which do not count for the budget.
    written_today : int
        Bytes written since midnight UTC, by all processes that share the directory.
    lookups, hits, loads, saves, evicted, put_aside, failed_saves : int
        Counts of this process since it opened the store. A save that found its state stored already is none.
    read_only : bool
        Nothing can be written.
    problem : str or None
        Why the last save that failed did.
    """

    states: int
    n_bytes: int
    budget_bytes: int
    quarantined_bytes: int
    written_today: int
    lookups: int
    hits: int
    loads: int
    saves: int
    evicted: int
    put_aside: int
    failed_saves: int
    read_only: bool
    problem: str | None


class KVStore:
    """States of sessions in a directory. May be used from several threads, and the directory from several processes.

    Parameters
    ----------
    directory : path-like
        Made when it does not exist, readable for its owner only; ``~`` is the home directory.
    budget_bytes : int
        What all files together may take.
    daily_write_bytes : int, optional
        What may be written per day (UTC), by all processes.
    retention : Retention
        What goes first when the budget is full.
    max_chain : int
        Most rows files that a state is made of; beyond it the newer half is written anew as one.
    read_only : bool
        Only look up. A directory that cannot be written is used like this, with a warning.

    Raises
    ------
    OSError
        The directory cannot be made or read, is none, or another process has held its lock for 30 s.
    ValueError
        A number is out of range.

    Notes
    -----
    After opening, a fault of the disk or of a file is never an exception, except that `Hit.load` tells of damage: a
    lookup misses, a save returns None, and the log (``ds4.kvstore``) and `stats` say why.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        budget_bytes: int = DEFAULT_BUDGET,
        daily_write_bytes: int | None = None,
        retention: Retention | None = None,
        max_chain: int = MAX_CHAIN,
        read_only: bool = False,
    ) -> None:
        if budget_bytes < 0 or (daily_write_bytes is not None and daily_write_bytes < 0):
            raise ValueError("budget_bytes and daily_write_bytes must be 0 or more")
        if max_chain < 2:
            raise ValueError(f"max_chain must be 2 or more, not {max_chain}")
        self.path = Path(directory).expanduser()
        self._counts = dict.fromkeys(("lookups", "hits", "loads", "saves", "failed_saves"), 0)
        self._problem: str | None = None
        self._closed = False
        self._holdings = Holdings(self.path, budget_bytes, retention or Retention(), read_only=read_only)
        self._saver = Saver(self._holdings, max_chain, daily_write_bytes)

    # Looking up

    def lookup(self, key: bytes, *, model: bytes, settings: bytes, n_ctx: int) -> Hit | None:
        """Find the longest stored key that is a prefix of `key`, and hold its files.

        Parameters
        ----------
        key : bytes
            Key bytes of a prompt.
        model : bytes
            `Model.fingerprint`.
        settings : bytes
            `session_settings` of the session to load into.
        n_ctx : int
            Context of that session. One position must be left to go on.

        Returns
        -------
        Hit or None
            To be released; None when there is no such state.
        """
        with self._holdings.mutex:
            self._check_open()
            self._counts["lookups"] += 1
            try:
                self._holdings.refresh()
            except OSError as error:
                _log.warning("the directory of the store cannot be read: %s", error)
                return None
            for entry in reversed(self._holdings.catalogue.prefixes(context_of(model, settings), key)):
                if entry.n_tokens < n_ctx:
                    hit = self._take(entry, key)
                    if hit is not None:
                        self._counts["hits"] += 1
                        return hit
            return None

    def _take(self, entry: Entry, key: bytes) -> Hit | None:
        """Open all files of a state; None, and the state is forgotten, when one is damaged or gone."""
        opened: list[StoredFile] = []
        name, kind = entry.name, "state"
        try:
            state, facts = open_entry(self._holdings.directory.file(name, kind))
            opened.append(state)
            assert isinstance(facts, Entry)
            content = read_state(state, facts)
            if content[0] != key[: facts.n_key]:
                raise StoredFileError("damaged: another key than its name tells")
            rows: list[tuple[StoredFile, RowsEntry]] = []
            for ref in facts.rows:
                name, kind = ref.name, "rows"
                file, found = open_entry(self._holdings.directory.file(name, kind))
                opened.append(file)
                assert isinstance(found, RowsEntry)
                if (found.start, found.stop, found.context) != (ref.start, ref.stop, facts.context):
                    raise StoredFileError("damaged: other positions than the state tells")
                rows.append((file, found))
        except StoredFileError as error:
            close_all(opened)
            self._holdings.put_aside(name, kind, str(error))
            return None
        except OSError as error:
            close_all(opened)
            _log.warning("a stored state cannot be read, the prompt is computed: %s", error)
            if isinstance(error, FileNotFoundError):
                self._holdings.forget([(name, kind)])
            else:
                self._holdings.refuse(name, kind)
            return None
        except BaseException:
            close_all(opened)
            raise
        return Hit(self, facts.used(entry.hits, entry.last_used), state, rows, content)

    def note_hit(self, hit: Hit) -> None:
        """Count a hit, and the use of every state that its key begins with. Called by `Hit.load`."""
        now = time.time()
        with self._holdings.mutex:
            self._counts["loads"] += 1
            used = self._holdings.catalogue.prefixes(hit.entry.context, hit.key)
            for entry in used:
                self._holdings.catalogue.use(entry.name, entry.hits + (entry.name == hit.entry.name), now)
            if self._holdings.directory.read_only:
                return
            self._holdings.index.touch(hit.entry.name, [e.name for e in used], now)
            for entry in used:
                # What the index knows, for a store whose index is lost.
                with contextlib.suppress(OSError):
                    os.utime(self._holdings.directory.file(entry.name, "state"), (now, now))

    def find_tool_blocks(self, calls: Iterable[str], *, model: bytes) -> dict[str, str]:
        """Return the exact texts of tool calls that states of a model hold, as far as they are known.

        Parameters
        ----------
        calls : iterable of str
            Call ids.
        model : bytes
            `Model.fingerprint`.
        """
        out: dict[str, str] = {}
        with self._holdings.mutex:
            self._check_open()
            with contextlib.suppress(OSError):
                self._holdings.refresh()
            for call in calls:
                if call in out:
                    continue
                for name in sorted(self._holdings.catalogue.calls.get(call, ())):
                    if self._holdings.catalogue.states[name].model != model:
                        continue
                    found = self._blocks_of(name)
                    if call in found:
                        out |= found
                        break
        return out

    def _blocks_of(self, name: str) -> dict[str, str]:
        try:
            file, entry = open_entry(self._holdings.directory.file(name, "state"))
            try:
                assert isinstance(entry, Entry)
                return read_blocks(file, entry)
            finally:
                file.close()
        except StoredFileError as error:
            self._holdings.put_aside(name, "state", str(error))
        except OSError as error:
            _log.warning("tool calls of a stored state cannot be read: %s", error)
        return {}

    def put_aside(self, name: str, kind: str, why: str) -> None:
        """Move a damaged file to the quarantine. Called by `Hit`."""
        self._holdings.put_aside(name, kind, why)

    # Saving

    def save(
        self,
        session: StoredSession,
        key: bytes,
        *,
        reason: Reason,
        at: int | None = None,
        parent: Hit | Entry | None = None,
        tool_blocks: Mapping[str, str] | None = None,
    ) -> Entry | None:
        """Store the state of a session, as far as it is not stored already.

        Parameters
        ----------
        session : Session
            The session; the logits of the position must be there.
        key : bytes
            Key bytes of the prompt that leads to the state.
        reason : {"cold", "continued", "evict", "shutdown"}
            Why.
        at : int, optional
            A checkpoint of the session to store instead of the present position.
        parent : Hit or Entry, optional
            A state that must not be deleted to make room for this one. Rows that are stored already, of this state or
            another, are found by the tokens and not written again, whether it is named or not.
        tool_blocks : mapping, optional
            Exact texts of tool calls, by call id.

        Returns
        -------
        Entry or None
            The state, also when it was stored already; None when it was not stored: nothing can be written, the disk
            or the budget is full, or there are no tokens. `stats().problem` and the log say why, and everything is as
            before.

        Raises
        ------
        ValueError
            The key is empty, the reason is unknown, or `at` is not a position of the session.
        StateError
            The session has no checkpoint at `at`.
        """
        staged = self.stage(session, key, reason=reason, at=at, parent=parent, tool_blocks=tool_blocks)
        return None if staged is None else staged.commit()

    def stage(
        self,
        session: StoredSession,
        key: bytes,
        *,
        reason: Reason,
        at: int | None = None,
        parent: Hit | Entry | None = None,
        tool_blocks: Mapping[str, str] | None = None,
    ) -> Staged | None:
        """Take the state out of a session, to be written by `Staged.commit`, in any thread.

        Parameters, None and exceptions are those of `save`.
        """
        if not key:
            raise ValueError("a key has at least one byte")
        if reason not in _REASONS:
            raise ValueError(f"reason must be one of {', '.join(_REASONS)}, not {reason!r}")
        ids = session.tokens
        n = len(ids) if at is None else at
        if not 0 <= n <= len(ids):
            raise ValueError(f"at is {n}, the session has {len(ids)} positions")
        blocks = dict(tool_blocks or {})
        encode_blocks(blocks)  # checks them
        self._check_open()
        try:
            if self._holdings.directory.read_only:
                raise NotSavedError("the store is read-only")
            if n == 0:
                raise NotSavedError("the session is empty")
            keep = parent.entry if isinstance(parent, Hit) else parent
            return Staged(self, self._saver.stage(session, key, reason, ids[:n], at, keep, blocks))
        except NotSavedError as error:
            self._not_saved(str(error))
            return None

    def commit(self, parts: Parts) -> Entry | None:
        """Write what was staged; `Staged.commit` calls this."""
        if not parts.state:
            return parts.entry
        self._check_open()
        try:
            entry = self._saver.commit(parts)
        except NotSavedError as error:
            self._not_saved(str(error))
            return None
        with self._holdings.mutex:
            self._counts["saves"] += 1
        return entry

    # Carrying states

    def export_state(self, entry: Entry, path: str | os.PathLike[str], *, force: bool = False) -> int:
        """Write a state and its rows as one file, for `import_state` of another store, and return its length.

        Raises
        ------
        StoreDamageError
            A file of the state is damaged; it was put aside.
        FileExistsError
            There is a file of that name, and `force` is not set.
        OSError
            A file is gone, or the new one cannot be written; nothing is left.
        """
        self._check_open()
        data = []
        for name, kind in [(entry.name, "state"), *((r.name, "rows") for r in entry.rows)]:
            where = self._holdings.directory.file(name, kind)
            try:
                file, found = open_entry(where)
                with contextlib.closing(file):
                    check_whole(file, found)
                    data.append(file.read_all())
            except StoredFileError as error:
                self._holdings.put_aside(name, kind, str(error))
                raise StoreDamageError(str(error), path=str(where)) from error
        return write_bundle(Path(path), entry, data[0], data[1:], force=force)

    def import_state(self, path: str | os.PathLike[str]) -> Entry | None:
        """Take a state that `export_state` wrote. What is stored already is not written again.

        Returns
        -------
        Entry or None
            As `save` does.

        Raises
        ------
        StoredFileError
            The file is damaged, or is none.
        OSError
            It cannot be read.
        """
        self._check_open()
        if self._holdings.directory.read_only:
            self._not_saved("the store is read-only")
            return None
        return self.commit(read_bundle(Path(path)))

    def _not_saved(self, why: str) -> None:
        with self._holdings.mutex:
            self._counts["failed_saves"] += 1
            self._problem = why
        _log.warning("a state was not stored: %s", why)

    # Making room

    def prune(self, budget_bytes: int | None = None) -> int:
        """Delete the least worthy states until all files take at most that many bytes, and old files put aside.

        Parameters
        ----------
        budget_bytes : int, optional
            The store's own budget when not given.

        Returns
        -------
        int
            Bytes that were freed.

        Raises
        ------
        OSError
            The directory cannot be read, or another process has held its lock for too long.
        """
        self._check_open()
        if self._holdings.directory.read_only:
            return 0
        budget = self._holdings.budget if budget_bytes is None else budget_bytes
        with self._holdings.directory.locked(), self._holdings.mutex:
            self._holdings.refresh(force=True)
            before = self._holdings.catalogue.n_bytes
            self._holdings.make_room(budget)
            self._holdings.directory.trim_quarantine(budget // 16)
            return before - self._holdings.catalogue.n_bytes

    def remove(self, entry: Entry) -> bool:
        """Delete a state, and those of its rows that no other state needs.

        Returns
        -------
        bool
            Whether it is gone; not when somebody reads it, or the store is read-only.

        Raises
        ------
        OSError
            The directory cannot be read, or another process has held its lock for too long.
        """
        self._check_open()
        if self._holdings.directory.read_only:
            return False
        with self._holdings.directory.locked(), self._holdings.mutex:
            self._holdings.refresh(force=True)
            if entry.name in self._holdings.catalogue.states:
                self._holdings.delete([(entry.name, "state")])
            return entry.name not in self._holdings.catalogue.states

    # What is there

    def entries(self) -> list[Entry]:
        """Return the states, the last used first; the rows of each are all there."""
        with self._holdings.mutex:
            self._check_open()
            self._holdings.refresh()
            out = [e for e in self._holdings.catalogue.states.values() if self._holdings.catalogue.complete(e)]
        return sorted(out, key=lambda e: (-e.last_used, e.name))

    def read_key(self, entry: Entry) -> bytes:
        """Return the key of a state.

        Raises
        ------
        StoreDamageError
            Its file is damaged; it was put aside.
        OSError
            It is gone.
        """
        self._check_open()
        path = self._holdings.directory.file(entry.name, "state")
        try:
            file, found = open_entry(path)
            with contextlib.closing(file):
                assert isinstance(found, Entry)
                return read_state(file, found)[0]
        except StoredFileError as error:
            self._holdings.put_aside(entry.name, "state", str(error))
            raise StoreDamageError(str(error), path=str(path)) from error

    def stats(self) -> StoreStats:
        """Return figures of the store."""
        with self._holdings.mutex:
            self._check_open()
            return StoreStats(
                states=len(self._holdings.catalogue.states),
                n_bytes=self._holdings.catalogue.n_bytes,
                budget_bytes=self._holdings.budget,
                quarantined_bytes=sum(size for _, size, _ in self._holdings.directory.quarantined()),
                written_today=self._holdings.index.written_today(),
                read_only=self._holdings.directory.read_only,
                problem=self._problem,
                evicted=self._holdings.evicted,
                put_aside=self._holdings.aside,
                **self._counts,
            )

    # Life

    @property
    def read_only(self) -> bool:
        """Whether nothing can be written."""
        return self._holdings.directory.read_only

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the store {self.path} is closed")

    def close(self) -> None:
        """Close the store. Hits that were not released stay readable. Closing again does nothing."""
        with self._holdings.mutex:
            self._closed = True
            self._holdings.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
