"""``ds4 score``: how well a model predicts, how far it is from another one, and whether it answers as recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from ds4 import Model, Session, Tokenizer
from ds4.score import (
    CASE_SUFFIXES,
    Case,
    as_lines,
    check_room,
    check_same_tokens,
    compare_kinds,
    compare_runs,
    default_ids,
    divergence,
    needed_ctx,
    official_prompt,
    read_cases,
    read_run,
    read_utf8,
    read_vectors,
    record_vectors,
    run_vectors,
    score_cases,
    score_texts,
    text_cases,
    total_of,
    vector_ctx,
)

from .diagnostics import source_of
from .opening import check_memory, make_session, opened_model, opened_pair
from .options import DEVICE, MAX_CONTEXT, MEMORY, FiniteFloat, Whole, report_option, take
from .output import OutputFile, keep_apart
from .score_tables import (
    comparison_table,
    divergence_note,
    divergence_table,
    run_table,
    text_table,
    vector_lines,
)
from .settings import Settings
from .terminal import note, shown_progress, tell

F = TypeVar("F", bound=Callable[..., Any])

_TEXT_CTX = 4096
_PATH = click.Path(path_type=Path)

_HELP = """\b
Examples:
  ds4 score text -m flash.gguf book.txt
  ds4 score cases -m flash.gguf manifest.tsv -o new.tsv
  ds4 score compare old.tsv new.tsv --plot change.svg
  ds4 score against -m flash-q2.gguf --parent flash-q8_0.gguf book.txt
  ds4 score vectors -m flash.gguf official.vec

Everything is teacher-forced: the tokens are given, and what counts is how likely the model holds each of them. Numbers
are natural logarithms (nats), summed in float64 over the whole vocabulary."""


@click.group("score", help=_HELP, short_help="Measure how well a model predicts, alone and against others.")
def command() -> None:
    """Group of the measuring commands."""


@dataclass(frozen=True, slots=True)
class _Outputs:
    """Where a command writes: opened before the work, so that what is wrong with a place is known at once."""

    json: OutputFile | None
    table: OutputFile | None

    @property
    def stdout_is_taken(self) -> bool:
        return any(out is not None and out.name == "standard output" for out in (self.json, self.table))

    def say(self, lines: Sequence[str]) -> None:
        """Print lines for people: to stdout, or to stderr when data for programs go there."""
        text = "\n".join(lines) + "\n"
        if self.stdout_is_taken:
            tell(text)
        else:
            print(text, end="")

    def write_json(self, content: dict[str, Any]) -> None:
        if self.json is not None:
            self.json.write_json(content)


@contextmanager
def _outputs(json_file: Path | None, table_file: Path | None = None) -> Iterator[_Outputs]:
    if json_file is not None and json_file == table_file:
        raise click.UsageError(f"two outputs have the same name, {json_file}")
    with ExitStack() as stack:
        opened = [None if path is None else stack.enter_context(OutputFile(path)) for path in (json_file, table_file)]
        yield _Outputs(*opened)


_model_options = take("model", *DEVICE, "check", *MEMORY, "no_qat", "activations")


def _ctx_option(default: str) -> Callable[[F], F]:
    return click.option(
        "-c", "--ctx", type=Whole(1, MAX_CONTEXT), metavar="N", help=f"Positions of the context. {default}"
    )


def _settings(ctx: int | None, **values: Any) -> Settings:
    if values["cpu"] and values["backend"] not in ("auto", "cpu"):
        raise click.UsageError(f"--cpu and --backend {values['backend']} contradict each other")
    return Settings(**values) if ctx is None else Settings(ctx=ctx, **values)


_STRIDE = click.option(
    "--stride",
    type=Whole(1, MAX_CONTEXT),
    metavar="N",
    help="Tokens that each window after the first predicts; the rest of it repeats what came before. Default: half "
    "of the context.",
)

_TEXT_HELP = """\b
Examples:
  ds4 score text -m flash.gguf book.txt
  ds4 score text -m flash.gguf -c 8192 --stride 2048 a.txt b.txt --json scores.json

