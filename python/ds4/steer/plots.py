"""A picture of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ds4.plotting import new_figure, save_figure

from .sweep import SweepRow


def plot_sweep(rows: Sequence[SweepRow], path: Path) -> None:
    """Draw the mean length of the answers over the scale, and below it what became of them.

    Raises
    ------
    ValueError, PlotUnavailableError, OSError
        As in `ds4.plotting.check_plot`.
    """
    rows = sorted(rows, key=lambda row: row.scale)
    scales = [row.scale for row in rows]
    figure = new_figure(6.4, 5.0)
    length, shares = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    length.plot(scales, [row.words for row in rows], marker="o", label="mean")
    each = [answer.words for row in rows for answer in row.answers]
    where = [row.scale for row in rows for _ in row.answers]
    length.plot(where, each, linestyle="none", marker=".", markersize=3, alpha=0.4, label="answers")
    length.set_ylabel("words of an answer")
    length.set_ylim(bottom=0)
    length.legend(frameon=False)
    shares.plot(scales, [100 * row.ended for row in rows], marker="o", label="ended by the model")
    if all(row.accuracy is not None for row in rows):
        shares.plot(scales, [100 * (row.accuracy or 0) for row in rows], marker="s", label="right")
    shares.set_ylabel("% of the answers")
    shares.set_xlabel("scale (positive takes the direction out)")
    shares.set_ylim(-5, 105)
    shares.legend(frameon=False)
    save_figure(figure, path)
