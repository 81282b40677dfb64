"""The live sessions, and which of them a prompt goes on from."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...session import Session
from ...steering import Steering

log = logging.getLogger("ds4.server")


class Slot:
    """A session and what is known of it.

    Attributes
    ----------
    tokens : array of int
        Tokens that the session holds.
    owner : object or None
        The job that works in it.
    used : int
        When it was used last; greater is later.
    turn : int
        Position where the last prompt ended: what is behind belongs to one answer.
    broken : bool
        The session cannot be trusted any more.
    parked : bool
        Another thread is at work in the session.
    saved : int
        Position at which the session is in the store; 0 for none.
    steering : tuple of Steering
        What all it holds was steered with.
    blocks : dict of str to str
        What the store is to keep of the turns with calls, see `replay.stored_blocks`.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.tokens: array[int] = array("i")
        self.owner: object | None = None
        self.used = 0
        self.turn = 0
        self.broken = False
        self.parked = False
        self.saved = 0
        self.steering: tuple[Steering, ...] = ()
        self.blocks: dict[str, str] = {}

    def reachable(self, common: int, *, copied: bool = False) -> int:
        """Return the farthest position, at most `common`, where the session can go on without computing.

        Or where a copy of it can: that has the checkpoints, but none of the last positions before its own.
        """
        pos = len(self.tokens)
        if common >= pos:
            return pos
        if not copied and 0 < pos - common <= self.session.steps_back and common:
            return common
        return max((at for at in self.session.checkpoints if at <= common), default=0)

    def steer(self, steering: tuple[Steering, ...]) -> None:
        """Begin anew with another steering."""
        self.session.reset()
        self.tokens = array("i")
        self.turn = self.saved = 0
        self.blocks = {}
        self.session.set_steering(steering)
        self.steering = steering

    def look(self) -> None:
        """Read from the session what it holds, after a call that was broken off."""
        self.tokens = array("i", self.session.tokens)


