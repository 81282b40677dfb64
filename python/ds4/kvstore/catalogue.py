"""What a store holds, in memory: states by the bytes of their keys and by their tokens, rows by their tokens.

A prefix is found by hashing once: the key that is looked up is fed to one hash, which is copied at each length that a
stored key has, and the copies are looked up in a dictionary.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .records import Entry, RowsEntry, state_hash

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["Catalogue", "token_digests"]


class _Lengths:
    """Lengths that occur, in order."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._sorted: list[int] | None = None

    def add(self, length: int) -> None:
        self._counts[length] += 1
        if self._counts[length] == 1:
            self._sorted = None

    def remove(self, length: int) -> None:
        self._counts[length] -= 1
        if not self._counts[length]:
            del self._counts[length]
            self._sorted = None

    def __iter__(self) -> Iterator[int]:
        if self._sorted is None:
            self._sorted = sorted(self._counts)
        return iter(self._sorted)


class _Group:
    """Files of one model and its settings."""

    def __init__(self) -> None:
        self.key_lengths = _Lengths()
        self.token_lengths = _Lengths()
        self.states_at: dict[str, set[str]] = {}  # digest of tokens -> states with exactly these
        self.rows_at: dict[str, set[str]] = {}  # digest of tokens -> rows that end with these


def token_digests(tokens: ReadableBuffer, lengths: Iterator[int] | list[int]) -> dict[int, str]:
    """Return the digest of the first n tokens for each wanted n that they reach.

    Parameters
    ----------
    tokens : bytes-like
        Little-endian int32.
    lengths : iterable of int
        In increasing order.
    """
    view = memoryview(tokens).cast("B")
    running = hashlib.sha256()
    out, done = {}, 0
    for n in lengths:
        if 4 * n > view.nbytes:
            break
        running.update(view[done : 4 * n])
        done = 4 * n
        out[n] = running.copy().hexdigest()
    return out


class Catalogue:
    """The states and rows of a store."""

    def __init__(self) -> None:
        self.states: dict[str, Entry] = {}
        self.rows: dict[str, RowsEntry] = {}
        self.users: dict[str, set[str]] = {}  # rows -> the states that need them, also of rows that are missing
        self.calls: dict[str, set[str]] = {}  # id of a tool call -> the states that hold its text
        self.n_bytes = 0
        self._groups: dict[bytes, _Group] = {}

    # Change

    def add(self, entry: Entry | RowsEntry) -> None:
        """Add a file, in place of one of the same name."""
        self.remove(entry.name, "rows" if isinstance(entry, RowsEntry) else "state")
        group = self._groups.setdefault(entry.context, _Group())
        self.n_bytes += entry.n_bytes
        if isinstance(entry, RowsEntry):
            self.rows[entry.name] = entry
            group.rows_at.setdefault(entry.digest, set()).add(entry.name)
            group.token_lengths.add(entry.start)
            group.token_lengths.add(entry.stop)
            return
        self.states[entry.name] = entry
        group.key_lengths.add(entry.n_key)
        group.token_lengths.add(entry.n_tokens)
        group.states_at.setdefault(entry.digest, set()).add(entry.name)
        for ref in entry.rows:
            self.users.setdefault(ref.name, set()).add(entry.name)
        for call in entry.calls:
            self.calls.setdefault(call, set()).add(entry.name)

    def remove(self, name: str, kind: str) -> None:
        """Forget a file; nothing happens when it is unknown."""
        if kind == "rows":
            rows = self.rows.pop(name, None)
            if rows is not None:
                group = self._groups[rows.context]
                self.n_bytes -= rows.n_bytes
                _discard(group.rows_at, rows.digest, name)
                group.token_lengths.remove(rows.start)
                group.token_lengths.remove(rows.stop)
            return
        state = self.states.pop(name, None)
        if state is None:
            return
        group = self._groups[state.context]
        self.n_bytes -= state.n_bytes
        group.key_lengths.remove(state.n_key)
        group.token_lengths.remove(state.n_tokens)
        _discard(group.states_at, state.digest, name)
        for ref in state.rows:
            _discard(self.users, ref.name, name)
        for call in state.calls:
            _discard(self.calls, call, name)

    def use(self, name: str, hits: int, last_used: float) -> None:
        """Note that a state was used."""
        self.states[name] = self.states[name].used(hits, last_used)

    # Ask

    def names(self) -> set[tuple[str, str]]:
        """Return (name, kind) of everything held."""
        return {(n, "state") for n in self.states} | {(n, "rows") for n in self.rows}

    def complete(self, entry: Entry) -> bool:
        """Whether the rows of a state are all there."""
        return all(ref.name in self.rows for ref in entry.rows)

    def prefixes(self, context: bytes, key: ReadableBuffer) -> list[Entry]:
        """Return the complete states whose key is a prefix of `key`, the shortest first."""
        group = self._groups.get(context)
        if group is None:
            return []
        view = memoryview(key).cast("B")
        running = state_hash(context)
        out, done = [], 0
        for n in group.key_lengths:
            if n > view.nbytes:
                break
            running.update(view[done:n])
            done = n
            entry = self.states.get(running.copy().hexdigest())
            if entry is not None and entry.n_key == n and self.complete(entry):
                out.append(entry)
        return out

    def digests(self, context: bytes, tokens: ReadableBuffer) -> dict[int, str]:
        """Return the digests of the token prefixes, by length, at which some file of the context begins or ends."""
        group = self._groups.get(context)
        return {} if group is None else token_digests(tokens, iter(group.token_lengths))

    def ancestors(self, context: bytes, digests: dict[int, str], n_tokens: int) -> list[Entry]:
        """Return the states whose tokens are a proper prefix of the first `n_tokens`, the shortest first."""
        group = self._groups.get(context)
        if group is None:
            return []
        found = (group.states_at.get(d, ()) for n, d in sorted(digests.items()) if n < n_tokens)
        return [self.states[name] for names in found for name in sorted(names)]

    def chain(self, context: bytes, digests: dict[int, str], n_tokens: int) -> list[RowsEntry]:
        """Return rows that cover the positions from 0 to the farthest point, at most `n_tokens`, that rows reach."""
        group = self._groups.get(context)
        if group is None:
            return []
        # The farthest point reached from 0 and how, growing: digests are in order of their lengths.
        reached: dict[int, list[RowsEntry]] = {0: []}
        for n in sorted(digests):
            if not 0 < n <= n_tokens:
                continue
            ways = [
                [*reached[rows.start], rows]
                for rows in (self.rows[name] for name in sorted(group.rows_at.get(digests[n], ())))
                if rows.start in reached
            ]
            if ways:
                reached[n] = min(ways, key=len)
        return reached[max(reached)]


def _discard(sets: dict[str, set[str]], key: str, name: str) -> None:
    found = sets.get(key)
    if found is not None:
        found.discard(name)
        if not found:
            del sets[key]
