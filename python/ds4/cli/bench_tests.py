"""``ds4 bench --tests``: single tests with random tokens, and where their time goes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

import ds4
from ds4 import GGUFFile, Model, Session
from ds4.bench import (
    Measurement,
    TokenBytes,
    Workload,
    parse_workloads,
    peak_rss,
    plot_profiles,
    run_bench,
    token_bytes,
    touch_weights,
)
from ds4.plotting import check_plot

from .bench_experts import check_expert_profile, profiled_experts
from .bench_setup import bench_session, bench_settings, choose_isa
from .diagnostics import source_of
from .opening import opened_model
from .output import keep_apart, report_file
from .settings import Settings
from .terminal import note, shown_progress

DEFAULT = "pp512,tg32"


def run(
    *, tests: str, reps: int, ctx: int | None, chunk: int | None, seed: int, isa: str | None, bandwidth: float | None,
    warm_weights: bool, profile: bool, plot: Path | None, expert_profile: Path | None, jsonl: bool,
    json_file: Path | None, **values: Any,
) -> int:  # fmt: skip
    """Run the tests of a list, and print what they gave."""
    workloads = _workloads(tests, ctx)
    settings = bench_settings(ctx or max(w.n_ctx for w in workloads), values)
    if jsonl and str(json_file) == "-":
        raise click.UsageError("--jsonl and --json - both go to standard output")
    experts = check_expert_profile(expert_profile, settings)
    keep_apart([plot, json_file, *experts], [settings.model])
    if plot is not None:
        check_plot(plot)
    if isa is not None:
        choose_isa(isa)
    quiet = jsonl or str(json_file) == "-"
    with report_file(json_file) as report, opened_model(settings) as model:
        if warm_weights:
            with GGUFFile(model.path) as file, shown_progress("reading", "bytes") as progress:
                touch_weights(file, progress=progress)
        with bench_session(model, settings, chunk) as session, profiled_experts(model, expert_profile):
            head = _head(model, session, settings, seed)
            floors = _floors(model, session, workloads)
            if not quiet:
                print("\n".join(_head_lines(head, model)))
            found = _measure(session, workloads, reps, seed, profile or plot is not None, jsonl)
        if plot is not None:
            plot_profiles(found, plot, title=f"{head['model']}, {head['threads']} thread(s), {head['cpu_isa']}")
            note(f"wrote {plot}")
        if not quiet:
            print("\n".join(_lines(found, floors, bandwidth)))
        if report is not None:
            report.write_json(_report(head, found, floors, bandwidth))
    return 0


def _workloads(tests: str, ctx: int | None) -> list[Workload]:
    try:
        workloads = parse_workloads(tests)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--tests") from None
    for w in workloads:
        if ctx is not None and w.n_ctx > ctx:
            raise click.BadParameter(f"{w.name} needs {w.n_ctx} positions, --ctx gives {ctx}", param_hint="--tests")
    return workloads


def _measure(
    session: Session, workloads: Sequence[Workload], reps: int, seed: int, profile: bool, jsonl: bool
) -> list[Measurement]:
    def print_sample(w: Workload, seconds: float, cpu_seconds: float) -> None:
        facts = {"test": w.name, "tps": round(w.n / seconds, 4), "seconds": round(seconds, 6)}
        print(json.dumps({**facts, "cpu_seconds": round(cpu_seconds, 6)}), flush=True)

    sample = print_sample if jsonl else None
    with shown_progress("measuring", "runs") as progress:
        return list(
            run_bench(session, workloads, reps=reps, seed=seed, profile=profile, progress=progress, sample=sample)
        )


def _head(model: Model, session: Session, settings: Settings, seed: int) -> dict[str, Any]:
    return {
        **source_of(model, settings),
        "version": ds4.__version__,
        "cpu_isa": ds4.cpu_isa(),
        "threads": session.threads,
        "chunk": session.chunk,
        "ctx": session.n_ctx,
        "seed": seed,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _floors(model: Model, session: Session, workloads: Sequence[Workload]) -> dict[str, TokenBytes]:
    """Return what one token reads, of every test that decodes."""
    with GGUFFile(model.path) as file:
        return {
            w.name: token_bytes(file, model.shape, depth=w.depth, rows=session.rows) for w in workloads if w.is_decode
        }


def _report(
    head: dict[str, Any], found: Sequence[Measurement], floors: dict[str, TokenBytes], bandwidth: float | None
) -> dict[str, Any]:
    tests = []
    for m in found:
        facts = m.as_json()
        need = floors.get(m.workload.name)
        if need is not None:
            facts["token_bytes"] = {"total": need.total, "groups": need.groups, "layers": list(need.layers)}
            facts["bytes_per_second"] = m.tps * need.total
            if bandwidth is not None:
                facts["floor_tps"] = need.floor(bandwidth * 1e9)
        tests.append(facts)
    return {
        "format": "ds4-bench", **head, "bandwidth": None if bandwidth is None else bandwidth * 1e9,
        "peak_rss": peak_rss(), "tests": tests,
    }  # fmt: skip


def _head_lines(head: dict[str, Any], model: Model) -> Iterator[str]:
    layers = f"{model.shape.n_layer} layers"
    yield f"{head['model']} ({head['shape']}, {layers}), {head['threads']} thread(s), {head['cpu_isa']}, " \
          f"{head['activations']} activations, chunks of {head['chunk']}"  # fmt: skip


def _lines(found: Sequence[Measurement], floors: dict[str, TokenBytes], bandwidth: float | None) -> Iterator[str]:
    width = max(4, *(len(m.workload.name) for m in found))
    yield f"{'test':<{width}} {'tokens/s':>10} {'min':>10} {'max':>10} {'ms/token':>10} {'cpus':>6}" + (
        f" {'GB/s':>7}" if floors else "") + (f" {'floor t/s':>10} {'share':>7}" if bandwidth else "")  # fmt: skip
    for m in found:
        line = f"{m.workload.name:<{width}} {m.tps:>10.2f} {min(m.samples):>10.2f} {max(m.samples):>10.2f} " \
               f"{1e3 / m.tps:>10.3f} {m.cpus:>6.2f}"  # fmt: skip
        need = floors.get(m.workload.name)
        if need is not None:
            line += f" {m.tps * need.total / 1e9:>7.2f}"
            if bandwidth is not None:
                floor = need.floor(bandwidth * 1e9)
                line += f" {floor:>10.2f} {100 * m.tps / floor:>6.1f}%"
        yield line
    for name, need in floors.items():
        groups = ", ".join(f"{g} {_megabytes(n)}" for g, n in sorted(need.groups.items(), key=lambda x: -x[1]))
        yield f"{name} reads {_megabytes(need.total)} MB a token: {groups}"
    profiled = [m for m in found if m.profile is not None]
    if profiled:
        yield ""
        yield from _profile_lines(profiled)


def _megabytes(n: int) -> str:
    return f"{n / 1e6:.1f}"


def _profile_lines(profiled: Sequence[Measurement]) -> Iterator[str]:
    """Milliseconds a token and share of every part, one pair of columns a test."""
    columns = []
    for m in profiled:
        assert m.profile is not None
        columns.append((m.workload, m.profile.by_part(), m.profile.total))
    parts = list(columns[0][1])
    width = max(len("ms/token"), *(len(p) for p in parts))
    cell = max(17, *(len(w.name) + 2 for w, _, _ in columns))
    yield f"{'ms/token':<{width}}" + "".join(f"{w.name:>{cell}}" for w, _, _ in columns)
    for part in [*parts[1:], parts[0]]:
        cells = (f"{1e3 * by[part] / w.n:.4f} {_share(by[part], total)}" for w, by, total in columns)
        yield f"{part:<{width}}" + "".join(f"{c:>{cell}}" for c in cells)
    yield f"{'total':<{width}}" + "".join(f"{f'{1e3 * total / w.n:.4f}       ':>{cell}}" for w, _, total in columns)


def _share(part: float, total: float) -> str:
    return f"{100 * part / total if total else math.nan:5.1f}%"
