"""Sweeps: where they stop, what they compute, what a row says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest
from ds4.bench import Frontier, frontiers, run_sweep, warm_up
from ds4.bench.frontier import Run, best_token

TOKENS = np.random.default_rng(3).integers(0, 200, 64, dtype=np.int32)


@pytest.fixture(scope="module")
def model(tiny_gguf: Callable[..., Path]) -> Iterator[ds4.Model]:
    with ds4.Model.open(tiny_gguf("flash", part="main", recipe="bf16")) as model:
        yield model


@pytest.fixture
def session(model: ds4.Model) -> Iterator[ds4.Session]:
    with model.session(n_ctx=80, chunk=16, threads=1) as session:
        yield session


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"start": 10, "stop": 40, "step_incr": 10}, [10, 20, 30, 40]),
        ({"start": 10, "stop": 35, "step_incr": 10}, [10, 20, 30, 35]),
        ({"start": 7, "stop": 7}, [7]),
        ({"start": 10, "stop": 100, "step_mul": 2.0}, [10, 20, 40, 80, 100]),
        ({"start": 1, "stop": 5, "step_mul": 1.01}, [1, 2, 3, 4, 5]),
        ({"start": 3, "stop": 9, "step_mul": 1.5}, [3, 4, 6, 9]),
        ({"start": 2048, "stop": 8192}, [2048, 4096, 6144, 8192]),
    ],
)
def test_where_a_sweep_stops(arguments: dict[str, Any], found: list[int]) -> None:
    assert frontiers(**arguments) == found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": 0, "stop": 4}, "from 1 or more"),
        ({"start": 5, "stop": 4}, "not from 5 to 4"),
        ({"start": 5, "stop": 1 << 21}, "at most 1048576"),
        ({"start": 1, "stop": 4, "step_incr": 0}, "step must be 1"),
        ({"start": 1, "stop": 4, "step_mul": 0.5}, "factor"),
        ({"start": 1, "stop": 4, "step_mul": float("nan")}, "factor"),
    ],
)
def test_wrong_steps(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        frontiers(**arguments)


def test_every_frontier_is_the_state_of_a_cold_run(model: ds4.Model, session: ds4.Session) -> None:
    """Neither the decode in between nor the repetitions leave a trace."""
    seen: list[tuple[int, int, Any]] = []
    held = []
    rows = []
    for row in run_sweep(
        session, TOKENS, [10, 33, 64], gen_tokens=5, repeats=3,
        at_frontier=lambda s, n, new: seen.append((n, new, s.logits())),
    ):  # fmt: skip
        rows.append(row)
        held.append(session.tokens)
    assert [(n, new) for n, new, _ in seen] == [(10, 10), (33, 23), (64, 31)]
    assert held == [TOKENS[:n].tolist() for n in (10, 33, 64)]
    for n, _, logits in seen:
        with model.session(n_ctx=80, chunk=16, threads=1) as cold:
            cold.sync(TOKENS[:n])
            assert np.array_equal(cold.logits(), logits)
            assert next(r for r in rows if r.ctx_tokens == n).kvcache_bytes == len(cold.snapshot())


def test_what_a_row_holds(session: ds4.Session) -> None:
    """Repeats are all there, so that their spread can be told."""
    told: list[tuple[int, int, str]] = []
    rows = list(run_sweep(session, TOKENS, [20, 40], gen_tokens=4, repeats=3, progress=lambda *x: told.append(x)))
    for row in rows:
        assert row.prefill_tokens == 20 and row.gen_tokens == 4 and row.steady_tokens == 3
        assert len(row.runs) == len(row.prefill_rates) == len(row.gen_rates) == 3
        assert all(len(r.gen_seconds) == 4 for r in row.runs) and row.first_ms > 0 and row.steady_tps > 0
        assert len(set(row.prefill_rates)) > 1, "three clocks never agree to the nanosecond"
        assert all(r.prefill_cpus >= 0 and r.gen_cpus >= 0 for r in row.runs)
    done = [d for d, _, _ in told]
    assert done == sorted(done) and told[-1][:2] == (144, 144)
    assert {what for _, _, what in told} == {"prefill to 20", "decode at 20", "prefill to 40", "decode at 40"}


def test_rates_are_medians_of_what_was_timed() -> None:
    runs = (Run(2.0, (0.5, 0.1, 0.1), 1, 1), Run(1.0, (0.3, 0.2, 0.2), 1, 1), Run(4.0, (0.1, 0.4, 0.4), 1, 1))
    row = Frontier(100, 40, 3, 7, runs)
    assert row.prefill_rates == (20, 40, 10)
    assert row.gen_rates == pytest.approx((3 / 0.7, 3 / 0.7, 3 / 0.9))
    assert row.first_ms == pytest.approx(300) and row.steady_tps == pytest.approx(2 / 0.4)
    alone = Frontier(100, 40, 1, 7, (Run(2.0, (0.5,), 1, 1),))
    assert alone.steady_tokens == 0 and alone.steady_tps == 0 and alone.gen_rates == (2,)


def test_a_sweep_of_prefill_alone(session: ds4.Session) -> None:
    (row,) = run_sweep(session, TOKENS, [30], gen_tokens=0)
    assert row.gen_rates == (0.0,) and row.first_ms == 0 and row.steady_tps == 0 and row.prefill_rates[0] > 0


def test_the_end_of_sequence_is_never_decoded(session: ds4.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    session.sync(TOKENS[:30])
    end = best_token(session, excluded=-1)
    decoded: list[int] = []
    real = ds4.Session.eval

    def spy(self: ds4.Session, tokens: Any, **more: Any) -> None:
        decoded.extend([tokens] if isinstance(tokens, int) else [])
        real(self, tokens, **more)

    monkeypatch.setattr(ds4.Session, "eval", spy)
    list(run_sweep(session, TOKENS, [30], gen_tokens=6, eos=-1))
    assert decoded[0] == end and len(decoded) == 6
    decoded.clear()
    list(run_sweep(session, TOKENS, [30], gen_tokens=6, eos=end))
    assert end not in decoded and len(decoded) == 6


def test_the_best_token_of_odd_logits() -> None:
    class Odd:
        def __init__(self, *logits: float) -> None:
            self.logits = np.array(logits, np.float32)

        def logits_view(self) -> Any:
            return self.logits

    nan, inf = float("nan"), float("inf")
    for logits, excluded, best in (
        ((1, 3, 3, 2), -1, 1),
        ((1, 3, 3, 2), 1, 2),
        ((nan, 1, 2), -1, 2),
        ((nan, 1, 2), 2, 1),
        ((-inf, -5, inf), -1, 1),
        ((4, 1), 9, 0),
    ):
        assert best_token(Odd(*logits), excluded=excluded) == best  # type: ignore[arg-type]
    for logits, excluded in (((nan, nan), -1), ((nan, 1), 1), ((-inf,), -1)):
        with pytest.raises(ds4.StateError, match="no logit is finite"):
            best_token(Odd(*logits), excluded=excluded)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stops", "more", "message"),
    [
        ([65], {}, "there are 64 tokens, the last frontier needs 65"),
        ([10, 64], {"gen_tokens": 16}, "need more than 80"),
        ([10], {"repeats": 0}, "repeats must be 1"),
        ([10], {"gen_tokens": -1}, "gen_tokens 0 or more"),
        ([], {}, "must rise"),
        ([20, 10], {}, "must rise"),
        ([10, 10], {}, "must rise"),
        ([0, 10], {}, "must rise"),
    ],
)
def test_what_does_not_fit(session: ds4.Session, stops: list[int], more: dict[str, Any], message: str) -> None:
    """Before anything runs."""
    with pytest.raises(ValueError, match=message):
        run_sweep(session, TOKENS, stops, **{"gen_tokens": 2, **more})
    assert session.pos == 0


def test_the_warm_up_leaves_nothing(session: ds4.Session) -> None:
    assert warm_up(session, TOKENS) == 20
    assert session.pos == 0
    assert warm_up(session, TOKENS[:3]) == 7
