"""Runs: the end of the reasoning, seeds, states, pauses, jumps and stops. Scripted models say what tests need."""

from __future__ import annotations

import threading
import time
from typing import Any

import ds4
import numpy as np
import pytest
from ds4.eval import (
    Case,
    Closed,
    Closing,
    Control,
    EvalSettings,
    Outcome,
    PlainListener,
    Runner,
    check_room,
    make_tasks,
    narrow_report,
    needed_ctx,
    open_suite,
    rank_of,
    report_lines,
)
from ds4.eval.plan import case_seed
from support.scripted import ScriptedModel, ScriptedSession

from .conftest import Notes, case_of

# The rank of a token


def test_rank_counts_better_ones_and_equal_ones_of_lower_id() -> None:
    logits = np.array([1.0, 3.0, 2.0, 3.0, np.nan, np.inf], dtype=np.float32)
    assert [rank_of(logits, token) for token in range(4)] == [4, 1, 3, 2]
    assert rank_of(logits, 4) == 5  # what is not finite comes last, in the order of the ids
    assert rank_of(logits, 5) == 6


@pytest.mark.parametrize(
    ("index", "drawn", "rank", "manner"),
    [
        (0, 7, 1, "natural"),
        (0, 3, 2, None),  # before the soft part
        (89, 3, 2, None),
        (90, 3, 2, "soft_forced"),  # 10 are left
        (90, 3, 3, "soft_forced"),
        (90, 3, 4, None),
        (94, 3, 4, None),
        (95, 3, 4, "hard_forced"),  # 5 are left
        (95, 7, 4, "natural"),
        (99, 3, 900, "hard_forced"),
    ],
)
def test_closing(index: int, drawn: int, rank: int, manner: str | None) -> None:
    logits = np.zeros(1000, dtype=np.float32)
    logits[7] = -1.0
    others = [i for i in range(1000) if i != 7]
    logits[others[rank - 1 :]] = -2.0
    closed = Closing(100, 10, 5, 3).decide(logits, drawn, 7, index)
    assert closed == (None if manner is None else Closed(manner, index, 100 - index, rank))  # type: ignore[arg-type]


def test_limits_fit_the_budget() -> None:
    assert Closing.for_budget(16_000) == Closing(16_000, 1024, 512, 3)
    assert Closing.for_budget(320) == Closing(320, 160, 80, 3)
    assert Closing.for_budget(1) == Closing(1, 0, 0, 3)
    assert Closing.for_budget(2048, hard=1500) == Closing(2048, 1500, 1500, 3)
    assert Closing.for_budget(2048, soft=100) == Closing(2048, 100, 100, 3)
    for wrong in ({"soft": 5, "hard": 6}, {"soft": 100}, {"hard": 200}, {"rank": 0}, {"soft": -1}):
        with pytest.raises(ValueError, match=r"limit|rank"):
            Closing.for_budget(100, **wrong)
    with pytest.raises(ValueError, match="nothing to think"):
        EvalSettings(max_tokens=100, soft=100)


# Runs of scripted models


def tasks_of(model: Any, *cases: Case, **settings: Any) -> tuple[list[Any], EvalSettings]:
    chosen = EvalSettings(**{"max_tokens": 100, **settings})
    return make_tasks(model.tokenizer, list(enumerate(cases, 1)), chosen), chosen


def asked(model: Any, *cases: Case, control: Control | None = None, notes: Notes | None = None, **settings: Any):
    tasks, chosen = tasks_of(model, *cases, **settings)
    notes = notes or Notes()
    with_room = model.session(n_ctx=needed_ctx(tasks, chosen))
    runner = Runner(with_room, tasks, chosen, notes, control=control)  # type: ignore[arg-type]
    return runner.run(), notes, runner


def test_a_natural_end() -> None:
    model = ScriptedModel(lambda prompt: "one and one</think>Answer: 2")
    (outcome,), notes, _ = asked(model, case_of())
    n = len(model.tokenizer.encode("one and one"))
    assert outcome.state == "passed" and outcome.given == "2" and outcome.finish == "stop"
    assert outcome.closed == Closed("natural", n, 100 - n, 1)
    assert outcome.output == b"one and one</think>Answer: 2" and outcome.answer == "Answer: 2"
    assert outcome.n_generated == n + 1 + len(model.tokenizer.encode("Answer: 2")) == len(outcome.tokens)
    assert notes.states == [(0, s) for s in ("prefill", "thinking", "answer", "passed")]
    assert notes.texts == {(0, True): "one and one", (0, False): "Answer: 2"}


