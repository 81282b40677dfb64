"""``ds4 bench --drafts``: what guessing tokens costs on this machine, and when it pays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ds4
from ds4 import GGUFFile
from ds4.bench import DraftCosts, build_facts, machine_facts, measure_draft_costs, token_bytes, touch_weights
from ds4.costs import MOST_DEPTH

from .bench_setup import bench_session, bench_settings, choose_isa
from .diagnostics import source_of
from .opening import opened_model
from .output import keep_apart, report_file
from .terminal import note, shown_progress

_DEPTH = 1024


def run(
    *, reps: int, isa: str | None, chunk: int | None, warm_weights: bool, json_file: Path | None, **values: Any
) -> int:
    """Time batches of a token and guesses."""
    settings = bench_settings(_DEPTH + 64, values)
    keep_apart([json_file], [settings.model, settings.mtp])
    if isa is not None:
        choose_isa(isa)
    with report_file(json_file) as report, opened_model(settings) as model:
        with GGUFFile(model.path) as file:
            if warm_weights:
                with shown_progress("reading", "bytes") as progress:
                    touch_weights(file, progress=progress)
            n_bytes = [token_bytes(file, model.shape, depth=_DEPTH, batch=n + 1).total for n in range(MOST_DEPTH + 1)]
        with bench_session(model, settings, chunk, mtp=model.has_mtp) as session:
            with shown_progress("measuring", "rounds") as progress:
                found = measure_draft_costs(
                    session, depth=min(MOST_DEPTH, session.chunk - 1), context=_DEPTH, reps=reps, progress=progress
                )
            threads = session.threads
        if str(json_file) != "-":
            if not model.has_mtp:
                note("no MTP block: the times are those of guesses that cost nothing")
            print(f"{source_of(model, settings)['model']}, {threads} thread(s), {ds4.cpu_isa()}, behind {_DEPTH} "
                  f"positions, median of {reps}")  # fmt: skip
            print("\n".join(_lines(found, n_bytes)))
        if report is not None:
            report.write_json({"format": "ds4-bench-drafts", **source_of(model, settings), **build_facts(),
                               **machine_facts(), "threads": threads, "depth": _DEPTH, "repeats": reps,
                               "bytes": n_bytes[: len(found.batch)], **found.as_json()})  # fmt: skip
    return 0


def _lines(found: DraftCosts, n_bytes: Sequence[int]) -> Iterator[str]:
    """A row for every number of guesses."""
    yield f"{'guesses':>8} {'batch ms':>10} {'guess ms':>10} {'cost':>7} {'bytes':>7} {'pays from':>10} {'at most':>8}"
    for d, seconds in enumerate(found.batch):
        line = f"{d:>8} {seconds * 1e3:>10.3f}"
        if d:
            even = found.break_even(d)
            guess = found.guess[d - 1] * 1e3 if found.guess else 0.0
            line += f" {guess:>10.3f} {found.worth(d):>7.2f} {n_bytes[d] / n_bytes[0]:>7.2f}"
            line += f" {'never' if even is None else f'{even:.0%}':>10} {f'x{found.gain([1.0] * d):.2f}':>8}"
        yield line
