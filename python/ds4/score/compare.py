"""Two runs over the same cases: is the second one better?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .runs import CaseScore, Run, Totals, kinds_of

TIE = 1e-9
"""Two scores that are no further apart are equal."""


@dataclass(frozen=True, slots=True)
class CaseDelta:
    """One case under both models."""

    id: str
    target_tokens: int
    old_nll: float
    new_nll: float
    kind: str | None = None

    @property
    def delta(self) -> float:
        """Change of the negative log-likelihood of a token; below 0 the new run is better."""
        return (self.new_nll - self.old_nll) / self.target_tokens

    @property
    def outcome(self) -> int:
        """1 when the new run wins, -1 when it loses, 0 for a tie."""
        difference = self.new_nll - self.old_nll
        return 0 if abs(difference) <= TIE else -1 if difference > 0 else 1

    def as_json(self) -> dict[str, Any]:
        """Return it as an object."""
        return {**asdict(self), "delta": self.delta}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs on the cases that both have.

    Attributes
    ----------
    cases : tuple of CaseDelta
        In the order of the old run.
    old, new : Totals
        Sums over these cases.
    only_old, only_new : tuple of str
        Ids that the other run lacks; they count nowhere.
    """

    cases: tuple[CaseDelta, ...]
    old: Totals
    new: Totals
    only_old: tuple[str, ...] = ()
    only_new: tuple[str, ...] = ()

    @property
    def difference(self) -> float:
        """Change of the average negative log-likelihood of a token; below 0 the new run is better."""
        return self.new.avg_nll - self.old.avg_nll

    @property
    def relative(self) -> float | None:
        """`difference` as a share of the old average; None when that is 0."""
        return self.difference / self.old.avg_nll if self.old.avg_nll else None

    @property
    def wins(self) -> int:
        """Cases in which the new run is better."""
        return sum(c.outcome > 0 for c in self.cases)

    @property
    def losses(self) -> int:
        """Cases in which it is worse."""
        return sum(c.outcome < 0 for c in self.cases)

    @property
    def ties(self) -> int:
        """Cases that are equal to 1e-9."""
        return sum(c.outcome == 0 for c in self.cases)

    def as_json(self) -> dict[str, Any]:
        """Return everything as an object."""
        return {
            "format": "ds4-score-comparison",
            "old": self.old.as_json(),
            "new": self.new.as_json(),
            "difference": self.difference,
            "relative": self.relative,
            "wins": self.wins,
            "losses": self.losses,
            "ties": self.ties,
            "only_old": list(self.only_old),
            "only_new": list(self.only_new),
            "cases": [c.as_json() for c in self.cases],
        }


def compare_runs(old: Run, new: Run) -> Comparison:
    """Compare two runs by the cases that both have.

    Raises
    ------
    ValueError
        They have no case in common, or one case has another number of tokens in each: then the runs are of different
        continuations or tokenizers.
    """
    theirs = {s.id: s for s in new.cases}
    pairs = [(s, theirs[s.id]) for s in old.cases if s.id in theirs]
    if not pairs:
        raise ValueError("the two runs have no case in common")
    for before, after in pairs:
        if before.target_tokens != after.target_tokens:
            raise ValueError(
                f"case {before.id}: {before.target_tokens} tokens in one run, {after.target_tokens} in the other; "
                "they were not made from the same continuation and tokenizer"
            )
    common = {before.id for before, _ in pairs}
    return Comparison(
        cases=tuple(
            CaseDelta(before.id, before.target_tokens, before.nll, after.nll, before.kind) for before, after in pairs
        ),
        old=Totals.of(before for before, _ in pairs),
        new=Totals.of(after for _, after in pairs),
        only_old=tuple(s.id for s in old.cases if s.id not in common),
        only_new=tuple(s.id for s in new.cases if s.id not in common),
    )


def compare_kinds(old: Run, new: Run) -> dict[str, Comparison]:
    """Compare two runs kind by kind; a kind that only one of them has is left out."""
    out = {}
    for kind in kinds_of(old.cases):
        parts = [Run(_of_kind(run.cases, kind)) for run in (old, new)]
        if {s.id for s in parts[0].cases} & {s.id for s in parts[1].cases}:
            out[kind] = compare_runs(*parts)
    return out


def _of_kind(cases: Sequence[CaseScore], kind: str) -> tuple[CaseScore, ...]:
    return tuple(s for s in cases if s.kind == kind)
