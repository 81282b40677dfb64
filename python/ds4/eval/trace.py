"""The record of a run, from which it can be graded again without a model.

Text lines ``key: value``, and blocks whose length is told in bytes, so that what a model wrote can contain anything,
lines of this format included. A case is written when it is done; of a case that was done twice the later record
counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from .closing import Closed
from .outcome import Outcome
from .run import regraded
from .suite import Case, parse_case

_TITLE = b"ds4-eval trace 1"
_BLOCKS = ("CASE", "SYSTEM_PROMPT", "QUESTION_PROMPT", "MODEL_OUTPUT")
_CASE = re.compile(rb"===== CASE ([0-9]{1,7})/([0-9]{1,7}) (\S{1,800}) =====")
_BLOCK = re.compile(rb"([A-Z_]+)_BEGIN bytes=([0-9]{1,12})")
_STATES = ("passed", "failed", "stopped")
_MANNERS = ("natural", "soft_forced", "hard_forced")


@dataclass(frozen=True, slots=True)
class Trace:
    """A record that was read.

    Attributes
    ----------
    head : mapping of str to str
        The lines at the top: suite, model, settings.
    outcomes : list of Outcome
        In the order of the suite; without token ids, which are not recorded.
    truncated : bool
        Whether the last record is cut off, as after a crash; it was left out.
    """

    head: Mapping[str, str]
    outcomes: list[Outcome]
    truncated: bool


class TraceWriter:
    """Writes a record.

    Parameters
    ----------
    file : binary file
        One write and a flush for each case.
    head : mapping
        Lines for the top. Line ends in values become spaces.
    total : int
        Number of cases in the suite.
    """

    def __init__(self, file: IO[bytes], head: Mapping[str, object], total: int) -> None:
        self._file = file
        self._total = total
        file.write(_TITLE + b"\n" + b"".join(_line(key, value) for key, value in head.items()))
        file.flush()

    def add(self, outcome: Outcome) -> None:
        """Write one case."""
        closed = outcome.closed
        facts: dict[str, object] = {
            "state": outcome.state,
            "kind": outcome.case.kind,
            **({} if outcome.given is None else {"picked": outcome.given}),
            "expected": outcome.case.expected,
            "prompt_tokens": outcome.n_prompt,
            "generated_tokens": outcome.n_generated,
            "finish": outcome.finish or "-",
            "seed": outcome.seed,
            "prefill_seconds": f"{outcome.prefill_s:.3f}",
            "decode_seconds": f"{outcome.decode_s:.3f}",
            "thinking": "yes" if outcome.thinking else "no",
            "think_close": closed.manner if closed else "-",
        }
        if closed:
            facts |= {"think_close_index": closed.index, "think_close_remaining": closed.remaining}
            facts["think_close_rank"] = closed.rank
        facts["answer_begin"] = "-" if outcome.answer_begin is None else outcome.answer_begin
        name = outcome.case.name.encode("utf-8")
        parts = [b"\n===== CASE %d/%d %s =====\n" % (outcome.number, self._total, name)]
        parts += [_line(key, value) for key, value in facts.items()]
        texts = (outcome.case.text, outcome.system, outcome.question)
        for label, raw in zip(_BLOCKS, (*(t.encode("utf-8", "replace") for t in texts), outcome.output), strict=True):
            parts.append(b"%s_BEGIN bytes=%d\n%s\n%s_END\n" % (label.encode(), len(raw), raw, label.encode()))
        self._file.write(b"".join(parts))
        self._file.flush()


def _line(key: str, value: object) -> bytes:
    text = " ".join(str(value).split())
    return f"{key}: {text}\n".encode("utf-8", "replace")


def read_trace(path: Path) -> Trace:
    """Read a record.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        It is no record, or is damaged; the text names the place. A last record that is cut off is no error.
    """
    data = path.read_bytes()
    if not data.startswith(_TITLE + b"\n"):
        raise ValueError(f"{path}: this is no trace of ds4 eval; its first line is not {_TITLE.decode()!r}")
    reader = _Reader(data, str(path))
    reader.next_line()
    outcomes: dict[int, Outcome] = {}
    try:
        head, truncated = reader.facts(), False
    except _CutOffError:
        return Trace({}, [], True)
    while not reader.at_end:
        try:
            outcome = reader.outcome(head.get("suite", path.stem))
        except _CutOffError:
            truncated = True
            break
        outcomes[outcome.number] = outcome
    return Trace(head, [outcomes[number] for number in sorted(outcomes)], truncated)


@dataclass(frozen=True, slots=True)
class Regrade:
    """Verdicts that changed.

    Attributes
    ----------
    before, after : list of Outcome
        Of the same cases, in the same order.
    """

    before: list[Outcome]
    after: list[Outcome]

    @property
    def changed(self) -> list[tuple[Outcome, Outcome]]:
        """The pairs whose state or answer differs."""
        pairs = zip(self.before, self.after, strict=True)
        return [(old, new) for old, new in pairs if (old.state, old.given) != (new.state, new.given)]


def regrade(trace: Trace, cases: Iterable[Case] | None = None) -> Regrade:
    """Grade the texts of a record again.

    Parameters
    ----------
    trace : Trace
    cases : iterable of Case, optional
        Cases whose answers count instead of the recorded ones, matched by source and id.

    Raises
    ------
    ValueError
        The record holds a case that `cases` lacks.
    """
    known = None if cases is None else {case.name: case for case in cases}
    after = []
    for outcome in trace.outcomes:
        if known is not None:
            if outcome.case.name not in known:
                raise ValueError(f"the trace holds a case {outcome.case.name} that the suite does not have")
            outcome = replace(outcome, case=known[outcome.case.name])
        after.append(regraded(outcome))
    return Regrade(trace.outcomes, after)


class _CutOffError(Exception):
    """The data end inside a record."""


class _Reader:
    """Reads lines and blocks; knows where it is."""

    def __init__(self, data: bytes, name: str) -> None:
        self._data, self._name, self._at = data, name, 0

    @property
    def at_end(self) -> bool:
        return not self._data[self._at : self._at + 64].strip() and not self._data[self._at :].strip()

    def fault(self, text: str) -> ValueError:
        return ValueError(f"{self._name}: byte {self._at}: {text}")

    def next_line(self) -> bytes:
        end = self._data.find(b"\n", self._at)
        if end < 0:
            raise _CutOffError
        line = self._data[self._at : end]
        self._at = end + 1
        return line

    def facts(self) -> dict[str, str]:
        """Read ``key: value`` lines up to a line of another form."""
        found: dict[str, str] = {}
        while not self.at_end:
            before = self._at
            line = self.next_line()
            key, colon, value = line.decode("utf-8", "replace").partition(": ")
            if not colon or not re.fullmatch(r"[a-z_]+", key):
                self._at = before
                break
            found[key] = value
        return found

    def outcome(self, suite: str) -> Outcome:
        line = self.next_line()
        while not line.strip():
            line = self.next_line()
        found = _CASE.fullmatch(line)
        if not found:
            raise self.fault(f"a case was expected, not {line[:60].decode('utf-8', 'replace')!r}")
        facts = self.facts()
        blocks = {label: self.block(label) for label in _BLOCKS}
        case = parse_case(self.text(blocks["CASE"]), suite, f"{self._name}: case {found[3].decode('utf-8', 'replace')}")
        output = blocks["MODEL_OUTPUT"]
        begin = None if facts.get("answer_begin") == "-" else self.number(facts, "answer_begin", len(output))
        return Outcome(
            case,
            int(found[1]),
            state=self.choice(facts, "state", _STATES),
            given=facts.get("picked"),
            n_prompt=self.number(facts, "prompt_tokens"),
            n_generated=self.number(facts, "generated_tokens"),
            finish=None if facts.get("finish") == "-" else self.choice(facts, "finish", ("stop", "length")),
            closed=self.closed(facts),
            thinking=self.choice(facts, "thinking", ("yes", "no")) == "yes",
            output=output,
            answer_begin=begin,
            system=self.text(blocks["SYSTEM_PROMPT"]),
            question=self.text(blocks["QUESTION_PROMPT"]),
            seed=self.number(facts, "seed", (1 << 64) - 1),
            prefill_s=self.seconds(facts, "prefill_seconds"),
            decode_s=self.seconds(facts, "decode_seconds"),
        )

    def block(self, label: str) -> bytes:
        line = self.next_line()
        found = _BLOCK.fullmatch(line)
        if not found or found[1].decode() != label:
            raise self.fault(f"{label}_BEGIN was expected, not {line[:60].decode('utf-8', 'replace')!r}")
        end = self._at + int(found[2])
        tail = f"\n{label}_END\n".encode()
        if len(self._data) < end + len(tail):
            raise _CutOffError
        if self._data[end : end + len(tail)] != tail:
            raise self.fault(f"{label} has another length than its first line tells")
        content = self._data[self._at : end]
        self._at = end + len(tail)
        return content

    def text(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.fault("a block of text is not UTF-8") from None

    def closed(self, facts: Mapping[str, str]) -> Closed | None:
        if facts.get("think_close") == "-":
            return None
        numbers = (self.number(facts, f"think_close_{name}") for name in ("index", "remaining", "rank"))
        return Closed(self.choice(facts, "think_close", _MANNERS), *numbers)

    def choice(self, facts: Mapping[str, str], key: str, choices: tuple[str, ...]) -> Any:
        if facts.get(key) not in choices:
            raise self.fault(f"{key} must be one of {', '.join(choices)}, not {facts.get(key)!r}")
        return facts[key]

    def number(self, facts: Mapping[str, str], key: str, most: int = 1 << 40) -> int:
        text = facts.get(key, "")
        if not re.fullmatch(r"[0-9]{1,20}", text) or int(text) > most:
            raise self.fault(f"{key} must be a number in 0..{most}, not {text[:40]!r}")
        return int(text)

    def seconds(self, facts: Mapping[str, str], key: str) -> float:
        text = facts.get(key, "")
        if not re.fullmatch(r"[0-9]{1,12}\.[0-9]{1,6}", text):
            raise self.fault(f"{key} must be a number of seconds, not {text[:40]!r}")
        return float(text)
