"""``ds4 bench --micro``: the kernels one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ds4
from ds4 import GGUFFile
from ds4.bench import build_facts, machine_facts, touch_weights
from ds4.bench.micro import BATCHES, PartTime, available_variants, part_work, run_micro

from .bench_setup import bench_session, bench_settings, choose_isa
from .diagnostics import source_of
from .opening import opened_model
from .output import keep_apart, report_file
from .terminal import shown_progress

_DEPTH = 1024


def run(*, reps: int, isa: str | None, warm_weights: bool, json_file: Path | None, **values: Any) -> int:
    """Time the parts of the layers in several batch sizes, under every CPU variant or the one that is asked for."""
    settings = bench_settings(_DEPTH + max(BATCHES), values)
    keep_apart([json_file], [settings.model])
    if isa is not None:
        choose_isa(isa)
    variants = available_variants() if isa is None else [ds4.cpu_isa()]
    with report_file(json_file) as report, opened_model(settings) as model:
        with GGUFFile(model.path) as file:
            work = part_work(file, model.shape)
            if warm_weights:
                with shown_progress("reading", "bytes") as progress:
                    touch_weights(file, progress=progress)
        bench_session(model, settings, None).close()  # what is wrong with the options is told before the work
        with shown_progress("measuring", "runs") as progress:
            found = list(
                run_micro(
                    lambda: bench_session(model, settings, None), work, variants=variants, depth=_DEPTH, reps=reps,
                    progress=progress,
                )
            )  # fmt: skip
        facts = {**source_of(model, settings), **build_facts(), **machine_facts()}
        threads = settings.threads or "default"
        if str(json_file) != "-":
            print(f"{facts['model']}, {threads} thread(s), all {model.shape.n_layer} layers together, behind {_DEPTH} "
                  f"positions, median of {reps}")  # fmt: skip
            for variant in variants:
                print("\n".join(_lines(variant, [t for t in found if t.variant == variant])))
        if report is not None:
            report.write_json({"format": "ds4-bench-micro", **facts, "threads": settings.threads, "depth": _DEPTH,
                               "repeats": reps, "parts": [t.as_json() for t in found]})  # fmt: skip
    return 0


def _lines(variant: str, found: Sequence[PartTime]) -> Iterator[str]:
    """A block of one variant: microseconds of a call, and the rates that follow."""
    at = {(t.part, t.batch): t for t in found}
    parts = list(dict.fromkeys(t.part for t in found))
    types = {t.part: "+".join(t.work.types) for t in found if t.work is not None}
    wide = max(8, *(len(x) for x in types.values()))
    yield ""
    yield (
        f"{variant:<28}"
        + " " * (wide - 11)
        + "".join(f"{f'{n} token' + ('s' if n > 1 else ''):>{26 if n == 1 else 19}}" for n in BATCHES)
    )
    yield f"{'part':<16} {'weights':<{wide}}" + "".join(
        f"{'us':>10} {'GMAC/s':>8}" + (f" {'GB/s':>6}" if n == 1 else "") for n in BATCHES
    )
    for part in parts:
        line = f"{part:<16} {types.get(part, ''):<{wide}}"
        for n in BATCHES:
            t = at.get((part, n))
            line += f"{1e6 * t.median:>10.1f}" if t is not None else f"{'':>10}"
            line += f" {_giga(None if t is None else t.macs_per_second):>8}"
            if n == 1:
                line += f" {_giga(None if t is None else t.bytes_per_second):>6}"
        yield line.rstrip()


def _giga(value: float | None) -> str:
    return "" if value is None else f"{value / 1e9:.1f}"
