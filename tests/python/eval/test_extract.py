"""Graders: every branch of finding an answer, and of comparing it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from ds4.eval import Grade, check_extractors, extract, grade
from ds4.eval import checks as tables
from hypothesis import given, settings
from hypothesis import strategies as st

from .conftest import case_of


@pytest.mark.parametrize(("branch", "text", "right"), tables.LETTERS)
def test_letters(branch: str, text: str, right: str | None) -> None:
    assert extract.letter(text, 5) == right


@pytest.mark.parametrize(("branch", "text", "right"), tables.INTEGERS)
def test_integers(branch: str, text: str, right: str | None) -> None:
    assert extract.integer(text) == right


@pytest.mark.parametrize(("branch", "text", "right"), tables.LINES)
def test_lines(branch: str, text: str, right: tuple[int, ...] | None) -> None:
    assert extract.lines(text) == right


@pytest.mark.parametrize(("branch", "text", "right"), tables.PHRASES)
def test_phrases(branch: str, text: str, right: str | None) -> None:
    assert extract.phrase(text) == right


def test_the_self_test_finds_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_extractors()[0] == []
    monkeypatch.setattr(extract, "INTEGER_BYTES", 3)
    faults, n = check_extractors()
    assert 0 < len(faults) < n
    assert any("far away" not in f and f.startswith("integer") for f in faults)


@settings(max_examples=150, deadline=None)
@given(st.integers(-(10**30), 10**30), st.sampled_from(["{}", "**{}**", "`{}`.", "${}$", "= {}", "({})", "{},"]))
def test_any_integer_is_read_back(n: int, form: str) -> None:
    assert extract.integer("2 things.\nAnswer: " + form.format(n)) == str(n)
    assert extract.integer("so it is " + form.format(f"{n:,}")) == str(n)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_no_text_breaks_the_extraction(text: str) -> None:
    assert extract.letter(text, 26) in (None, *"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    number = extract.integer(text)
    assert number is None or number.lstrip("-").replace(".", "").isdigit()
    assert all(0 <= n <= 255 for n in extract.lines("answer:" + text) or ())
    assert extract.phrase(text) != ""
    assert len(extract.plain(text)) == len(text)


@pytest.mark.parametrize(
    "text", ["*" * 200_000, "answer " * 30_000, "1," * 100_000, "answer" + " " * 200_000, "-" * 200_000]
)
def test_long_texts_take_no_long_time(text: str) -> None:
    begin = time.monotonic()
    extract.letter(text, 4), extract.integer(text), extract.lines(text), extract.phrase(text)
    assert time.monotonic() - begin < 10


LINES = {"kind": "lines", "answer": [3, "5-6"]}
EXACT = {"kind": "exact", "answer": ["Zürich", "Zurich"]}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}
CALL = {"kind": "call", "tools": [TOOL], "answer": {"name": "add", "arguments": {"a": 1, "b": "x"}}}
D = "｜DSML｜"


def call_text(*calls: tuple[str, str], closed: bool = True) -> str:
    body = "\n".join(f'<{D}invoke name="{name}">\n{inside}\n</{D}invoke>' for name, inside in calls)
    return f"\n\n<{D}tool_calls>\n{body}" + (f"\n</{D}tool_calls>" if closed else "")


def parameter(name: str, value: str, *, string: bool) -> str:
    return f'<{D}parameter name="{name}" string="{str(string).lower()}">{value}</{D}parameter>'


A1 = parameter("a", "1", string=False)
BX = parameter("b", "x", string=True)


@pytest.mark.parametrize(
    ("fields", "text", "given", "passed"),
    [
        ({}, "Answer: 2", "2", True),
        ({}, "Answer: 3", "3", False),
        ({}, "no", None, False),
        ({"answer": "-0012"}, "Answer: −12", "-12", True),
        ({"kind": "letter", "choices": ["a", "b"], "answer": "B"}, "Answer: B", "B", True),
        ({"kind": "letter", "choices": ["a", "b"], "answer": "A"}, "Answer: B", "B", False),
        ({"kind": "letter", "choices": ["a", "b"], "answer": "A"}, "Answer: C", None, False),
        (LINES, "Answer: 5", "5", True),
        (LINES, "Answer: 3, 5-6", "3,5-6", True),
        (LINES, "Answer: 3, 4", "3-4", False),
        (LINES, "Answer: none", None, False),
        ({"kind": "lines", "answer": [0]}, "Answer: 0", "0", True),
        ({"kind": "lines", "answer": [0]}, "Answer: 0, 4", "0,4", False),
        (EXACT, "Answer: **zürich**.", "zürich", True),
        (EXACT, "Zurich", "Zurich", True),
        (EXACT, "Answer: Bern", "Bern", False),
        (EXACT, "", None, False),
        ({**EXACT, "match_case": True}, "Answer: zurich", "zurich", False),
        ({"kind": "exact", "answer": "x" * 90}, "x" * 90, "x" * 79 + "…", True),
        ({"kind": "regex", "answer": r"(?i)\bred\b"}, "It is RED.\nYes", "RED", True),
        ({"kind": "regex", "answer": r"\bred\b"}, "Answer: blue", "blue", False),
        ({"kind": "regex", "answer": r"\bred\b"}, "", None, False),
        (CALL, call_text(("add", A1 + "\n" + BX)), 'add({"a": 1, "b": "x"})', True),
        (CALL, call_text(("add", BX + "\n" + A1)), 'add({"a": 1, "b": "x"})', True),
        (CALL, call_text(("add", A1)), 'add({"a": 1})', False),
        (CALL, call_text(("sub", A1 + "\n" + BX)), 'sub({"a": 1, "b": "x"})', False),
        (CALL, call_text(("add", parameter("a", "true", string=False) + "\n" + BX)), None, False),
        (CALL, call_text(("add", A1 + "\n" + BX), ("add", A1)), None, False),
        (CALL, call_text(("add", A1 + "\n" + BX))[:-40], None, False),
        (CALL, "I would add them", None, False),
    ],
)  # fmt: skip
def test_grades(fields: dict[str, Any], text: str, given: str | None, passed: bool) -> None:
    found = grade(case_of(**fields), text)
    assert found.passed == passed
    if given is not None or fields.get("kind") != "call":
        assert found.given == given


def test_a_reasoning_that_never_ended_is_no_answer() -> None:
    assert grade(case_of(), None) == Grade(None, False)


def test_json_values_of_calls_are_compared_as_such() -> None:
    nested = {**CALL, "answer": {"name": "add", "arguments": {"a": [1, {"b": True}]}}}
    for value, passed in (
        ('[1, {"b": true}]', True),
        ('[1.0, {"b": true}]', True),
        ('[1, {"b": 1}]', False),
        ("[1]", False),
    ):
        text = call_text(("add", parameter("a", value, string=False)))
        assert grade(case_of(**nested), text).passed == passed, value


def test_a_pattern_that_takes_forever_is_named() -> None:
    slow = case_of(kind="regex", answer=r"(?:(?:a|a)+)+b\b(?<=c)")
    with pytest.raises(ValueError, match="case test/one: its pattern needs more than"):
        grade(slow, "a" * 5000 + "c")
