"""The cost model of speculation: how many tokens to guess, by times measured on the way.

A batch of a known token and d guesses costs C(d), guessing included, and is good for E(d) = 1 + a1 + a1 a2 + ...
tokens, where a_i is the chance that guess i is right when those before it were. Alone a token costs C(0). Guessing d
tokens pays when C(d) / C(0) < E(d). All of these are measured.

What is not known must be tried, and trying may cost. So there is an account of the time that may be lost, in tokens'
time: every token pays a little in (`BUDGET`), what batches took longer than their tokens would have taken alone is
taken off, and without credit nothing is guessed. The account holds little, so that what was once saved or won cannot
pay for a loss that goes on.

Times vary, and a machine may become slower or faster at any moment. So batches are only ever compared with the tokens
alone right before and right after them, which are computed for that purpose. A drift or a step of the machine's speed
is then no gain and no loss, and noise adds to the account as often as it takes from it. Where noise is great, a gain
must be, before it counts as one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import fmean
from threading import Lock

__all__ = ["MOST_DEPTH", "Chooser", "CostModel"]

MOST_DEPTH = 5
BUDGET = 0.006
"""Share of the time of the tokens alone that may be lost."""
FIRST_CREDIT = 2.0
"""Tokens' time that may be lost besides, once, so that finding out begins at once."""
MOST_CREDIT = 3.0
"""Tokens' time that may be lost at a time, however long nothing was."""
MOST_WON = 4.0
"""The same in a generation that wins; where it wins much, a part of that too."""

_FIRST = 8  # tokens computed alone before anything is tried
_AGAIN = 4  # the same when batches of the machine are known
_GROUP = 8  # tokens alone on either side of batches that they are compared with, at most
_FORGET = 0.96  # of an acceptance, per batch
_KEPT = 0.97  # of the cost of batches, per batch
_GAIN = 0.03  # what guessing must win to be worth it
_DOUBTED = 3  # batches that may all have been stalls
_MOST_SLEEP = 64  # tokens for which nothing is measured
_TRIED = 4  # batches before which nothing is sure
_VARY = 6  # runs of batches after which another depth is tried
_STALL = 3.0  # times as long as usual: no measure of anything
_CERTAIN = 0.15  # what is won of the tokens' time above this is not the work of noise
_MOST_STALL = 20.0  # tokens' time: what a stall is booked with at most
_MOST_NOISE = 0.8  # difference of neighbours that is taken for noise
_FULL = 4.0  # tokens' time: what the first batch of a depth is booked with at most, because it may be a stall


