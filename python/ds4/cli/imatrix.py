"""``ds4 imatrix``: importance files, for quantization."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from ds4 import GGUFFile, Model
from ds4.gguf_experts import expert_part, standard_tensors
from ds4.gguf_writer import check_targets
from ds4.imatrix import CorpusPrompt, Coverage, Imatrix, collect_imatrix, coverage, read_prompts, write_corpus
from ds4.imatrix.collect import DEFAULT_CONTEXT, file_bytes, importance_bytes
from ds4.imatrix.data import format_of
from ds4.imatrix.plot import plot_coverage
from ds4.plotting import check_plot

from .opening import check_memory, open_quietly
from .options import MAX_CONTEXT, Whole, report_option, take
from .output import OutputFile, keep_apart, report_file
from .settings import Settings
from .terminal import ProgressLine, note

_GROUP = """\b
Examples:
  ds4 imatrix corpus chats.jsonl notes.txt -o corpus.txt
  ds4 imatrix collect -m flash-q8_0.gguf corpus.txt -o flash.gguf --plot flash.svg
  ds4 imatrix show flash.gguf
  ds4 imatrix merge code.gguf chats.gguf -o both.gguf
  ds4 imatrix convert flash.gguf flash.dat

An importance file holds, for every routed expert, how large each column of its input is on real prompts. ds4 quantize
--imatrix FILE spends the bits where they matter."""

_NO_PROMPTS = """there is nothing to measure on. Give files: chats as .jsonl, one {"messages": [...]} a line (with
"tools" and "mode" if wanted), plain text, or a corpus that ds4 imatrix corpus made. Take what the model will be used
for; some hundred thousand tokens reach most experts."""

F = TypeVar("F", bound=Callable[..., Any])
_PATH = click.Path(path_type=Path)
_FILES = click.argument("files", nargs=-1, type=_PATH)
_OUT = click.option("-o", "--out", type=_PATH, required=True, metavar="FILE", help="Where to write.")
_FORCE = click.option("--force", is_flag=True, help="Replace an existing file.")
_PLOT = click.option("--plot", type=_PATH, metavar="FILE", help="Draw layers and experts, as .svg or .png.")


def _experts_option(help_text: str) -> Callable[[F], F]:
    return click.option("--experts", type=Whole(1, 65536), metavar="N", help=help_text)


@click.group("imatrix", help=_GROUP, short_help="Measure which weights matter, for quantization.")
def command() -> None:
    """Importance files."""


_CORPUS = """\b
Examples:
  ds4 imatrix corpus chats.jsonl agent.jsonl -o corpus.txt
  ds4 imatrix corpus src/*.py README.md -o code.txt

Renders prompts as the model sees them. Read are chats in .jsonl (one a line) or .json (one, or a list), each
{"messages": [...]} with "tools", "mode" ("thinking" or "chat"), "category" and "id" if wanted; other files are plain
text, which becomes user messages. Where no mode is given, every other prompt thinks."""


@command.command("corpus", help=_CORPUS, short_help="Make calibration text of chats and texts.")
@_FILES
@_OUT
@_FORCE
def corpus_command(files: Sequence[Path], out: Path, force: bool) -> int:
    """Run the command."""
    if not files:
        raise click.UsageError("give files of chats or text")
    keep_apart([out], files)
    n = write_corpus(out, _prompts(files), force=force)
    note(f"wrote {out}: {n} prompts, {out.stat().st_size} bytes")
    return 0


def _prompts(files: Sequence[Path]) -> Iterator[CorpusPrompt]:
    for file in files:
        yield from read_prompts(file)


_COLLECT = """\b
Examples:
  ds4 imatrix collect -m flash-q8_0.gguf corpus.txt -o flash.gguf
  ds4 imatrix collect -m flash-q8_0.gguf chats.jsonl notes.txt -o flash.dat --max-tokens 500000

Runs every prompt of FILES (a corpus, chats or texts: see ds4 imatrix corpus) through the model, each from position 0
and cut at --ctx. Use the most exact model file that you have. The name of OUT says the form: .gguf keeps token
counts, which merging needs, .dat is the older one with means.

Nothing is left when the run is stopped, unless --save-every is given: then what was gathered is written to
NAME.partial.SUFFIX after every so many prompts. Run the rest with --skip and merge both."""


@command.command("collect", help=_COLLECT, short_help="Measure importance on prompts.")
@_FILES
@take("model")
@_OUT
@click.option(
    "-c",
    "--ctx",
    type=Whole(1, MAX_CONTEXT),
    default=DEFAULT_CONTEXT,
    show_default=True,
    metavar="N",
    help="Tokens of a prompt that are used.",
)
@click.option("--max-prompts", type=Whole(1), metavar="N", help="Most prompts to use.")
@click.option("--max-tokens", type=Whole(1), metavar="N", help="Most tokens to use.")
@click.option("--skip", type=Whole(0), default=0, metavar="N", help="Leave out the first prompts.")
@click.option("--save-every", type=Whole(1), metavar="N", help="Keep what was gathered after every N prompts.")
@take("mtp", "threads", "activations", "force_memory", "simulate_memory")
@take("expert_cache", "ssd_streaming", "read_depth", "cold")
@_PLOT
@report_option
@_FORCE
def collect_command(
    files: Sequence[Path], model: Path | None, out: Path, ctx: int, max_prompts: int | None, max_tokens: int | None,
    skip: int, save_every: int | None, mtp: Path | None, threads: int | None, activations: Any, plot: Path | None,
    json_file: Path | None, force: bool, **values: Any,
) -> int:  # fmt: skip
    """Run the command."""
    if not files:
        raise click.UsageError(" ".join(_NO_PROMPTS.split()))
    _check_suffix(out)
    keep_apart([out, plot, json_file], [*files, model, mtp])
    check_targets([(out, 0)], force=force)
    if plot is not None:
        check_plot(plot)
    partial = out.with_name(f"{out.stem}.partial{out.suffix}")
    settings = Settings(model=model, mtp=mtp, ctx=ctx, threads=threads, activations=activations, **values)
    with open_quietly(model or Model.embedded_path(), settings) as opened, report_file(json_file) as output:
        check_targets([(out, file_bytes(opened, mtp=opened.has_mtp))], force=force)
        plan = opened.memory_plan(ctx, threads=threads, mtp=opened.has_mtp)
        needed = plan.total_session_bytes + importance_bytes(opened, mtp=opened.has_mtp)
        check_memory([opened], needed, settings, weights_bytes=plan.weights_bytes, n_ctx=ctx)

        def save(imatrix: Imatrix) -> None:
            imatrix.write(partial, force=True)
            line.finish()
            note(f"{partial} holds the first {imatrix.n_chunks} prompts after {skip} skipped")

        line = ProgressLine("measuring", "tokens")
        try:
            imatrix = collect_imatrix(
                opened,
                _prompts(files),
                n_ctx=ctx,
                skip=skip,
                max_prompts=max_prompts,
                max_tokens=max_tokens,
                datasets=[f.name for f in files],
                threads=threads,
                activations=activations,
                save_every=save_every or 0,
                save=save,
                progress=lambda done, total, what: line(done, total),
            )
        finally:
            line.finish()
        imatrix.write(out, force=force)
        if save_every:
            partial.unlink(missing_ok=True)
        note(f"wrote {out}: {imatrix.n_entries} entries, {imatrix.n_chunks} prompts")
        _report(imatrix, out, plot, output)
    return 0


_SHOW = """\b
Examples:
  ds4 imatrix show flash.gguf
  ds4 imatrix show flash.dat --plot flash.svg
  ds4 imatrix show other.dat --experts 64 --json -

Shows how many tokens every expert saw. A .dat holds no counts, only whether an expert was observed, and does not say
how many experts there are: other models than Flash and Pro need --experts, or -m with a model file."""


@command.command("show", help=_SHOW, short_help="Show what an importance file covers.")
@click.argument("file", type=_PATH)
@_experts_option("Experts of a layer, for a .dat of another model than Flash and Pro.")
@click.option("-m", "--model", type=_PATH, metavar="FILE", help="Compare with the experts of this model.")
@_PLOT
@report_option
def show_command(file: Path, experts: int | None, model: Path | None, plot: Path | None, json_file: Path | None) -> int:
    """Run the command."""
    keep_apart([plot, json_file], [file, model])
    tensors = _expert_tensors(model) if model is not None else []
    if tensors and experts is None:
        experts = tensors[0][2]
    imatrix = Imatrix.read(file, n_experts=experts)
    missing = list(imatrix.gaps(tensors).missing)
    if plot is not None:
        check_plot(plot)
    with report_file(json_file) as output:
        _report(imatrix, file, plot, output, missing=missing)
    return 1 if missing else 0


def _expert_tensors(model: Path) -> list[tuple[str, int, int]]:
    """Return (name, columns, experts) of the routed experts of a model file."""
    with GGUFFile(model) as file:
        views = standard_tensors(file).values()
        found = [(t.name, t.ne[0], t.n_matrices) for t in views if expert_part(t.name)]
    if not found:
        raise ValueError(f"{model}: there are no routed experts in it")
    return found


_MERGE = """\b
Examples:
  ds4 imatrix merge code.gguf chats.gguf -o both.gguf

Adds sums and counts, so every token weighs the same. A .dat weighs as many calls as it says, 1 if ds4 wrote it, and
experts that one of them never saw come from the other. A .dat and a .gguf cannot be merged: the first does not say how
many tokens it saw."""


@command.command("merge", help=_MERGE, short_help="Add importance files up.")
@_FILES
@_OUT
@_experts_option("Experts of a layer, for .dat files of another model than Flash and Pro.")
@_FORCE
def merge_command(files: Sequence[Path], out: Path, experts: int | None, force: bool) -> int:
    """Run the command."""
    if len(files) < 2:
        raise click.UsageError("give two files or more")
    _check_suffix(out)
    keep_apart([out], files)
    first, *others = (Imatrix.read(file, n_experts=experts) for file in files)
    merged = first.merge(others)
    merged.write(out, force=force)
    note(f"wrote {out}: {merged.n_entries} entries, {merged.n_chunks} prompts")
    return 0


_CONVERT = """\b
Examples:
  ds4 imatrix convert flash.gguf flash.dat
  ds4 imatrix convert flash.dat flash.gguf

The suffix of OUT says the form. A .dat keeps means only; made into .gguf it counts as one token for each expert."""


@command.command("convert", help=_CONVERT, short_help="Change the form of an importance file.")
@click.argument("source", type=_PATH)
@click.argument("out", type=_PATH)
@_experts_option("Experts of a layer, for a .dat of another model than Flash and Pro.")
@_FORCE
def convert_command(source: Path, out: Path, experts: int | None, force: bool) -> int:
    """Run the command."""
    _check_suffix(out)
    keep_apart([out], [source])
    imatrix = Imatrix.read(source, n_experts=experts)
    imatrix.write(out, force=force)
    note(f"wrote {out}: {imatrix.n_entries} entries")
    return 0


def _check_suffix(out: Path) -> None:
    try:
        format_of(out)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _report(
    imatrix: Imatrix, path: Path, plot: Path | None, output: OutputFile | None, *, missing: Sequence[str] = ()
) -> None:
    found = coverage(imatrix)
    if plot is not None:
        plot_coverage(found, plot, title=path.name)
        note(f"wrote {plot}")
    if output is None or str(output.path) != "-":
        print("\n".join(_lines(imatrix, path, found, missing)))
    if output is not None:
        output.write_json(_facts(imatrix, path, found, missing))


def _facts(imatrix: Imatrix, path: Path, found: Coverage, missing: Sequence[str]) -> dict[str, Any]:
    return {
        "file": str(path),
        "entries": imatrix.n_entries,
        "datasets": list(imatrix.datasets),
        "chunks": imatrix.n_chunks,
        "chunk_size": imatrix.chunk_size,
        "counted": found.counted,
        "experts": found.n_experts,
        "never": found.n_never,
        "layers": [layer.facts() for layer in found.layers],
        "undivided": list(found.undivided),
        "other": list(found.other),
        "missing": list(missing),
    }


def _lines(imatrix: Imatrix, path: Path, found: Coverage, missing: Sequence[str]) -> Iterator[str]:
    form = "sums and counts" if found.counted else "means without counts"
    yield f"{path}: {imatrix.n_entries} entries, {form}, {imatrix.n_chunks} prompts"
    if imatrix.datasets:
        yield f"measured on {imatrix.dataset}"
    if found.undivided:
        yield f"{len(found.undivided)} entries of an unknown number of experts: give --experts or -m"
    if found.other:
        yield f"{len(found.other)} entries of other tensors"
    if found.layers:
        yield (
            f"{'layer':<8} {'experts':>7} {'min':>8} {'median':>9} {'max':>9}  never chosen"
            if found.counted
            else f"{'layer':<8} {'experts':>7}  never chosen"
        )
    for layer in found.layers:
        f = layer.facts()
        numbers = f" {f['min']:>8} {f['median']:>9.1f} {f['max']:>9}" if found.counted else ""
        yield f"{layer.name:<8} {f['experts']:>7}{numbers}  {_list(layer.never)}"
    if found.n_never:
        yield f"{found.n_never} of {found.n_experts} experts have no data: ds4 quantize lists them and falls back"
    elif found.layers:
        yield f"all {found.n_experts} experts have data"
    for name in missing:
        yield f"missing  {name}"


def _list(numbers: Sequence[int]) -> str:
    """Return numbers as ranges: "none", "3, 7-9", with an end after a dozen."""
    if not numbers:
        return "none"
    ranges: list[list[int]] = []
    for n in numbers:
        if ranges and n == ranges[-1][1] + 1:
            ranges[-1][1] = n
        else:
            ranges.append([n, n])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in ranges[:12]]
    return f"{len(numbers)}: " + ", ".join(shown) + (", ..." if len(ranges) > 12 else "")
