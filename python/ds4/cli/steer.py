"""``ds4 steer``: directions made of prompts, and what they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from ds4 import Model, Session, SteeringDirections
from ds4.plotting import check_plot
from ds4.steer import SteerPrompt, SweepRow, build_directions, parse_scales, read_prompts, sweep
from ds4.steering import MAX_DIRECTIONS

from .opening import check_text, make_session, opened_model
from .options import DEVICE, MAX_CONTEXT, MEMORY, FiniteFloat, Whole, report_option, take
from .output import keep_apart, report_file
from .settings import Settings
from .steering import load_steering
from .terminal import ProgressLine, note, tell

F = TypeVar("F", bound=Callable[..., Any])
_PATH = click.Path(path_type=Path)

_GROUP = """\b
Examples:
  ds4 steer build --good verbose.txt --bad terse.txt -o verbosity.npz
  ds4 steer sweep --direction verbosity.npz --prompts questions.txt --plot verbosity.svg
  ds4 --dir-steering-file verbosity.npz --dir-steering-ffn -1
  ds4 steer show verbosity.npz

A direction is a unit vector a layer. Steering takes it out of what the layer adds to the model's state (scale 1), or
amplifies it (a negative scale)."""

_BUILD = """\b
Examples:
  ds4 steer build -m flash.gguf --good verbose.txt --bad terse.txt -o verbosity.npz
  ds4 steer build --good yes.jsonl --bad no.jsonl --component attn_out --at mean -o yes-attn.json
  ds4 steer build --good a.txt --bad b.txt --system "You are an assistant." --pair-normalize -o ab.npz