class CostModel:
    """What was measured: costs of batches, chances of guesses, and the account of what may be lost.

    A model belongs to one machine, model file and session setting. Times of one generation are good for the next, and
    for others beside it, in any thread.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._batches = [0.0] * (MOST_DEPTH + 1)  # by guesses: batches that were measured, those before count less
        self._costs = [0.0] * (MOST_DEPTH + 1)  # and what they took, in tokens' time
        self._seen = [0.0] * MOST_DEPTH
        self._right = [0.0] * MOST_DEPTH
        self._credit = FIRST_CREDIT
        self._alone = [0, 0]  # tokens alone that were measured, and those that stalled
        self._stalls = [0, 0]  # the same of batches
        self._owed = 0.0  # what was booked of them
        self._noise = 0.01  # of tokens alone: mean square of the relative difference of neighbours
        self._count = 0

    def chooser(self) -> Chooser:
        """Begin a generation."""
        with self._lock:
            self._credit = min(self._credit, MOST_CREDIT)
        return Chooser(self)

    @property
    def credit(self) -> float:
        """What may be lost now, in the time of a token alone."""
        return self._credit

    def acceptance(self, i: int) -> float:
        """The chance that guess i (from 1) is right when those before it were; what is not known lies below it."""
        before = 0.6 if i == 1 else self.acceptance(i - 1)
        return (self._right[i - 1] + before) / (self._seen[i - 1] + 1)

    def tokens(self, depth: int) -> float:
        """Tokens that a batch is good for."""
        total, chance, before = 1.0, 1.0, 0.6
        for right, seen in zip(self._right[:depth], self._seen, strict=False):
            before = (right + before) / (seen + 1)
            chance *= before
            total += chance
        return total

    def known(self, depth: int) -> bool:
        """Whether batches with so many guesses were measured."""
        return self._batches[depth] > 0

    def measured(self) -> int:
        """How many guesses were tried at most."""
        return max((d for d in range(1, MOST_DEPTH + 1) if self.known(d)), default=0)

    def cost(self, depth: int) -> float:
        """What a batch takes, in the time of a token alone: as measured or, for a depth that was not tried, a guess."""
        if depth == 0:
            return 1.0
        return self._costs[depth] / self._batches[depth] if self._batches[depth] else self.guessed_cost(depth)

    def guessed_cost(self, depth: int) -> float:
        """What a batch takes, in a line from the other depths; as if nothing were shared when none was tried."""
        tried = [(abs(d - depth), d) for d in range(1, MOST_DEPTH + 1) if d != depth and self._batches[d]]
        if not tried:
            return 1.0 + depth
        _, near = min(tried)
        at = self._costs[near] / self._batches[near]
        return max(1.0, at + (depth - near) * max(at - 1.0, 0.0) / near)

    def doubted_cost(self, depth: int) -> float:
        """The same as `cost`, but few measures that are worse than the guess may be wrong."""
        cost = self.cost(depth)
        return min(cost, self.guessed_cost(depth)) if self._batches[depth] < _DOUBTED else cost

    def pays(self, depth: int) -> float:
        """How much faster guessing that many tokens is than guessing none, as a factor."""
        return self.tokens(depth) / self.cost(depth)

    @property
    def noise(self) -> float:
        """By how much times of tokens alone vary: their standard deviation, as a part of the time."""
        return sqrt(self._noise)

    def sure(self, depth: int) -> bool:
        """Whether guessing that many tokens pays, by more than noise could make of it."""
        doubt = self.noise * (0.5 + 1.5 / sqrt(max(self._batches[depth], 1.0)))
        return self._count >= _TRIED and self.pays(depth) > 1 + max(_GAIN, doubt)

    # What a chooser tells

    def _token(self, stalled: bool) -> None:
        self._alone[0] += 1
        self._alone[1] += stalled
        if stalled and self._owed:
            self._pardon()
        self._earn(1)

    def _differ(self, before: float, seconds: float) -> None:
        difference = min(2 * abs(seconds - before) / (seconds + before), _MOST_NOISE)
        self._noise += 0.05 * (difference * difference / 2 - self._noise)

    def _earn(self, tokens: int) -> None:
        """Tokens pay in; what was won is not thrown away by that."""
        self._credit = max(self._credit, min(self._credit + BUDGET * tokens, MOST_CREDIT))

    def _book(self, won: float, most: float) -> None:
        self._credit = min(self._credit + won, max(self._credit, most))

    def _guesses(self, asked: int, drafted: int, seen: int, accepted: int) -> None:
        known = seen if seen < drafted or drafted == asked else seen + 1  # the model's own doubt counts as wrong
        for i in range(min(known, MOST_DEPTH)):
            self._seen[i] = self._seen[i] * _FORGET + 1
            self._right[i] = self._right[i] * _FORGET + (i < accepted)
        self._count += 1

    def _measured(self, depth: int, cost: float) -> None:
        self._batches[depth] = self._batches[depth] * _KEPT + 1
        self._costs[depth] = self._costs[depth] * _KEPT + cost

    def _forget(self, depth: int) -> None:
        self._batches[depth] = self._costs[depth] = 0.0

    def _stalled(self, excess: float) -> None:
        """Book a batch that took much longer than usual."""
        self._stalls[1] += 1
        excess = min(excess, _MOST_STALL)
        self._owed += excess
        self._credit -= excess
        self._pardon()

    def _pardon(self) -> None:
        """A stall is no fault of guessing when tokens alone stall too, about as often."""
        batches, stalls = self._stalls
        n, alone = self._alone
        expected = 2 * batches * (alone + 0.5) / (n + 1)  # a batch is longer
        if self._owed and stalls <= expected + (2 * sqrt(expected) if alone else 0):
            self._credit = min(self._credit + self._owed, MOST_CREDIT)
            self._owed = 0.0


def median(times: Iterable[float]) -> float:
    """Return the middle one; of two the greater."""
    found = sorted(times)
    return found[len(found) // 2]


def level(times: Sequence[float]) -> float:
    """Return the mean of times without those that stalled."""
    most = _STALL * median(times)
    return fmean([t for t in times if t <= most])


class Chooser:
    """Says how many tokens to guess, for one generation."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._alone: deque[float] = deque(maxlen=_GROUP)  # the last tokens alone before the batches at hand
        self._fresh = 0  # of them, since the batches before
        self._after: list[float] = []  # and after them
        self._run: list[tuple[int, float, int, float]] = []  # batches: guesses, seconds, tokens, cost if told
        self._booked = 0.0
        self._last = 0.0
        self._n_stalled = 0
        self._n_long = 0
        self._asleep = 0  # tokens for which there is nothing to do
        self._depth = self._limit = 0  # guesses of the batches at hand, and how many batches
        self._enough = 2  # tokens alone behind them
        self._need = 0.0  # the credit that one of them takes
        self._runs = 0
        self._won = 0.0  # in this generation, in tokens' time
        self._tokens = 0

    # What happened

    def plain(self, seconds: float) -> None:
        """Tell what a token alone took."""
        if self._asleep or seconds <= 0:  # a clock that stood still
            return
        costs, stalled = self._costs, self._is_stall(seconds)
        near = self._after or self._alone
        with costs._lock:
            costs._token(stalled)
            if near and not stalled:
                costs._differ(near[-1], seconds)
        if stalled:
            return
        if self._run:
            self._after.append(seconds)
            if len(self._after) == _GROUP:
                self._settle()
        else:
            self._alone.append(seconds)
            self._fresh += 1

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
        self._settle()
        costs, tokens = self._costs, 1 + accepted
        with costs._lock:
            costs._guesses(asked, drafted, seen, accepted)
            costs._earn(tokens)
            if not self._alone:
                return
            alone = self._before()
            cost = seconds / alone
            costs._stalls[0] += 1
            usual, known = costs.cost(asked), costs.known(asked)
            self._n_long = self._n_long + 1 if known and cost > _STALL * usual else 0
            if self._n_long == 1:
                costs._stalled(cost - usual)
                cost = usual
            elif self._n_long:  # one after the other: that is what they take now
                costs._forget(asked)
                known = False
            elif not known:  # the very first one finds cold weights
                cost = min(cost, max(_FULL, usual) if costs.measured() else usual)
            if not known:
                costs._measured(asked, cost)
            self._run.append((asked, cost * alone, tokens, 0.0 if known else cost))
            self._booked += tokens - cost
            self._tokens += tokens
            self._book(tokens - cost)

    def _book(self, won: float) -> None:
        """Put into the account what was won, or take out what was lost."""
        self._won += won
        spare = (self._won - _CERTAIN * self._tokens) / 4
        self._costs._book(won, MOST_WON + min(max(spare, 0.0), _MOST_STALL))

    def _before(self) -> float:
        """Time of a token alone before the batches."""
        n = min(max(self._fresh, _GROUP // 2), len(self._alone))
        return level(list(self._alone)[-n:])

    def _is_stall(self, seconds: float) -> bool:
        before, self._last = self._last, seconds
        if seconds < before * _STALL / 2 and not self._n_stalled:
            return False  # the usual case
        near = [*self._alone, *self._after]
        if len(near) < 3 or seconds <= _STALL * median(near):
            self._n_stalled = 0
            return False
        self._n_stalled += 1
        if self._n_stalled < 3:
            return True
        self._alone.clear()  # the machine is slower now
        self._after.clear()
        self._run.clear()
        self._booked = 0.0
        self._n_stalled = self._fresh = 0
        return False

    def _settle(self) -> None:
        """Compare the batches with the tokens alone on both sides, if there are any behind them."""
        if not self._after:
            return
        alone = (self._before() + level(self._after)) / 2
        costs = self._costs
        with costs._lock:
            won = 0.0
            for depth, seconds, tokens, told in self._run:
                won += tokens - seconds / alone
                if told:
                    costs._costs[depth] += seconds / alone - told
                else:
                    costs._measured(depth, seconds / alone)
            self._book(won - self._booked)
        self._alone.extend(self._after)
        self._fresh = len(self._after)
        self._after.clear()
        self._run.clear()
        self._booked = 0.0
        self._runs += 1

    # What to do

    def choose(self, most: int) -> int:
        """Say how many tokens to guess now, 0 to `most`."""
        costs = self._costs
        if self._asleep:
            self._asleep -= 1
            return 0
        if self._run and not self._after:
            if len(self._run) >= self._limit or costs.credit <= self._need:
                return 0  # there is to be something to compare them with
            return min(self._depth, most)
        if self._after:
            if len(self._after) < self._enough:
                return 0
        elif 0 < len(self._alone) < (_AGAIN if costs.known(1) else _FIRST):
            return 0
        depth = self._best(most)
        gain, sure = costs.pays(depth), costs.sure(depth)
        if self._after:
            self._enough = _GROUP if not sure else 2 if costs.noise < 0.1 else 4
            if len(self._after) < self._enough:
                return 0
        while not sure and depth > 1 and costs.doubted_cost(depth) - 1 > costs.credit:
            depth -= 1
        need = 0.0 if sure else min(costs.doubted_cost(depth) - 1, MOST_CREDIT - BUDGET)
        if costs.credit <= need:
            self._sleep(need)
            return 0
        if not self._alone:
            return 0
        self._settle()
        self._depth, self._need, self._enough = depth, need, 2
        self._limit = 4 if not sure else 8 if gain < 1.5 else 16 if gain < 2.5 else 24
        return depth

    def skip(self) -> int:
        """Return for how many tokens `choose` would say 0 and `plain` would not look, and count them as done."""
        tokens, self._asleep = self._asleep, 0
        return tokens

    def _sleep(self, need: float) -> None:
        """Measure nothing while nothing can be tried: that takes time too."""
        tokens = int((need - self._costs.credit) / BUDGET) - _GROUP
        if self._costs._owed:
            return  # are there stalls of tokens alone?
        if tokens >= _GROUP and not 0 < len(self._after) < _GROUP:
            self._settle()
            self._asleep = min(tokens, _MOST_SLEEP)
            with self._costs._lock:
                self._costs._earn(self._asleep)
            self._alone.clear()
            self._fresh = 0

    def _best(self, most: int) -> int:
        costs = self._costs
        depths = range(1, min(most, costs.measured() + 1) + 1)
        best = max(depths, key=costs.pays)
        if self._runs % _VARY == _VARY - 1:
            near = best + 1 if (self._runs // _VARY) % 2 == 0 else best - 1
            worth = costs.tokens(near) / costs.doubted_cost(near) if near in depths else 0.0
            if worth > 0.85 * costs.pays(best) and costs._credit > costs.cost(near) - 1:
                return near
        return best
