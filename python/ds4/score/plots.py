"""Pictures of a comparison. matplotlib is needed for them, and for nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ds4.errors import DS4Error

from .compare import Comparison

PLOT_SUFFIXES = (".svg", ".png")

_BETTER, _WORSE, _NEUTRAL = "#2a7f62", "#b3423a", "#6b7280"


class PlotUnavailableError(DS4Error, ImportError):
    """matplotlib is not installed."""


def check_plot(path: Path) -> None:
    """Check that a picture can be made and written, before the work that leads to it.

    Raises
    ------
    ValueError
        The suffix is not one of `PLOT_SUFFIXES`.
    PlotUnavailableError
        matplotlib is not installed.
    OSError
        The folder is missing or cannot be written.
    """
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise ValueError(f"{path}: a plot is written as {' or '.join(PLOT_SUFFIXES)}")
    _matplotlib()
    if path.is_dir():
        raise IsADirectoryError(21, os.strerror(21), str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(2, os.strerror(2), str(path))
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(13, os.strerror(13), str(path))


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
        As in `check_plot`.
    """
    check_plot(path)
    figure = _matplotlib().Figure(figsize=(11, 4.6), layout="constrained")
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
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    kind = path.suffix.lower()[1:]
    draft = path.with_name(f".ds4-{os.getpid()}-{os.urandom(4).hex()}.{kind}")
    try:
        # Without a date and with fixed ids, equal data give an equal file.
        figure.savefig(draft, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _matplotlib() -> Any:
    try:
        from matplotlib import figure
    except ImportError as error:
        raise PlotUnavailableError(
            f"plots need matplotlib, which is not installed ({error}): pip install 'ds4[plot]'"
        ) from None
    return figure
