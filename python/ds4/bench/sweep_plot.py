"""Pictures of a sweep and of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ds4.plotting import check_plot, new_figure, save_figure

from .frontier import Frontier
from .sweep_compare import SweepComparison

_PREFILL, _GEN = "#4e79a7", "#e15759"
_TITLES = {"prefill": "prefill", "gen": "decode"}


def plot_sweep(found: Sequence[Frontier], path: Path, *, title: str = "") -> None:
    """Draw tokens a second over the length of the context, prefill on the left axis and decode on the right.

    Parameters
    ----------
    found : sequence of Frontier
        One or more.
    path : Path
        Where to write, as .svg or .png. The file gets its name when it is complete.
    title : str
        A line above the picture.

    Raises
    ------
    ValueError
        There is nothing to draw, or the suffix is another.
    PlotUnavailableError, OSError
        matplotlib is missing, or the file cannot be written.
    """
    check_plot(path)
    if not found:
        raise ValueError("there is no frontier to draw")
    figure = new_figure(8, 4.5)
    left = figure.subplots()
    x = [f.ctx_tokens for f in found]
    _line(left, x, [f.prefill_rates for f in found], _PREFILL, "o")
    left.set_xlabel("tokens in the context")
    left.set_ylabel("prefill, tokens/s", color=_PREFILL)
    left.set_ylim(bottom=0)
    left.grid(alpha=0.3)
    if found[0].gen_tokens:
        right = left.twinx()
        _line(right, x, [f.gen_rates for f in found], _GEN, "s")
        right.set_ylabel("decode, tokens/s", color=_GEN)
        right.set_ylim(bottom=0)
    if title:
        figure.suptitle(title, fontsize=11)
    save_figure(figure, path)


def plot_comparison(comparison: SweepComparison, path: Path) -> None:
    """Draw the speeds of both sides and, below, B over A with the extremes of the pairs, a column a phase.

    Raises
    ------
    ValueError, PlotUnavailableError, OSError
        As in `plot_sweep`.
    """
    check_plot(path)
    phases = list(comparison.rows)
    figure = new_figure(5.2 * len(phases), 6)
    axes = figure.subplots(2, len(phases), squeeze=False, sharex="col", height_ratios=[2, 1])
    for column, phase in enumerate(phases):
        rows = comparison.rows[phase]
        x = [r.ctx_tokens for r in rows]
        top, below = axes[0][column], axes[1][column]
        _line(top, x, [r.a for r in rows], _PREFILL, "o", f"A: {comparison.a}")
        _line(top, x, [r.b for r in rows], _GEN, "s", f"B: {comparison.b}")
        top.set_title(_TITLES[phase], fontsize=10)
        top.set_ylim(bottom=0)
        top.legend(fontsize=8)
        _line(below, x, [r.ratios for r in rows], "#37474f", "d")
        below.axhline(1.0, color="#9aa5b1", linewidth=1)
        below.set_xlabel("tokens in the context")
        for ax in (top, below):
            ax.grid(alpha=0.3)
    axes[0][0].set_ylabel("tokens/s")
    axes[1][0].set_ylabel("B / A")
    save_figure(figure, path)


def _line(
    ax: Any, x: Sequence[int], runs: Sequence[Sequence[float]], colour: str, marker: str, label: str | None = None
) -> None:
    """Draw medians as a line, and what lies between the extremes as a band."""
    ax.plot(x, [median(r) for r in runs], color=colour, marker=marker, markersize=4, label=label)
    ax.fill_between(x, [min(r) for r in runs], [max(r) for r in runs], color=colour, alpha=0.2, linewidth=0)
