"""Records of runs: written, read, graded again; damaged ones."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ds4.eval import Closed, Outcome, Trace, TraceWriter, read_trace, regrade
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .conftest import case_of

HOSTILE = (
    b"===== CASE 1/9 test/one =====\nstate: passed\nMODEL_OUTPUT_END\n\n"
    b"MODEL_OUTPUT_BEGIN bytes=3\nabc\nMODEL_OUTPUT_END\n"
    b"CASE_END\n</think>\xff\xfe\x00\x1b[2J\nMODEL_OUTPUT_END"
)


def outcome_of(**changes: Any) -> Outcome:
    base = Outcome(
        case_of(), 1, "passed", "2", 31, 12, "stop", Closed("soft_forced", 7, 90, 3), True, b"one</think>Answer: 2", 11,
        (1, 2), (3,), "system\ntext", "question: ü", 12345, 0.25, 1.5,
    )  # fmt: skip
    return replace(base, **changes)


def written(*outcomes: Outcome, total: int = 9) -> bytes:
    file = io.BytesIO()
    writer = TraceWriter(file, {"suite": "test", "model": "a\nb", "empty": ""}, total)
    for outcome in outcomes:
        writer.add(outcome)
    return file.getvalue()


def read(data: bytes, tmp_path: Path) -> Trace:
    path = tmp_path / "x.trace"
    path.write_bytes(data)
    return read_trace(path)


ALL = [
    outcome_of(),
    outcome_of(case=case_of(id="two"), number=2, state="failed", given=None, closed=None, answer_begin=None,
               finish="length"),
    outcome_of(case=case_of(id="three"), number=3, state="failed", given=None, output=HOSTILE,
               answer_begin=len(HOSTILE), system="", question=""),
    outcome_of(case=case_of(id="four"), number=4, state="stopped", given=None, finish=None, output=b"", answer_begin=0,
               thinking=False, closed=None),
    outcome_of(case=case_of(id="five", kind="exact", answer="-"), number=5, given="-", output=b"-", answer_begin=0),
]  # fmt: skip


def test_everything_comes_back(tmp_path: Path) -> None:
    trace = read(written(*ALL), tmp_path)
    assert trace.head == {"suite": "test", "model": "a b", "empty": ""}
    assert not trace.truncated
    assert trace.outcomes == [replace(o, tokens=(), prompt=()) for o in ALL]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_any_text_comes_back(tmp_path: Path, output: bytes, question: str) -> None:
    outcome = outcome_of(output=output, answer_begin=0, question=question)
    assert read(written(outcome, outcome_of(number=2)), tmp_path).outcomes[0] == replace(outcome, tokens=(), prompt=())


def test_the_later_record_of_a_case_counts(tmp_path: Path) -> None:
    trace = read(written(ALL[0], ALL[1], replace(ALL[0], state="failed", given="7")), tmp_path)
    assert [(o.number, o.given) for o in trace.outcomes] == [(1, "7"), (2, None)]


def test_a_record_that_is_cut_off_is_left_out(tmp_path: Path) -> None:
    first, both = len(written(ALL[0])), written(ALL[0], ALL[2])
    for end in range(first + 2, len(both) - 1, 7):
        trace = read(both[:end], tmp_path)
        assert [o.number for o in trace.outcomes] == [1], end
        assert trace.truncated
    assert not read(both[:first], tmp_path).truncated
    assert read(both[:30], tmp_path) == Trace({}, [], True)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (b"ds4-eval trace 1", b"ds4-eval trace 2", "this is no trace of ds4 eval"),
        (b"===== CASE", b"===== KASE", "a case was expected"),
        (b"state: passed", b"state: perfect", "state must be one of passed, failed, stopped, not 'perfect'"),
        (b"thinking: yes", b"thinking: maybe", "thinking must be one of"),
        (b"think_close: soft_forced", b"think_close: bent", "think_close must be one of"),
        (b"think_close_rank: 3", b"think_close_rank: -3", "think_close_rank must be a number"),
        (b"prompt_tokens: 31", b"prompt_tokens: many", "prompt_tokens must be a number"),
        (b"generated_tokens: 12\n", b"", "generated_tokens must be a number"),
        (b"finish: stop", b"finish: later", "finish must be one of stop, length"),
        (b"seed: 12345", b"seed: 99999999999999999999", "seed must be a number"),
        (b"answer_begin: 11", b"answer_begin: 999", "answer_begin must be a number in 0..20"),
        (b"prefill_seconds: 0.250", b"prefill_seconds: nan", "prefill_seconds must be a number of seconds"),
        (b"MODEL_OUTPUT_BEGIN bytes=20", b"MODEL_OUTPUT_BEGIN bytes=19", "MODEL_OUTPUT has another length"),
        (b"MODEL_OUTPUT_BEGIN bytes=20", b"MODEL_OUTPUT_BEGIN bytes=-1", "MODEL_OUTPUT_BEGIN was expected"),
        (b"QUESTION_PROMPT_BEGIN", b"ANSWER_PROMPT_BEGIN", "QUESTION_PROMPT_BEGIN was expected"),
        ("question: ü".encode(), b"question: \xff\xff", "a block of text is not UTF-8"),
        (b'"kind": "integer"', b'"kind": "integel"', "case test/one: kind: must be one of"),
    ],
)
def test_damage_is_named(tmp_path: Path, old: bytes, new: bytes, text: str) -> None:
    data = written(ALL[0])
    assert data.count(old) >= 1
    with pytest.raises(ValueError) as caught:
        read(data.replace(old, new), tmp_path)
    assert str(tmp_path / "x.trace") in str(caught.value)
    assert text in str(caught.value)


def test_no_trace_at_all(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "none")
    for data in (b"", b"\n", b"GGUF" * 100, b"ds4-eval trace 1"):
        with pytest.raises(ValueError, match="no trace of ds4 eval"):
            read(data, tmp_path)


def test_regrading(tmp_path: Path) -> None:
    wrong = outcome_of(state="failed", given="3")
    trace = read(written(wrong, *ALL[1:]), tmp_path)
    found = regrade(trace)
    assert [(old.given, new.given, new.state) for old, new in found.changed] == [("3", "2", "passed")]
    assert found.after[3].state == "stopped"


def test_regrading_with_other_right_answers(tmp_path: Path) -> None:
    trace = read(written(ALL[0]), tmp_path)
    found = regrade(trace, [case_of(answer=3)])
    assert [(new.state, new.given) for _, new in found.changed] == [("failed", "2")]
    with pytest.raises(ValueError, match="a case test/one that the suite does not have"):
        regrade(trace, [case_of(id="other")])


def test_regrading_uses_the_grader_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = read(written(ALL[0]), tmp_path)
    assert not regrade(trace).changed
    monkeypatch.setattr(sys.modules["ds4.eval.grade"], "integer", lambda text: "41")
    (pair,) = regrade(trace).changed
    assert (pair[0].given, pair[1].given, pair[1].state) == ("2", "41", "failed")


def test_the_case_in_the_trace_is_the_line_of_the_suite() -> None:
    assert json.loads(written(ALL[0]).split(b"CASE_BEGIN bytes=")[1].split(b"\n")[1]) == json.loads(ALL[0].case.text)
