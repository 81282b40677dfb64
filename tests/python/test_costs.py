"""The cost model of speculation, on machines and texts that are made up: what it chooses never costs much."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from ds4.costs import CostModel
from ds4.sampling import Sampler
from ds4.speculation import Draft, Speculator


class Machine:
    """A session without a model: calls take the time that was set, and guesses come true by chance.

    Parameters
    ----------
    batch : sequence of float
        Seconds of a batch of 1, 2, ... tokens.
    guess : float
        Seconds of a guess.
    chances : sequence of float
        That guess 1, 2, ... is right when those before it were.
    noise : float
        Times vary by this factor at most; one in fifty takes ten times as long.
    """

    can_draft = True

    def __init__(
        self, batch: Sequence[float], guess: float, chances: Sequence[float], *, noise: float = 0.0, seed: int = 0
    ) -> None:
        self.batch, self.guess, self.chances, self.noise = batch, guess, chances, noise
        self.random = random.Random(seed)
        self.now = 0.0
        self.spent = 0.0  # the time without the noise
        self.alone = 0.0  # what the tokens would have taken one by one
        self.pending: list[int] = []

    @property
    def ahead(self) -> int:
        return len(self.pending)

    def clock(self) -> float:
        return self.now

    def _spend(self, seconds: float) -> None:
        self.spent += seconds
        if self.noise:
            seconds *= 1 + self.random.uniform(-self.noise, self.noise)
            if self.random.random() < 0.02:
                seconds *= 10
        self.now += seconds

    def eval(self, tokens: int, *, progress: Callable[[int, int], object] | None = None) -> None:
        self.alone += self.batch[0]
        if self.pending and self.pending[0] == tokens:
            self.pending.pop(0)
            return
        self.pending = []
        self._spend(self.batch[0])

    def eval_ahead(
        self, token: int, guesses: Sequence[int], *, progress: Callable[[int, int], object] | None = None
    ) -> None:
        self.alone += self.batch[0]
        self._spend(self.batch[len(guesses)])
        self.pending = list(guesses)

    def draft(self, token: int, depth: int, *, margin: float = 0.0, sampler: Sampler | None = None) -> list[int]:
        self._spend(self.guess * depth)
        guesses = []
        right = True
        for i in range(depth):
            right = right and self.random.random() < self.chances[i]
            guesses.append(1 if right else 2)
        return guesses


def run(machine: Machine, n: int, *, costs: CostModel | None = None, draft: Draft | None = None) -> Speculator:
    """A generation of n tokens, all of them 1."""
    speculator = Speculator(machine, draft or Draft(depth=5), costs=costs, clock=machine.clock)
    for _ in range(n):
        speculator.eval(1)
    speculator.settle()
    return speculator


SHARED = [1.0, 1.25, 1.5, 1.75, 2.0, 2.25]
UNSHARED = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]

UNPROFITABLE = {
    "nothing is shared": (UNSHARED, 0.1, [1.0] * 5),
    "guesses are dear": (SHARED, 1.2, [0.9] * 5),
    "guesses are wrong": (SHARED, 0.1, [0.0] * 5),
    "guesses are often wrong": (SHARED, 0.1, [0.3, 0.2, 0.1, 0.1, 0.1]),
    "just not worth it": ([1.0, 1.6, 2.2, 2.8, 3.4, 4.0], 0.2, [0.75, 0.5, 0.4, 0.3, 0.2]),
    "a batch is very dear": ([1.0, 2.4, 3.4, 5.0, 6.0, 7.0], 0.1, [0.9] * 5),
}


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("name", UNPROFITABLE)
def test_where_it_does_not_pay_it_never_loses_more_than_three_percent(name: str, noise: float) -> None:
    """At any moment of a generation, not only at its end (L082)."""
    batch, guess, chances = UNPROFITABLE[name]
    for seed in range(20):
        machine = Machine(batch, guess, chances, noise=noise, seed=seed)
        speculator = Speculator(machine, Draft(depth=5), clock=machine.clock)
        for n in range(1, 513):
            speculator.eval(1)
            if not machine.pending:  # else what it was paid for is still to come
                assert machine.spent <= 1.02 * machine.alone + (9.0 if noise else 2.5), f"after {n} tokens"
        assert machine.spent <= 1.03 * machine.alone


def test_a_second_generation_knows_what_the_first_found() -> None:
    costs = CostModel()
    machine = Machine(SHARED, 0.1, [0.0] * 5)
    first = run(machine, 400, costs=costs)
    second = run(machine, 400, costs=costs)
    assert 0 < first.statistics.verifies <= (0.015 * 400 + 2) / 0.35 + 1
    assert second.statistics.verifies <= first.statistics.verifies + 1
    assert machine.spent <= 1.03 * machine.alone


PROFITABLE = {
    "good guesses": (SHARED, 0.1, [0.95, 0.9, 0.85, 0.8, 0.8]),
    "one good guess": (SHARED, 0.2, [0.9, 0.3, 0.2, 0.1, 0.1]),
    "perfect": ([1.0, 1.05, 1.1, 1.15, 1.2, 1.25], 0.05, [1.0] * 5),
}


def best_rate(batch: Sequence[float], guess: float, chances: Sequence[float]) -> float:
    """Seconds a token of the best number of guesses."""
    rates = [1.0]
    for depth in range(1, 6):
        tokens, chance = 1.0, 1.0
        for c in chances[:depth]:
            chance *= c
            tokens += chance
        rates.append((batch[depth] + guess * depth) / tokens)
    return min(rates)


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("name", PROFITABLE)
def test_where_it_pays_it_comes_near_the_best(name: str, noise: float) -> None:
    batch, guess, chances = PROFITABLE[name]
    rates = []
    for seed in range(10):
        costs = CostModel()
        machine = Machine(batch, guess, chances, noise=noise, seed=seed)
        run(machine, 300, costs=costs)  # finding out
        found = machine.spent
        run(machine, 700, costs=costs)
        rates.append((machine.spent - found) / 700)
    assert sum(rates) / len(rates) <= 1.15 * best_rate(batch, guess, chances)
    assert sum(rates) / len(rates) < 0.9


def test_a_text_that_turns_bad_ends_it_and_one_that_turns_good_begins_it() -> None:
    costs = CostModel()
    machine = Machine(SHARED, 0.1, [0.95] * 5)
    run(machine, 500, costs=costs)
    machine.chances = [0.0] * 5
    before, alone = machine.spent, machine.alone
    run(machine, 1000, costs=costs)
    assert machine.spent - before <= 1.06 * (machine.alone - alone), "some of what was won is paid back"
    before, alone = machine.spent, machine.alone
    machine.chances = [0.95] * 5
    run(machine, 3000, costs=costs)
    assert machine.spent - before <= 0.8 * (machine.alone - alone)


def test_short_answers_lose_no_more_than_the_time_of_two_tokens() -> None:
    assert CostModel().choose(5) == 0, "what a token costs alone is to be known first"
    for batch, guess, chances in UNPROFITABLE.values():
        for seed in range(20):
            machine = Machine(batch, guess, chances, seed=seed)
            run(machine, 20)
            assert machine.spent <= machine.alone + 2.5 + 0.02 * 20
    machine = Machine(SHARED, 0.1, [1.0] * 5)
    run(machine, 40)
    assert machine.spent < 0.75 * machine.alone, "and where it pays, they win"


def test_without_auto_all_that_is_asked_for_is_guessed() -> None:
    machine = Machine(SHARED, 0.1, [0.0] * 5)
    found = run(machine, 100, draft=Draft(depth=2, auto=False)).statistics
    assert (found.verifies, found.drafted, found.accepted, found.plain) == (100, 200, 0, 0)
    assert (found.acceptance, found.tokens_per_verify) == (0.0, 1.0)
    assert found.draft_seconds == pytest.approx(20.0)
    assert found.verify_seconds == pytest.approx(150.0)
    assert found.by_depth == [(100, 0), (100, 0)]
    machine = Machine(SHARED, 0.1, [1.0] * 5)
    found = run(machine, 99, draft=Draft(depth=2, auto=False)).statistics
    assert (found.verifies, found.drafted, found.accepted) == (33, 66, 66)
    assert (found.acceptance, found.tokens_per_verify) == (1.0, 3.0)
    assert "66 of 66 drafts accepted (100%), 3.00 tokens a verify" in found.describe()
