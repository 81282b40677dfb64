"""``ds4 bench --compare``: tables of sweeps against each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ds4.bench import SweepComparison, compare_sweeps, plot_comparison, read_sweep
from ds4.plotting import check_plot

from .output import keep_apart, report_file
from .terminal import note

_TITLES = {"prefill": "prefill", "gen": "decode"}


def run(pairs: Sequence[tuple[Path, Path]], plot: Path | None, json_file: Path | None) -> int:
    """Compare the first file of every pair with the second, print a table, and write what was asked for."""
    keep_apart([plot, json_file], [path for pair in pairs for path in pair])
    if plot is not None:
        check_plot(plot)
    with report_file(json_file) as report:
        comparison = compare_sweeps([(read_sweep(a), read_sweep(b)) for a, b in pairs])
        for warning in comparison.warnings:
            note(f"warning: {warning}")
        if plot is not None:
            plot_comparison(comparison, plot)
            note(f"wrote {plot}")
        if str(json_file) != "-":
            print("\n".join(_lines(comparison)))
        if report is not None:
            report.write_json(comparison.as_json())
    return 0


def _lines(comparison: SweepComparison) -> Iterator[str]:
    yield f"A {comparison.a}"
    yield f"B {comparison.b}"
    for phase, rows in comparison.rows.items():
        yield ""
        yield f"{_TITLES[phase]:>8} {'A t/s':>10} {'B t/s':>10} {'B - A':>10} {'B / A':>7} {'least':>7} {'most':>7}"
        for r in rows:
            yield (
                f"{r.ctx_tokens:>8} {r.a_tps:>10.2f} {r.b_tps:>10.2f} {r.b_tps - r.a_tps:>+10.2f} {r.ratio:>7.3f} "
                f"{min(r.ratios):>7.3f} {max(r.ratios):>7.3f}"
            )
        paired = comparison.paired[phase]
        n = len(paired.differences)
        line = f"{_TITLES[phase]}: B - A {100 * paired.mean:+.2f} % of A, the mean of {n} {paired.unit}"
        if paired.spread is None or paired.interval is None:
            yield f"{line}; one difference has no spread"
            continue
        low, high = paired.interval
        yield (
            f"{line}; standard deviation {100 * paired.spread:.2f} %, 95 % interval {100 * low:+.2f} to "
            f"{100 * high:+.2f} %"
        )
        verdict = {True: "B is faster", False: "B is slower", None: "no difference can be told from the noise"}
        if paired.unit == "frontiers":
            yield f"{_TITLES[phase]}: the spread is the one between frontiers, which says nothing about noise"
        else:
            yield f"{_TITLES[phase]}: {verdict[paired.faster]}"
