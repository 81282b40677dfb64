"""``ds4 quantize``: a model file in other types, from a GGUF file or an official checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ds4.quantize import RECIPES, Plan, compare, plan_quantization
from ds4.quantize.compare import compared_tensors

from .opening import check_text
from .output import keep_apart, report_file
from .terminal import ProgressLine, note
from .weights import (
    RECIPE_LIST,
    TEMPLATE_HELP,
    TYPES_HELP,
    TypeCommand,
    carry_out,
    chosen_policy,
    error_facts,
    print_errors,
    print_plan,
    run_options,
    type_options,
    write_report,
)

_EXAMPLES = f"""\b
Examples:
  ds4 quantize flash-mxfp4.gguf flash-q2.gguf --recipe q2 --imatrix flash.dat
  ds4 quantize flash-mxfp4.gguf flash.gguf --recipe q2-q4 --q4-layers 37-42 --imatrix flash.dat --dry-run
  ds4 quantize checkpoint flash-q4.gguf --recipe q4 --output q4_k
  ds4 quantize flash.gguf smaller.gguf --tensor-type blk.3.ffn_down=q4_k
  ds4 quantize flash-mxfp4.gguf mine.gguf --template DeepSeek-V4-Flash-q2.gguf --imatrix flash.dat
  ds4 quantize flash-mxfp4.gguf --recipe q2 --imatrix flash.dat --compare-tensor blk.3.ffn_down
  ds4 quantize flash-mxfp4.gguf --compare-tensor blk.3. --compare-gguf flash-q2.gguf

SOURCE is a GGUF file of higher precision or a checkpoint directory. Tensors that have their type already are copied.
Without recipe and template, what no option names keeps its type.

With --compare-tensor and no OUT nothing is written: the tensors are quantized in memory, or taken from
--compare-gguf, and their errors printed. With OUT the finished file is compared.

{RECIPE_LIST}

{TYPES_HELP}

{TEMPLATE_HELP}

OUT appears when it is complete. What an interruption or a full disk leaves is in OUT.part, and the same command
continues from there."""


@click.command(
    "quantize", cls=TypeCommand, help=_EXAMPLES, short_help="Make a model file in other types; measure their errors."
)
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path), required=False)
@click.option("--recipe", type=click.Choice(list(RECIPES)), help="Recipe of types.")
@type_options
@run_options
@click.option("--allow-requantize", is_flag=True, help="Take tensors of 2 bits as a source of other types.")
@click.option(
    "--compare-tensor",
    multiple=True,
    metavar="NAME",
    help="Print the errors of the tensors whose name begins so. Repeatable.",
)
@click.option(
    "--compare-gguf", type=click.Path(path_type=Path), metavar="FILE", help="Compare the tensors of this file."
)
def command(
    source: Path,
    out: Path | None,
    recipe: str | None,
    q4_layers: str | None,
    template: Path | None,
    imatrix: Path | None,
    imatrix_strict: bool,
    mtp_out: Path | None,
    name: str | None,
    threads: int | None,
    dry_run: bool,
    force: bool,
    json_file: Path | None,
    allow_requantize: bool,
    compare_tensor: tuple[str, ...],
    compare_gguf: Path | None,
) -> int:
    """Run the command."""
    check_text(name or "", "name")
    _check_usage(out, compare_tensor, compare_gguf, dry_run)
    keep_apart([out, mtp_out, json_file], [source, imatrix, compare_gguf, template])
    quiet = str(json_file) == "-"
    with (
        report_file(json_file) as report,
        plan_quantization(
            source,
            out,
            policy=chosen_policy(recipe, q4_layers, template),
            template=template,
            imatrix=imatrix,
            imatrix_strict=imatrix_strict,
            mtp_out=mtp_out,
            name=name,
            allow_requantize=allow_requantize or compare_gguf is not None,
        ) as plan,
    ):
        if compare_gguf is None:
            for text in plan.notes:
                note(text)
        if compare_tensor:
            compared_tensors(plan, compare_tensor)  # a wrong name is told before the work
        facts: dict[str, Any] = {}
        if dry_run:
            if not quiet:
                print_plan(plan)
            plan.check(force=force)
        elif out is not None:
            facts = carry_out(plan, "quantizing", threads=threads, force=force)
        if compare_tensor and not dry_run:
            facts["compare"] = _compare(plan, compare_tensor, compare_gguf, threads, quiet)
        write_report(report, plan, facts)
    return 0


def _check_usage(out: Path | None, compare_tensor: tuple[str, ...], compare_gguf: Path | None, dry_run: bool) -> None:
    if out is None and not compare_tensor:
        raise click.UsageError("OUT is missing; without it only --compare-tensor works")
    if out is None and dry_run:
        raise click.UsageError("--dry-run is about OUT, which is missing")
    if compare_gguf is not None and not compare_tensor:
        raise click.UsageError("--compare-gguf needs --compare-tensor")
    if compare_gguf is not None and out is not None:
        raise click.UsageError("--compare-gguf compares that file; leave OUT away")


def _compare(
    plan: Plan, names: tuple[str, ...], other: Path | None, threads: int | None, quiet: bool
) -> list[dict[str, Any]]:
    file = [f.path for f in plan.files] if other is None and plan.files else other
    line = ProgressLine("comparing", "values")
    try:
        errors = compare(plan, names, file=file, threads=threads, progress=lambda done, total, _: line(done, total))
    finally:
        line.finish()
    if not quiet:
        print_errors(errors)
    return error_facts(errors)
