"""Writing states: what is new of a session's state, how it gets to the disk, and what goes for it."""

from __future__ import annotations

import contextlib
import fcntl
import time
from dataclasses import dataclass, field, replace

from .catalogue import token_digests
from .codec import StoredSession, session_settings, session_tokens
from .directory import Temporary
from .errors import StoredFileError
from .files import encode_blocks, encode_rows, encode_state, open_entry, read_state
from .format import Content, StoredFile, n_bytes_of
from .holdings import Holdings, drop
from .records import Entry, Reason, RowsEntry, context_of, rows_name, state_name
from .retention import outlived

__all__ = ["NotSavedError", "Parts", "Saver"]

_FULL = "the budget is full of states that are in use or protected"


class NotSavedError(Exception):
    """Why a state is not stored."""


@dataclass(slots=True)
class Parts:
    """What is to be written.

    Attributes
    ----------
    entry : Entry
        What the state will be.
    state : Content
        Its file; nothing when it is stored already.
    rows : list of (RowsEntry, Content)
        Rows that are not stored yet.
    pins : list of StoredFile
        Stored files that it needs, held.
    superseded : list of str
        States whose tokens it continues, the shortest first.
    replaces : bool
        Whether it takes the place of a file with fewer tool calls.
    """

    entry: Entry
    state: Content = ()
    rows: list[tuple[RowsEntry, Content]] = field(default_factory=list)
    pins: list[StoredFile] = field(default_factory=list)
    superseded: list[str] = field(default_factory=list)
    replaces: bool = False

    @property
    def n_bytes(self) -> int:
        """Bytes to be written."""
        return n_bytes_of(self.state) + sum(n_bytes_of(content) for _, content in self.rows)


