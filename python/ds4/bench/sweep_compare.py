"""Two sweeps, or several pairs of them: is B faster than A, and is the difference larger than its spread?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from .sweep_table import Sweep, SweepRow

Phase = Literal["prefill", "gen"]
PHASES: tuple[Phase, ...] = ("prefill", "gen")

# Facts that must agree, or the two did not measure the same.
_SAME_WORK = ("fingerprint", "prompt_sha256", "gen_tokens", "qat", "activations", "start")
# Facts that explain a difference, when they are not what was to be compared.
_SAME_PLACE = ("machine", "backend", "threads", "chunk", "cpu_isa", "version", "commit")

# 97.5 % points of Student's t for 1 to 30 degrees of freedom; beyond, the normal distribution is close.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
      2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Paired:
    """Paired differences of one phase, as shares of A: 0.1 when B is a tenth faster.

    Attributes
    ----------
    differences : tuple of float
        One a pair.
    unit : {"pairs of files", "repeats", "frontiers"}
        What was paired. Pairs of files, measured in alternating order, are independent of each other; repeats share
        the state of the machine; frontiers differ by themselves, so their spread says the least.
    """

    differences: tuple[float, ...]
    unit: Literal["pairs of files", "repeats", "frontiers"]

    @property
    def mean(self) -> float:
        """The mean difference."""
        return statistics.fmean(self.differences)

    @property
    def spread(self) -> float | None:
        """Standard deviation of the differences; None of a single one."""
        return statistics.stdev(self.differences) if len(self.differences) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the mean lies with 95 % confidence (Student's t); None of a single difference."""
        if self.spread is None:
            return None
        n = len(self.differences)
        half = (_T[n - 2] if n - 2 < len(_T) else 1.96) * self.spread / math.sqrt(n)
        return self.mean - half, self.mean + half

    @property
    def faster(self) -> bool | None:
        """Whether B is faster (True) or slower (False); None when the interval holds 0 or there is none."""
        interval = self.interval
        if interval is None or interval[0] <= 0 <= interval[1]:
            return None
        return self.mean > 0

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"unit": self.unit, "differences": list(self.differences), "mean": self.mean, "spread": self.spread,
                "interval": None if self.interval is None else list(self.interval), "faster": self.faster}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AtFrontier:
    """Both sides at one length, over all pairs.

    Attributes
    ----------
    ctx_tokens : int
    a, b : tuple of float
        Tokens a second of every run; equal places are pairs.
    """

    ctx_tokens: int
    a: tuple[float, ...]
    b: tuple[float, ...]

    @property
    def a_tps(self) -> float:
        """Median of A."""
        return median(self.a)

    @property
    def b_tps(self) -> float:
        """Median of B."""
        return median(self.b)

    @property
    def ratios(self) -> tuple[float, ...]:
        """B over A, pair by pair."""
        return tuple(b / a for a, b in zip(self.a, self.b, strict=True))

    @property
    def ratio(self) -> float:
        """Median of the ratios."""
        return median(self.ratios)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"ctx_tokens": self.ctx_tokens, "a_tps": self.a_tps, "b_tps": self.b_tps, "ratio": self.ratio,
                "ratios": list(self.ratios)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SweepComparison:
    """Pairs of sweeps at the frontiers that all of them have.

    Attributes
    ----------
    a, b : str
        Names of the sides.
    rows : dict of str to tuple of AtFrontier
        By phase, "prefill" and "gen"; a phase that a side did not measure is absent.
    paired : dict of str to Paired
        By phase.
    warnings : tuple of str
        Why the numbers may not be comparable.
    """

    a: str
    b: str
    rows: dict[str, tuple[AtFrontier, ...]]
    paired: dict[str, Paired]
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "format": "ds4-bench-comparison", "a": self.a, "b": self.b, "warnings": list(self.warnings),
            "phases": {p: {"frontiers": [r.as_json() for r in rows], "paired": self.paired[p].as_json()}
                       for p, rows in self.rows.items()},
        }  # fmt: skip


