"""What a store keeps when its budget is full.

The worth of a state is (h + 1) * tokens / bytes, where h are its hits, halved for every six hours since the last use,
and bytes is what deleting it would free: its own file and the rows that no other state needs. It is doubled for what
somebody asked for (start of a prompt, end of a session), and reduced for a state that a longer one of the same
conversation continues. The least worthy goes first. Not for sale are

* states in use (their files are locked),
* states used in the last minutes, up to half of the budget, the latest first,
* the latest small starts of prompts (a system text with its tools), up to a tenth of the budget,

because a short prefix that every conversation begins with saves the most and weighs the least.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from .catalogue import Catalogue
from .records import Entry

__all__ = ["Retention", "outlived", "victims"]


@dataclass(frozen=True, slots=True)
class Retention:
    """The numbers of the policy.

    Attributes
    ----------
    half_life : float
        Seconds after which a hit counts half.
    protect : float
        Seconds for which a use protects a state.
    protect_share : float
        Share of the budget that such states may take.
    anchor_share : float
        Share of the budget kept for small starts of prompts.
    anchor_size : float
        Share of the budget up to which a start of a prompt is small.
    lineage : int
        States of one conversation that are kept at the same time, besides starts of prompts, states that were used in
        the last minutes, and those that two conversations continue.
    """

    half_life: float = 6 * 3600.0
    protect: float = 600.0
    protect_share: float = 0.5
    anchor_share: float = 0.1
    anchor_size: float = 1 / 32
    lineage: int = 2


def score(entry: Entry, n_bytes: int, *, now: float, superseded: bool, policy: Retention) -> float:
    """Return the worth of a state whose deletion frees `n_bytes`."""
    hits: float = entry.hits * 2.0 ** (-max(0.0, now - entry.last_used) / policy.half_life)
    if hits < 0.01:
        hits = 0.0
    worth = (hits + 1) * entry.n_tokens / max(1, n_bytes)
    if entry.reason != "continued":
        worth *= 2
    if superseded and entry.reason != "cold":
        worth *= 0.05 + 0.45 * hits / (hits + 1)
    return worth


def _recent(entry: Entry, now: float, policy: Retention) -> bool:
    # Of a time that is yet to come, which a wrong clock has left, nothing follows.
    return entry.last_used > entry.created and 0 <= now - entry.last_used < policy.protect


def freed(catalogue: Catalogue, entry: Entry, keep: Collection[str] = ()) -> int:
    """Return the bytes that deleting a state frees; rows in `keep` stay."""
    needed = (r for r in entry.rows if r.name in catalogue.rows and r.name not in keep)
    alone = [r for r in needed if len(catalogue.users[r.name]) == 1]
    return entry.n_bytes + sum(catalogue.rows[r.name].n_bytes for r in alone)


def protected(catalogue: Catalogue, budget: int, now: float, policy: Retention) -> set[str]:
    """Return the states that are not deleted to make room."""
    out: set[str] = set()
    recent = [e for e in catalogue.states.values() if _recent(e, now, policy)]
    anchors = [
        e for e in catalogue.states.values() if e.reason == "cold" and e.total_bytes <= budget * policy.anchor_size
    ]
    for entries, room in ((recent, budget * policy.protect_share), (anchors, budget * policy.anchor_share)):
        counted: set[str] = set()
        for entry in sorted(entries, key=lambda e: (-e.last_used, e.name)):
            new = {r.name for r in entry.rows} - counted
            size = entry.n_bytes + sum(r.n_bytes for r in entry.rows if r.name in new)
            if size > room:
                continue
            room -= size
            counted |= new
            out.add(entry.name)
    return out


def victims(
    catalogue: Catalogue,
    *,
    room: int,
    budget: int,
    now: float,
    policy: Retention,
    superseded: Collection[str] = (),
    keep: Collection[str] = (),
) -> Iterator[tuple[str, str]]:
    """Yield (name, kind) of the files to delete, one after the other, until all files take at most `room` bytes.

    The caller deletes each and removes it from the catalogue before it asks for the next, or leaves it there when it
    cannot be deleted.

    Parameters
    ----------
    catalogue : Catalogue
        What there is.
    room : int
        Bytes that may stay.
    budget : int
        Of which the shares are taken.
    now : float
        Unix time.
    policy : Retention
        Numbers.
    superseded : collection of str
        States that the one to come continues.
    keep : collection of str
        Files that stay: the state to come, should there be one of its name, and its rows.
    """
    tried: set[tuple[str, str]] = set()

    def offer(name: str, kind: str) -> Iterator[tuple[str, str]]:
        if (name, kind) not in tried:
            tried.add((name, kind))
            yield name, kind

    def without_use() -> Iterator[tuple[str, str]]:
        for name in [n for n in sorted(catalogue.rows) if n not in catalogue.users and n not in keep]:
            if catalogue.n_bytes > room:
                yield from offer(name, "rows")

    yield from without_use()
    for entry in [e for e in catalogue.states.values() if e.name not in keep and not catalogue.complete(e)]:
        if catalogue.n_bytes > room:
            yield from offer(entry.name, "state")
    safe = protected(catalogue, budget, now, policy) | set(keep)
    while catalogue.n_bytes > room:
        candidates = [e for e in catalogue.states.values() if e.name not in safe and (e.name, "state") not in tried]
        if not candidates:
            return
        worst = min(
            candidates,
            key=lambda e: (
                score(e, freed(catalogue, e, keep), now=now, superseded=e.name in superseded, policy=policy),
                e.last_used,
                e.name,
            ),
        )
        yield from offer(worst.name, "state")
        yield from without_use()


def outlived(ancestors: list[Entry], children: Mapping[str, int], *, now: float, policy: Retention) -> list[Entry]:
    """Return the states of a conversation that need not be kept now that a longer one was stored.

    Parameters
    ----------
    ancestors : list of Entry
        States whose tokens are a proper prefix of the new one's, the shortest first.
    children : mapping
        Number of states, by name, that directly continue an ancestor; more than one mean that conversations part there.
    """
    line = [e for e in ancestors if e.reason != "cold"]
    stay = max(0, policy.lineage - 1)
    old = line[: len(line) - stay] if stay else line
    return [e for e in old if children.get(e.name, 0) < 2 and not _recent(e, now, policy)]
