"""What `ds4 convert` and `ds4 quantize` share: options for the types of tensors, printing a plan, carrying it out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from ds4.quantize import RECIPES, FilePlan, Plan, Policy, TensorError, kept_files, parse_layers, quantize
from ds4.quantize.plan import bits_per_value, plan_facts, summary
from ds4.quantize.policy import parse_type

from .options import Whole, report_option
from .output import OutputFile
from .terminal import ProgressLine, ResumedProgress, note

F = TypeVar("F", bound=Callable[..., Any])

_FLAGS_KEY = "ds4.type_flags"
_FILE = click.Path(path_type=Path)
_ROLE_TITLES = {
    "float": "norms, scales, biases",
    "table": "expert tables",
    "mixing": "hyper-connections, position tables",
    "selection": "embedding, router, indexer, compressors",
    "dense": "attention, shared experts, output",
    "experts": "routed experts",
    "other": "others",
}
_FLAG_HELP = {
    "routed-w1": (("--routed-w1", "--routed-gate"), "Type of the experts' gate matrices (w1)."),
    "routed-w2": (("--routed-w2", "--routed-down"), "Type of the experts' down matrices (w2)."),
    "routed-w3": (("--routed-w3", "--routed-up"), "Type of the experts' up matrices (w3)."),
    "experts": (("--experts", "--routed"), "Type of all three; of two such options the later one wins."),
    "embedding": (("--embedding",), "Type of the token embedding."),
    "output": (("--output",), "Type of the output matrix."),
    "shared": (("--shared",), "Type of the shared experts."),
    "attention-proj": (("--attention-proj",), "Type of attn_q_a, attn_q_b, attn_kv, attn_output_a and _b."),
    "attention": (("--attention",), "Type of the other matrices of attention and indexer, and of hc_attn_fn."),
    "dense": (("--dense",), "Type of all other matrices."),
}
_TYPE_PARAMS = {name.replace("-", "_") for name in ("tensor-type", *_FLAG_HELP)}
RECIPE_LIST = "\b\nRecipes:\n" + "\n".join(f"  {name:<8} {r.summary}" for name, r in RECIPES.items())
TYPES_HELP = """Types are F32, F16, BF16, Q8_0, MXFP4, Q4_K, Q2_K and IQ2_XXS; case, - and _ do not matter, and "copy"
keeps what the recipe says (with a template: what the template says). A recipe sets the defaults; what an option names
is of that type instead. The first rule that fits a tensor decides: --tensor-type, then --routed-*, then the families in
the order of the list. Of an option given twice the later one counts, of --tensor-type the first that fits."""
TEMPLATE_HELP = """With --template the metadata (the tokenizer among them), the order of the tensors, their shapes and,
where neither recipe nor option decides, their types are those of a GGUF file of the same model; only the weights come
from SOURCE. A file that is not of the same model is refused with every difference."""


class TypeCommand(click.Command):
    """A command with `type_options`: it remembers them in the order in which they were typed.

    Of two options the later one wins, also when one of them is repeated; what click hands over has lost that order.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and note the options that choose types."""
        typed = list(args)
        rest = super().parse_args(ctx, args)
        values, _, order = self.make_parser(ctx).parse_args(typed)
        pending = {param.name: iter(values[param.name]) for param in order if param.name in _TYPE_PARAMS}
        ctx.meta[_FLAGS_KEY] = [
            (str(param.name).replace("_", "-"), next(pending[param.name])) for param in order if param.name in pending
        ]
        return rest


def _checked(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> None:
    for text in value:
        try:
            if param.name == "tensor_type":
                Policy.from_flags(None, [("tensor-type", text)])
            else:
                parse_type(text)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from None


def _layers(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    try:
        return value if value is None or parse_layers(value) else None
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def type_options(function: F) -> F:
    """Decorate a `TypeCommand` with the options that choose types; `chosen_policy` reads them."""
    options = [
        click.option(
            "--tensor-type",
            multiple=True,
            metavar="NAME=TYPE",
            callback=_checked,
            expose_value=False,
            help="Type of a tensor, or of the matrices whose name begins so; the first that fits decides. Repeatable.",
        )
    ]
    for name, (declarations, text) in _FLAG_HELP.items():
        options.append(
            click.option(
                *declarations,
                name.replace("-", "_"),
                multiple=True,
                metavar="TYPE",
                callback=_checked,
                expose_value=False,
                help=text,
            )
        )
    options.append(
        click.option(
            "--q4-layers",
            metavar="LIST",
            callback=_layers,
            help="Layers with Q4_K experts in the recipe q2-q4, as 37-42 or 0-2,40. Default: the last six, or half of "
            "a small model's.",
        )
    )
    for option in reversed(options):
        function = option(function)
    return function


def run_options(function: F) -> F:
    """Decorate a command with the options of importance, running and reporting."""
    options = [
        click.option(
            "--template", type=_FILE, metavar="FILE", help="Metadata, order and types are those of this file."
        ),
        click.option("--imatrix", type=_FILE, metavar="FILE", help="Importance for Q2_K, Q4_K and IQ2_XXS."),
        click.option("--imatrix-strict", is_flag=True, help="Refuse an imatrix that lacks data, do not fall back."),
        click.option("--mtp-out", type=_FILE, metavar="FILE", help="Write the MTP block to its own file."),
        click.option(
            "--name", metavar="TEXT", help="Name of the model in the file. Default: the source's (template's)."
        ),
        click.option("-t", "--threads", type=Whole(1, 256), metavar="N", help="Threads. Default: one per core."),
        click.option("--dry-run", is_flag=True, help="Print what would be written, and check that it can be."),
        click.option("--force", is_flag=True, help="Replace existing files."),
        report_option,
    ]
    for option in reversed(options):
        function = option(function)
    return function


def chosen_policy(recipe: str | None, q4_layers: str | None, template: Path | None) -> Policy:
    """Return the policy of the command that runs."""
    flags = click.get_current_context().meta[_FLAGS_KEY]
    try:
        return Policy.from_flags(recipe, flags, q4_layers=q4_layers, template=template is not None)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def carry_out(plan: Plan, what: str, *, threads: int | None, force: bool) -> dict[str, Any]:
    """Write a plan's files with progress on stderr; tell what an interruption leaves. Returns facts for the report."""
    line = ProgressLine(what, "bytes")
    begin = time.monotonic()
    resumed = ResumedProgress(line)
    try:
        quantize(plan, force=force, threads=threads, progress=resumed, tell=note)
    except (KeyboardInterrupt, OSError):
        line.finish()
        for part in kept_files(plan):
            note(f"what is finished is kept in {part}; the same command goes on from there")
        raise
    finally:
        line.finish()
    seconds = time.monotonic() - begin
    for file in plan.files:
        note(f"wrote {file.path}: {len(file.tensors)} tensors, {_sizes(file.n_bytes)}")
    return {"seconds": round(seconds, 3), "resumed_bytes": resumed.before or 0}