def test_a_reasoning_that_does_not_end_is_closed_by_force() -> None:
    model = ScriptedModel(lambda prompt: "on " * 400)
    (outcome,), notes, _ = asked(model, case_of(), soft=20, hard=10)
    assert outcome.closed is not None and outcome.closed.rank > 3
    assert (outcome.closed.manner, outcome.closed.index, outcome.closed.remaining) == ("hard_forced", 90, 10)
    assert (outcome.n_generated, outcome.finish, outcome.state) == (100, "length", "failed")
    assert outcome.answer is not None and outcome.answer.strip().startswith("on")
    assert not outcome.complete
    assert (0, "answer") in notes.states


class _Leaning(ScriptedSession):
    """Its second best token is the end of the reasoning, from 30 tokens on."""

    def logits(self) -> np.ndarray:
        out = super().logits()
        opened = self._tokens.index(self.model.tokenizer.special("<think>"))
        if self.pos - opened > 30:
            out[self.model.tokenizer.special("</think>")] = 20.0
        return out

    logits_view = logits


class LeaningModel(ScriptedModel):
    def session(self, *, n_ctx: int = 1000, **options: Any) -> ScriptedSession:
        return _Leaning(self, n_ctx)


@pytest.mark.parametrize(("rank", "manner", "index"), [(2, "soft_forced", 60), (1, "hard_forced", 90)])
def test_the_soft_limit_needs_a_good_rank(rank: int, manner: str, index: int) -> None:
    model = LeaningModel(lambda prompt: "on " * 400)
    (outcome,), _, _ = asked(model, case_of(), soft=40, hard=10, rank=rank)
    assert outcome.closed == Closed(manner, index, 100 - index, 2)  # type: ignore[arg-type]


def test_without_an_end_of_the_reasoning_there_is_no_answer() -> None:
    model = ScriptedModel(lambda prompt: "Answer: 2")  # and the end of the text
    (outcome,), _, _ = asked(model, case_of())
    assert (outcome.closed, outcome.answer, outcome.given, outcome.state) == (None, None, None, "failed")
    assert outcome.output == b"Answer: 2" and outcome.complete  # it ended by itself


def test_chat_mode() -> None:
    model = ScriptedModel(lambda prompt: "Answer: 2")
    (outcome,), notes, _ = asked(model, case_of(), mode="chat")
    assert outcome.state == "passed" and outcome.answer_begin == 0 and not outcome.thinking
    assert [s for _, s in notes.states] == ["prefill", "answer", "passed"]
    assert "</think>" in model.prompts[0]
    model = ScriptedModel(lambda prompt: "Answer: 3 or so</think>Answer: 2")
    (outcome,), _, _ = asked(model, case_of(), mode="chat")
    assert outcome.answer == "Answer: 2"


def test_a_quoted_mark_does_not_end_the_reasoning() -> None:
    model = ScriptedModel(lambda prompt: "")
    text = [*model.tokenizer.encode("write </think> and Answer: 3"), model.tokenizer.special("</think>")]
    whole = text + model.tokenizer.encode("Answer: 2")
    model.next_token = lambda tokens: _at(model, tokens, whole)  # type: ignore[method-assign]
    (outcome,), _, _ = asked(model, case_of())
    assert outcome.answer == "Answer: 2" and outcome.state == "passed"


def _at(model: ScriptedModel, tokens: list[int], reply: list[int]) -> int:
    said = len(tokens) - 1 - tokens.index(model.tokenizer.special("<think>"))
    return reply[said] if said < len(reply) else model.tokenizer.eos_id


