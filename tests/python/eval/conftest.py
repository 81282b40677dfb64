"""Suites, runs and the embedded model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ds4
import pytest
from ds4.eval import Case, Outcome
from ds4.eval.suite import parse_case

CASE = {"id": "one", "kind": "integer", "question": "What is 1 + 1?", "answer": 2}


def case_of(**fields: Any) -> Case:
    """A case of the default fields and these; None takes one away."""
    merged = {k: v for k, v in {**CASE, **fields}.items() if v is not None}
    return parse_case(json.dumps(merged), "test", "here")


class Notes:
    """A listener that remembers what it is told."""

    def __init__(self) -> None:
        self.states: list[tuple[int, str]] = []
        self.texts: dict[tuple[int, bool], str] = {}
        self.outcomes: list[Outcome] = []
        self.on_text: Callable[[int, int], None] = lambda index, n: None

    def state(self, index: int, state: str) -> None:
        self.states.append((index, state))

    def progress(self, index: int, done: int, total: int) -> None:
        assert 0 <= done <= total

    def text(self, index: int, text: str, *, reasoning: bool, n_generated: int) -> None:
        self.texts[index, reasoning] = self.texts.get((index, reasoning), "") + text
        self.on_text(index, n_generated)

    def done(self, index: int, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


@pytest.fixture
def suite_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a suite of these lines, objects or raw bytes."""

    def write(*lines: Any, name: str = "my.jsonl") -> Path:
        path = tmp_path / name
        path.write_bytes(
            b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines) + b"\n"
        )
        return path

    return write


@pytest.fixture(scope="session")
def tiny() -> Iterator[ds4.Model]:
    """The embedded model."""
    with ds4.Model.open_embedded() as model:
        yield model
