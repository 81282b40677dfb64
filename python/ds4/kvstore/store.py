"""The store: look up, save, make room."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self, get_args

from ds4 import ClosedError

from .catalogue import Catalogue, token_digests
from .codec import StoredSession, export_rows, export_tail, session_settings, session_tokens
from .directory import Directory, Temporary
from .errors import StoredFileError
from .files import encode_blocks, encode_rows, encode_state, open_entry, read_blocks, read_state
from .format import Content, StoredFile, n_bytes_of
from .hit import Hit
from .index import Index
from .records import Entry, Reason, RowsEntry, context_of, rows_name, state_name
from .retention import Retention, outlived, victims
from .staged import Staged

__all__ = ["KVStore", "StoreStats"]

_log = logging.getLogger("ds4.kvstore")

DEFAULT_BUDGET = 4096 << 20
MAX_CHAIN = 32
_REASONS = get_args(Reason)
_FULL = "the budget is full of states that are in use or protected"

_Claims = list[tuple[str, str, int]]  # (name, kind, what `Directory.claim` gave) of files that are to go


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


class _NotSavedError(Exception):
    """Why a state is not stored."""


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
        The directory cannot be made or read, or is none.
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
        self._budget, self._daily = budget_bytes, daily_write_bytes
        self._retention = retention or Retention()
        self._max_chain = max_chain
        self._mutex = threading.RLock()
        self._catalogue = Catalogue()
        self._refused: dict[tuple[str, str], tuple[int, int]] = {}
        self._seen: int | None = None
        self._counts = dict.fromkeys(("lookups", "hits", "loads", "saves", "evicted", "put_aside", "failed_saves"), 0)
        self._problem: str | None = None
        self._closed = False
        self._directory = Directory(self.path, read_only=read_only)
        self._index = Index(None)
        try:
            if self._directory.problem is not None:
                _log.warning("the store cannot be written, it is only read: %s", self._directory.problem)
            if not self._directory.read_only:
                self._directory.remove_stale()
                self._index = Index(self._directory.index)
            with self._mutex, self._directory.locked():
                self._refresh(force=True)
                if not self._directory.read_only:
                    self._make_room(budget_bytes)
        except BaseException:
            self.close()
            raise

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
        with self._mutex:
            self._check_open()
            self._counts["lookups"] += 1
            try:
                self._refresh()
            except OSError as error:
                _log.warning("the directory of the store cannot be read: %s", error)
                return None
            for entry in reversed(self._catalogue.prefixes(context_of(model, settings), key)):
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
            state, facts = open_entry(self._directory.file(name, kind))
            opened.append(state)
            assert isinstance(facts, Entry)
            content = read_state(state, facts)
            if content[0] != key[: facts.n_key]:
                raise StoredFileError("damaged: another key than its name tells")
            rows: list[tuple[StoredFile, RowsEntry]] = []
            for ref in facts.rows:
                name, kind = ref.name, "rows"
                file, found = open_entry(self._directory.file(name, kind))
                opened.append(file)
                assert isinstance(found, RowsEntry)
                if (found.start, found.stop, found.context) != (ref.start, ref.stop, facts.context):
                    raise StoredFileError("damaged: other positions than the state tells")
                rows.append((file, found))
        except StoredFileError as error:
            _close(opened)
            self.put_aside(name, kind, str(error))
            return None
        except OSError as error:
            _close(opened)
            _log.warning("a stored state cannot be read, the prompt is computed: %s", error)
            if isinstance(error, FileNotFoundError):
                self._forget([(name, kind)])
            else:
                self._refuse(name, kind)
            return None
        except BaseException:
            _close(opened)
            raise
        return Hit(self, facts.used(entry.hits, entry.last_used), state, rows, content)

    def note_hit(self, hit: Hit) -> None:
        """Count a hit, and the use of every state that its key begins with. Called by `Hit.load`."""
        now = time.time()
        with self._mutex:
            self._counts["loads"] += 1
            used = self._catalogue.prefixes(hit.entry.context, hit.key)
            for entry in used:
                self._catalogue.use(entry.name, entry.hits + (entry.name == hit.entry.name), now)
            if self._directory.read_only:
                return
            self._index.touch(hit.entry.name, [e.name for e in used], now)
            for entry in used:
                # What the index knows, for a store whose index is lost.
                with contextlib.suppress(OSError):
                    os.utime(self._directory.file(entry.name, "state"), (now, now))

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
        with self._mutex:
            self._check_open()
            with contextlib.suppress(OSError):
                self._refresh()
            for call in calls:
                if call in out:
                    continue
                for name in sorted(self._catalogue.calls.get(call, ())):
                    if self._catalogue.states[name].model != model:
                        continue
                    found = self._blocks_of(name)
                    if call in found:
                        out |= found
                        break
        return out

    def _blocks_of(self, name: str) -> dict[str, str]:
        try:
            file, entry = open_entry(self._directory.file(name, "state"))
            try:
                assert isinstance(entry, Entry)
                return read_blocks(file, entry)
            finally:
                file.close()
        except StoredFileError as error:
            self.put_aside(name, "state", str(error))
        except OSError as error:
            _log.warning("tool calls of a stored state cannot be read: %s", error)
        return {}

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
        encoded_blocks = encode_blocks(blocks)
        self._check_open()
        try:
            if self._directory.read_only:
                raise _NotSavedError("the store is read-only")
            if n == 0:
                raise _NotSavedError("the session is empty")
            return self._stage(session, key, reason, ids[:n], at, parent, blocks, encoded_blocks)
        except _NotSavedError as error:
            self._not_saved(str(error))
            return None

    def _stage(
        self,
        session: StoredSession,
        key: bytes,
        reason: Reason,
        ids: list[int],
        at: int | None,
        parent: Hit | Entry | None,
        blocks: dict[str, str],
        encoded_blocks: bytes,
    ) -> Staged:
        n, tokens = len(ids), session_tokens(ids)
        model, settings = session.model.fingerprint, session_settings(session)
        context = context_of(model, settings)
        with self._mutex:
            with contextlib.suppress(OSError):
                self._refresh()
            known = self._catalogue.states.get(state_name(context, key))
            if known is not None and self._catalogue.complete(known):
                return self._stage_known(known, blocks)
            digests = self._catalogue.digests(context, tokens)
            superseded = [e.name for e in self._catalogue.ancestors(context, digests, n)]
            chain, pins = self._pin_chain(context, digests, n)
        try:
            if parent is not None:
                pins += self._pin_parent(parent if isinstance(parent, Entry) else parent.entry)
            start = chain[-1].stop if chain else 0
            now = time.time()
            ends = token_digests(tokens, sorted({start, n}))
            new: tuple[RowsEntry, Content] | None = None
            blob = export_rows(session, start, n) if start < n else None
            refs = [rows.ref for rows in chain]
            if blob is not None:
                name = rows_name(context, ends[start], ends[n])
                made = RowsEntry(name, model, settings, start, n, ends[start], ends[n], 0, now)
                content = encode_rows(made, blob)
                made = replace(made, n_bytes=n_bytes_of(content))
                new = (made, content)
                refs.append(made.ref)
            tail = export_tail(session, at)
            entry = Entry(
                name=state_name(context, key),
                model=model,
                settings=settings,
                n_tokens=n,
                n_key=len(key),
                digest=ends[n],
                reason=reason,
                rows=tuple(refs),
                calls=tuple(blocks),
                n_bytes=0,
                created=now,
                last_used=now,
            )
            state = encode_state(entry, key, tokens, encoded_blocks, tail)
            entry = replace(entry, n_bytes=n_bytes_of(state))
        except BaseException:
            _close(pins)
            raise
        return Staged(self, entry, state, new, pins, superseded)

    def _pin_parent(self, parent: Entry) -> list[StoredFile]:
        """Hold a state so that it is not deleted to make room."""
        try:
            file, _ = open_entry(self._directory.file(parent.name, "state"))
        except (StoredFileError, OSError):
            return []
        return [file]

    def _stage_known(self, known: Entry, blocks: dict[str, str]) -> Staged:
        """Return the state that is stored already; with new tool calls, they alone are to be written."""
        if all(call in known.calls for call in blocks):
            return Staged(self, known, [], None, [], [])
        try:
            file, entry = open_entry(self._directory.file(known.name, "state"))
            try:
                assert isinstance(entry, Entry)
                key, _, old = read_state(file, entry)
                merged = {**old, **blocks}
                entry = replace(entry.used(known.hits, known.last_used), calls=tuple(merged))
                tokens, tail = bytes(file.read("TOKS")), file.read("TAIL")
                state = encode_state(entry, key, tokens, encode_blocks(merged), tail)
                entry = replace(entry, n_bytes=n_bytes_of(state))
                return Staged(self, entry, state, None, [], [], replace=True)
            finally:
                file.close()
        except StoredFileError as error:
            self.put_aside(known.name, "state", str(error))
            raise _NotSavedError(str(error)) from error
        except OSError as error:
            raise _NotSavedError(str(error)) from error

    def _pin_chain(
        self, context: bytes, digests: dict[int, str], n_tokens: int
    ) -> tuple[list[RowsEntry], list[StoredFile]]:
        """Return stored rows that a new state of these tokens can begin with, held open."""
        while True:
            chain = self._catalogue.chain(context, digests, n_tokens)
            reaches = bool(chain) and chain[-1].stop == n_tokens
            if len(chain) + (not reaches) > self._max_chain:
                chain = chain[: self._max_chain // 2]
            pins: list[StoredFile] = []
            for rows in chain:
                try:
                    file = StoredFile(self._directory.file(rows.name, "rows"))
                    pins.append(file)
                    fcntl.flock(file.fd, fcntl.LOCK_SH)
                except StoredFileError as error:
                    self.put_aside(rows.name, "rows", str(error))
                    break
                except OSError as error:
                    if isinstance(error, FileNotFoundError):
                        self._forget([(rows.name, "rows")])
                    else:
                        self._refuse(rows.name, "rows")
                    break
            else:
                return chain, pins
            _close(pins)

    def commit(self, staged: Staged) -> Entry | None:
        """Write a staged state; `Staged.commit` calls this."""
        if not staged.state:
            return staged.entry
        self._check_open()
        try:
            return self._commit(staged)
        except _NotSavedError as error:
            self._not_saved(str(error))
            return None

    def _commit(self, staged: Staged) -> Entry:
        entry = staged.entry
        keep = {entry.name, *(r.name for r in entry.rows)}
        need = staged.n_bytes + staged.n_bytes // 100
        with self._mutex:
            if need > self._budget:
                raise _NotSavedError(f"the state has {staged.n_bytes} bytes, the budget is {self._budget}")
            written = self._index.written_today()
            if self._daily is not None and written + staged.n_bytes > self._daily:
                raise _NotSavedError(f"{written} bytes were written today, {self._daily} are allowed")
            try:
                with self._directory.locked():
                    claims, fits = self._claim_room(need, staged.superseded, keep)
                    _drop(claims)
                    if not fits:
                        raise _NotSavedError(_FULL)
            except OSError as error:
                raise _NotSavedError(str(error)) from error
        made: list[Temporary] = []
        try:
            rows = self._directory.write_temporary(staged.rows[1]) if staged.rows is not None else None
            made += [rows] if rows is not None else []
            state = self._directory.write_temporary(staged.state)
            made.append(state)
            with self._mutex, self._directory.locked():
                self._check_open()
                self._index.add_written(staged.n_bytes)
                return self._publish(staged, rows, state, need, keep)
        except OSError as error:
            raise _NotSavedError(str(error)) from error
        finally:
            for temporary in made:
                temporary.close()

    def _publish(self, staged: Staged, rows: Temporary | None, state: Temporary, need: int, keep: set[str]) -> Entry:
        entry = staged.entry
        self._refresh(force=True)
        known = self._catalogue.states.get(entry.name)
        if known is not None and not staged.replace and self._catalogue.complete(known):
            return known  # another process was faster
        new = None if staged.rows is None else staged.rows[0]
        if any(r.name not in self._catalogue.rows for r in entry.rows if new is None or r.name != new.name):
            raise _NotSavedError("rows that the state continues were put aside")
        claims, fits = self._claim_room(need, staged.superseded, keep)
        try:
            if not fits:
                raise _NotSavedError(_FULL)
            added: list[Entry | RowsEntry] = []
            if new is not None and rows is not None and new.name not in self._catalogue.rows:
                self._directory.publish(rows, new.name, "rows")
                self._catalogue.add(new)
                added.append(new)
            self._directory.publish(state, entry.name, "state")
            self._directory.sync()
        except BaseException:
            _drop(claims)
            raise
        # Not before the new state is on the disk: a process that dies in between loses nothing.
        self._catalogue.add(entry)
        self._index.add([*added, entry])
        self._delete_claimed(claims)
        self._counts["saves"] += 1
        self._trim_conversation(entry, staged)
        self._seen = None
        return entry

    def _trim_conversation(self, entry: Entry, staged: Staged) -> None:
        """Of a conversation keep the newest states."""
        if staged.replace or entry.reason == "cold":
            return
        line = [self._catalogue.states[n] for n in staged.superseded if n in self._catalogue.states]
        children = {e.name: self._continuations(e) for e in line}
        old = outlived(line, children, now=time.time(), policy=self._retention)
        self._delete([(e.name, "state") for e in old])

    def _continuations(self, entry: Entry) -> int:
        """Return how many different rows files follow the end of a state."""
        if not entry.rows:
            return 0
        last = entry.rows[-1].name
        following = set()
        for name in self._catalogue.users.get(last, ()):
            names = [r.name for r in self._catalogue.states[name].rows]
            after = names[names.index(last) + 1 :]
            following |= set(after[:1])
        return len(following)

    def _not_saved(self, why: str) -> None:
        with self._mutex:
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
        """
        with self._mutex:
            self._check_open()
            if self._directory.read_only:
                return 0
            budget = self._budget if budget_bytes is None else budget_bytes
            with self._directory.locked():
                self._refresh(force=True)
                before = self._catalogue.n_bytes
                self._make_room(budget)
                self._directory.trim_quarantine(budget // 16)
                return before - self._catalogue.n_bytes

    def _claim_room(
        self, need: int, superseded: Iterable[str] = (), keep: Iterable[str] = (), *, budget: int | None = None
    ) -> tuple[_Claims, bool]:
        """Choose and lock what must go so that `need` more bytes fit into the budget; also whether they then do."""
        budget = self._budget if budget is None else budget
        room = budget - need
        if self._catalogue.n_bytes <= room:
            return [], True
        now = time.time()
        for name, (hits, last_used) in self._index.uses().items():
            if name in self._catalogue.states:
                entry = self._catalogue.states[name]
                self._catalogue.use(name, max(hits, entry.hits), max(last_used, entry.last_used))
        claims: _Claims = []
        held: list[Entry | RowsEntry] = []
        try:
            for name, kind in victims(
                self._catalogue,
                room=room,
                budget=budget,
                now=now,
                policy=self._retention,
                superseded=set(superseded),
                keep=set(keep),
            ):
                claim = self._directory.claim(name, kind)
                if claim is not None:
                    claims.append((name, kind, claim))
                    held.append((self._catalogue.states if kind == "state" else self._catalogue.rows)[name])
                    self._catalogue.remove(name, kind)
            return claims, self._catalogue.n_bytes <= room
        except BaseException:
            _drop(claims)
            raise
        finally:
            for entry_held in held:
                self._catalogue.add(entry_held)

    def _delete_claimed(self, claims: _Claims) -> None:
        gone = [(n, k) for n, k, claim in claims if self._directory.delete(n, k, claim)]
        self._counts["evicted"] += sum(kind == "state" for _, kind in gone)
        self._forget(gone)

    def _make_room(self, budget: int) -> None:
        """Delete until all files take at most that much, or what is left is in use."""
        self._delete_claimed(self._claim_room(0, budget=budget)[0])

    def _delete(self, files: Iterable[tuple[str, str]]) -> None:
        """Delete states that nobody holds, and rows that nobody needs after that. The lock is held."""
        gone = []
        for name, kind in files:
            claim = self._directory.claim(name, kind)
            if claim is not None and self._directory.delete(name, kind, claim):
                gone.append((name, kind))
        self._counts["evicted"] += len(gone)
        needed = {r.name for n, _ in gone for r in self._catalogue.states[n].rows}
        self._forget(gone)
        for name in sorted(needed):
            if name in self._catalogue.rows and name not in self._catalogue.users:
                claim = self._directory.claim(name, "rows")
                if claim is not None and self._directory.delete(name, "rows", claim):
                    self._forget([(name, "rows")])

    # Damage

    def put_aside(self, name: str, kind: str, why: str) -> None:
        """Move a damaged file to the quarantine, where it is never looked at again.

        Parameters
        ----------
        name, kind : str
            Name without ending; "state" or "rows".
        why : str
            For the log.
        """
        with self._mutex, self._directory.locked():
            self._counts["put_aside"] += 1
            moved = None if self._directory.read_only else self._directory.put_aside(name, kind)
            _log.warning(
                "%s: %s; %s", self._directory.file(name, kind), why, f"moved to {moved}" if moved else "not used again"
            )
            if moved is None:
                self._refuse(name, kind)
            else:
                self._directory.trim_quarantine(self._budget // 16)
                self._forget([(name, kind)])

    def _refuse(self, name: str, kind: str) -> None:
        """Take a file that cannot be moved for one that is not there, as long as it stays what it is."""
        with contextlib.suppress(OSError):
            found = os.stat(self._directory.file(name, kind))
            self._refused[name, kind] = (found.st_ino, found.st_mtime_ns)
        self._forget([(name, kind)])

    def _forget(self, files: Iterable[tuple[str, str]]) -> None:
        files = list(files)
        for name, kind in files:
            self._catalogue.remove(name, kind)
        if files:
            self._index.remove(files)

    # What is there

    def _refresh(self, *, force: bool = False) -> None:
        """Notice files that another process added or removed: nothing is read unless the directory has changed."""
        changed, settled = self._directory.stamp()
        if not force and changed == self._seen:
            return
        there = self._directory.names()
        held = self._catalogue.names()
        for name, kind in held - there:
            self._catalogue.remove(name, kind)
        new = there - held
        known = self._index.get(new)
        read: list[Entry | RowsEntry] = []
        for name, kind in sorted(new):
            path = self._directory.file(name, kind)
            try:
                found = os.stat(path, follow_symlinks=False)
                if self._refused.get((name, kind)) == (found.st_ino, found.st_mtime_ns):
                    continue
                entry = known.get((name, kind))
                if entry is None or entry.n_bytes != found.st_size:
                    file, entry = open_entry(path, lock=False)
                    file.close()
                    if isinstance(entry, Entry):
                        entry = entry.used(0, found.st_mtime)
                    read.append(entry)
                self._catalogue.add(entry)
            except FileNotFoundError:
                continue
            except StoredFileError as error:
                self.put_aside(name, kind, str(error))
            except OSError as error:
                _log.warning("a file of the store cannot be read: %s", error)
                self._refuse(name, kind)
        if read:
            self._index.add(read)
        self._seen = changed if settled else None

    def entries(self) -> list[Entry]:
        """Return the states, the last used first; the rows of each are all there."""
        with self._mutex:
            self._check_open()
            self._refresh()
            out = [e for e in self._catalogue.states.values() if self._catalogue.complete(e)]
        return sorted(out, key=lambda e: (-e.last_used, e.name))

    def stats(self) -> StoreStats:
        """Return figures of the store."""
        with self._mutex:
            self._check_open()
            return StoreStats(
                states=len(self._catalogue.states),
                n_bytes=self._catalogue.n_bytes,
                budget_bytes=self._budget,
                quarantined_bytes=sum(size for _, size, _ in self._directory.quarantined()),
                written_today=self._index.written_today(),
                read_only=self._directory.read_only,
                problem=self._problem,
                **self._counts,
            )

    # Life

    @property
    def read_only(self) -> bool:
        """Whether nothing can be written."""
        return self._directory.read_only

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the store {self.path} is closed")

    def close(self) -> None:
        """Close the store. Hits that were not released stay readable. Closing again does nothing."""
        with self._mutex:
            self._closed = True
            self._index.close()
            self._directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _drop(claims: _Claims) -> None:
    for _, _, fd in claims:
        if fd >= 0:
            os.close(fd)


def _close(files: Iterable[StoredFile]) -> None:
    for file in files:
        file.close()