GOOD and BAD hold prompts, one a line (# begins a comment), or chats: .jsonl with {"messages": [...]} or
{"prompt": "..."} in each line. The outputs of every layer are taken at the end of each prompt, where the model begins
to answer; a direction is the difference of their means, brought to length 1. A scale > 0 takes out what the good
prompts have and the bad ones have not.

The name of OUT says the form: .npz, or .json with a .f32 of the same name beside it (float32, layer after layer)."""

_SWEEP = """\b
Examples:
  ds4 steer sweep --direction verbosity.npz --prompts questions.txt
  ds4 steer sweep -m flash.gguf --direction a.npz --direction b.npz --prompts q.jsonl --plot ab.svg

Answers every prompt greedily at each scale, and prints the mean length of the answers, the share that the model ended
by itself, and, for prompts with an "answer" (.jsonl), the share of right ones. Several directions act together. The
scale of the table multiplies --ffn-scale and --attn-scale; without them it acts where a direction was made, on the
FFN's outputs if the file does not say. --json keeps the texts."""


@click.group("steer", help=_GROUP, short_help="Make directions of prompts, and see what they do.")
def command() -> None:
    """Steering."""


_model_options = take("model", *DEVICE, *MEMORY, "no_qat", "activations")


_MODE = (
    click.option("--think", is_flag=True, help="Let the model reason before it answers."),
    click.option("--nothink", is_flag=True, help="Answer at once (the default)."),
    click.option("--system", metavar="TEXT", help="System message of prompts without one."),
)


def _prompt_options(function: F) -> F:
    for option in reversed(_MODE):
        function = option(function)
    return function


def _settings(ctx: int, values: dict[str, Any]) -> Settings:
    if values["cpu"] and values["backend"] not in ("auto", "cpu"):
        raise click.UsageError(f"--cpu and --backend {values['backend']} contradict each other")
    return Settings(ctx=ctx, **values)


def _mode(think: bool, nothink: bool) -> Literal["chat", "thinking"]:
    if think and nothink:
        raise click.UsageError("--think and --nothink cannot be given together")
    return "thinking" if think else "chat"


@command.command("build", help=_BUILD, short_help="Make directions of two kinds of prompts.")
@_model_options
@click.option("--good", "--good-file", "good", type=_PATH, required=True, metavar="FILE", help="Prompts to go from.")
@click.option("--bad", "--bad-file", "bad", type=_PATH, required=True, metavar="FILE", help="Prompts to compare with.")
@click.option("-o", "--out", type=_PATH, required=True, metavar="FILE", help="Where to write: .npz, .json or .f32.")
@click.option(
    "--component", type=click.Choice(["ffn_out", "attn_out"]), default="ffn_out", show_default=True,
    help="Whose outputs.",
)  # fmt: skip
@click.option(
    "--at", type=click.Choice(["last", "mean"]), default="last", show_default=True,
    help="The last position of a prompt, or the mean of all but the first.",
)  # fmt: skip
@click.option(
    "--pair-normalize", is_flag=True, help="Line i of both files belongs together; each difference counts alike."
)
@click.option(
    "--no-orthogonalise", "--no-orthogonalize", "raw", is_flag=True, help="Leave in what lies along the bad mean."
)
@click.option(
    "-c", "--ctx", type=Whole(1, MAX_CONTEXT), default=512, show_default=True, metavar="N",
    help="Positions that a prompt may take.",
)  # fmt: skip
@_prompt_options
@click.option("--force", is_flag=True, help="Replace existing files.")
def build_command(
    good: Path, bad: Path, out: Path, component: Any, at: Any, pair_normalize: bool, raw: bool, ctx: int, think: bool,
    nothink: bool, system: str | None, force: bool, **values: Any,
) -> int:  # fmt: skip
    """Run the command."""
    settings, mode = _settings(ctx, values), _mode(think, nothink)
    check_text(system or "", "system text")
    targets = _targets(out)
    keep_apart(targets, [good, bad, settings.model])
    for target in targets:
        if target.exists() and not force:
            raise click.UsageError(f"{target} is there already; --force replaces it")
        if not target.parent.is_dir():
            raise FileNotFoundError(2, "No such file or directory", str(target.parent))
    sides = [read_prompts(file, system=system) for file in (good, bad)]
    if pair_normalize and len(sides[0]) != len(sides[1]):
        n = min(len(side) for side in sides)
        note(f"{len(sides[0])} good and {len(sides[1])} bad prompts: the first {n} of both are pairs")
        sides = [side[:n] for side in sides]
    with opened_model(settings) as model:
        ids = [list(_tokens(side, model, file, mode, ctx)) for side, file in zip(sides, (good, bad), strict=True)]
        line = ProgressLine("reading", "prompts")
        with make_session(model, settings, ctx) as session:
            try:
                directions = build_directions(
                    model, *ids, component=component, at=at, pairs=pair_normalize, orthogonal=not raw,
                    session=session, progress=line,
                )  # fmt: skip
            finally:
                line.finish()
    if not directions.layers:
        raise click.ClickException("the prompts of both files look the same to the model: there is no direction")
    notes = {**directions.notes, "mode": mode, "system": system, "good_file": good.name, "bad_file": bad.name}
    SteeringDirections(directions.values, notes=notes).save(out)
    note(
        f"wrote {' and '.join(map(str, targets))}: {len(directions.layers)} of {directions.n_layer} layers, "
        f"from {len(ids[0])} and {len(ids[1])} prompts"
    )
    return 0


def _targets(out: Path) -> list[Path]:
    if out.suffix == ".npz":
        return [out]
    if out.suffix in (".json", ".f32"):
        return [out.with_suffix(".f32"), out.with_suffix(".json")]
    raise click.UsageError(f"{out}: directions are written as .npz, or as .json with .f32")


def _tokens(
    prompts: Sequence[SteerPrompt], model: Model, file: Path, mode: Literal["chat", "thinking"], ctx: int
) -> Iterator[list[int]]:
    for number, prompt in enumerate(prompts, 1):
        ids = prompt.tokens(model.tokenizer, mode)
        if len(ids) > ctx:
            raise ValueError(f"{file}: prompt {number} has {len(ids)} tokens; use -c {len(ids)} or more")
        yield ids


@command.command("sweep", help=_SWEEP, short_help="Answer prompts at several scales, and compare.")
@_model_options
@click.option(
    "--direction",
    "files",
    type=_PATH,
    required=True,
    multiple=True,
    metavar="FILE",
    help="Directions; may be repeated.",
)
@click.option("--prompts", "prompt_file", type=_PATH, required=True, metavar="FILE", help="What to ask.")
@click.option(
    "--scales", default="-2,-1,-0.5,0,0.5,1,2", show_default=True, metavar="LIST", help="Scales, with commas."
)
@click.option(
    "-n", "--tokens", type=Whole(1), default=160, show_default=True, metavar="N", help="Most tokens of an answer."
)
@click.option("--ffn-scale", type=FiniteFloat(-100.0, 100.0), metavar="F", help="Factor for the outputs of the FFN.")
@click.option("--attn-scale", type=FiniteFloat(-100.0, 100.0), metavar="F", help="Factor for the outputs of attention.")
@click.option(
    "-c", "--ctx", type=Whole(1, MAX_CONTEXT), default=4096, show_default=True, metavar="N", help="Positions."
)
@_prompt_options
@click.option("--plot", type=_PATH, metavar="FILE", help="Draw lengths and shares (.svg or .png; needs matplotlib).")
@report_option
def sweep_command(
    files: Sequence[Path], prompt_file: Path, scales: str, tokens: int, ffn_scale: float | None,
    attn_scale: float | None, ctx: int, think: bool, nothink: bool, system: str | None, plot: Path | None,
    json_file: Path | None, **values: Any,
) -> int:  # fmt: skip
    """Run the command."""
    settings, mode = _settings(ctx, values), _mode(think, nothink)
    check_text(system or "", "system text")
    try:
        steps = parse_scales(scales)
    except ValueError as error:
        raise click.UsageError(f"--scales: {error}") from None
    keep_apart([plot, json_file], [*files, prompt_file, settings.model])
    if plot is not None:
        check_plot(plot)
    if len(files) > MAX_DIRECTIONS:
        raise click.UsageError(f"{len(files)} direction files; at most {MAX_DIRECTIONS} act at a time")
    prompts = read_prompts(prompt_file, system=system)
    with report_file(json_file) as report, opened_model(settings) as model:
        steering = load_steering(model, files, _given(ffn_scale), _given(attn_scale))
        for _ in _tokens(prompts, model, prompt_file, mode, ctx - 1):
            pass
        with make_session(model, settings, ctx) as session:
            rows = _swept(session, steering, prompts, steps, tokens, mode)
        lines = "\n".join(_table(rows)) + "\n"
        if str(json_file) == "-":
            tell(lines)
        else:
            print(lines, end="")
        if report is not None:
            report.write_json({
                "directions": [
                    {"file": str(file), "fingerprint": one.directions.fingerprint, "ffn": one.ffn, "attn": one.attn}
                    for file, one in zip(files, steering, strict=True)
                ],
                "prompts": [prompt.text for prompt in prompts], "mode": mode, "max_tokens": tokens,
                "rows": [row.as_json() for row in rows],
            })  # fmt: skip
    if plot is not None:
        from ds4.steer.plots import plot_sweep

        plot_sweep(rows, plot)
        note(f"wrote {plot}")
    return 0


def _given(scale: float | None) -> list[float]:
    return [] if scale is None else [scale]


def _swept(
    session: Session, steering: Any, prompts: list[SteerPrompt], scales: list[float], tokens: int, mode: Any
) -> list[SweepRow]:
    line = ProgressLine("answering", "answers")
    try:
        return sweep(session, steering, prompts, scales, max_tokens=tokens, mode=mode, progress=line)
    finally:
        line.finish()


def _table(rows: Sequence[SweepRow]) -> Iterator[str]:
    yield " scale    words   tokens   ended   right"
    for row in rows:
        right = "-" if row.accuracy is None else f"{100 * row.accuracy:.0f} %"
        yield f"{row.scale:6g} {row.words:8.1f} {row.tokens:8.1f} {100 * row.ended:5.0f} % {right:>7}"


_SHOW = """\b
Examples:
  ds4 steer show verbosity.npz
  ds4 steer show verbosity.f32

Prints the layers that the file has directions for, how it was made if it says so, and a checksum of the values."""


@command.command("show", help=_SHOW, short_help="Say what a file of directions holds.")
@click.argument("file", type=_PATH)
def show_command(file: Path) -> int:
    """Run the command."""
    directions = SteeringDirections.load(file)
    print(f"{directions.n_layer} layers of {directions.n_embd}, directions in {len(directions.layers)} of them")
    print(f"values  sha256 {directions.fingerprint}")
    for name, value in directions.notes.items():
        print(f"{name}: {value}")
    return 0