class Saver:
    """Writes states into the holdings of a store.

    Parameters
    ----------
    holdings : Holdings
        Where.
    max_chain : int
        Most rows files of a state.
    daily_write_bytes : int or None
        What may be written per day.
    """

    def __init__(self, holdings: Holdings, max_chain: int, daily_write_bytes: int | None) -> None:
        self._holdings, self._max_chain, self._daily = holdings, max_chain, daily_write_bytes

    def stage(
        self,
        session: StoredSession,
        key: bytes,
        reason: Reason,
        ids: list[int],
        at: int | None,
        parent: Entry | None,
        blocks: dict[str, str],
    ) -> Parts:
        """Take out of a session what is not stored yet; the arguments are checked.

        Raises
        ------
        NotSavedError
            There is nothing that could be stored.
        """
        n, tokens = len(ids), session_tokens(ids)
        model, settings = session.model.fingerprint, session_settings(session)
        context = context_of(model, settings)
        with self._holdings.mutex:
            with contextlib.suppress(OSError):
                self._holdings.refresh()
            known = self._holdings.catalogue.states.get(state_name(context, key))
            if known is not None and self._holdings.catalogue.complete(known):
                return self._stage_known(known, blocks)
            digests = self._holdings.catalogue.digests(context, tokens)
            superseded = [e.name for e in self._holdings.catalogue.ancestors(context, digests, n)]
            chain, pins = self._pin_chain(context, digests, n)
        try:
            if parent is not None:
                pins += self._pin_parent(parent)
            start = chain[-1].stop if chain else 0
            now = time.time()
            ends = token_digests(tokens, sorted({start, n}))
            new: list[tuple[RowsEntry, Content]] = []
            refs = [rows.ref for rows in chain]
            if start < n:
                name = rows_name(context, ends[start], ends[n])
                made = RowsEntry(name, model, settings, start, n, ends[start], ends[n], 0, now)
                content = encode_rows(made, session.export_rows(start, n))
                made = replace(made, n_bytes=n_bytes_of(content))
                new.append((made, content))
                refs.append(made.ref)
            tail = session.export_tail(at)
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
            state = encode_state(entry, key, tokens, encode_blocks(blocks), tail)
            entry = replace(entry, n_bytes=n_bytes_of(state))
        except BaseException:
            close_all(pins)
            raise
        return Parts(entry, state, new, pins, superseded)

    def _pin_parent(self, parent: Entry) -> list[StoredFile]:
        """Hold a state so that it is not deleted to make room."""
        try:
            file, _ = open_entry(self._holdings.directory.file(parent.name, "state"))
        except (StoredFileError, OSError):
            return []
        return [file]

    def _stage_known(self, known: Entry, blocks: dict[str, str]) -> Parts:
        """Return the state that is stored already; with new tool calls, they alone are to be written."""
        if all(call in known.calls for call in blocks):
            return Parts(known)
        try:
            file, entry = open_entry(self._holdings.directory.file(known.name, "state"))
            try:
                assert isinstance(entry, Entry)
                key, _, old = read_state(file, entry)
                merged = {**old, **blocks}
                entry = replace(entry.used(known.hits, known.last_used), calls=tuple(merged))
                tokens, tail = bytes(file.read("TOKS")), file.read("TAIL")
                state = encode_state(entry, key, tokens, encode_blocks(merged), tail)
                entry = replace(entry, n_bytes=n_bytes_of(state))
                return Parts(entry, state, replaces=True)
            finally:
                file.close()
        except StoredFileError as error:
            self._holdings.put_aside(known.name, "state", str(error))
            raise NotSavedError(str(error)) from error
        except OSError as error:
            raise NotSavedError(str(error)) from error

    def _pin_chain(
        self, context: bytes, digests: dict[int, str], n_tokens: int
    ) -> tuple[list[RowsEntry], list[StoredFile]]:
        """Return stored rows that a new state of these tokens can begin with, held open."""
        while True:
            chain = self._holdings.catalogue.chain(context, digests, n_tokens)
            reaches = bool(chain) and chain[-1].stop == n_tokens
            if len(chain) + (not reaches) > self._max_chain:
                chain = chain[: self._max_chain // 2]
            pins: list[StoredFile] = []
            for rows in chain:
                try:
                    file = StoredFile(self._holdings.directory.file(rows.name, "rows"))
                    pins.append(file)
                    fcntl.flock(file.fd, fcntl.LOCK_SH)
                except StoredFileError as error:
                    self._holdings.put_aside(rows.name, "rows", str(error))
                    break
                except OSError as error:
                    if isinstance(error, FileNotFoundError):
                        self._holdings.forget([(rows.name, "rows")])
                    else:
                        self._holdings.refuse(rows.name, "rows")
                    break
            else:
                return chain, pins
            close_all(pins)

    def commit(self, parts: Parts) -> Entry:
        """Write a state.

        Raises
        ------
        NotSavedError
            It could not be; everything is as before.
        """
        entry = parts.entry
        keep = {entry.name, *(r.name for r in entry.rows)}
        need = parts.n_bytes + parts.n_bytes // 100
        if need > self._holdings.budget:
            raise NotSavedError(f"the state has {parts.n_bytes} bytes, the budget is {self._holdings.budget}")
        with self._holdings.mutex:
            written = self._holdings.index.written_today()
        if self._daily is not None and written + parts.n_bytes > self._daily:
            raise NotSavedError(f"{written} bytes were written today, {self._daily} are allowed")
        try:
            with self._holdings.directory.locked(), self._holdings.mutex:
                claims, fits = self._holdings.claim_room(need, parts.superseded, keep)
                drop(claims)
        except OSError as error:
            raise NotSavedError(str(error)) from error
        if not fits:
            raise NotSavedError(_FULL)
        made: list[Temporary] = []
        try:
            for content in [*(content for _, content in parts.rows), parts.state]:
                made.append(self._holdings.directory.write_temporary(content))
            with self._holdings.directory.locked(), self._holdings.mutex:
                self._holdings.index.add_written(parts.n_bytes)
                return self._publish(parts, made, need, keep)
        except OSError as error:
            raise NotSavedError(str(error)) from error
        finally:
            for temporary in made:
                temporary.close()

    def _publish(self, parts: Parts, made: list[Temporary], need: int, keep: set[str]) -> Entry:
        entry = parts.entry
        self._holdings.refresh(force=True)
        known = self._holdings.catalogue.states.get(entry.name)
        if known is not None and not parts.replaces and self._holdings.catalogue.complete(known):
            return known  # another process was faster
        brought = {rows.name for rows, _ in parts.rows}
        if any(r.name not in self._holdings.catalogue.rows and r.name not in brought for r in entry.rows):
            raise NotSavedError("rows that the state continues were put aside")
        claims, fits = self._holdings.claim_room(need, parts.superseded, keep)
        try:
            if not fits:
                raise NotSavedError(_FULL)
            *all_rows, state = made
            added: list[Entry | RowsEntry] = [entry]
            inodes = {(entry.name, "state"): state.inode}
            for (rows, _), temporary in zip(parts.rows, all_rows, strict=True):
                if rows.name not in self._holdings.catalogue.rows:
                    self._holdings.directory.publish(temporary, rows.name, "rows")
                    added.append(rows)
                    inodes[rows.name, "rows"] = temporary.inode
            self._holdings.directory.publish(state, entry.name, "state")
            self._holdings.directory.sync()
        except BaseException:
            drop(claims)
            raise
        # Not before the new state is on the disk: a process that dies in between loses nothing.
        self._holdings.added(added, inodes)
        self._holdings.delete_claimed(claims)
        self._trim_conversation(entry, parts)
        return entry

    def _trim_conversation(self, entry: Entry, parts: Parts) -> None:
        """Of a conversation keep the newest states."""
        if parts.replaces or entry.reason == "cold":
            return
        line = [self._holdings.catalogue.states[n] for n in parts.superseded if n in self._holdings.catalogue.states]
        children = {e.name: self._continuations(e) for e in line}
        old = outlived(line, children, now=time.time(), policy=self._holdings.retention)
        self._holdings.delete([(e.name, "state") for e in old])

    def _continuations(self, entry: Entry) -> int:
        """Return how many different rows files follow the end of a state."""
        if not entry.rows:
            return 0
        last = entry.rows[-1].name
        following = set()
        for name in self._holdings.catalogue.users.get(last, ()):
            names = [r.name for r in self._holdings.catalogue.states[name].rows]
            after = names[names.index(last) + 1 :]
            following |= set(after[:1])
        return len(following)


def close_all(files: list[StoredFile]) -> None:
    """Let go of files."""
    for file in files:
        file.close()
