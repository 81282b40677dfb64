"""Comparing what a model wrote with what is right."""

from __future__ import annotations

import json
from dataclasses import dataclass

import regex  # type: ignore[import-untyped, unused-ignore]

from ds4.chat import parse_completion

from .extract import bare, integer, letter, lines, phrase
from .suite import Case

_REGEX_SECONDS = 0.5  # of processor time
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Grade:
    """The outcome of a comparison.

    Attributes
    ----------
    given : str or None
        The answer that was found, on one line; None if there was none.
    passed : bool
    """

    given: str | None
    passed: bool


def grade(case: Case, text: str | None) -> Grade:
    """Grade the text behind the reasoning; None stands for a reasoning that never ended.

    Parameters
    ----------
    case : Case
    text : str or None

    Returns
    -------
    Grade
    """
    if text is None:
        return Grade(None, False)
    if case.kind == "letter":
        given = letter(text, len(case.choices))
        return Grade(given, given == case.answer)
    if case.kind == "integer":
        given = integer(text)
        return Grade(given, given == case.answer)
    if case.kind == "lines":
        found = lines(text)
        return Grade(_ranges(found), found is not None and set(found) <= set(case.answer))
    if case.kind == "exact":
        return _exact(case, text)
    return _regex(case, text) if case.kind == "regex" else _call(case, text)


def _ranges(found: tuple[int, ...] | None) -> str | None:
    """Return line numbers as text, neighbours as ranges."""
    if found is None:
        return None
    runs: list[list[int]] = []
    for n in found:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _exact(case: Case, text: str) -> Grade:
    given = phrase(text)
    if given is None:
        return Grade(None, False)

    def form(words: str) -> str:
        return bare(words) if case.match_case else bare(words).casefold()

    return Grade(_short(given), form(given) in {form(right) for right in case.answer})


def _regex(case: Case, text: str) -> Grade:
    try:
        found = regex.search(case.answer, text, timeout=_REGEX_SECONDS)
    except TimeoutError:
        raise ValueError(
            f"case {case.name}: its pattern needs more than {_REGEX_SECONDS:g} s on an answer of {len(text)} characters"
        ) from None
    if found:
        return Grade(_short(found[0]), True)
    given = phrase(text)
    return Grade(given if given is None else _short(given), False)


def _call(case: Case, text: str) -> Grade:
    """Exactly one complete call, with the name and the arguments that are right."""
    calls = parse_completion(text, "chat", list(case.tools)).tool_calls
    if not calls:
        return Grade(None, False)
    given = "; ".join(f"{c.name}({json.dumps(c.value, ensure_ascii=False, sort_keys=True)})" for c in calls)
    right = len(calls) == 1 and calls[0].complete and calls[0].name == case.answer["name"]
    return Grade(_short(given), right and _same(calls[0].value, case.answer["arguments"]))


def _same(one: object, other: object) -> bool:
    """Compare JSON values: true is not 1, but 1 is 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
