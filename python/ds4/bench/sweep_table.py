"""The table of a sweep as CSV: nine columns that other programs know, more behind them, and comments around."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from .frontier import Frontier
from .workload import MAX_CONTEXT

COLUMNS = (
    "ctx_tokens", "prefill_tokens", "prefill_tps", "gen_tokens", "gen_tps", "gen_first_ms", "gen_steady_tokens",
    "gen_steady_tps", "kvcache_bytes",
)  # fmt: skip
"""The columns that come first, in this order; rates are medians."""

EXTRA_COLUMNS = (
    "repeats", "prefill_tps_min", "prefill_tps_max", "gen_tps_min", "gen_tps_max", "prefill_cpus", "gen_cpus",
    "clock_mhz", "temperature_c", "prefill_runs", "gen_runs",
)  # fmt: skip
"""The columns behind; the last two are the rates of all runs, separated by blanks."""

_NEEDED = ("ctx_tokens", "prefill_tps", "gen_tps")
_LARGEST_FILE = 16 << 20


@dataclass(frozen=True, slots=True)
class SweepRow:
    """A frontier as a table tells it.

    Attributes
    ----------
    ctx_tokens : int
    prefill, gen : tuple of float
        Tokens a second of every run, or the one number that the table has; gen is 0 where nothing was decoded.
    prefill_tps, gen_tps : float
        The medians.
    """

    ctx_tokens: int
    prefill: tuple[float, ...]
    gen: tuple[float, ...]
    prefill_tps: float
    gen_tps: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """A table that was read.

    Attributes
    ----------
    name : str
        Name of the file.
    facts : mapping of str to str
        Its comments; empty for a table of another program.
    rows : tuple of SweepRow
        By rising `ctx_tokens`.
    """

    name: str
    facts: Mapping[str, str]
    rows: tuple[SweepRow, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the sweep went to its end; a table without comments does not tell, and counts as whole."""
        return not self.facts or self.facts.get("ended") == "complete"


def header() -> str:
    """Return the line of the column names."""
    return ",".join(COLUMNS + EXTRA_COLUMNS)


def comment(name: str, value: object) -> str:
    """Return a fact as a comment row: one line, whatever the value holds."""
    text = " ".join(str(value).split())
    return f"# {name}: {text}"


def row(f: Frontier) -> str:
    """Return the line of a frontier; rates with two decimals, those of single runs with four."""
    prefill, gen = f.prefill_rates, f.gen_rates
    cells = [
        str(f.ctx_tokens), str(f.prefill_tokens), f"{median(prefill):.2f}", str(f.gen_tokens), f"{median(gen):.2f}",
        f"{f.first_ms:.2f}", str(f.steady_tokens), f"{f.steady_tps:.2f}", str(f.kvcache_bytes),
        str(len(f.runs)), f"{min(prefill):.2f}", f"{max(prefill):.2f}", f"{min(gen):.2f}", f"{max(gen):.2f}",
        f"{median([r.prefill_cpus for r in f.runs]):.2f}", f"{median([r.gen_cpus for r in f.runs]):.2f}",
        "" if f.mhz is None else f"{f.mhz:.0f}", "" if f.celsius is None else f"{f.celsius:.1f}",
        " ".join(f"{v:.4f}" for v in prefill), " ".join(f"{v:.4f}" for v in gen),
    ]  # fmt: skip
    return ",".join(cells)


def as_json(f: Frontier) -> dict[str, Any]:
    """Return a frontier as plain values, with the seconds of every run."""
    return {
        "ctx_tokens": f.ctx_tokens, "prefill_tokens": f.prefill_tokens, "prefill_tps": median(f.prefill_rates),
        "gen_tokens": f.gen_tokens, "gen_tps": median(f.gen_rates), "gen_first_ms": f.first_ms,
        "gen_steady_tokens": f.steady_tokens, "gen_steady_tps": f.steady_tps, "kvcache_bytes": f.kvcache_bytes,
        "prefill_seconds": [r.prefill_seconds for r in f.runs], "gen_seconds": [list(r.gen_seconds) for r in f.runs],
        "prefill_cpus": [r.prefill_cpus for r in f.runs], "gen_cpus": [r.gen_cpus for r in f.runs],
        "clock_mhz": f.mhz, "temperature_c": f.celsius,
    }  # fmt: skip


def read_sweep(path: Path) -> Sweep:
    """Read a table, also one that has no more than the first columns or comes from another program.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        It is no such table; the message names the file, and the line and column at fault.
    """
    with open(path, "rb") as f:
        raw = f.read(_LARGEST_FILE + 1)
    if len(raw) > _LARGEST_FILE:
        raise ValueError(f"{path}: larger than {_LARGEST_FILE >> 20} MiB, so this is no table of a sweep")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text (byte {error.start}), so this is no table of a sweep") from None
    facts: dict[str, str] = {}
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if line.startswith("#"):
            name, colon, value = line[1:].partition(":")
            if colon:
                facts[name.strip()] = value.strip()
        elif line.strip():
            lines.append((number, line))
    if not lines:
        raise ValueError(f"{path}: there are no rows in it")
    names = _cells(path, *lines[0])
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        raise ValueError(
            f"{path}: no table of ds4-bench, its first row lacks {', '.join(missing)}; it must name its columns, as "
            f"{','.join(COLUMNS[:5])}"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"{path}: line {lines[0][0]} names a column twice")
    rows = [_row(f"{path}: line {number}", names, _cells(path, number, line)) for number, line in lines[1:]]
    if not rows:
        raise ValueError(f"{path}: no frontier was measured")
    for number, (one, next_one) in enumerate(itertools.pairwise(rows), 1):
        if next_one.ctx_tokens <= one.ctx_tokens:
            raise ValueError(f"{path}: line {lines[number + 1][0]}: ctx_tokens does not rise ({next_one.ctx_tokens})")
    return Sweep(path.name, facts, tuple(rows))


def _cells(path: Path, number: int, line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line]))]
    except (csv.Error, StopIteration) as error:
        raise ValueError(f"{path}: line {number}: {error}") from None


def _row(where: str, names: list[str], cells: list[str]) -> SweepRow:
    if len(cells) != len(names):
        raise ValueError(f"{where} has {len(cells)} cells, the first row names {len(names)} columns")
    values = dict(zip(names, cells, strict=True))
    ctx = _rate(where, "ctx_tokens", values["ctx_tokens"])
    if not 1 <= ctx <= MAX_CONTEXT or ctx != int(ctx):
        raise ValueError(f"{where}: ctx_tokens is {values['ctx_tokens']!r}, not a length of 1 to {MAX_CONTEXT} tokens")
    prefill_tps = _rate(where, "prefill_tps", values["prefill_tps"])
    gen_tps = _rate(where, "gen_tps", values["gen_tps"])
    if not prefill_tps:
        raise ValueError(f"{where}: prefill_tps is 0")
    runs = []
    for name, whole in (("prefill_runs", prefill_tps), ("gen_runs", gen_tps)):
        words = values.get(name, "").split()
        runs.append(tuple(_rate(where, name, word) for word in words) or (whole,))
    prefill, gen = runs
    if len(prefill) != len(gen):
        raise ValueError(f"{where}: prefill_runs has {len(prefill)} numbers, gen_runs {len(gen)}")
    if not all(prefill) or any(bool(g) != bool(gen_tps) for g in gen):
        raise ValueError(f"{where}: a run with the speed 0")
    return SweepRow(int(ctx), prefill, gen, prefill_tps, gen_tps)


def _rate(where: str, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"{where}: {column} is {text[:40]!r}, not a number of 0 or more")
    return value
