"""``ds4 convert``: an official checkpoint becomes a GGUF file."""

from __future__ import annotations

from pathlib import Path

import click

from ds4.quantize import RECIPES, plan_conversion

from .opening import check_text
from .output import keep_apart, report_file
from .terminal import note
from .weights import (
    RECIPE_LIST,
    TEMPLATE_HELP,
    TYPES_HELP,
    TypeCommand,
    carry_out,
    chosen_policy,
    print_plan,
    run_options,
    type_options,
    write_report,
)

_EXAMPLES = f"""\b
Examples:
  ds4 convert checkpoint flash-mxfp4.gguf --recipe mxfp4
  ds4 convert checkpoint flash-q2.gguf --recipe q2 --imatrix flash.dat
  ds4 convert checkpoint flash.gguf --recipe q2-q4 --dry-run
  ds4 convert checkpoint flash.gguf --recipe q8_0 --mtp-out flash-mtp.gguf
  ds4 convert checkpoint mine.gguf --template DeepSeek-V4-Flash-q2.gguf --imatrix flash.dat

SOURCE is a directory with config.json, tokenizer.json and model.safetensors (or its shards and their index): the
checkpoint as it is published, in FP8 and FP4, or one in BF16, F16 or F32.

{RECIPE_LIST}

{TYPES_HELP}

{TEMPLATE_HELP}

OUT appears when it is complete. What an interruption or a full disk leaves is in OUT.part, and the same command
continues from there."""


@click.command("convert", cls=TypeCommand, help=_EXAMPLES, short_help="Make a GGUF file from an official checkpoint.")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--recipe", "--type", "recipe", type=click.Choice(list(RECIPES)), help="Recipe of types.")
@type_options
@run_options
def command(
    source: Path,
    out: Path,
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
) -> int:
    """Run the command."""
    check_text(name or "", "name")
    if recipe is None and template is None:
        raise click.UsageError("name the types: --recipe NAME, or --template FILE to take those of a model file")
    keep_apart([out, mtp_out, json_file], [source, imatrix, template])
    with (
        report_file(json_file) as report,
        plan_conversion(
            source,
            out,
            policy=chosen_policy(recipe, q4_layers, template),
            template=template,
            imatrix=imatrix,
            imatrix_strict=imatrix_strict,
            mtp_out=mtp_out,
            name=name,
        ) as plan,
    ):
        for text in plan.notes:
            note(text)
        if dry_run:
            if str(json_file) != "-":
                print_plan(plan)
            plan.check(force=force)
            write_report(report, plan, {})
            return 0
        write_report(report, plan, carry_out(plan, "converting", threads=threads, force=force))
    return 0
