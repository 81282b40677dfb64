"""Costs of batches and guesses, and what they mean."""

from __future__ import annotations

from collections.abc import Iterator

import ds4
import pytest
from ds4.bench import DraftCosts, expected_tokens, measure_draft_costs, token_bytes


@pytest.fixture(scope="module")
def model() -> Iterator[ds4.Model]:
    with ds4.Model.open_embedded() as model:
        yield model


def test_what_a_batch_is_good_for() -> None:
    assert expected_tokens([]) == 1
    assert expected_tokens([1.0, 1.0, 1.0]) == 4
    assert expected_tokens([0.5, 0.5]) == 1.75
    costs = DraftCosts((1.0, 1.2, 1.5), (0.3, 0.5))
    assert costs.worth(1) == pytest.approx(1.5)
    assert costs.worth(2) == pytest.approx(2.0)
    assert costs.break_even(1) == pytest.approx(0.5)
    even = costs.break_even(2)
    assert even is not None
    assert expected_tokens([even, even]) == pytest.approx(2.0)
    assert costs.gain([0.8]) == pytest.approx(1.8 / 1.5)
    assert DraftCosts((1.0, 2.5), ()).break_even(1) is None
    assert DraftCosts((1.0, 1.0), ()).break_even(1) == pytest.approx(0.0, abs=1e-9)
    assert costs.as_json()["worth"] == [costs.worth(1), costs.worth(2)]


@pytest.mark.parametrize("context", [0, 300])
def test_costs_are_measured(model: ds4.Model, context: int) -> None:
    now = 0.0

    def clock() -> float:  # every call of the clock is a second later
        nonlocal now
        now += 1.0
        return now

    seen: list[tuple[int, int, str]] = []
    with model.session(n_ctx=512, mtp=True) as session:
        found = measure_draft_costs(
            session, depth=3, context=context, reps=2, clock=clock, progress=lambda *a: seen.append(a)
        )
        assert found == DraftCosts((1.0,) * 4, (1.0,) * 3)
        assert session.pos == context + 12
        assert seen == [(0, 2, "drafts"), (1, 2, "drafts"), (2, 2, "drafts")]
        real = measure_draft_costs(session, depth=2, reps=3)
    assert all(seconds > 0 for seconds in (*real.batch, *real.guess))
    with model.session(n_ctx=64) as session:
        assert measure_draft_costs(session, depth=1, reps=1).guess == ()


def test_what_cannot_be_measured_is_refused(model: ds4.Model) -> None:
    with model.session(n_ctx=64) as session:
        for options in ({"depth": 0}, {"depth": 6}, {"reps": 0}, {"context": 50}):
            with pytest.raises(ValueError, match=r"depth|reps|positions"):
                measure_draft_costs(session, **options)


def test_a_batch_reads_shared_weights_once(model: ds4.Model) -> None:
    with ds4.GGUFFile(model.path) as file:
        one, two, many = (token_bytes(file, model.shape, batch=n) for n in (1, 2, 1000))
    routed = one.groups["routed experts"]
    assert two.groups["routed experts"] == pytest.approx(routed * (2 - 2 / 8), rel=1e-6)
    assert many.groups["routed experts"] == pytest.approx(routed * 4, rel=1e-6), "all 8 experts, of which one uses 2"
    assert two.groups["attention"] == one.groups["attention"]
    assert two.groups["tables"] == 2 * one.groups["tables"]