def compare_sweeps(pairs: Sequence[tuple[Sweep, Sweep]]) -> SweepComparison:
    """Compare the first of every pair with the second.

    The runs of a pair are matched by frontier and by their order. With several pairs each gives one difference (of the
    geometric means over the frontiers); with one pair each repeat does; without repeats each frontier.

    Raises
    ------
    ValueError
        There is no pair, no frontier is common to all, or none was decoded and none prefilled on both sides.
    """
    if not pairs:
        raise ValueError("there is nothing to compare")
    sweeps = [s for pair in pairs for s in pair]
    tables = [{r.ctx_tokens: r for r in s.rows} for s in sweeps]
    common = sorted(set.intersection(*(set(t) for t in tables)))
    if not common:
        raise ValueError(
            f"{pairs[0][0].name} and {pairs[0][1].name} have no frontier in common: measure with the same --ctx-start, "
            "--ctx-max and steps"
        )
    rows: dict[str, tuple[AtFrontier, ...]] = {}
    paired: dict[str, Paired] = {}
    for phase in PHASES:
        # Frontiers where a side did not measure the phase do not count.
        used = [c for c in common if all(all(_rates(t[c], phase)) for t in tables)]
        if not used:
            continue
        columns = []
        for i in range(0, len(tables), 2):
            columns.append([_matched(tables[i][c], tables[i + 1][c], phase) for c in used])
        rows[phase] = tuple(
            AtFrontier(c, *(tuple(x for column in columns for x in column[j][side]) for side in (0, 1)))
            for j, c in enumerate(used)
        )
        paired[phase] = _pair(columns)
    return SweepComparison(
        pairs[0][0].name, pairs[0][1].name, rows, paired, tuple(_warnings(pairs, [len(s.rows) for s in sweeps], common))
    )


Column = list[tuple[tuple[float, ...], tuple[float, ...]]]
"""The matched runs of a pair of sweeps at every frontier."""


def _rates(row: SweepRow, phase: Phase) -> tuple[float, ...]:
    return row.prefill if phase == "prefill" else row.gen


def _matched(a: SweepRow, b: SweepRow, phase: Phase) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return equally many runs of both sides: the medians, when one has more than the other."""
    one, two = _rates(a, phase), _rates(b, phase)
    if len(one) == len(two):
        return one, two
    return (median(one),), (median(two),)


def _pair(columns: Sequence[Column]) -> Paired:
    if len(columns) > 1:
        return Paired(tuple(_mean_ratio([(median(a), median(b)) for a, b in c]) - 1 for c in columns), "pairs of files")
    (column,) = columns
    repeats = min(len(a) for a, _ in column)
    if repeats > 1:
        return Paired(tuple(_mean_ratio([(a[i], b[i]) for a, b in column]) - 1 for i in range(repeats)), "repeats")
    return Paired(tuple(median(b) / median(a) - 1 for a, b in column), "frontiers")


def _mean_ratio(speeds: Sequence[tuple[float, float]]) -> float:
    """Return the geometric mean of B over A."""
    return math.exp(statistics.fmean(math.log(b / a) for a, b in speeds))


def _warnings(pairs: Sequence[tuple[Sweep, Sweep]], n_rows: Sequence[int], common: Sequence[int]) -> list[str]:
    found = []
    sweeps = [s for pair in pairs for s in pair]
    for s in sweeps:
        if not s.is_whole:
            found.append(f"{s.name} is not complete ({s.facts.get('ended', 'it does not say how it ended')})")
    for name in _SAME_WORK + _SAME_PLACE:
        values = {s.facts[name] for s in sweeps if name in s.facts}
        if len(values) > 1:
            one, two = pairs[0][0].facts.get(name, "?"), pairs[0][1].facts.get(name, "?")
            what = "not the same work" if name in _SAME_WORK else "differs"
            found.append(f"{name} {what}: {one} and {two}" if one != two else f"{name} {what} between the pairs")
    if any(n != len(common) for n in n_rows):
        found.append(f"only the {len(common)} frontiers that all have are compared")
    if len(pairs) == 1 and all(len(r.prefill) == 1 for s in sweeps for r in s.rows):
        found.append("one run a side: the spread between frontiers is no measure of noise; use --repeats, or pairs of "
                     "files measured in alternating order")  # fmt: skip
    return found
