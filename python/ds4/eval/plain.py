"""A run as lines of text, for pipes, logs and narrow terminals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .outcome import Outcome, State, printable
from .plan import Task

WIDE, HIGH = 60, 8
"""Columns and rows from which on there is room for the live view; in fewer columns plain lines get shorter, too."""


class PlainListener:
    """Prints one line for each case when it is done.

    Parameters
    ----------
    tasks : sequence of Task
    say : callable
        Prints a line.
    width : int or None
        Columns; None: no limit.
    """

    def __init__(self, tasks: Sequence[Task], say: Callable[[str], object], width: int | None = None) -> None:
        self._tasks = tasks
        self._say = say
        self._width = width
        self._n_done = 0

    def state(self, index: int, state: State) -> None:
        """Nothing is printed before the end."""

    def progress(self, index: int, done: int, total: int) -> None:
        """Nothing is printed before the end."""

    def text(self, index: int, text: str, *, reasoning: bool, n_generated: int) -> None:
        """Nothing is printed before the end."""

    def done(self, index: int, outcome: Outcome) -> None:
        """Print the line."""
        self._n_done += 1
        place = f"{self._n_done}/{len(self._tasks)}"
        given = "-" if outcome.given is None else printable(outcome.given)
        if self._width is not None and self._width < WIDE:
            self._say(shortened(f"{place} {outcome.state} {outcome.case.id}", self._width))
            return
        line = f"{place:>7} {outcome.state:<7} {outcome.case.name}: "
        line += f"{outcome.n_prompt}+{outcome.n_generated} tokens, {outcome.seconds:.1f} s, answer {given}"
        if outcome.state == "failed":
            line += f" (right: {printable(outcome.case.expected)})"
        if outcome.closed is not None and outcome.closed.manner != "natural":
            line += f", reasoning closed ({outcome.closed.manner.replace('_', ' ')})"
        self._say(line)


def narrow_report(outcomes: Sequence[Outcome], width: int) -> list[str]:
    """Return a report for a narrow terminal: totals, and of each case that did not pass what was given."""
    passed = sum(o.state == "passed" for o in outcomes)
    out = [f"passed {passed} of {len(outcomes)}"]
    for o in outcomes:
        if o.state != "passed":
            out += [f"{o.number} {o.state}", f" {o.case.id}", f" gave {o.given}", f" not {o.case.expected}"]
    return [shortened(printable(line), width) for line in out]


def shortened(text: str, width: int) -> str:
    """Cut a line to a width."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"
