"""The cost model of speculation: how many tokens to guess, by times measured on the way.

A batch of a known token and d guesses costs C(d), guessing included, and is good for E(d) = 1 + a1 + a1 a2 + ...
tokens, where a_i is the chance that guess i is right when those before it were. Alone a token costs C(0). Guessing d
tokens pays when C(d) / E(d) < C(0). All of these are measured: C(d) as the mean of the last batches without the
slowest quarter, which a slow moment does not move, and a_i as a mean that forgets.

What is not known must be tried, and trying costs. The model keeps the books: what batches took longer than their
tokens would have taken alone is a loss, and nothing is tried that could bring it above `BUDGET` of all tokens'
time, but for a small `LOAN`.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean

__all__ = ["MOST_DEPTH", "CostModel"]

MOST_DEPTH = 5
BUDGET = 0.015
"""Share of the time of the tokens alone that may be lost."""
LOAN = 2.0
"""Tokens' time that may be lost besides, once, so that finding out begins at once."""

_KEPT = 21  # times of which the mean is taken
_FIRST = 8  # tokens computed alone before anything is tried
_MOST_WAIT = 64  # tokens after which is looked again
_FORGET = 0.96  # of an acceptance, per batch
_GAIN = 0.93  # what guessing must make of the time to be worth it
_REFRESH = 20  # batches after which one token is computed alone, because its cost grows with the context
_VARY = 12  # batches after which another depth is tried


class CostModel:
    """Measures, and says how many tokens to guess.

    A model belongs to one machine, model file and session setting. Times of one generation are good for the next.
    """

    def __init__(self) -> None:
        self._times: list[deque[float]] = [deque(maxlen=_KEPT) for _ in range(MOST_DEPTH + 1)]  # by guesses
        self._means: list[float | None] = [None] * (MOST_DEPTH + 1)
        self._seen = [0.0] * MOST_DEPTH
        self._right = [0.0] * MOST_DEPTH
        self._tokens = 0
        self._wait = 0  # tokens before which there is nothing to try
        self._lost = 0.0
        self._since_alone = 0
        self._count = 0

    def plain(self, seconds: float) -> None:
        """Tell what a token alone took."""
        if self._wait % 4 == 0:  # often enough, while nothing is guessed
            self._note(0, seconds)
        self._tokens += 1
        self._since_alone = 0

    def batch(self, asked: int, drafted: int, seen: int, accepted: int, seconds: float) -> None:
        """Tell what a batch took.

        Parameters
        ----------
        asked, drafted : int
            Guesses that were wanted, and that there were.
        seen, accepted : int
            Guesses of which it is known whether they are right, and those that are.
        seconds : float
            Guessing, the batch, and taking what was right.
        """
        self._note(asked, seconds)
        known = seen if seen < drafted or drafted == asked else seen + 1  # the model's own doubt counts as wrong
        for i in range(min(known, MOST_DEPTH)):
            self._seen[i] = self._seen[i] * _FORGET + 1
            self._right[i] = self._right[i] * _FORGET + (i < accepted)
        self._tokens += 1 + accepted
        alone, usual = self._means[0], self._means[asked]
        if alone is not None and usual is not None:
            # A slow moment is no fault of guessing. What was won does not pay for a long loss.
            self._lost += min(max(seconds, 0.7 * usual), 1.3 * usual) - (1 + accepted) * alone
            self._lost = max(self._lost, -5 * alone)
        self._since_alone += 1
        self._count += 1

    def acceptance(self, i: int) -> float:
        """The chance that guess i (from 1) is right when those before it were; what is not known lies below it."""
        before = 0.6 if i == 1 else self.acceptance(i - 1)
        return (self._right[i - 1] + before) / (self._seen[i - 1] + 1)

    def tokens(self, depth: int) -> float:
        """Tokens that a batch is good for."""
        total, chance = 1.0, 1.0
        for i in range(1, depth + 1):
            chance *= self.acceptance(i)
            total += chance
        return total

    def _note(self, depth: int, seconds: float) -> None:
        times = self._times[depth]
        times.append(seconds)
        self._means[depth] = fmean(sorted(times)[: max(1, 3 * len(times) // 4)])

    def cost(self, depth: int) -> float | None:
        """Seconds of a batch, as measured or, for a depth that was not tried, in a line from those that were."""
        found, alone = self._means[depth], self._means[0]
        if found is not None or alone is None:
            return found
        tried = [(abs(d - depth), d, at) for d, at in enumerate(self._means) if d and at is not None]
        if not tried:
            return (1 + depth) * alone  # as if nothing were shared
        _, nearest, at = min(tried)
        return max(alone, at + (depth - nearest) * max(at - alone, 0.0) / nearest)

    def pays(self, depth: int) -> float:
        """How much faster guessing that many tokens is than guessing none, as a factor; 1 when nothing is known."""
        alone, batch = self._means[0], self.cost(depth)
        if alone is None or batch is None or batch <= 0:
            return 1.0
        return self.tokens(depth) * alone / batch

    def choose(self, most: int) -> int:
        """Say how many tokens to guess now, 0 to `most`."""
        if self._wait:
            self._wait -= 1
            return 0
        alone = self._means[0]
        if alone is None or len(self._times[0]) < _FIRST:
            return 0
        room = (BUDGET * self._tokens + LOAN) * alone - self._lost
        if room <= 0:
            return self._pause(-room, alone)
        reached = max(d for d, at in enumerate(self._means) if at is not None)
        depths = range(1, min(most, reached + 1) + 1)
        best = max(depths, key=self.pays)
        if self._count >= 4 and self.pays(best) * _GAIN > 1:
            if self._since_alone >= _REFRESH:
                return 0
            if self._count % _VARY == 0:
                near = best + 1 if (self._count // _VARY) % 2 == 0 else best - 1
                if near in depths:
                    return near
            return best
        cost = self.cost(best)
        assert cost is not None
        return best if cost - alone <= room else self._pause(cost - alone - room, alone)

    def _pause(self, missing: float, alone: float) -> int:
        """Nothing is to be tried until tokens have made room for it."""
        self._wait = min(int(missing / (BUDGET * alone)), _MOST_WAIT)
        return 0
