"""What came of a case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .closing import Closed
from .grade import grade
from .suite import Case

State = Literal["pending", "prefill", "thinking", "answer", "passed", "failed", "skipped", "stopped"]

RUNNING: tuple[State, ...] = ("prefill", "thinking", "answer")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one case.

    Attributes
    ----------
    case : Case
    number : int
        Place in the suite, from 1.
    state : {"passed", "failed", "skipped", "stopped"}
    given : str or None
        The answer that was found.
    n_prompt, n_generated : int
        Tokens; the end token does not count.
    finish : {"stop", "length", None}
        How the text ended; None when it was stopped or never begun.
    closed : Closed or None
        How the reasoning ended; None when it did not, or there was none.
    thinking : bool
        Whether there was to be reasoning.
    output : bytes
        All that was generated, the mark between reasoning and answer included.
    answer_begin : int or None
        Where the answer begins in it; None when the reasoning never ended.
    tokens : tuple of int
        What was generated.
    prompt : tuple of int
    system, question : str
        What was asked.
    seed : int
    prefill_s, decode_s : float
        Seconds of both phases, pauses left out.
    """

    case: Case
    number: int
    state: State = "skipped"
    given: str | None = None
    n_prompt: int = 0
    n_generated: int = 0
    finish: Literal["stop", "length"] | None = None
    closed: Closed | None = None
    thinking: bool = False
    output: bytes = b""
    answer_begin: int | None = None
    tokens: tuple[int, ...] = ()
    prompt: tuple[int, ...] = ()
    system: str = ""
    question: str = ""
    seed: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    @property
    def answer(self) -> str | None:
        """The text that is graded."""
        if self.answer_begin is None:
            return None
        return self.output[self.answer_begin :].decode("utf-8", "replace")

    @property
    def complete(self) -> bool:
        """Whether the model had its say: it ended by itself, or gave an answer all the same."""
        return self.state == "passed" or (self.state == "failed" and (self.finish == "stop" or self.given is not None))

    @property
    def seconds(self) -> float:
        """Seconds in all."""
        return self.prefill_s + self.decode_s

    def as_json(self) -> dict[str, Any]:
        """Return the facts for a report."""
        closed = self.closed
        return {
            "number": self.number,
            "id": self.case.id,
            "source": self.case.source,
            "kind": self.case.kind,
            "state": self.state,
            "given": self.given,
            "expected": self.case.expected,
            "prompt_tokens": self.n_prompt,
            "generated_tokens": self.n_generated,
            "finish": self.finish,
            "seed": self.seed,
            "think_close": None
            if closed is None
            else {"manner": closed.manner, "index": closed.index, "remaining": closed.remaining, "rank": closed.rank},
            "prefill_seconds": round(self.prefill_s, 6),
            "decode_seconds": round(self.decode_s, 6),
            "answer": self.answer,
        }


def judged(case: Case, answer: str | None) -> tuple[State, str | None]:
    """Grade a text and return the state of its case with the answer found."""
    verdict = grade(case, answer)
    return ("passed" if verdict.passed else "failed"), verdict.given


def n_passed(outcomes: Sequence[Outcome]) -> int:
    """Return how many cases passed."""
    return sum(o.state == "passed" for o in outcomes)


def report_lines(outcomes: Sequence[Outcome], seconds: float) -> Iterator[str]:
    """Yield the report: a line of totals, and a table with one row a case."""
    yield f"passed {n_passed(outcomes)} of {len(outcomes)} in {_duration(seconds)}"
    head = ("#", "state", "prompt", "gen", "total", "given", "correct", "test")
    rows = [
        (
            str(o.number), o.state, str(o.n_prompt), str(o.n_generated), str(o.n_prompt + o.n_generated),
            _cell(o.given if o.given is not None else "-"), _cell(o.case.expected), o.case.name,
        )
        for o in outcomes
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        cells = [
            c.rjust(w) if i in (0, 2, 3, 4) else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def printable(text: str) -> str:
    """Return a text whose control characters are dots: what a model or a file says must not steer a terminal."""
    return "".join(c if c.isprintable() else "·" for c in text)


def _cell(text: str, width: int = 28) -> str:
    text = printable(text)
    return text if len(text) <= width else text[: width - 1] + "…"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if seconds >= 60 else f"{seconds:.1f} s"