def test_modes_budgets_and_context() -> None:
    model = ScriptedModel(lambda prompt: "</think>")
    cases = [case_of(mode="chat"), case_of(id="two", max_tokens=7), case_of(id="three", max_tokens=700)]
    tasks, settings = tasks_of(model, *cases, soft=50, hard=20)
    assert [task.thinking for task in tasks] == [False, True, True]
    assert [task.max_tokens for task in tasks] == [100, 7, 100]
    assert tasks[1].closing == Closing(7, 3, 1, 3) and tasks[2].closing == Closing(100, 50, 20, 3)
    n_ctx = needed_ctx(tasks, settings)
    assert n_ctx == len(tasks[2].prompt) + 100
    check_room(tasks, n_ctx)
    with pytest.raises(ValueError, match=rf"case test/three: .* need a context of {n_ctx}, -c gives {n_ctx - 1}"):
        check_room([tasks[2]], n_ctx - 1)
    both, _ = tasks_of(model, *cases, mode="thinking")
    assert all(task.thinking for task in both)
    with pytest.raises(ValueError, match="more than 1000000"):
        tasks_of(model, case_of(), max_tokens=1_000_000)
    longest, settings = tasks_of(model, case_of(), mode="thinking", effort="max")
    assert needed_ctx(longest, settings) == 393_216
    with pytest.raises(ValueError, match="effort"):
        EvalSettings(effort="max", mode="chat")
    for wrong in ({"max_tokens": 0}, {"mode": "fast"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            EvalSettings(**wrong)  # type: ignore[arg-type]


def test_seeds_do_not_depend_on_the_order() -> None:
    one, two = case_of(), case_of(id="two")
    assert case_seed(1, one) == case_seed(1, one) != case_seed(1, two)
    assert case_seed(1, one) != case_seed(2, one)
    assert case_seed(1, case_of(seed=5)) == case_seed(2, case_of(seed=5)) == 5


def test_sampled_answers_depend_on_seed_and_name_alone(tiny: ds4.Model) -> None:
    cases = open_suite("tiny").cases[:3]
    settings = EvalSettings(max_tokens=60, temperature=1.0, seed=3)

    def run(order: list[int], seed: int = 3) -> dict[str, tuple[int, ...]]:
        chosen = EvalSettings(max_tokens=60, temperature=1.0, seed=seed)
        tasks = make_tasks(tiny.tokenizer, [(i + 1, cases[i]) for i in order], chosen)
        with tiny.session(n_ctx=needed_ctx(tasks, settings)) as session:
            return {o.case.id: o.tokens for o in Runner(session, tasks, chosen, Notes()).run()}

    first = run([0, 1, 2])
    assert first == run([2, 0, 1]) == run([0]) | run([1]) | run([2])
    assert first != run([0, 1, 2], seed=4)


# Steering a run


def test_stop_in_the_middle() -> None:
    model = ScriptedModel(lambda prompt: "on " * 300)
    control, notes = Control(), Notes()
    notes.on_text = lambda index, n: control.stop() if (index, n) == (1, 5) else None
    cases = [case_of(id=name) for name in ("a", "b", "c")]
    outcomes, notes, _ = asked(model, *cases, control=control, notes=notes, max_tokens=20)
    assert [o.state for o in outcomes] == ["failed", "stopped", "skipped"]
    assert outcomes[1].n_generated == 5 and outcomes[1].finish is None and outcomes[2].n_prompt > 0
    assert [o.case.id for o in notes.outcomes] == ["a", "b"]
    assert not outcomes[1].complete


def test_jump_puts_the_running_case_back() -> None:
    model = ScriptedModel(lambda prompt: "x</think>Answer: 2")
    control, notes = Control(), Notes()
    jumps = {(0, 1): 2}
    notes.on_text = lambda index, n: control.run_next(jumps.pop((index, n))) if (index, n) in jumps else None
    cases = [case_of(id=name) for name in ("a", "b", "c")]
    outcomes, notes, _ = asked(model, *cases, control=control, notes=notes)
    assert [o.case.id for o in notes.outcomes] == ["c", "a", "b"]
    assert [o.state for o in outcomes] == ["passed"] * 3
    assert (0, "pending") in notes.states


def test_a_finished_case_can_run_again() -> None:
    model = ScriptedModel(lambda prompt: "x</think>Answer: 2")
    control, notes = Control(), Notes()
    again = [0]
    notes.on_text = lambda index, n: control.run_next(again.pop()) if index == 1 and again else None
    outcomes, notes, _ = asked(model, case_of(id="a"), case_of(id="b"), control=control, notes=notes)
    assert [o.case.id for o in notes.outcomes] == ["a", "a", "b"]
    assert [o.state for o in outcomes] == ["passed"] * 2


def test_the_clock_stops_in_a_pause() -> None:
    model = ScriptedModel(lambda prompt: "x</think>Answer: 2")
    control, notes = Control(), Notes()
    timers: list[threading.Timer] = []

    def pause(index: int, n: int) -> None:
        if n == 1 and not timers:
            control.toggle_pause()
            timers.append(threading.Timer(0.4, control.toggle_pause))
            timers[0].start()

    notes.on_text = pause
    begin = time.monotonic()
    (outcome,), _, runner = asked(model, case_of(), control=control, notes=notes)
    wall = time.monotonic() - begin
    timers[0].join()
    assert outcome.state == "passed" and not control.paused
    assert 0.39 <= control.paused_s <= wall
    assert outcome.decode_s <= runner.seconds <= wall - control.paused_s + 0.001


def test_a_pause_ends_with_a_stop() -> None:
    model = ScriptedModel(lambda prompt: "on " * 300)
    control, notes = Control(), Notes()

    def pause(index: int, n: int) -> None:
        if n == 3:
            control.toggle_pause()
            threading.Timer(0.05, control.stop).start()

    notes.on_text = pause
    (outcome,), _, _ = asked(model, case_of(), control=control, notes=notes)
    assert outcome.state == "stopped"


def test_ctrl_c_keeps_what_was_there() -> None:
    model = ScriptedModel(lambda prompt: "on " * 300)
    notes = Notes()

    def interrupt(index: int, n: int) -> None:
        if n == 4:
            raise KeyboardInterrupt

    notes.on_text = interrupt
    tasks, settings = tasks_of(model, case_of())
    runner = Runner(model.session(n_ctx=1000), tasks, settings, notes)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        runner.run()
    (outcome,) = runner.outcomes()
    assert (outcome.state, outcome.n_generated) == ("stopped", 4)


def test_the_report() -> None:
    case = case_of()
    outcomes = [
        Outcome(case, 1, "passed", "2", 10, 20), Outcome(case_of(id="b"), 12, "failed", None, 9, 7),
        Outcome(case_of(kind="exact", answer="x" * 50), 3, "failed", "a\x1bb", 1, 2),
    ]  # fmt: skip
    lines = list(report_lines(outcomes, 61.4))
    assert lines[0] == "passed 1 of 3 in 0:01:01"
    assert lines[1].split() == ["#", "state", "prompt", "gen", "total", "given", "correct", "test"]
    assert lines[2].split() == ["1", "passed", "10", "20", "30", "2", "2", "test/one"]
    assert lines[3].split() == ["12", "failed", "9", "7", "16", "-", "2", "test/b"]
    assert "a·b" in lines[4] and "x" * 27 + "…" in lines[4]


# The embedded model


def test_the_suite_of_the_tiny_model_passes(tiny: ds4.Model) -> None:
    cases = open_suite("tiny").cases
    settings = EvalSettings()
    tasks = make_tasks(tiny.tokenizer, list(enumerate(cases, 1)), settings)
    with tiny.session(n_ctx=needed_ctx(tasks, settings)) as session:
        outcomes = Runner(session, tasks, settings, Notes()).run()
    assert [(o.case.id, o.given) for o in outcomes if o.state != "passed"] == []
    assert len(outcomes) >= 60
    assert {case.kind for case in cases} == {"integer", "exact", "regex", "call"}
    assert {o.closed.manner for o in outcomes if o.thinking and o.closed} == {"natural"}
    assert max(o.n_prompt for o in outcomes) > 1000


def test_plain_lines_cannot_steer_a_terminal() -> None:
    case = case_of(kind="exact", answer="right\x1b[2J\x07")
    outcome = Outcome(case, 1, "failed", "wrong\x1b]0;title\x07", 10, 20, closed=Closed("hard_forced", 1, 2, 3))
    for width in (None, 100, 20):
        said: list[str] = []
        PlainListener([None], said.append, width).done(0, outcome)  # type: ignore[list-item]
        assert all(line.isprintable() for line in said)
        if width != 20:
            assert "answer wrong·]0;title· (right: right·[2J·), reasoning closed (hard forced)" in said[0]
    assert all(line.isprintable() and len(line) <= 12 for line in narrow_report([outcome], 12))