Prints the negative log-likelihood of plain text per token and per byte, and the perplexity. Each text begins with the
BOS token. A text longer than the context is cut into windows, and every token is predicted once."""


@command.command("text", help=_TEXT_HELP, short_help="Likelihood of plain text.")
@click.argument("files", type=_PATH, nargs=-1, required=True, metavar="FILE...")
@_model_options
@_ctx_option(f"Default: what the longest text needs, at most {_TEXT_CTX}.")
@_STRIDE
@report_option
def text_command(
    files: tuple[Path, ...], ctx: int | None, stride: int | None, json_file: Path | None, **values: Any
) -> int:
    """Score texts."""
    settings = _settings(ctx, **values)
    keep_apart([json_file], [*files, settings.model])
    texts = [(str(path), read_utf8(path)) for path in files]
    with _outputs(json_file) as outputs, opened_model(settings) as model:
        n_ctx = ctx or _text_ctx(texts, model.tokenizer)
        _check_stride(stride, n_ctx)
        with make_session(model, settings, n_ctx) as session, shown_progress("scoring", "tokens") as progress:
            scores = score_texts(session, texts, stride=stride, progress=progress)
        outputs.say(text_table(scores))
        outputs.write_json(
            {
                "format": "ds4-score-text",
                **source_of(model, settings),
                "ctx": n_ctx,
                "stride": stride if stride is not None else max(1, n_ctx // 2),
                "total": total_of(scores).as_json(),
                "texts": [s.as_json() for s in scores],
            }
        )
    return 0


_CASES_HELP = """\b
Examples:
  ds4 score cases -m flash.gguf manifest.tsv -o new.tsv
  ds4 score cases -m flash.gguf heldout.jsonl --json -

Scores given continuations. FILE is a manifest (.tsv: id, prompt file, continuation file) or JSON lines (.jsonl:
"continuation" with "messages" or a rendered "prompt"). Without -o the table goes to standard output; ds4 score compare
reads it."""


@command.command("cases", help=_CASES_HELP, short_help="Likelihood of given continuations.")
@click.argument("file", type=_PATH)
@_model_options
@_ctx_option("Default: what the longest case needs.")
@click.option("-o", "--out", type=_PATH, metavar="FILE", help="Write the table of cases here (- is standard output).")
@report_option
def cases_command(file: Path, ctx: int | None, out: Path | None, json_file: Path | None, **values: Any) -> int:
    """Score continuations."""
    settings = _settings(ctx, **values)
    keep_apart([out, json_file], [file, settings.model])
    if out is None and json_file is None:
        out = Path("-")
    with _outputs(json_file, out) as outputs, opened_model(settings) as model:
        cases = read_cases(file, model.tokenizer)
        n_ctx = ctx or needed_ctx(cases)
        check_room(cases, n_ctx)
        with make_session(model, settings, n_ctx) as session, shown_progress("scoring", "tokens") as progress:
            run = score_cases(session, cases, progress=progress)
        if outputs.table is not None:
            outputs.table.write(run.as_tsv())
        outputs.say(run_table(run))
        outputs.write_json({**run.as_json(), **source_of(model, settings), "file": str(file)})
    return 0


_AGAINST_HELP = """\b
Examples:
  ds4 score against -m flash-q2.gguf --parent flash-q8_0.gguf book.txt
  ds4 score against -m q2.gguf --parent bf16.gguf heldout.jsonl --json report.json
  ds4 score against -m q4.gguf --parent bf16.gguf book.txt --max-kl 0.02 --min-agreement 0.97

