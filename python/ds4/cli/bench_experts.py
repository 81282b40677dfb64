"""``ds4 bench --expert-profile``: which experts were selected, and what caches of other sizes would have done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import numpy as np

from ds4 import Model
from ds4.bench.expert_profile import Selections, compare_policies, plot_selections, profile_facts
from ds4.plotting import check_plot

from .output import OutputFile
from .settings import Settings
from .terminal import note

_MOST_SIMULATED = 400_000  # rows; some seconds a policy


def check_expert_profile(path: Path | None, settings: Settings) -> list[Path]:
    """Check that the profile can be made before the work; returns the files that it writes.

    Raises
    ------
    click.UsageError
        No expert is streamed.
    ValueError, OSError
        As `check_plot`.
    """
    if path is None:
        return []
    if settings.cache is None:
        raise click.UsageError("--expert-profile needs --expert-cache or --ssd-streaming: the cache records them")
    check_plot(path)
    return [path, path.with_suffix(".json")]


@contextmanager
def profiled_experts(model: Model, path: Path | None) -> Iterator[None]:
    """Record selections, and write the profile when the work has ended well."""
    if path is None:
        yield
        return
    with OutputFile(path.with_suffix(".json")) as out:
        with model.record_experts() as recorder:
            yield
        rows, lost = recorder.read()
        blocks = tuple(block.n_experts for block in model.expert_stats().blocks)
        taken = rows[:_MOST_SIMULATED].astype(np.int64)
        selections = Selections(taken[:, 0], taken[:, 1:], blocks, lost + len(rows) - len(taken))
        if not len(taken):
            raise ValueError("no expert was selected, so there is nothing to show")
        found = compare_policies(selections)
        out.write_json(profile_facts(selections, found))
        plot_selections(selections, path, title=f"{model.shape.name}: selections of {len(taken)} rows")
    note(f"wrote {path} and {path.with_suffix('.json')}")
    for s in found:
        note(f"a cache of {s.slots} experts, {s.policy}: {100 * s.hit_rate:.1f} % hits")
