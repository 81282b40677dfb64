"""Resting: how long, and that the answer is the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ds4
import pytest
from ds4.cli.pace import WEIGHT, Pace, nap
from ds4.cli.reply import make_reply
from ds4.sampling import Sampler

from .test_units import Recorder


class Time:
    """A clock that only sleeping and work move."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float, stop: Callable[[], bool]) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def pace(self, power: int) -> Pace:
        return Pace(power, clock=self.clock, sleep=self.sleep)


@pytest.mark.parametrize(("power", "factor"), [(100, 0.0), (80, 0.25), (50, 1.0), (25, 3.0), (1, 99.0)])
def test_steady_work_takes_its_share_of_the_time(power: int, factor: float) -> None:
    time = Time()
    pace = time.pace(power)
    begin = time.now
    for _ in range(50):
        time.now += 0.2
        assert pace.rest() == pytest.approx(0.2 * factor)
    assert 50 * 0.2 / (time.now - begin) == pytest.approx(power / 100)
    assert bool(time.slept) == (power < 100)


def test_uneven_work_is_averaged() -> None:
    time = Time()
    pace = time.pace(50)
    works, average = [1.0, 2.0, 0.0, 4.0], None
    for work in works:
        time.now += work
        average = work if average is None else average + WEIGHT * (work - average)
        assert pace.rest() == pytest.approx(average)  # the rest before is no work
    pace.begin()
    time.now += 8.0
    assert pace.rest() == pytest.approx(8.0)


def test_the_power_may_change_at_any_time() -> None:
    time = Time()
    pace = time.pace(100)
    time.now += 1.0
    assert pace.rest() == 0.0
    pace.power = 20
    time.now += 1.0
    assert pace.rest() == pytest.approx(4.0)


def test_a_system_that_sleeps_too_long_is_allowed_for() -> None:
    """Short pieces of work and a coarse timer: the share of the time comes out all the same."""
    time = Time()

    def coarse(seconds: float, stop: Callable[[], bool]) -> None:
        time.sleep(seconds + 0.003, stop)

    pace = Pace(50, clock=time.clock, sleep=coarse)
    begin = time.now
    for _ in range(1000):
        time.now += 0.001
        pace.rest()
    assert 1000 * 0.001 / (time.now - begin) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("power", [0, -1, 101])
def test_wrong_powers(power: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 100"):
        Pace(power)


def test_a_nap_ends_when_it_is_told_to() -> None:
    begin = time.monotonic()
    asked = iter([False, True])
    nap(30.0, lambda: next(asked))
    assert time.monotonic() - begin < 5


def test_the_answer_is_the_same(model_path: Any) -> None:
    """With rests between the chunks of the prefill and the tokens of the answer."""
    prompt = [0, *range(20, 120)] * 12
    replies, slept = [], Time()
    with ds4.Model.open(model_path) as model:
        for pace in (None, Pace(40, sleep=slept.sleep)):
            with model.session(n_ctx=2000) as session:
                sampler = Sampler(seed=5)
                reply = make_reply(
                    session, prompt, Recorder(), thinking=False, sampler=sampler, max_tokens=12, pace=pace
                )
                replies.append((reply.tokens, reply.finish, session.logits().tobytes()))
    assert replies[0] == replies[1]
    # at least once after the prefill, and between any two tokens
    assert len(slept.slept) >= 12


def test_a_wish_to_stop_is_heard_between_two_tokens(model_path: Any) -> None:
    with ds4.Model.open(model_path) as model, model.session(n_ctx=200) as session:
        asked: list[int] = []

        def stop() -> bool:
            asked.append(1)
            return session.pos >= 14

        reply = make_reply(
            session, [0, *range(20, 29)], Recorder(), thinking=False, sampler=Sampler.greedy(), max_tokens=99, stop=stop
        )
        assert reply.finish == "interrupted" and len(reply.tokens) == 4
        assert session.tokens[10:] == reply.tokens and asked
