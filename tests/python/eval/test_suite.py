"""Suites: what a line may hold, and how a wrong one is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ds4.eval import open_suite, own_suites, read_suite
from ds4.eval.plan import question_text, system_text

from .conftest import CASE, case_of

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
USER = [{"role": "user", "content": "hi"}]


def test_head_and_cases(suite_file: Callable[..., Path]) -> None:
    letter = {"id": "two", "source": "me", "kind": "letter", "question": "q", "choices": ["x", "y"], "answer": "B"}
    path = suite_file({"suite": "mine", "description": "of mine"}, CASE, b"", {**letter, "note": "why"}, b"  ")
    suite = read_suite(path)
    assert (suite.name, suite.description) == ("mine", "of mine")
    assert [(c.name, c.line, c.answer) for c in suite.cases] == [("mine/one", 2, "2"), ("me/two", 4, "B")]
    assert json.loads(suite.cases[0].text) == CASE


def test_without_a_head_the_file_names_the_suite(suite_file: Callable[..., Path]) -> None:
    assert open_suite(suite_file(b"\xef\xbb\xbf" + json.dumps(CASE).encode())).cases[0].name == "my/one"


def test_names_and_paths() -> None:
    assert set(own_suites()) >= {"general", "tiny"}
    assert open_suite("tiny").name == "tiny"
    with pytest.raises(ValueError, match="nothing is neither a file nor one of the suites general, tiny"):
        open_suite("nothing")
    with pytest.raises(FileNotFoundError):
        open_suite("./nothing.jsonl")


LETTER = {**CASE, "kind": "letter", "choices": ["a", "b"], "answer": "A"}
MESSAGES = {"id": "one", "kind": "integer", "messages": USER, "answer": 2}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({**CASE, "id": None}, "id: must be a text, not null"),
        ({k: v for k, v in CASE.items() if k != "id"}, "id: this field is missing"),
        ({k: v for k, v in CASE.items() if k != "kind"}, "kind: this field is missing"),
        ({k: v for k, v in CASE.items() if k != "question"}, "question: this field is missing"),
        ({k: v for k, v in CASE.items() if k != "answer"}, "answer: this field is missing"),
        ({**CASE, "id": "a b"}, "id: 'a b' must have at most 200 characters"),
        ({**CASE, "id": "a\x1b[2J"}, "id: "),
        ({**CASE, "id": "x" * 201}, "id: "),
        ({**CASE, "kind": "essay"}, "kind: must be one of letter, integer"),
        ({**CASE, "kind": ["letter"]}, "kind: must be one of"),
        ({**CASE, "question": "  "}, "question: is empty"),
        ({**CASE, "question": 3}, "question: must be a text, not a number"),
        ({**CASE, "question": "\ud800"}, "question: holds half of a surrogate pair"),
        ({**CASE, "answer": 1.5}, "answer: must be a whole number or its digits, not a number"),
        ({**CASE, "answer": True}, "answer: must be a whole number or its digits, not true or false"),
        ({**CASE, "answer": "1e3"}, "answer: '1e3' is not a whole number"),
        ({**CASE, "answer": "9" * 401}, "is not a whole number of at most 400 digits"),
        ({**CASE, "choices": ["a", "b"]}, "choices: this field is unknown, or does not go with the others"),
        ({**CASE, "colour": 1}, "colour: this field is unknown"),
        ({**CASE, "mode": "fast"}, "mode: must be one of thinking, chat"),
        ({**CASE, "max_tokens": 0}, "max_tokens: must be in 1..1000000, not 0"),
        ({**CASE, "max_tokens": "9"}, "max_tokens: must be a whole number, not a text"),
        ({**CASE, "seed": -1}, "seed: must be in 0..18446744073709551615"),
        ({**CASE, "bare": 1}, "bare: must be true or false, not a number"),
        ({**CASE, "code": ""}, "code: is empty"),
        ({**LETTER, "choices": ["a"]}, "choices: there must be 2..26, not 1"),
        ({**LETTER, "choices": ["a", ""]}, "choices: each must be a text that is not empty"),
        ({**LETTER, "choices": "ab"}, "choices: must be a list, not a text"),
        ({**LETTER, "answer": "C"}, "answer: must be a letter from A to B, not 'C'"),
        ({**LETTER, "answer": "AB"}, "answer: must be a letter"),
        ({**CASE, "kind": "lines"}, "answer: must be a list, not a number"),
        ({**CASE, "kind": "lines", "answer": []}, "answer: must hold line numbers"),
        ({**CASE, "kind": "lines", "answer": [0, 3]}, "answer: must hold line numbers, or only 0"),
        ({**CASE, "kind": "lines", "answer": ["5-3"]}, "answer: '5-3' is not among the lines"),
        ({**CASE, "kind": "lines", "answer": [256]}, "answer: 256 is not among the lines 1..255"),
        ({**CASE, "kind": "lines", "answer": [3], "code": "a\nb"}, "answer: 3 is not among the lines 1..2"),
        ({**CASE, "kind": "lines", "answer": ["x"]}, "answer: must hold numbers"),
        ({**CASE, "kind": "exact"}, "answer: must be a text or a list of texts"),
        ({**CASE, "kind": "exact", "answer": []}, "answer: must be a text or a list of texts"),
        ({**CASE, "kind": "exact", "answer": ["a", " "]}, "answer: must be a text or a list of texts"),
        ({**CASE, "kind": "regex", "answer": "("}, "answer: not a pattern"),
        ({**CASE, "kind": "call", "answer": {"name": "f"}}, "answer: must be an object with name and arguments"),
        ({**CASE, "kind": "call", "answer": {"name": 1, "arguments": {}}}, "answer: name must be a text"),
        ({**CASE, "kind": "call", "answer": {"name": "f", "arguments": {}}}, "tools: a call needs tools"),
        ({**CASE, "tools": [{"type": "function"}]}, "tools: "),
        ({**CASE, "tools": "add"}, "tools: must be a list"),
        ({**CASE, "messages": USER}, "question: a case has a question or messages, not both"),
        ({**MESSAGES, "messages": []}, "messages: "),
        ({**MESSAGES, "messages": [{"role": "nobody"}]}, "messages: "),
        ({**MESSAGES, "messages": [*USER, {"role": "assistant", "content": "a"}]}, "messages: the last one must be"),
        ({**MESSAGES, "messages": {}}, "messages: must be a list"),
        ({**MESSAGES, "system": "s"}, "system: this field is unknown, or does not go with the others"),
        ({**MESSAGES, "kind": "letter", "answer": "A"}, "n_choices: is needed with messages"),
        (b"{", "not JSON"),
        (b"[1]", "a line must be an object, not a list"),
        (b"\xff\xfe", "not UTF-8 text (byte 0 of the line)"),
        (b'{"id": "a", "id": "b"}', "the field 'id' is given twice"),
        (b'{"id": NaN}', "NaN is no JSON"),
        (b"[" * 200_000, "nested too deeply"),
    ],
)  # fmt: skip
def test_wrong_lines_are_named(suite_file: Callable[..., Path], fields: Any, text: str) -> None:
    path = suite_file({**CASE, "id": "zero"}, fields)
    with pytest.raises(ValueError) as caught:
        read_suite(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert text in str(caught.value)


def test_wrong_files(suite_file: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"my.jsonl:2: id: 'one' is the name of line 1, too"):
        read_suite(suite_file(CASE, CASE))
    with pytest.raises(ValueError, match=r"my.jsonl:2: suite: the head of a suite stands on the first line"):
        read_suite(suite_file(CASE, {"suite": "late"}))
    with pytest.raises(ValueError, match=r"my.jsonl:1: cases: this field is unknown"):
        read_suite(suite_file({"suite": "x", "cases": 3}, CASE))
    with pytest.raises(ValueError, match="there is no case in this file"):
        read_suite(suite_file({"suite": "empty"}))
    big = tmp_path / "big.jsonl"
    with open(big, "wb") as f:
        f.truncate((64 << 20) + 1)
    with pytest.raises(ValueError, match="more than 64 MiB"):
        read_suite(big)


def test_what_is_asked() -> None:
    plain = case_of()
    assert system_text(plain) and "Answer: N" in question_text(plain)
    assert system_text(case_of(system="")) == "" and system_text(case_of(system="s")) == "s"
    bare = case_of(bare=True)
    assert (system_text(bare), question_text(bare)) == ("", CASE["question"])
    letter = question_text(case_of(kind="letter", choices=["x", "y"], answer="A"))
    assert "A) x\nB) y" in letter and "Answer: X" in letter
    code = question_text(case_of(kind="lines", answer=[2], code="int a;\n\nint b;\n"))
    assert "  1 | int a;\n  2 |\n  3 | int b;" in code and "Write 0" in code
    assert system_text(case_of(question=None, messages=USER)) == ""


def test_expected_as_text() -> None:
    assert case_of(kind="lines", answer=[5, "1-2"]).expected == "1,2,5"
    assert case_of(kind="exact", answer=["a", "b"]).expected == "a | b"
    call = case_of(kind="call", tools=[TOOL], answer={"name": "add", "arguments": {"b": 1, "a": "ü"}})
    assert call.expected == 'add({"a": "ü", "b": 1})'
    assert case_of(question=None, messages=USER, kind="letter", n_choices=3, answer="C").expected == "C"
