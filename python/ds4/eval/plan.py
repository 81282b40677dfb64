"""From cases to prompts: what is asked, with how many tokens, and from which seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ds4.chat import EFFORT_MAX_CONTEXT, render
from ds4.tokenizer import Tokenizer

from .closing import Closing
from .suite import MODES, Case

MAX_CONTEXT = 1_000_000
"""A run that needs a longer context is refused."""

DEFAULT_TOKENS = 16_000

SYSTEM_TEXT = (
    "You are taking a written test. Work out each question with care and check the result before you give it. Be "
    "definite: one answer, in the form that is asked for."
)

_FORMS = {
    "letter": "Finish with one line `Answer: X`, where X is the letter of the right choice.",
    "integer": "Finish with one line `Answer: N`, where N is a whole number written in digits.",
    "lines": "Finish with one line `Answer: N`, where N is the number of the line at fault. Several lines are "
    "separated by commas. Write 0 if nothing is wrong with the code.",
    "exact": "Finish with one line `Answer: ` and behind it the result alone, without explanation.",
    "regex": "Finish with one line `Answer: ` and behind it the result alone, without explanation.",
    "call": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSettings:
    """How cases are asked.

    Attributes
    ----------
    max_tokens : int
        Most tokens of an answer, its reasoning included; a case may have less.
    mode : {None, "thinking", "chat"}
        For all cases; None: as each case says, thinking when it says nothing.
    effort : {None, "max"}
        "max" asks for the longest reasoning.
    temperature, top_k, top_p, min_p
        As of `ds4.Sampler`.
    seed : int
        Together with the name of a case the seed of its drawing.
    soft, hard : int or None
        Last tokens of the budget in which the reasoning may be closed, and must be. None: 1024 and 512, but not more
        than a half and a quarter of the budget.
    rank : int
        How likely the end of the reasoning must be to be taken in the soft part: among so many best tokens.

    Raises
    ------
    ValueError
        A value is out of its range.
    """

    max_tokens: int = DEFAULT_TOKENS
    mode: Literal["thinking", "chat"] | None = None
    effort: Literal["max"] | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.05
    seed: int = 0
    soft: int | None = None
    hard: int | None = None
    rank: int = 3

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be 1 or more, not {self.max_tokens}")
        if self.mode is not None and self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)} or None, not {self.mode!r}")
        if self.effort == "max" and self.mode == "chat":
            raise ValueError("effort 'max' asks for reasoning, mode 'chat' leaves it out")
        Closing.for_budget(self.max_tokens, self.soft, self.hard, self.rank)

    def as_json(self) -> dict[str, Any]:
        """Return the values for a report."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class Task:
    """A case that is ready to be asked.

    Attributes
    ----------
    case : Case
    number : int
        Its place in the suite, from 1.
    prompt : tuple of int
        Tokens.
    thinking : bool
        Whether the prompt opens the reasoning.
    max_tokens : int
        The budget.
    closing : Closing
        When the reasoning is closed.
    seed : int
    system, question : str
        What was rendered, for the trace; messages are JSON.
    """

    case: Case
    number: int
    prompt: tuple[int, ...]
    thinking: bool
    max_tokens: int
    closing: Closing
    seed: int
    system: str
    question: str

    @property
    def n_positions(self) -> int:
        """Positions that prompt and budget take."""
        return len(self.prompt) + self.max_tokens


def make_tasks(tokenizer: Tokenizer, numbered: Sequence[tuple[int, Case]], settings: EvalSettings) -> list[Task]:
    """Render cases.

    Parameters
    ----------
    tokenizer : Tokenizer
    numbered : sequence of (int, Case)
        Cases with their places in the suite.
    settings : EvalSettings

    Raises
    ------
    ValueError
        A prompt and its budget need more than `MAX_CONTEXT` positions; the text names the case.
    """
    tasks = [_task(tokenizer, number, case, settings) for number, case in numbered]
    for task in tasks:
        if task.n_positions > MAX_CONTEXT:
            raise ValueError(
                f"case {task.case.name}: {len(task.prompt)} tokens of prompt and {task.max_tokens} of answer need a "
                f"context of {task.n_positions}, more than {MAX_CONTEXT}; a smaller -n helps"
            )
    return tasks


def needed_ctx(tasks: Sequence[Task], settings: EvalSettings) -> int:
    """Return the context that the longest task needs; reasoning at length needs a long one in any case."""
    least = EFFORT_MAX_CONTEXT if settings.effort == "max" else 1
    return max([least, *(task.n_positions for task in tasks)])


def check_room(tasks: Sequence[Task], n_ctx: int) -> None:
    """Check that every task fits into a context.

    Raises
    ------
    ValueError
        One does not; the text names it.
    """
    for task in tasks:
        if task.n_positions > n_ctx:
            raise ValueError(
                f"case {task.case.name}: {len(task.prompt)} tokens of prompt and {task.max_tokens} of answer need a "
                f"context of {task.n_positions}, -c gives {n_ctx}"
            )


def case_seed(seed: int, case: Case) -> int:
    """Return the seed of a case: its own, or one that follows from the run's and its name, whatever the order."""
    if case.seed is not None:
        return case.seed
    digest = hashlib.sha256(f"{seed} {case.name}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def system_text(case: Case) -> str:
    """Return the system text that goes with a question; "" for none."""
    if case.messages:
        return ""
    if case.system is not None:
        return case.system
    return "" if case.bare else SYSTEM_TEXT


def question_text(case: Case) -> str:
    """Return the user message: question, numbered code, lettered choices, and the form of the answer."""
    assert case.question is not None
    parts = [case.question]
    if case.code is not None:
        parts.append("\n".join(f"{n:>3} | {line}".rstrip() for n, line in enumerate(case.code.splitlines(), 1)))
    if case.choices:
        parts.append("\n".join(f"{chr(ord('A') + i)}) {choice}" for i, choice in enumerate(case.choices)))
    if not case.bare and _FORMS[case.kind]:
        parts.append(_FORMS[case.kind])
    return "\n\n".join(parts)


def _task(tokenizer: Tokenizer, number: int, case: Case, settings: EvalSettings) -> Task:
    mode = settings.mode or case.mode or "thinking"
    effort = settings.effort if mode == "thinking" else None
    system = system_text(case)
    messages: list[Mapping[str, Any]]
    if case.messages:
        messages, question = list(case.messages), json.dumps(case.messages, ensure_ascii=False)
    else:
        question = question_text(case)
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": question})
    prompt = render(messages, mode=mode, tools=list(case.tools) or None, effort=effort).encode(tokenizer)
    budget = min(settings.max_tokens, case.max_tokens or settings.max_tokens)
    whole = budget == settings.max_tokens  # limits that were asked for belong to the whole budget
    soft, hard = (settings.soft, settings.hard) if whole else (None, None)
    closing = Closing.for_budget(budget, soft, hard, settings.rank)
    seed = case_seed(settings.seed, case)
    return Task(case, number, tuple(prompt), mode == "thinking", budget, closing, seed, system, question)
