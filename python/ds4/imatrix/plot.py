"""A picture of the coverage: layers times experts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ds4.plotting import check_plot, new_figure, save_figure

from .coverage import Coverage

_NEVER = "#d1495b"


def plot_coverage(found: Coverage, path: Path, *, title: str = "") -> None:
    """Draw how many tokens each expert saw, one row a layer, on a logarithmic scale; experts without data are red.

    Parameters
    ----------
    found : Coverage
        From `coverage`.
    path : Path
        Where to write, as .svg or .png.
    title : str
        A line above the picture.

    Raises
    ------
    ValueError
        There is no layer to draw, or the suffix is another.
    PlotUnavailableError, OSError
        matplotlib is missing, or the file cannot be written.
    """
    check_plot(path)
    if not found.layers:
        raise ValueError("there are no layers of experts to draw")
    widest = max(len(layer.counts) for layer in found.layers)
    table = np.full((len(found.layers), widest), np.nan)
    for row, layer in zip(table, found.layers, strict=True):
        row[: len(layer.counts)] = layer.counts
    figure = new_figure(min(16, 3 + widest / 16), min(16, 1.8 + len(found.layers) / 5))
    axes = figure.subplots()
    from matplotlib.colors import ListedColormap, LogNorm

    never = np.where(table == 0, 1.0, np.nan)
    axes.imshow(never, cmap=ListedColormap([_NEVER]), aspect="auto", interpolation="nearest")
    seen = np.where(table > 0, table, np.nan)
    if np.isfinite(seen).any():
        low, top = float(np.nanmin(seen)), float(np.nanmax(seen))
        norm = LogNorm(low, max(top, 2 * low))
        image = axes.imshow(seen, cmap="viridis", norm=norm, aspect="auto", interpolation="nearest")
        if found.counted:
            figure.colorbar(image, ax=axes, label="tokens")
    axes.set_xlabel("expert")
    axes.set_ylabel("layer")
    step = max(1, len(found.layers) // 24)
    axes.set_yticks(range(0, len(found.layers), step), [layer.name for layer in found.layers[::step]])
    missing = f"{found.n_never} of {found.n_experts} experts without data"
    axes.set_title(f"{title}: {missing}" if title else missing, fontsize=10)
    save_figure(figure, path)