def common_prefix(a: array[int], b: array[int]) -> int:
    """Return how many tokens two lists share at their beginning."""
    n = min(len(a), len(b))
    if not n:
        return 0
    different = np.flatnonzero(np.frombuffer(a, np.int32, n) != np.frombuffer(b, np.int32, n))
    return int(different[0]) if different.size else n


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a prompt is worked on.

    Parameters
    ----------
    slot : Slot
    kept : int
        Tokens that need not be computed.
    source : {"live", "rewind", "fork", "store", "cold"}
    why : str
        In words, for people.
    common : int
        Tokens that the prompt shares with the nearest live session.
    replaced : Slot or None
        A session that had to make room for a copy of another one; to be closed, and perhaps saved before.
    """

    slot: Slot
    kept: int
    source: str
    why: str
    common: int
    replaced: Slot | None = None


class Pool:
    """Sessions of one model.

    Parameters
    ----------
    make : callable
        Makes a session.
    most : int
        Sessions that may be alive.
    """

    def __init__(self, make: Callable[[], Session], most: int) -> None:
        self._make = make
        self.most = most
        self._clock = 0
        self.slots: list[Slot] = []

    def take(self, tokens: array[int], owner: object, steering: tuple[Steering, ...] = ()) -> Placement:
        """Give a prompt the session that has most of it; there must be one that is not busy.

        Which session it is has no influence on what is computed: one of other steering has nothing of the prompt. What
        such a one holds is there still; `Slot.steer` is for the owner to call, who may save it before.
        """
        idle = [slot for slot in self.slots if slot.owner is None]
        placement = self._placed(idle, tokens, steering)
        placement.slot.owner = owner
        self._clock += 1
        placement.slot.used = self._clock
        return placement

    def _placed(self, idle: list[Slot], tokens: array[int], steering: tuple[Steering, ...]) -> Placement:
        best: Slot | None = None
        most = shared = 0
        for slot in self.slots:
            if slot.parked or slot.steering != steering:
                continue
            common = common_prefix(slot.tokens, tokens)
            kept = slot.reachable(common, copied=self._copies(slot, idle, common))
            shared = max(shared, common)
            # Of equals an idle one, and of those the one used last.
            if kept and (best is None or (kept, slot in idle, slot.used) > (most, best in idle, best.used)):
                best, most = slot, kept
        if best is None:
            return Placement(self._unused(idle), 0, "cold", self._why_cold(shared), shared)
        common = common_prefix(best.tokens, tokens)
        if best in idle and most == len(best.tokens):
            return Placement(best, most, "live", "live: a session holds the beginning of the prompt", common)
        spare = [slot for slot in idle if slot is not best]
        room = bool(spare) or len(self.slots) < self.most
        if room and self._copies(best, idle, most):
            copied = self._copy(best, spare)
            if copied is not None:
                why = f"fork: the prompt leaves another session's {len(best.tokens)} tokens after {common}"
                target, replaced = copied
                return Placement(target, most, "fork", f"{why}; a copy of it went back to {most}", common, replaced)
        if best in idle:
            return Placement(best, most, "rewind", _rewound(best, most, common), common)
        return Placement(self._unused(idle), 0, "cold", "cold: the session with the same beginning is busy", shared)

    def _copies(self, slot: Slot, idle: list[Slot], pos: int) -> bool:
        """Return whether a prompt that leaves a session at `pos` is worked on in a copy, if there is memory for one.

        Going back in place loses what is behind. That is right for another answer to the last prompt; a conversation
        that left earlier may be one of two, so both are kept if there is a session to spare.
        """
        if slot not in idle:
            return True
        return pos < slot.turn - 1 and (len(idle) > 1 or len(self.slots) < self.most)

    def _copy(self, source: Slot, spare: list[Slot]) -> tuple[Slot, Slot | None] | None:
        """Put a copy of a session in place of one that can be spared, or beside all; None without memory for it.

        Returns the copy and the one that was replaced.
        """
        try:
            copy = source.session.fork()
        except MemoryError:
            return None
        target = Slot(copy)
        target.tokens, target.turn, target.steering = source.tokens[:], source.turn, source.steering
        replaced = None
        if len(self.slots) >= self.most or not all(slot.tokens for slot in spare):
            replaced = min(spare, key=lambda slot: (bool(slot.tokens), slot.used))
            self.slots.remove(replaced)
        self.slots.append(target)
        return target, replaced

    def _unused(self, idle: list[Slot]) -> Slot:
        """Return a session to overwrite: an empty one, a new one, or the one that was not used for longest."""
        empty = [slot for slot in idle if not slot.tokens]
        if empty:
            return empty[0]
        if len(self.slots) < self.most:
            try:
                slot = Slot(self._make())
            except MemoryError:
                if not self.slots:
                    raise
                log.warning("there is no memory for another session; %d are kept", len(self.slots))
                self.most = len(self.slots)
                if not idle:
                    raise
            else:
                self.slots.append(slot)
                return slot
        return min(idle, key=lambda slot: slot.used)

    def _why_cold(self, shared: int) -> str:
        if all(not slot.tokens for slot in self.slots):
            return "cold: no session holds anything yet"
        if shared == 0:
            return "cold: no session begins like the prompt"
        return f"cold: a session shares {shared} tokens with the prompt, but cannot go back there"

    def free(self, slot: Slot) -> None:
        """Take a session back from its owner; a broken one is closed."""
        slot.owner = None
        if slot.broken:
            self.slots.remove(slot)
            slot.session.close()

    def size(self) -> tuple[int, int]:
        """Return how many sessions there are, and their bytes."""
        return len(self.slots), sum(slot.session.n_bytes for slot in self.slots)

    def close(self) -> None:
        """Close all sessions."""
        while self.slots:
            self.slots.pop().session.close()


def _rewound(slot: Slot, kept: int, common: int) -> str:
    n = len(slot.tokens)
    return f"rewind: the prompt leaves the session's {n} tokens after {common}; the session went back to {kept}"
