"""The cost model of speculation, on machines and texts that are made up: what it chooses never costs much."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from ds4.costs import CostModel
from ds4.speculation import Draft, Speculator
from support.machines import NOISES, PROFITABLE, SHARED, UNPROFITABLE, Machine, Noise, best_rate, run


def losses(name: str, noise: Noise, seeds: Iterable[int], *, n: int = 512) -> list[float]:
    """Of generations of n tokens: what was lost, as a part of the time of the tokens alone."""
    batch, guess, chances = UNPROFITABLE[name]
    found = []
    for seed in seeds:
        machine = Machine(batch, guess, chances, noise=noise, seed=seed)
        run(machine, n)
        found.append(machine.spent / machine.alone - 1)
    return found


@pytest.mark.parametrize("noise", NOISES)
def test_where_it_does_not_pay_it_never_loses_more_than_three_percent(noise: str) -> None:
    """In 1152 generations of 512 tokens, whatever times do (L082)."""
    for name in UNPROFITABLE:
        assert max(losses(name, NOISES[noise], range(12))) <= 0.03, name


def test_a_long_generation_loses_less() -> None:
    for noise in ("none", "20 %", "steps, 30 %"):
        for name in ("nothing is shared", "guesses are wrong", "not quite worth it"):
            assert max(losses(name, NOISES[noise], range(3), n=3000)) <= 0.02, (noise, name)


@pytest.mark.parametrize("name", UNPROFITABLE)
def test_at_any_moment_of_a_generation_little_is_lost(name: str) -> None:
    """The time of a few tokens, not only at the end."""
    batch, guess, chances = UNPROFITABLE[name]
    for noise, tokens in (("none", 3.5), ("20 %", 9.0)):
        for seed in range(5):
            machine = Machine(batch, guess, chances, noise=NOISES[noise], seed=seed)
            speculator = Speculator(machine, Draft(depth=5), clock=machine.clock)
            dear = 2 * max(batch[1] - 2.5, 0)  # the first batches, which tell
            for n in range(1, 513):
                speculator.eval(1)
                if not machine.pending:  # else what it was paid for is still to come
                    assert machine.spent <= 1.01 * machine.alone + tokens + dear, f"after {n} tokens"


def test_batches_that_stall_are_given_up() -> None:
    """A stall that tokens alone do not know is no noise: each costs what it takes, and then there are few batches."""
    for name in ("good guesses", "one good guess", "a little"):
        batch, guess, chances = PROFITABLE[name]
        rates = []
        for seed in range(10):
            machine = Machine(batch, guess, chances, noise=Noise(0.1, stalls=0.2), seed=seed)
            run(machine, 1000)
            rates.append(machine.spent / machine.alone)
        assert sum(rates) / len(rates) <= 1.05


def test_a_stall_that_tokens_alone_know_too_is_pardoned() -> None:
    batch, guess, chances = PROFITABLE["good guesses"]
    rates = []
    for seed in range(20):
        machine = Machine(batch, guess, chances, noise=Noise(0.05, spikes=0.05), seed=seed)
        run(machine, 1500)
        rates.append(machine.spent / machine.alone)
    assert sum(rates) / len(rates) <= 0.85


@pytest.mark.parametrize("before", [0.0, 1.0])
def test_what_was_saved_or_won_does_not_pay_for_a_loss(before: float) -> None:
    """After a long time without a loss, a server is no more generous than a new one."""
    for seed in range(10):
        costs = CostModel()
        machine = Machine(SHARED, 0.1, [before] * 5, noise=NOISES["10 %"], seed=seed)
        run(machine, 2000, costs=costs)
        machine.chances = [0.0] * 5
        spent, alone = machine.spent, machine.alone
        run(machine, 512, costs=costs)
        assert machine.spent - spent <= 1.03 * (machine.alone - alone)


def test_batches_that_take_many_times_as_long_all_at_once_are_no_stalls() -> None:
    for seed in range(10):
        costs = CostModel()
        run(Machine(*PROFITABLE["perfect"], noise=NOISES["10 %"], seed=seed), 1000, costs=costs)
        machine = Machine(*UNPROFITABLE["nothing is shared"], noise=NOISES["10 %"], seed=seed)
        run(machine, 512, costs=costs)
        assert machine.spent <= 1.05 * machine.alone


def test_a_second_generation_knows_what_the_first_found() -> None:
    costs = CostModel()
    machine = Machine(SHARED, 0.1, [0.0] * 5)
    first = run(machine, 400, costs=costs)
    second = run(machine, 400, costs=costs)
    assert 0 < first.statistics.verifies <= (0.007 * 400 + 2.0) / 0.35 + 1
    assert second.statistics.verifies <= first.statistics.verifies + 1
    assert machine.spent <= 1.015 * machine.alone
    machine = Machine(SHARED, 0.1, [0.95] * 5)
    costs = CostModel()
    run(machine, 300, costs=costs)
    before, alone = machine.spent, machine.alone
    run(machine, 30, costs=costs)
    assert machine.spent - before < 0.6 * (machine.alone - alone), "it begins after a few tokens"


def test_generations_beside_each_other_share_what_is_known() -> None:
    costs = CostModel()
    machines = [Machine(SHARED, 0.1, [0.95] * 5, noise=NOISES["10 %"], seed=seed) for seed in range(4)]
    speculators = [Speculator(m, Draft(depth=5), costs=costs, clock=m.clock) for m in machines]
    for _ in range(400):
        for speculator in speculators:
            speculator.eval(1)
    assert sum(m.spent for m in machines) < 0.75 * sum(m.alone for m in machines)
    machines = [Machine(SHARED, 0.1, [0.0] * 5, noise=NOISES["10 %"], seed=seed) for seed in range(4)]
    speculators = [Speculator(m, Draft(depth=5), costs=costs, clock=m.clock) for m in machines]
    for _ in range(512):
        for speculator in speculators:
            speculator.eval(1)
    assert sum(m.spent for m in machines) < 1.03 * sum(m.alone for m in machines)


@pytest.mark.parametrize("noise", ["none", "5 %", "20 %", "30 %", "drift", "steps"])
@pytest.mark.parametrize("name", PROFITABLE)
def test_where_it_pays_it_comes_near_the_best(name: str, noise: str) -> None:
    batch, guess, chances = PROFITABLE[name]
    rates = []
    for seed in range(12):
        costs = CostModel()
        machine = Machine(batch, guess, chances, noise=NOISES[noise], seed=seed)
        run(machine, 300, costs=costs)  # finding out
        found, alone = machine.spent, machine.alone
        run(machine, 700, costs=costs)
        rates.append((machine.spent - found) / (machine.alone - alone))
    rate = sum(rates) / len(rates)
    assert rate <= 1.15 * best_rate(batch, guess, chances) + 0.02
    assert rate < 0.9


def test_little_is_measured_while_nothing_can_be_tried() -> None:
    """Measuring takes time itself, much of a small model's token."""
    chooser = CostModel().chooser()
    asked = 0
    for _ in range(2000):
        depth = chooser.choose(5)
        asked += depth > 0
        if depth:
            chooser.batch(depth, depth, 1, 0, 1.4)
        else:
            chooser.plain(1.0)
    assert asked > 20
    measured = chooser._costs._alone[0]
    assert measured < 2000 / 2


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


def test_short_answers_lose_no_more_than_the_time_of_a_few_tokens() -> None:
    assert CostModel().chooser().choose(5) == 0, "what a token costs alone is to be known first"
    for batch, guess, chances in UNPROFITABLE.values():
        for seed in range(20):
            machine = Machine(batch, guess, chances, seed=seed)
            run(machine, 20)
            assert machine.spent <= machine.alone + 3.0 + 2 * max(batch[1] - 2.5, 0)
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