Compares a quantized model with the one it was made from, token by token: the Kullback-Leibler divergence KL(parent ||
model), the share of tokens with the same best prediction, and the likelihood under both. FILEs are cases (.tsv, .jsonl;
see ds4 score cases) or texts. Both models are open at once."""


@command.command("against", help=_AGAINST_HELP, short_help="Divergence of a quantized model from its parent.")
@click.argument("files", type=_PATH, nargs=-1, required=True, metavar="FILE...")
@_model_options
@click.option("--parent", type=_PATH, required=True, metavar="FILE", help="The model of higher precision.")
@_ctx_option(f"Default: what the longest case or text needs, for texts at most {_TEXT_CTX}.")
@_STRIDE
@click.option(
    "--max-kl", type=FiniteFloat(0, 1e9), metavar="NATS", help="Fail when the mean divergence is greater than this."
)
@click.option(
    "--min-agreement",
    type=FiniteFloat(0, 1),
    metavar="SHARE",
    help="Fail when the best prediction is the same less often.",
)
@report_option
def against_command(
    files: tuple[Path, ...],
    parent: Path,
    ctx: int | None,
    stride: int | None,
    max_kl: float | None,
    min_agreement: float | None,
    json_file: Path | None,
    **values: Any,
) -> int:
    """Measure a divergence."""
    settings = _settings(ctx, **values)
    if settings.model is None:
        raise click.UsageError("-m is needed: the quantized model")
    keep_apart([json_file], [*files, settings.model, parent])
    theirs = replace(settings, model=parent)
    if stride is not None and all(path.suffix in CASE_SUFFIXES for path in files):
        raise click.UsageError("--stride has no effect on cases; it belongs to texts")
    with (
        _outputs(json_file) as outputs,
        opened_pair(theirs, settings) as (parent_model, model),
    ):
        check_same_tokens(model.tokenizer, parent_model.tokenizer)
        cases, n_ctx = _mixed_cases(files, model.tokenizer, ctx, stride)
        with (
            _pair(model, parent_model, settings, n_ctx) as (session, parent_session),
            shown_progress("comparing", "tokens") as progress,
        ):
            report = divergence(session, parent_session, cases, progress=progress)
        total = report.total
        failures = []
        if max_kl is not None and not total.mean_kl <= max_kl:
            failures.append(f"the mean divergence is {total.mean_kl:.6g}, more than {max_kl:g}")
        if min_agreement is not None and not total.agreement >= min_agreement:
            failures.append(f"the best prediction is the same for {total.agreement:.6g}, less than {min_agreement:g}")
        outputs.say([*divergence_table(report), divergence_note(total)])
        outputs.write_json(
            {
                **report.as_json(),
                "model": source_of(model, settings),
                "parent": source_of(parent_model, theirs),
                "ctx": n_ctx,
                "failures": failures,
            }
        )
    for failure in failures:
        note(failure)
    return 1 if failures else 0


_COMPARE_HELP = """\b
Examples:
  ds4 score compare old.tsv new.tsv
  ds4 score compare q2.tsv q2-imatrix.tsv --plot change.svg --json report.json

