"""Pictures of a comparison. matplotlib is needed for them, and for nothing else."""

from __future__ import annotations

from pathlib import Path

from ds4.plotting import check_plot, new_figure, save_figure

from .compare import Comparison

_BETTER, _WORSE, _NEUTRAL = "#2a7f62", "#b3423a", "#6b7280"


def plot_comparison(comparison: Comparison, path: Path, *, old: str = "old", new: str = "new") -> None:
    """Draw the change of every case, sorted, and the scores of both runs against each other.

    Parameters
    ----------
    comparison : Comparison
        From `compare_runs`.
    path : Path
        Where to write, as .svg or .png. The file gets its name when it is complete.
    old, new : str
        What to call the runs.

    Raises
    ------
    ValueError, PlotUnavailableError, OSError
        As in `ds4.plotting.check_plot`.
    """
    check_plot(path)
    figure = new_figure(11, 4.6)
    left, right = figure.subplots(1, 2, width_ratios=[1.5, 1])
    colour = {1: _BETTER, 0: _NEUTRAL, -1: _WORSE}
    cases = sorted(comparison.cases, key=lambda c: c.delta)
    left.bar(range(len(cases)), [c.delta for c in cases], width=1.0, color=[colour[c.outcome] for c in cases])
    left.axhline(0, color="black", linewidth=0.8)
    left.axhline(comparison.difference, color="black", linewidth=0.8, linestyle="--")
    left.set_xlabel("case, from most improved to most worsened")
    left.set_ylabel("change of NLL, nats per token")
    share = "" if comparison.relative is None else f" ({100 * comparison.relative:+.2f} %)"
    left.set_title(
        f"all tokens: {comparison.difference:+.5f}{share}; {comparison.wins} better, {comparison.losses} worse, "
        f"{comparison.ties} equal",
        fontsize=10,
    )
    before = [c.old_nll / c.target_tokens for c in comparison.cases]
    after = [c.new_nll / c.target_tokens for c in comparison.cases]
    right.scatter(before, after, s=14, color=[colour[c.outcome] for c in comparison.cases], alpha=0.8, linewidths=0)
    top = 1.05 * max(*before, *after, 1e-9)
    right.plot([0, top], [0, top], color="black", linewidth=0.8)
    right.set(xlim=(0, top), ylim=(0, top), aspect="equal")
    right.set_xlabel(f"NLL of a token, {old}")
    right.set_ylabel(f"NLL of a token, {new}")
    save_figure(figure, path)
