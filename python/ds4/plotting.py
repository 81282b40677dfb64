"""Pictures in reports. matplotlib is needed for them, and for nothing else."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from .errors import DS4Error

PLOT_SUFFIXES = (".svg", ".png")


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
    _figure_module()
    for wrong, code in (
        (path.is_dir(), errno.EISDIR),
        (path.exists() and not path.is_file(), errno.EINVAL),
        (not path.parent.is_dir(), errno.ENOENT),
        (not os.access(path.parent, os.W_OK), errno.EACCES),
    ):
        if wrong:
            raise OSError(code, os.strerror(code), str(path))


def new_figure(width: float, height: float) -> Any:
    """Return an empty matplotlib figure of that many inches, drawn without a display.

    Raises
    ------
    PlotUnavailableError
        matplotlib is not installed.
    """
    return _figure_module().Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as .svg or .png; the file gets its name when it is complete.

    Raises
    ------
    ValueError, PlotUnavailableError, OSError
        As in `check_plot`.
    """
    check_plot(path)
    kind = path.suffix.lower()[1:]
    draft = path.with_name(f".ds4-{os.getpid()}-{os.urandom(4).hex()}.{kind}")
    from matplotlib import rc_context

    try:
        # Without a date and with fixed ids, equal data give an equal file.
        with rc_context({"svg.hashsalt": "ds4"}):
            figure.savefig(draft, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
        draft.replace(path)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from None
    finally:
        draft.unlink(missing_ok=True)


def _figure_module() -> Any:
    try:
        from matplotlib import figure
    except ImportError as error:
        raise PlotUnavailableError(
            f"plots need matplotlib, which cannot be loaded ({error}): pip install 'ds4[plot]'"
        ) from None
    return figure
