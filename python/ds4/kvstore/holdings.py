"""What a store holds right now: its directory, index and catalogue, kept in step under one lock.

The rest of the store goes through here whenever files appear, vanish, or prove to be damaged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from .catalogue import Catalogue
from .directory import Directory
from .errors import StoredFileError
from .files import open_entry
from .index import Index
from .records import Entry, RowsEntry
from .retention import Retention, victims

__all__ = ["Claims", "Holdings", "drop"]

_log = logging.getLogger("ds4.kvstore")

_MOMENT = 0.2  # s; a lookup does not wait for another process

Claims = list[tuple[str, str, int]]
"""(name, kind, what `Directory.claim` gave) of files that are to go."""


def drop(claims: Claims) -> None:
    """Let files stay that were to go."""
    for _, _, fd in claims:
        if fd >= 0:
            os.close(fd)


class Holdings:
    """The files of a store and what is known of them.

    Parameters
    ----------
    path : Path
        Directory of the store.
    budget_bytes : int
        What all files together may take.
    retention : Retention
        What goes first.
    read_only : bool
        Change nothing.
    """

    def __init__(self, path: Path, budget_bytes: int, retention: Retention, *, read_only: bool) -> None:
        self.path, self.budget, self.retention = path, budget_bytes, retention
        self.mutex = threading.RLock()
        self.catalogue = Catalogue()
        self.evicted = self.aside = 0
        self._refused: dict[tuple[str, str], tuple[int, int]] = {}
        self._inodes: dict[tuple[str, str], int] = {}
        self._seen: int | None = None
        self.directory = Directory(path, read_only=read_only)
        self.index = Index(None)
        try:
            if self.directory.problem is not None:
                _log.warning("the store cannot be written, it is only read: %s", self.directory.problem)
            if not self.directory.read_only:
                self.directory.remove_stale()
            with self.directory.locked(), self.mutex:
                # SQLite does not wait for a process that is making the same file.
                self.index = Index(self.directory.index, read_only=self.directory.read_only)
                self.refresh(force=True)
                if not self.directory.read_only:
                    self.index.keep_only(self.catalogue.names())
                    self.make_room(budget_bytes)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the directory and the index."""
        self.index.close()
        self.directory.close()

    # Making room

    def claim_room(
        self, need: int, superseded: Iterable[str] = (), keep: Iterable[str] = (), *, budget: int | None = None
    ) -> tuple[Claims, bool]:
        """Choose and lock what must go so that `need` more bytes fit into the budget; also whether they then do."""
        budget = self.budget if budget is None else budget
        room = budget - need
        if self.catalogue.n_bytes <= room:
            return [], True
        now = time.time()
        for name, (hits, last_used) in self.index.uses().items():
            if name in self.catalogue.states:
                entry = self.catalogue.states[name]
                self.catalogue.use(name, max(hits, entry.hits), max(last_used, entry.last_used))
        claims: Claims = []
        held: list[Entry | RowsEntry] = []
        try:
            for name, kind in victims(
                self.catalogue,
                room=room,
                budget=budget,
                now=now,
                policy=self.retention,
                superseded=set(superseded),
                keep=set(keep),
            ):
                claim = self.directory.claim(name, kind)
                if claim is not None:
                    claims.append((name, kind, claim))
                    held.append((self.catalogue.states if kind == "state" else self.catalogue.rows)[name])
                    self.catalogue.remove(name, kind)
            return claims, self.catalogue.n_bytes <= room
        except BaseException:
            drop(claims)
            raise
        finally:
            for entry_held in held:
                self.catalogue.add(entry_held)

    def delete_claimed(self, claims: Claims) -> None:
        """Delete files that `claim_room` chose."""
        gone = [(n, k) for n, k, claim in claims if self.directory.delete(n, k, claim)]
        self.evicted += sum(kind == "state" for _, kind in gone)
        self.forget(gone)

    def make_room(self, budget: int) -> None:
        """Delete until all files take at most that much, or what is left is in use."""
        self.delete_claimed(self.claim_room(0, budget=budget)[0])

    def delete(self, files: Iterable[tuple[str, str]]) -> None:
        """Delete states that nobody holds, and rows that nobody needs after that. The lock is held."""
        gone = []
        for name, kind in files:
            claim = self.directory.claim(name, kind)
            if claim is not None and self.directory.delete(name, kind, claim):
                gone.append((name, kind))
        self.evicted += len(gone)
        needed = {r.name for n, _ in gone for r in self.catalogue.states[n].rows}
        self.forget(gone)
        for name in sorted(needed):
            if name in self.catalogue.rows and name not in self.catalogue.users:
                claim = self.directory.claim(name, "rows")
                if claim is not None and self.directory.delete(name, "rows", claim):
                    self.forget([(name, "rows")])

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
        with self.mutex:
            self.aside += 1
            moved = None
            if not self.directory.read_only:
                with contextlib.suppress(TimeoutError), self.directory.locked(_MOMENT):
                    moved = self.directory.put_aside(name, kind)
            _log.warning(
                "%s: %s; %s", self.directory.file(name, kind), why, f"moved to {moved}" if moved else "not used again"
            )
            if moved is None:
                self.refuse(name, kind)
            else:
                self.directory.trim_quarantine(self.budget // 16)
                self.forget([(name, kind)])

    def refuse(self, name: str, kind: str) -> None:
        """Take a file that cannot be moved for one that is not there, as long as it stays what it is."""
        with contextlib.suppress(OSError):
            found = os.stat(self.directory.file(name, kind))
            self._refused[name, kind] = (found.st_ino, found.st_mtime_ns)
        self.forget([(name, kind)])

    def forget(self, files: Iterable[tuple[str, str]]) -> None:
        """Take files for gone."""
        files = list(files)
        for name, kind in files:
            self.catalogue.remove(name, kind)
        if files:
            self.index.remove(files)

    # What is there

    def refresh(self, *, force: bool = False) -> None:
        """Notice files that another process added or removed: nothing is read unless the directory has changed."""
        changed, settled = self.directory.stamp()
        if not force and changed == self._seen:
            return
        there = self.directory.names()
        # A file that was replaced, by one with more tool calls, has its old name and another inode.
        held = {f for f in self.catalogue.names() if there.get(f) == self._inodes.get(f)}
        for name, kind in self.catalogue.names() - held:
            self.catalogue.remove(name, kind)
        self._inodes = there
        new = there.keys() - held
        known = self.index.get(new)
        read: list[Entry | RowsEntry] = []
        for name, kind in sorted(new):
            path = self.directory.file(name, kind)
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
                self.catalogue.add(entry)
            except FileNotFoundError:
                continue
            except StoredFileError as error:
                self.put_aside(name, kind, str(error))
            except OSError as error:
                _log.warning("a file of the store cannot be read: %s", error)
                self.refuse(name, kind)
        if read:
            self.index.add(read)
        self._seen = changed if settled else None

    def added(self, entries: list[Entry | RowsEntry], inodes: dict[tuple[str, str], int]) -> None:
        """Take note of files that were published, the lock being held."""
        for entry in entries:
            self.catalogue.add(entry)
        self._inodes |= inodes
        self.index.add(entries)
        self._seen = None
