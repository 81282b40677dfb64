"""The gate against drift: what holds, what does not, and how far along the recorded tokens (L124, L125)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ds4
import pytest
from ds4.eval import (
    EvalSettings,
    Gate,
    Outcome,
    Runner,
    check_settings,
    compare,
    gate_json,
    make_tasks,
    needed_ctx,
    open_suite,
    read_gate,
)

from .conftest import Notes

SETTINGS = EvalSettings(max_tokens=200)


@pytest.fixture(scope="module")
def run(tiny: ds4.Model) -> tuple[list[Outcome], ds4.Session]:
    """Six sums, and the session that answered them."""
    cases = open_suite("tiny").cases[:6]
    tasks = make_tasks(tiny.tokenizer, list(enumerate(cases, 1)), SETTINGS)
    session = tiny.session(n_ctx=needed_ctx(tasks, SETTINGS))
    return Runner(session, tasks, SETTINGS, Notes()).run(), session


def gate_of(outcomes: list[Outcome], tmp_path: Path, **changes: Any) -> Gate:
    content = gate_json(outcomes, SETTINGS, {"model": "m"}) | changes
    path = tmp_path / "x.gate"
    path.write_text(json.dumps(content))
    return read_gate(path)


def changed(outcomes: list[Outcome], tmp_path: Path, case: dict[str, Any], **limits: Any) -> Gate:
    cases = gate_json(outcomes, SETTINGS, {})["cases"]
    cases[0] |= case
    return gate_of(outcomes, tmp_path, cases=cases, **limits)


def test_the_same_run_holds(run: Any, tmp_path: Path) -> None:
    outcomes, session = run
    gate = gate_of(outcomes, tmp_path)
    assert [c.n_generated for c in gate.cases] == [o.n_generated for o in outcomes]
    report = compare(gate, outcomes, session)
    assert report.holds and not report.drifts
    assert list(report.lines()) == ["gate: holds"]


def test_counts_alone_are_enough(run: Any, tmp_path: Path) -> None:
    outcomes, session = run
    by_hand = [{"case": o.case.name, "tokens": o.n_generated, "state": o.state, "answer": o.given} for o in outcomes]
    assert compare(gate_of(outcomes, tmp_path, cases=by_hand, settings=None), outcomes, session).holds
    by_hand[2]["tokens"] += 1
    by_hand[4]["answer"] = "0"
    report = compare(gate_of(outcomes, tmp_path, cases=by_hand), outcomes, session)
    assert [d.flips for d in report.drifts] == [None, None]
    assert report.faults == [f"{by_hand[2]['case']} has other tokens", f"{by_hand[4]['case']} has another answer"]


def test_one_other_choice_is_one_flip_not_all_that_follows(run: Any, tmp_path: Path) -> None:
    """The way is led along the recorded tokens: a difference at the start is counted once (L124)."""
    outcomes, session = run
    tokens = list(outcomes[0].tokens)
    other = next(t for t in range(100, 400) if t != tokens[3])
    recorded = [*tokens[:3], other, *tokens[4:]]
    gate = changed(outcomes, tmp_path, {"ids": recorded})
    (drift,) = compare(gate, outcomes, session).drifts
    assert drift.flips is not None and drift.compared == len(tokens) + 1
    # Behind the forced token the model may be led astray, but each choice there is judged for itself.
    session.sync([*outcomes[0].prompt, *recorded[:3]])
    rows = [session.logits(), *session.eval_logits(recorded[3:])]
    rights = [*recorded[3:], session.model.tokenizer.eos_id]
    gaps = [float(row.max() - row[right]) for row, right in zip(rows, rights, strict=True)]
    assert drift.flips == sum(gap > 0 for gap in gaps) >= 1
    assert drift.gap == pytest.approx(max(gaps), rel=1e-5)
    assert f"{drift.flips} of {drift.compared} choices differ, by at most" in drift.line()


def test_limits_gate_on_the_rate_and_on_the_size(run: Any, tmp_path: Path) -> None:
    """Near ties that flip are counted and measured, and each limit fails for its own reason (L125)."""
    outcomes, session = run
    tokens = list(outcomes[0].tokens)
    other = next(t for t in range(100, 400) if t != tokens[3])
    case = {"ids": [*tokens[:3], other, *tokens[4:]]}
    strict = compare(changed(outcomes, tmp_path, case), outcomes, session)
    assert strict.faults == [f"{outcomes[0].case.name} has other tokens"]
    (drift,) = strict.drifts
    total = sum(o.n_generated for o in outcomes)
    rate = drift.flips / total
    wide = {"max_flip_rate": rate * 1.01, "max_flip_gap": drift.gap * 1.01}
    held = compare(changed(outcomes, tmp_path, case, **wide), outcomes, session)
    assert held.holds and "1 cases differ within its limits" in list(held.lines())[-1]
    often = compare(changed(outcomes, tmp_path, case, **wide | {"max_flip_rate": rate * 0.99}), outcomes, session)
    assert [f"{drift.flips} of {total} choices differ" in f for f in often.faults] == [True]
    far = compare(changed(outcomes, tmp_path, case, **wide | {"max_flip_gap": drift.gap * 0.99}), outcomes, session)
    assert ["nats, more than" in f for f in far.faults] == [True]
    answer = compare(changed(outcomes, tmp_path, case | {"answer": "1"}, **wide), outcomes, session)
    assert [f.endswith("has another answer") for f in answer.faults] == [True]
    assert answer.as_json()["drifts"][0]["answer_differs"] is True


def test_forced_tokens_are_no_choices(run: Any, tmp_path: Path, tiny: ds4.Model) -> None:
    outcomes, _ = run
    settings = EvalSettings(max_tokens=40, soft=25, hard=25)
    tasks = make_tasks(tiny.tokenizer, [(1, outcomes[0].case)], settings)
    with tiny.session(n_ctx=needed_ctx(tasks, settings)) as session:
        (outcome,) = Runner(session, tasks, settings, Notes()).run()
        assert outcome.closed is not None and outcome.closed.manner == "hard_forced"
        content = gate_json([outcome], settings, {})
        assert content["cases"][0]["forced"] == outcome.closed.index == 15
        content["cases"][0]["tokens"] -= 1
        content["cases"][0]["ids"].pop()
        content["cases"][0]["ended"] = False
        path = tmp_path / "x.gate"
        path.write_text(json.dumps(content))
        (drift,) = compare(read_gate(path), [outcome], session).drifts
        assert (drift.flips, drift.compared) == (0, outcome.n_generated - 1)


def test_unfinished_and_sampled_runs_make_no_gate(run: Any, tmp_path: Path) -> None:
    outcomes, session = run
    with pytest.raises(ValueError, match="was stopped: no gate is written"):
        gate_json([replace(outcomes[0], state="stopped")], SETTINGS, {})
    with pytest.raises(ValueError, match="greedy"):
        gate_json(outcomes, EvalSettings(temperature=0.5), {})
    gate = gate_of(outcomes, tmp_path)
    report = compare(gate, [replace(outcomes[0], state="stopped"), *outcomes[1:-1]], session)
    names = (outcomes[0].case.name, outcomes[-1].case.name)
    assert report.faults == [f"{name} was not answered" for name in names]


def test_other_settings_are_refused(run: Any, tmp_path: Path) -> None:
    gate = gate_of(run[0], tmp_path)
    check_settings(gate, SETTINGS)
    with pytest.raises(ValueError, match="was recorded with max_tokens 200, this run has 100"):
        check_settings(gate, EvalSettings(max_tokens=100))


GOOD = {"case": "a/b", "tokens": 1, "state": "passed", "answer": None}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ([], "this is no gate"),
        ({"format": "ds4-eval", "version": 1}, "this is no gate"),
        ({"version": 2}, "this is no gate"),
        ({"cases": []}, "cases: must be a list that is not empty"),
        ({"cases": [1]}, "cases[0]: must be an object"),
        ({"cases": [{**GOOD, "case": ""}]}, "cases[0]: case: must be the name of a case"),
        ({"cases": [{**GOOD, "tokens": True}]}, "cases[0]: tokens: must be a number"),
        ({"cases": [{**GOOD, "tokens": -1}]}, "cases[0]: tokens: must be a number"),
        ({"cases": [{**GOOD, "state": "skipped"}]}, "cases[0]: state: must be passed or failed"),
        ({"cases": [{**GOOD, "answer": 3}]}, "cases[0]: answer: must be a text or null"),
        ({"cases": [{**GOOD, "ids": [1.5]}]}, "cases[0]: ids: must be a list of token ids"),
        ({"cases": [{**GOOD, "ids": [1, 2]}]}, "cases[0]: ids: there are 2, but tokens says 1"),
        ({"cases": [{**GOOD, "forced": "x"}]}, "cases[0]: forced: must be an index"),
        ({"cases": [GOOD, GOOD]}, "case a/b is given twice"),
        ({"cases": [GOOD], "settings": 3}, "settings: must be an object"),
        ({"cases": [GOOD], "max_flip_rate": -1}, "max_flip_rate: must be a number"),
        ({"cases": [GOOD], "max_flip_gap": "x"}, "max_flip_gap: must be a number"),
    ],
)
def test_wrong_gates_are_named(tmp_path: Path, content: Any, text: str) -> None:
    path = tmp_path / "x.gate"
    if isinstance(content, dict):
        content = {"format": "ds4-eval-gate", "version": 1, **content}
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(ValueError) as caught:
        read_gate(path)
    assert str(caught.value).startswith(f"{path}: ") and text in str(caught.value)


def test_tokens_of_another_model(run: Any, tmp_path: Path) -> None:
    outcomes, session = run
    ids = [10**9, *outcomes[0].tokens[1:]]
    with pytest.raises(ValueError, match="holds the token 1000000000, which this model does not have"):
        compare(changed(outcomes, tmp_path, {"ids": ids}), outcomes, session)
