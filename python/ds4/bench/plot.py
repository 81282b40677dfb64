"""A picture of where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ds4.plotting import check_plot, new_figure, save_figure

from .run import Measurement

# Parts in the order of the computation, with colours that neighbours do not share.
COLOURS = {
    "embedding": "#9aa5b1", "hyper": "#4e79a7", "projections": "#59a14f", "attention": "#f28e2b",
    "compressor": "#edc948", "indexer": "#b07aa1", "router": "#d37295", "experts_gate_up": "#e15759",
    "experts_down": "#ff9d9a", "shared": "#9c755f", "rows": "#76b7b2", "head": "#37474f", "other": "#c8c8c8",
    "expert_wait": "#d4a6c8",
}  # fmt: skip


def plot_profiles(measurements: Sequence[Measurement], path: Path, *, title: str = "") -> None:
    """Draw the milliseconds a token of every part as stacked bars, one a test, prefill and decode side by side.

    Parameters
    ----------
    measurements : sequence of Measurement
        From `run_bench` with `profile=True`.
    path : Path
        Where to write, as .svg or .png. The file gets its name when it is complete.
    title : str
        A line above the picture.

    Raises
    ------
    ValueError
        There is no profile to draw, or the suffix is another.
    PlotUnavailableError, OSError
        matplotlib is missing, or the file cannot be written.
    """
    check_plot(path)
    measured = [(m.workload, m.profile) for m in measurements if m.profile is not None]
    kinds = [kind for kind in ("pp", "tg") if any(w.kind == kind for w, _ in measured)]
    if not kinds:
        raise ValueError("there is no profile to draw: measure with profile=True")
    figure = new_figure(3.2 + 1.1 * len(measured) + 1.2 * len(kinds), 5)
    axes = figure.subplots(1, len(kinds), squeeze=False)[0]
    for ax, kind in zip(axes, kinds, strict=True):
        chosen = [(w, p) for w, p in measured if w.kind == kind]
        below = [0.0] * len(chosen)
        for part, colour in COLOURS.items():
            heights = [1e3 * p.by_part().get(part, 0.0) / w.n for w, p in chosen]
            ax.bar(range(len(chosen)), heights, bottom=below, color=colour, label=part, width=0.7)
            below = [a + b for a, b in zip(below, heights, strict=True)]
        ax.set_xticks(range(len(chosen)), [w.name for w, _ in chosen])
        ax.set_ylabel("ms a token")
        ax.set_title("prefill" if kind == "pp" else "decode", fontsize=10)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right center", fontsize=8)
    if title:
        figure.suptitle(title, fontsize=11)
    save_figure(figure, path)
