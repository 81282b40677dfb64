"""A gate against drift: how many tokens each case took and what was answered, kept in a file and compared later.

The tokens themselves are kept, too. When an answer differs, the model is led along the recorded tokens once more, which
tells how often it would have chosen another one and by how much: one near tie at the start of a long answer changes
everything behind it, and is no worse than one at its end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4.session import Session

from .outcome import Outcome, printable
from .plan import EvalSettings

FORMAT = "ds4-eval-gate"
_MAX_FILE = 256 << 20
_CHUNK = 64  # rows of logits that are held at once


@dataclass(frozen=True, slots=True)
class Expected:
    """What a gate expects of one case.

    Attributes
    ----------
    name : str
        Source and id.
    n_generated : int
    state : {"passed", "failed"}
    given : str or None
    tokens : tuple of int
        The recorded tokens, or none of them when the file was written by hand.
    forced : int or None
        Index of the token that closed the reasoning by force.
    ended : bool
        Whether the end token followed.
    """

    name: str
    n_generated: int
    state: str
    given: str | None
    tokens: tuple[int, ...] = ()
    forced: int | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate that was read.

    Attributes
    ----------
    path : Path
    settings : mapping
        Settings of the recorded run, as `EvalSettings.as_json`; empty when the file has none.
    cases : tuple of Expected
    max_flip_rate, max_flip_gap : float or None
        With them, differing tokens are no fault as long as along the recorded ones no greater share of choices differs,
        and none by more nats. None: tokens must be equal.
    """

    path: Path
    settings: dict[str, Any]
    cases: tuple[Expected, ...]
    max_flip_rate: float | None = None
    max_flip_gap: float | None = None


@dataclass(frozen=True, slots=True)
class Drift:
    """What differs in one case.

    Attributes
    ----------
    expected : Expected
    outcome : Outcome
    flips : int or None
        Choices that differ along the recorded tokens; None when there are none to compare with.
    compared : int
        How many choices were compared.
    gap : float
        The greatest difference in log-probability, in nats, between the new choice and the recorded one.
    """

    expected: Expected
    outcome: Outcome
    flips: int | None = None
    compared: int = 0
    gap: float = 0.0

    @property
    def answer_differs(self) -> bool:
        """Whether the answer or its verdict is another one."""
        return (self.outcome.state, self.outcome.given) != (self.expected.state, self.expected.given)

    def line(self) -> str:
        """Return the difference as text."""
        old, new = self.expected, self.outcome
        text = f"{old.name}: {new.n_generated} tokens, {new.state}, answer {new.given or '-'}; "
        text += f"expected {old.n_generated} tokens, {old.state}, answer {old.given or '-'}"
        if self.flips is not None:
            text += f"; along the recorded tokens {self.flips} of {self.compared} choices differ"
            if self.flips:
                text += f", by at most {self.gap:.3g} nats"
        return printable(text)


@dataclass(frozen=True, slots=True)
class GateReport:
    """The result of a comparison.

    Attributes
    ----------
    drifts : list of Drift
        The cases that differ.
    faults : list of str
        Why the gate does not hold; empty when it does.
    """

    drifts: list[Drift]
    faults: list[str]

    @property
    def holds(self) -> bool:
        """Whether nothing is at fault."""
        return not self.faults

    def lines(self) -> Iterator[str]:
        """Yield the report."""
        for drift in self.drifts:
            yield drift.line()
        for fault in self.faults:
            yield f"gate: {fault}"
        if self.holds:
            yield "gate: holds" + (f"; {len(self.drifts)} cases differ within its limits" if self.drifts else "")

    def as_json(self) -> dict[str, Any]:
        """Return the facts for a report."""
        return {
            "holds": self.holds,
            "faults": self.faults,
            "drifts": [
                {"case": d.expected.name, "tokens": d.outcome.n_generated, "expected_tokens": d.expected.n_generated,
                 "flips": d.flips, "compared": d.compared, "gap": d.gap, "answer_differs": d.answer_differs}
                for d in self.drifts
            ],
        }  # fmt: skip


