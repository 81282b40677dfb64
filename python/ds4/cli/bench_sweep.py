"""``ds4 bench`` as a sweep: speeds at frontiers of the context."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from ds4 import GGUFFile, Model, Session
from ds4.bench import (
    Frontier,
    build_facts,
    frontiers,
    machine_facts,
    peak_rss,
    plot_sweep,
    run_sweep,
    text_sha256,
    text_tokens,
    touch_weights,
    warm_up,
)
from ds4.bench import sweep_table as table
from ds4.chat import render
from ds4.plotting import check_plot

from .bench_experts import check_expert_profile, profiled_experts
from .bench_rows import RowFile
from .bench_setup import bench_session, bench_settings, choose_isa
from .diagnostics import source_of
from .opening import check_text, opened_model, read_text
from .options import MAX_CONTEXT
from .output import OutputFile, keep_apart, report_file
from .terminal import note, shown_progress

CTX_MAX = 32768
TINY_CTX_MAX = 8192  # a few seconds; there is nothing to learn from the toy's speed behind that


@dataclass(frozen=True, slots=True)
class _Text:
    """What is computed: its name for the table, and its tokens."""

    name: str
    sha256: str
    tokens: list[int]


def run(
    *, prompt_file: Path | None, chat_prompt_file: Path | None, system: str | None, ctx_start: int, ctx_max: int | None,
    ctx_alloc: int | None, step_incr: int, step_mul: float, gen_tokens: int, csv: Path | None,
    dump_frontier_logits_dir: Path | None, cold: bool, reps: int, chunk: int | None, isa: str | None,
    warm_weights: bool, plot: Path | None, expert_profile: Path | None, json_file: Path | None, **values: Any,
) -> int:  # fmt: skip
    """Sweep, and write the table and whatever else was asked for."""
    _check_prompt_options(prompt_file, chat_prompt_file, system)
    if ctx_max is None:
        ctx_max = TINY_CTX_MAX if values["model"] is None else CTX_MAX
    n_ctx = _context(ctx_start, ctx_max, ctx_alloc, gen_tokens)
    if (csv is None or str(csv) == "-") and str(json_file) == "-":
        raise click.UsageError("the table and --json - both go to standard output; give the table a file with --csv")
    settings = bench_settings(n_ctx, values)
    if cold and settings.cache is not None:
        settings = replace(settings, cold=True)
    experts = check_expert_profile(expert_profile, settings)
    keep_apart([plot, json_file, csv, *experts], [settings.model, prompt_file, chat_prompt_file])
    if plot is not None:
        check_plot(plot)
    if isa is not None:
        choose_isa(isa)
    dump = dump_frontier_logits_dir
    if dump is not None and not (dump.is_dir() and os.access(dump, os.W_OK)):
        raise ValueError(f"{dump}: --dump-frontier-logits-dir needs a folder that exists and can be written")
    stops = frontiers(ctx_start, ctx_max, step_incr=step_incr, step_mul=step_mul)
    with report_file(json_file) as report, RowFile(csv) as rows, opened_model(settings) as model:
        text = _text(model, prompt_file, chat_prompt_file, system, ctx_max)
        if warm_weights:
            with GGUFFile(model.path) as file, shown_progress("reading", "bytes") as progress:
                touch_weights(file, progress=progress)
        with bench_session(model, settings, chunk) as session, profiled_experts(model, expert_profile):
            step = min(b - a for a, b in zip([0, *stops], stops, strict=False))
            if step < session.chunk and len(stops) > 1:
                note(
                    f"warning: a step of {step} tokens is smaller than the chunk of {session.chunk}: prefill is slower "
                    "in small pieces"
                )
            start = "cold" if cold else f"warm, {warm_up(session, text.tokens)} tokens computed before"
            facts = {
                **source_of(model, settings), "threads": session.threads, "affinity": session.affinity,
                "numa": session.numa, "chunk": session.chunk, "ctx": session.n_ctx, "prompt": text.name,
                "prompt_sha256": text.sha256, "gen_tokens": gen_tokens, "repeats": reps,
                "start": start + (", weights read before" if warm_weights else ""), **build_facts(), **machine_facts(),
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }  # fmt: skip
            found: list[Frontier] = []
            for name, value in facts.items():
                rows.write(table.comment(name, value))
            rows.write(table.header())
            with _ended(rows, found, len(stops)), shown_progress("sweep", "tokens") as progress:
                writer = None if dump is None else _LogitsWriter(dump, facts, model)
                for f in run_sweep(
                    session, text.tokens, stops, gen_tokens=gen_tokens, repeats=reps, eos=model.tokenizer.eos_id,
                    progress=progress, at_frontier=writer,
                ):  # fmt: skip
                    found.append(f)  # first: who reads the row may interrupt at once
                    try:
                        rows.write(table.row(f))
                    except OSError:
                        found.pop()
                        raise
        if plot is not None:
            plot_sweep(found, plot, title=f"{facts['model']}, {facts['threads']} thread(s), {facts['cpu_isa']}")
            note(f"wrote {plot}")
        if report is not None:
            report.write_json({"format": "ds4-bench-sweep", **facts, "peak_rss": peak_rss(),
                               "frontiers": [table.as_json(f) for f in found]})  # fmt: skip
    return 0


def _check_prompt_options(prompt_file: Path | None, chat_prompt_file: Path | None, system: str | None) -> None:
    if prompt_file is not None and chat_prompt_file is not None:
        raise click.UsageError("--prompt-file and --chat-prompt-file cannot be given together")
    if system is not None and chat_prompt_file is None:
        raise click.UsageError("--system goes with --chat-prompt-file: a raw text has no system text")


def _context(ctx_start: int, ctx_max: int, ctx_alloc: int | None, gen_tokens: int) -> int:
    """Return the positions of the session."""
    if ctx_start > ctx_max:
        raise click.UsageError(f"--ctx-start {ctx_start} is behind --ctx-max {ctx_max}")
    least = ctx_max + gen_tokens + 1
    if least > MAX_CONTEXT:
        raise click.UsageError(
            f"--ctx-max {ctx_max} and --gen-tokens {gen_tokens} need {least} positions; a context has at most "
            f"{MAX_CONTEXT}"
        )
    if ctx_alloc is not None and ctx_alloc < least:
        raise click.UsageError(
            f"--ctx-alloc {ctx_alloc} must be greater than --ctx-max and --gen-tokens together, which are {least - 1}"
        )
    return ctx_alloc or least


def _text(model: Model, prompt_file: Path | None, chat_prompt_file: Path | None, system: str | None, n: int) -> _Text:
    """Return the first `n` tokens of what is to be computed."""
    path = prompt_file or chat_prompt_file
    if path is None:
        return _Text("generated text", text_sha256(), text_tokens(model.tokenizer, n))
    text = read_text(path)
    if not text.strip():
        raise ValueError(f"{path}: the prompt is empty")
    if chat_prompt_file is None:
        ids = model.tokenizer.encode(text)
    else:
        check_text(system or "", "system text")
        messages = [{"role": "system", "content": system}] if system else []
        ids = render([*messages, {"role": "user", "content": text}], mode="chat").encode(model.tokenizer)
    if len(ids) < n:
        raise ValueError(
            f"{path}: {len(ids)} tokens, but the sweep goes to {n}; give a longer text, or --ctx-max {len(ids)} or less"
        )
    kind = "text" if chat_prompt_file is None else "chat"
    content = "\0".join([kind, system or "", text])
    return _Text(f"{kind} {path.name}", hashlib.sha256(content.encode()).hexdigest(), ids[:n])


class _LogitsWriter:
    """Writes the logits at a frontier into a folder."""

    def __init__(self, folder: Path, facts: dict[str, Any], model: Model) -> None:
        self._folder, self._facts, self._model = folder, facts, model

    def __call__(self, session: Session, n_tokens: int, n_new: int) -> None:
        logits = session.logits()
        finite = np.isfinite(logits)
        best = int(np.argmax(np.where(finite, logits, -np.inf)))
        facts = self._facts
        content = {
            "source": facts["source"], "model": facts["model"], "fingerprint": facts["fingerprint"],
            "backend": facts["backend"], "quality": facts["activations"] == "float32",
            "quant_bits": facts["quant_bits"], "prompt_tokens": n_tokens, "frontier_tokens": n_tokens,
            "prefill_tokens": n_new, "ctx": facts["ctx"], "vocab": int(logits.size), "argmax_id": best,
            "argmax_logit": _nine_digits(logits[best], finite[best]),
            "logits": [_nine_digits(v, ok) for v, ok in zip(logits.tolist(), finite.tolist(), strict=True)],
        }  # fmt: skip
        with OutputFile(self._folder / f"frontier-{n_tokens:07}.json") as out:
            out.write_json(content)


def _nine_digits(value: float, finite: bool) -> float | None:
    return float(f"{value:.9g}") if finite else None


@contextmanager
def _ended(rows: RowFile, found: list[Frontier], total: int) -> Iterator[None]:
    """Say at the end of the table how the sweep ended, and what it took."""
    begin = time.monotonic()
    how = "failed"
    try:
        yield
        how = "complete"
    except KeyboardInterrupt:
        how = "interrupted"
        raise
    finally:
        after = machine_facts()
        try:
            for name, value in (
                ("peak_rss_bytes", peak_rss()), ("seconds", f"{time.monotonic() - begin:.1f}"),
                ("clock_mhz_after", after.get("clock_mhz")), ("temperature_c_after", after.get("temperature_c")),
                ("load_after", after["load"]),
                ("ended", how if how == "complete" else f"{how} after {len(found)} of {total} frontiers"),
            ):  # fmt: skip
                if value is not None:
                    rows.write(table.comment(name, value))
        except OSError:
            if how == "complete":
                raise