Compares two runs of ds4 score cases (their tables or JSON) by the cases that both have. Differences are new minus old:
below 0 the new run is better. A case is won, lost, or a tie to 1e-9."""


@command.command("compare", help=_COMPARE_HELP, short_help="Compare two runs over given continuations.")
@click.argument("old", type=_PATH)
@click.argument("new", type=_PATH)
@click.option("--plot", type=_PATH, metavar="FILE", help="Draw the changes (.svg or .png; needs matplotlib).")
@report_option
def compare_command(old: Path, new: Path, plot: Path | None, json_file: Path | None) -> int:
    """Compare runs."""
    keep_apart([plot, json_file], [old, new])
    if plot is not None:
        from ds4.plotting import check_plot
        from ds4.score.plots import plot_comparison

        check_plot(plot)
    runs = read_run(old), read_run(new)
    with _outputs(json_file) as outputs:
        comparison = compare_runs(*runs)
        kinds = compare_kinds(*runs)
        if plot is not None:
            plot_comparison(comparison, plot, old=old.name, new=new.name)
        outputs.say(comparison_table(comparison, kinds))
        outputs.write_json(
            {
                **comparison.as_json(),
                "old_file": str(old),
                "new_file": str(new),
                "kinds": {k: {x: v for x, v in c.as_json().items() if x != "cases"} for k, c in kinds.items()},
            }
        )
    if plot is not None:
        note(f"wrote {plot}")
    return 0


_VECTORS_HELP = """\b
Examples:
  ds4 score vectors -m flash.gguf official.vec --skip long_memory_archive
  ds4 score vectors -m flash.gguf short_italian_fact.json
  ds4 score vectors -m flash.gguf --record mine.vec prompts/*.txt

Runs a model against recorded answers: official vectors (.vec, or the JSON they were made from) and local ones, which
hold logits. Tokens are compared by their bytes. The exit code is 1 when a case fails.

With --record the files are prompts, one user message each, and what the model answers is written as vectors."""


@command.command("vectors", help=_VECTORS_HELP, short_help="Run test vectors against a model, or record them.")
@click.argument("files", type=_PATH, nargs=-1, required=True, metavar="FILE...")
@_model_options
@_ctx_option("Default: what the longest case needs.")
@click.option("--skip", multiple=True, metavar="ID", help="Leave a case out; may be given several times.")
@click.option(
    "--base", type=_PATH, metavar="DIR", help="Folder that prompt files are relative to. Default: that of the vectors."
)
@click.option("--record", type=_PATH, metavar="FILE", help="Write vectors of this model instead.")
@click.option("--steps", type=Whole(1, 10_000), metavar="N", help="Tokens to record for a prompt.  [default: 4]")
@click.option("--top", type=Whole(0, 20), metavar="N", help="Candidates to record for a token.  [default: 5]")
@report_option
def vectors_command(
    files: tuple[Path, ...],
    ctx: int | None,
    skip: tuple[str, ...],
    base: Path | None,
    record: Path | None,
    steps: int | None,
    top: int | None,
    json_file: Path | None,
    **values: Any,
) -> int:
    """Run or record vectors."""
    settings = _settings(ctx, **values)
    keep_apart([record, json_file], [*files, settings.model])
    if record is not None:
        if skip or base is not None or json_file is not None:
            raise click.UsageError("--skip, --base and --json have no effect with --record")
        return _record(settings, ctx, files, record, steps or 4, 5 if top is None else top)
    if steps is not None or top is not None:
        raise click.UsageError("--steps and --top belong to --record")
    cases = [case for path in files for case in read_vectors(path, base=base)]
    repeated = [c.id for i, c in enumerate(cases) if c.id in {other.id for other in cases[:i]}]
    if repeated:
        raise ValueError(f"case {repeated[0]} is in several files")
    with _outputs(json_file) as outputs, opened_model(settings) as model:
        n_ctx = ctx or vector_ctx(cases, model.tokenizer, skip)
        with make_session(model, settings, n_ctx) as session, shown_progress("vectors", "tokens") as progress:
            report = run_vectors(session, cases, skip=skip, progress=progress)
        outputs.say(vector_lines(report))
        outputs.write_json({**report.as_json(), **source_of(model, settings)})
    return 0 if report.passed else 1


def _record(settings: Settings, ctx: int | None, files: Sequence[Path], record: Path, steps: int, top: int) -> int:
    names = default_ids(files)
    texts = [read_utf8(path) for path in files]
    folder = Path.cwd() if str(record) == "-" else record.parent
    with _outputs(None, record) as outputs, opened_model(settings) as model:
        n_ctx = ctx or max(len(official_prompt(text, model.tokenizer)) for text in texts) + steps - 1
        with make_session(model, settings, n_ctx) as session, shown_progress("recording", "tokens") as progress:
            cases = record_vectors(
                session, list(zip(names, texts, strict=True)), steps=steps, top=top, progress=progress
            )
        paths = [os.path.relpath(path, folder) for path in files]
        assert outputs.table is not None
        outputs.table.write(
            f"# recorded by ds4 from {Path(model.path).name}, fingerprint {model.fingerprint.hex()}\n"
            + as_lines(list(zip(cases, paths, strict=True)))
        )
        note(f"wrote {outputs.table.name}: {len(cases)} cases")
    return 0


def _text_ctx(texts: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> int:
    """Return the context for texts, each with its name."""
    wholes = [text_cases(tokenizer, text, MAX_CONTEXT, name=name) for name, text in texts]
    return min(_TEXT_CTX, max(needed_ctx(windows) for windows in wholes))


def _check_stride(stride: int | None, n_ctx: int) -> None:
    if stride is not None and stride > n_ctx:
        raise ValueError(f"--stride {stride} is more than the context of {n_ctx}; -c sets that")


def _mixed_cases(
    files: Sequence[Path], tokenizer: Tokenizer, ctx: int | None, stride: int | None
) -> tuple[list[Case], int]:
    """Read cases and texts, and choose the context."""
    given = {path: read_cases(path, tokenizer) for path in files if path.suffix in CASE_SUFFIXES}
    texts = {path: read_utf8(path) for path in files if path not in given}
    n_ctx = ctx or max((needed_ctx(cases) for cases in given.values()), default=1)
    if texts:
        n_ctx = ctx or max(n_ctx, _text_ctx([(str(path), text) for path, text in texts.items()], tokenizer))
        _check_stride(stride, n_ctx)
    out = []
    for path in dict.fromkeys(files):
        if path in given:
            out += given[path]
        else:
            out += text_cases(tokenizer, texts[path], n_ctx, stride=stride, name=str(path))
    check_room(out, n_ctx)
    return out, n_ctx


@contextmanager
def _pair(model: Model, parent: Model, settings: Settings, n_ctx: int) -> Iterator[tuple[Session, Session]]:
    """Make sessions of two models, after checking that both fit into memory together."""
    plans = model.memory_plan(n_ctx), parent.memory_plan(n_ctx)
    check_memory(
        [model, parent],
        sum(plan.total_session_bytes for plan in plans),
        settings,
        weights_bytes=sum(plan.weights_bytes for plan in plans),
        n_ctx=n_ctx,
    )
    with make_session(model, settings, n_ctx) as one, make_session(parent, settings, n_ctx) as other:
        yield one, other
