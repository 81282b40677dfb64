"""The durable index of a store: facts of the files, how often and when they were used, and the bytes written per day.

Everything but the use can be read from the files again, and the time of the last use is the time stamp of the file as
well; so a missing or damaged index costs a reading of the heads, and no state. An index that cannot be written (disk
full, locked, read-only) costs only its durability.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path

from .errors import StoredFileError
from .records import Entry, RowsEntry, decode_meta

__all__ = ["Index"]

_log = logging.getLogger("ds4.kvstore")
_VERSION = 1
_DAYS = 31  # of which it is kept how much was written
_LOOK = "select name, kind, bytes, meta, hits, last_used from files limit 1"
_SCHEMA = """
create table if not exists files (
    name text not null, kind text not null, bytes integer not null, meta blob not null,
    hits integer not null, last_used real not null, primary key (name, kind)) without rowid;
create table if not exists written (day text primary key, bytes integer not null) without rowid;
"""


class Index:
    """The SQLite file of a store.

    Parameters
    ----------
    directory : Path or None
        Where the file lies; None keeps the index in memory only.
    read_only : bool
        Read what there is, and leave it as it is.
    """

    def __init__(self, directory: Path | None, *, read_only: bool = False) -> None:
        self.path = None if directory is None else directory / "index.sqlite3"
        self.rebuilt = False
        self._warned = False
        self._written: dict[str, int] = {}  # when there is no database
        self._database: sqlite3.Connection | None = None
        self._read_only = read_only
        if self.path is not None and read_only:
            self._open_to_read(self.path)
        elif self.path is not None:
            self._open(self.path)

    def _open_to_read(self, path: Path) -> None:
        with contextlib.suppress(sqlite3.Error):
            database = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro",
                uri=True,
                timeout=2.0,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                database.execute(_LOOK).fetchone()
            except BaseException:
                database.close()
                raise
            self._database = database

    def _open(self, path: Path) -> None:
        for attempt in range(2):
            try:
                self._database = self._connect(path)
                return
            except sqlite3.OperationalError as error:
                self._warn(error)
                return
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                _log.warning("the index %s is damaged and is made anew from the files: %s", path, error)
                self.rebuilt = True
                with contextlib.suppress(OSError):
                    self._set_aside(path, attempt)

    @staticmethod
    def _set_aside(path: Path, attempt: int) -> None:
        for suffix in ("", "-wal", "-shm", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                file = path.with_name(path.name + suffix)
                if attempt or suffix:
                    file.unlink()
                else:
                    file.replace(path.with_name(path.name + ".damaged"))

    @staticmethod
    def _connect(path: Path) -> sqlite3.Connection:
        with contextlib.suppress(OSError):  # SQLite gives its other files the permissions of this one
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        database = sqlite3.connect(path, timeout=2.0, isolation_level=None, check_same_thread=False)
        try:
            database.execute("pragma journal_mode = wal")
            database.execute("pragma synchronous = normal")
            if database.execute("pragma quick_check").fetchone() != ("ok",):
                raise sqlite3.DatabaseError("the database does not pass its own check")
            version = database.execute("pragma user_version").fetchone()[0]
            if version not in (0, _VERSION):
                raise sqlite3.DatabaseError(f"version {version} of the index")
            database.executescript(_SCHEMA)
            database.execute(f"pragma user_version = {_VERSION}")
            database.execute(_LOOK).fetchone()
        except BaseException:
            database.close()
            raise
        return database

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            _log.warning("the index %s cannot be used, the store goes on without it: %s", self.path, error)
        self._warned = True

    def _run(self, statement: str, values: Iterable[tuple[object, ...]]) -> None:
        if self._database is None or self._read_only:
            return
        try:
            with self._database:
                self._database.execute("begin immediate")
                self._database.executemany(statement, values)
        except sqlite3.Error as error:
            self._warn(error)

    def get(self, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], Entry | RowsEntry]:
        """Return what is known of files, by (name, kind)."""
        if self._database is None or not wanted:
            return {}
        out: dict[tuple[str, str], Entry | RowsEntry] = {}
        try:
            if len(wanted) > 100:
                found = self._database.execute("select name, kind, bytes, meta, hits, last_used from files").fetchall()
            else:
                found = []
                for key in wanted:
                    found += self._database.execute(
                        "select name, kind, bytes, meta, hits, last_used from files where name = ? and kind = ?", key
                    ).fetchall()
            for name, kind, n_bytes, meta, hits, last_used in found:
                if (name, kind) not in wanted:
                    continue
                with contextlib.suppress(StoredFileError, TypeError, ValueError):
                    entry = decode_meta(name, meta, int(n_bytes))
                    if isinstance(entry, Entry):
                        entry = entry.used(max(0, int(hits)), float(last_used))
                    out[name, kind] = entry
        except sqlite3.Error as error:
            self._warn(error)
        return out

    def uses(self) -> dict[str, tuple[int, float]]:
        """Return hits and time of the last use of every state, as all processes have noted them."""
        if self._database is None:
            return {}
        try:
            found = self._database.execute("select name, hits, last_used from files where kind = 'state'").fetchall()
            return {str(name): (int(hits), float(last)) for name, hits, last in found}
        except (sqlite3.Error, TypeError, ValueError) as error:
            self._warn(error)
            return {}

    def add(self, entries: Iterable[Entry | RowsEntry]) -> None:
        """Note files."""
        self._run(
            "insert or replace into files values (?, ?, ?, ?, ?, ?)",
            [
                (e.name, "state", e.n_bytes, e.meta(), e.hits, e.last_used)
                if isinstance(e, Entry)
                else (e.name, "rows", e.n_bytes, e.meta(), 0, e.created)
                for e in entries
            ],
        )

    def remove(self, files: Iterable[tuple[str, str]]) -> None:
        """Forget files by (name, kind)."""
        self._run("delete from files where name = ? and kind = ?", files)

    def keep_only(self, files: Iterable[tuple[str, str]]) -> None:
        """Forget files that are not among these, which others have deleted, and days that are long past."""
        if self._database is None or self._read_only:
            return
        try:
            there = set(files)
            known = self._database.execute("select name, kind from files").fetchall()
            self.remove([(n, k) for n, k in known if (n, k) not in there])
            self._run("delete from written where day < ?", [(_day(time.time() - _DAYS * 86_400),)])
        except sqlite3.Error as error:
            self._warn(error)

    def touch(self, hit: str, names: Iterable[str], when: float) -> None:
        """Note a hit of one state and the use of others."""
        self._run(
            "update files set hits = hits + ?, last_used = max(last_used, ?) where name = ? and kind = 'state'",
            [(int(name == hit), when, name) for name in {hit, *names}],
        )

    def add_written(self, n_bytes: int) -> None:
        """Add to the bytes written today (UTC)."""
        day = _today()
        self._written[day] = self._written.get(day, 0) + n_bytes
        self._run(
            "insert into written values (?, ?) on conflict (day) do update set bytes = bytes + excluded.bytes",
            [(day, n_bytes)],
        )

    def written_today(self) -> int:
        """Return the bytes written today (UTC), by all processes as far as they could note it."""
        day = _today()
        ours = self._written.get(day, 0)
        if self._database is None:
            return ours
        try:
            found = self._database.execute("select bytes from written where day = ?", (day,)).fetchone()
            return max(ours, int(found[0])) if found else ours
        except (sqlite3.Error, TypeError, ValueError) as error:
            self._warn(error)
            return ours

    def close(self) -> None:
        """Close the file."""
        database, self._database = self._database, None
        if database is not None:
            with contextlib.suppress(sqlite3.Error):
                database.close()


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def _day(when: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(when))