def print_plan(plan: Plan) -> None:
    """Print the files of a plan with their sizes by family and type."""
    for file in plan.files:
        print(f"{file.path}: {len(file.tensors)} tensors, {file.n_bytes} bytes ({_sizes(file.n_bytes)}), ", end="")
        print(f"{bits_per_value(file):.2f} bits a value")
        for role, kind, count, n_bytes in summary(file):
            print(
                f"  {_ROLE_TITLES[role]:<40} {kind:>7} {count:>6} tensors {n_bytes:>16} bytes {_ways(file, role, kind)}"
            )


def _ways(file: FilePlan, role: str, kind: str) -> str:
    """How the tensors of a line are made: "from BF16", "copied"."""
    from ds4.quantize.recipes import role_of

    mine = [t for t in file.tensors if t.type == kind and (role_of(t.name) or "other") == role]
    sources = sorted({t.source.stored for t in mine if t.how != "copy"})
    parts = [f"from {', '.join(sources)}"] if sources else []
    if any(t.how == "copy" for t in mine):
        parts.append("copied")
    return ", ".join(parts)


def _sizes(n_bytes: int) -> str:
    """A size in both units: files are sold in GB and called GiB."""
    if n_bytes < 10**8:
        return f"{n_bytes / 1e6:.2f} MB, {n_bytes / 2**20:.2f} MiB"
    return f"{n_bytes / 1e9:.2f} GB, {n_bytes / 2**30:.2f} GiB"


def write_report(file: OutputFile | None, plan: Plan, extra: dict[str, Any]) -> None:
    """Write the report of a plan, if one is asked for."""
    if file is not None:
        file.write_json({**plan_facts(plan), **extra})


def error_facts(errors: list[TensorError]) -> list[dict[str, Any]]:
    """Return a comparison as plain values; an infinite ratio (an error about zeros) is null, as JSON knows none."""
    return [{k: None if v == math.inf else v for k, v in asdict(e).items()} for e in errors]


def print_errors(errors: list[TensorError]) -> None:
    """Print a comparison as a table."""
    width = max(len(e.name) for e in errors)
    print(f"{'tensor':<{width}}  {'from':>7} {'type':>7} {'rmse':>10} {'relative':>9} {'weighted':>9} "
          f"{'max error':>10}  worst row")  # fmt: skip
    for e in errors:
        weighted = "-" if e.relative_weighted_rmse is None else f"{e.relative_weighted_rmse:.5f}"
        expert = f"expert {e.worst_row.matrix}, " if e.worst_row.matrix or "exps" in e.name else ""
        print(
            f"{e.name:<{width}}  {e.source_type:>7} {e.type:>7} {e.rmse:>10.3e} {e.relative_rmse:>9.5f} {weighted:>9} "
            f"{e.max_error:>10.3e}  {expert}row {e.worst_row.row}: {e.worst_row_rmse:.3e}"
        )