def gate_json(outcomes: Sequence[Outcome], settings: EvalSettings, source: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a gate file.

    Raises
    ------
    ValueError
        The run was not greedy, or a case did not end.
    """
    if settings.temperature > 0:
        raise ValueError("a gate is made of greedy answers; use --temp 0")
    for outcome in outcomes:
        if outcome.state not in ("passed", "failed"):
            raise ValueError(f"case {outcome.case.name} was {outcome.state}: no gate is written of an unfinished run")
    return {
        "format": FORMAT,
        "version": 1,
        "source": source,
        "settings": settings.as_json(),
        "max_flip_rate": None,
        "max_flip_gap": None,
        "cases": [
            {
                "case": o.case.name, "tokens": o.n_generated, "state": o.state, "answer": o.given,
                "forced": o.closed.index if o.closed and o.closed.manner != "natural" else None,
                "ended": o.finish == "stop", "ids": list(o.tokens),
            }
            for o in outcomes
        ],
    }  # fmt: skip


def read_gate(path: Path) -> Gate:
    """Read a gate file.

    Raises
    ------
    OSError
        It cannot be read.
    ValueError
        It is not a gate; the text names the field.
    """
    if path.stat().st_size > _MAX_FILE:
        raise ValueError(f"{path}: more than {_MAX_FILE >> 20} MiB, which is no gate")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != 1:
        raise ValueError(f"{path}: this is no gate: format must be {FORMAT!r}, version 1")
    cases = content.get("cases")
    if not isinstance(cases, list) or not cases:
        raise ValueError(f"{path}: cases: must be a list that is not empty")
    expected = tuple(_expected(case, f"{path}: cases[{i}]") for i, case in enumerate(cases))
    names = [case.name for case in expected]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{path}: case {name} is given twice")
    settings = content.get("settings") or {}
    if not isinstance(settings, dict):
        raise ValueError(f"{path}: settings: must be an object")
    limits = (_limit(content, name, path) for name in ("max_flip_rate", "max_flip_gap"))
    return Gate(path, settings, expected, *limits)


def _expected(case: Any, where: str) -> Expected:
    def fault(name: str, text: str) -> ValueError:
        return ValueError(f"{where}: {name}: {text}")

    if not isinstance(case, dict):
        raise ValueError(f"{where}: must be an object")
    name, tokens, state, given = (case.get(key) for key in ("case", "tokens", "state", "answer"))
    if not isinstance(name, str) or not name:
        raise fault("case", "must be the name of a case")
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
        raise fault("tokens", "must be a number of tokens")
    if state not in ("passed", "failed"):
        raise fault("state", "must be passed or failed")
    if given is not None and not isinstance(given, str):
        raise fault("answer", "must be a text or null")
    ids, forced = case.get("ids") or [], case.get("forced")
    if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise fault("ids", "must be a list of token ids")
    if ids and len(ids) != tokens:
        raise fault("ids", f"there are {len(ids)}, but tokens says {tokens}")
    if forced is not None and (isinstance(forced, bool) or not isinstance(forced, int)):
        raise fault("forced", "must be an index or null")
    return Expected(name, tokens, state, given, tuple(ids), forced, case.get("ended") is True)


def _limit(content: dict[str, Any], name: str, path: Path) -> float | None:
    value = content.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{path}: {name}: must be a number of 0 or more, or null")
    return float(value)


def check_settings(gate: Gate, settings: EvalSettings) -> None:
    """Check that a run is made as the recorded one was.

    Raises
    ------
    ValueError
        A setting differs; the text names it.
    """
    for name, value in settings.as_json().items():
        if name in gate.settings and gate.settings[name] != value:
            raise ValueError(f"{gate.path} was recorded with {name} {gate.settings[name]}, this run has {value}")


def compare(gate: Gate, outcomes: Sequence[Outcome], session: Session) -> GateReport:
    """Compare a run with a gate.

    Parameters
    ----------
    gate : Gate
    outcomes : sequence of Outcome
        Of the run; the cases of the gate are looked up in it.
    session : Session
        A session of the model, for the way along recorded tokens.

    Raises
    ------
    ValueError
        A recorded token is none of this model.
    """
    by_name = {o.case.name: o for o in outcomes}
    drifts, faults = [], []
    for expected in gate.cases:
        outcome = by_name.get(expected.name)
        if outcome is None or outcome.state not in ("passed", "failed"):
            faults.append(f"{expected.name} was not answered")
            continue
        same = outcome.n_generated == expected.n_generated and outcome.tokens == (expected.tokens or outcome.tokens)
        drift = Drift(expected, outcome)
        if same and not drift.answer_differs:
            continue
        if expected.tokens:
            drift = _along(session, expected, outcome)
        drifts.append(drift)
    faults += _faults(gate, drifts)
    return GateReport(drifts, faults)


def _faults(gate: Gate, drifts: Sequence[Drift]) -> Iterator[str]:
    lenient = gate.max_flip_rate is not None or gate.max_flip_gap is not None
    for drift in drifts:
        if drift.answer_differs:
            yield f"{drift.expected.name} has another answer"
        elif not lenient or drift.flips is None:
            yield f"{drift.expected.name} has other tokens"
    compared = sum(len(case.tokens) for case in gate.cases)  # equal answers are choices that do not differ
    flips = sum(drift.flips or 0 for drift in drifts)
    if gate.max_flip_rate is not None and compared and flips / compared > gate.max_flip_rate:
        yield f"{flips} of {compared} choices differ, which is more than a share of {gate.max_flip_rate:g}"
    gap = max((drift.gap for drift in drifts), default=0.0)
    if gate.max_flip_gap is not None and gap > gate.max_flip_gap:
        yield f"a choice differs by {gap:.3g} nats, more than {gate.max_flip_gap:g}"


def _along(session: Session, expected: Expected, outcome: Outcome) -> Drift:
    """Lead the model along the recorded tokens; every choice is compared behind the recorded prefix."""
    tokens = expected.tokens
    for token in tokens:
        if token >= session.n_vocab:
            raise ValueError(f"the gate's case {expected.name} holds the token {token}, which this model does not have")
    if len(outcome.prompt) + len(tokens) > session.n_ctx:
        return Drift(expected, outcome)
    choices = [*tokens, session.model.tokenizer.eos_id] if expected.ended else list(tokens)
    flips, gap = 0, 0.0
    for at, row in enumerate(_rows(session, outcome.prompt, choices[:-1])):
        best = int(np.argmax(row))
        if best != choices[at] and at != expected.forced:
            flips += 1
            gap = max(gap, float(row[best]) - float(row[choices[at]]))
    return Drift(expected, outcome, flips, len(choices), gap)


def _rows(session: Session, prompt: Sequence[int], tokens: Sequence[int]) -> Iterator[NDArray[np.float32]]:
    """Yield the logits behind a prompt and behind each of the tokens that follow it."""
    session.sync(prompt)
    yield session.logits()
    for start in range(0, len(tokens), _CHUNK):
        yield from session.eval_logits(tokens[start : start + _CHUNK])
