"""Speculation: the next tokens are guessed, and computed together with the one that is known.

A model reads its weights once for several positions of a batch. When the MTP block guesses what comes next, the guesses
are computed in the same batch as the known token, and each one that turns out to be right costs nothing any more. What
a caller sees does not change by a bit: guesses are no part of a session until the caller evaluates them, and logits
are the same however many positions are computed together. So tokens are drawn as always, and only then compared.

Whether it pays depends on the machine, the model and the text: see `CostModel`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from .costs import MOST_DEPTH, CostModel
from .sampling import Sampler

__all__ = ["Draft", "DraftStatistics", "Speculator"]


@dataclass(frozen=True, slots=True)
class Draft:
    """How to speculate.

    Attributes
    ----------
    depth : int
        Tokens that are guessed at once at most, 1..5.
    margin : float
        Guessing ends where the best logit of a guess is less than this above the second best; 0: never.
    auto : bool
        Guess only as many tokens as pays, and none where it does not, by times measured on the way (`CostModel`).
        False: always guess `depth` tokens.
    """

    depth: int = 3
    margin: float = 0.0
    auto: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.depth, bool) or not 1 <= operator.index(self.depth) <= MOST_DEPTH:
            raise ValueError(f"depth must be in 1..{MOST_DEPTH}, not {self.depth}")
        if isinstance(self.margin, bool) or not 0.0 <= self.margin < float("inf"):
            raise ValueError(f"margin must be 0 or more and finite, not {self.margin}")


@dataclass(slots=True)
class DraftStatistics:
    """What speculation did in a generation.

    Attributes
    ----------
    drafted, accepted : int
        Guesses that were computed ahead, and those of them that came true.
    verifies : int
        Batches of a known token and guesses.
    plain : int
        Tokens that were computed alone.
    by_depth : list of (int, int)
        Drafted and accepted of the first guesses, of the second ones, and so on.
    draft_seconds, verify_seconds, plain_seconds : float
        Time of guessing, of batches, and of tokens alone.
    """

    drafted: int = 0
    accepted: int = 0
    verifies: int = 0
    plain: int = 0
    by_depth: list[tuple[int, int]] = field(default_factory=list)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    plain_seconds: float = 0.0

    @property
    def acceptance(self) -> float:
        """Share of the guesses that came true; 0 without any."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_verify(self) -> float:
        """Tokens that a batch was good for, the known one among them; 0 without any."""
        return 1 + self.accepted / self.verifies if self.verifies else 0.0

    def add(self, other: DraftStatistics) -> None:
        """Count those of another generation in."""
        for name in ("drafted", "accepted", "verifies", "plain", "draft_seconds", "verify_seconds", "plain_seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        while len(self.by_depth) < len(other.by_depth):
            self.by_depth.append((0, 0))
        for i, (drafted, accepted) in enumerate(other.by_depth):
            self.by_depth[i] = (self.by_depth[i][0] + drafted, self.by_depth[i][1] + accepted)

    def as_json(self) -> dict[str, object]:
        """Return plain values."""
        return {
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance": round(self.acceptance, 4),
            "by_depth": [list(pair) for pair in self.by_depth],
            "verifies": self.verifies,
            "tokens_per_verify": round(self.tokens_per_verify, 4),
            "alone": self.plain,
            "draft_seconds": round(self.draft_seconds, 6),
            "verify_seconds": round(self.verify_seconds, 6),
            "alone_seconds": round(self.plain_seconds, 6),
        }

    def describe(self) -> str:
        """One line of text."""
        if not self.verifies:
            return f"nothing drafted, {self.plain} tokens alone"
        return (
            f"{self.accepted} of {self.drafted} drafts accepted ({self.acceptance:.0%}), "
            f"{self.tokens_per_verify:.2f} tokens a verify, {self.plain} tokens alone"
        )


class Target(Protocol):
    """What a session must be able to do."""

    @property
    def ahead(self) -> int: ...
    @property
    def can_draft(self) -> bool: ...
    def eval(self, tokens: int, *, progress: Callable[[int, int], object] | None = None) -> None: ...
    def eval_ahead(
        self, token: int, guesses: Sequence[int], *, progress: Callable[[int, int], object] | None = None
    ) -> None: ...
    def draft(self, token: int, depth: int, *, margin: float = 0.0, sampler: Sampler | None = None) -> list[int]: ...


Guess = Callable[[int, int], Sequence[int]]
"""Called with (the token that comes next, how many guesses at most); returns guesses at what follows it."""


class Speculator:
    """Evaluates tokens of a generation one by one, and guesses on the way.

    Parameters
    ----------
    session : Session
        Made with `mtp=True`, unless `guess` is given.
    draft : Draft
    costs : CostModel, optional
        What was measured before; a new one when not given. It may be used for one generation after the other.
    guess : callable, optional
        Guesses instead of the MTP block.
    clock : callable
        Seconds.
    """

    def __init__(
        self,
        session: Target,
        draft: Draft,
        *,
        costs: CostModel | None = None,
        guess: Guess | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._session = session
        self._draft = draft
        self._chooser = (CostModel() if costs is None else costs).chooser()
        self._guess = guess
        self._clock = clock
        self._able = guess is not None or session.can_draft
        self._pending: list[int] = []
        self._held = True
        self._idle = 0  # tokens alone that follow in any case
        self._asked = self._depth = self._hits = 0
        self._cost = 0.0
        self.statistics = DraftStatistics()

    def eval(
        self,
        token: int,
        *,
        sampler: Sampler | None = None,
        guessing: bool = True,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        """Append a token: what `Session.eval` does.

        Parameters
        ----------
        token : int
        sampler : Sampler, optional
            What will draw the next tokens, so that guesses fall as its draws will. It does not change. The best tokens
            are guessed when not given.
        guessing : bool
            False: nothing new is guessed this time.
        progress : callable, optional
            As in `Session.eval`.
        """
        start = self._clock()
        found = self.statistics
        if self._idle:  # with as little as can be: a small model's token takes no longer than some lines of Python
            self._idle -= 1
            self._session.eval(token, progress=progress)
            found.plain += 1
            found.plain_seconds += self._clock() - start
            return
        if self._pending and self._pending[0] == token and self._session.ahead:
            self._session.eval(token, progress=progress)
            self._hit(self._clock() - start)
            return
        self.settle(missed=bool(self._pending))
        if self._held:  # by an earlier generation: perhaps this very token
            self._held = self._session.ahead > 0
        held = self._held
        depth = 0
        if guessing and self._able:
            depth = self._chooser.choose(self._draft.depth) if self._draft.auto else self._draft.depth
        guesses: list[int] = []
        if depth:
            guesses = self._guesses(token, depth, sampler)
        drafted = self._clock()
        if guesses:
            self._session.eval_ahead(token, guesses, progress=progress)
        else:
            self._session.eval(token, progress=progress)
        end = self._clock()
        found.draft_seconds += drafted - start
        if not depth:
            if self._draft.auto and not held:
                self._chooser.plain(end - start)
                self._idle = self._chooser.skip()
            found.plain += 1
            found.plain_seconds += end - start
            return
        self._pending = guesses[: self._session.ahead]
        self._asked, self._depth, self._hits, self._cost = depth, len(self._pending), 0, end - start
        if self._pending:
            found.verifies += 1
            found.verify_seconds += end - drafted
            found.drafted += len(self._pending)
        else:
            found.plain += 1
            found.plain_seconds += end - drafted
            self.settle(missed=False)

    def settle(self, *, missed: bool = False) -> None:
        """End a batch: what was guessed and not asked for is given up. `missed`: another token came."""
        if not self._asked:
            return
        seen = min(self._hits + 1, self._depth) if missed else self._hits
        by_depth = self.statistics.by_depth
        while len(by_depth) < self._depth:
            by_depth.append((0, 0))
        for i in range(self._depth):
            by_depth[i] = (by_depth[i][0] + 1, by_depth[i][1] + (i < self._hits))
        if self._draft.auto:  # what somebody insists on is no loss of the model's choice
            self._chooser.batch(self._asked, self._depth, seen, self._hits, self._cost)
        self._pending = []
        self._asked = self._depth = self._hits = 0

    def _hit(self, seconds: float) -> None:
        self._pending.pop(0)
        self._hits += 1
        self._cost += seconds
        self.statistics.accepted += 1
        if not self._pending:
            self.settle()

    def _guesses(self, token: int, depth: int, sampler: Sampler | None) -> list[int]:
        if self._guess is not None:
            return [int(t) for t in self._guess(token, depth)][:depth]
        return self._session.draft(token, depth, margin=self._draft.margin, sampler=sampler)
