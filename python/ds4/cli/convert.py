"""``ds4 convert``: an official checkpoint becomes a GGUF file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from ds4.quantize import RECIPES, ConversionPlan, convert, plan_conversion

from .memory import show_size
from .opening import check_text
from .terminal import ProgressLine, note

_GROUP_OF_ROLE = {
    "float": "norms, scales, biases",
    "table": "expert tables",
    "mixing": "hyper-connections",
    "selection": "embedding, router, indexer, compressors",
    "dense": "attention, shared experts, output",
    "experts": "routed experts",
}

_EXAMPLES = """\b
Examples:
  ds4 convert checkpoint flash-q8_0.gguf --type q8_0
  ds4 convert checkpoint flash.gguf --type bf16 --dry-run
  ds4 convert checkpoint flash.gguf --type q8_0 --mtp-out flash-mtp.gguf

SOURCE is a directory with config.json, tokenizer.json and model.safetensors (or its shards and their index): the
checkpoint as it is published, in FP8 and FP4, or one in BF16, F16 or F32.

OUT appears when it is complete; nothing is left when the conversion fails."""


@click.command("convert", help=_EXAMPLES, short_help="Make a GGUF file from an official checkpoint.")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--type", "recipe", type=click.Choice(list(RECIPES)), required=True, help="Type of the big matrices.")
@click.option("--mtp-out", type=click.Path(path_type=Path), metavar="FILE", help="Write the MTP block to its own file.")
@click.option("--name", metavar="TEXT", help="Name of the model in the file. Default: the directory's name.")
@click.option("--dry-run", is_flag=True, help="Print what would be written, and check that it can be.")
@click.option("--force", is_flag=True, help="Replace existing files.")
def command(
    source: Path, out: Path, recipe: str, mtp_out: Path | None, name: str | None, dry_run: bool, force: bool
) -> int:
    """Run the command."""
    check_text(name or "", "name")
    plan = plan_conversion(source, out, recipe=recipe, mtp_out=mtp_out, name=name)
    with plan.checkpoint:
        for text in plan.notes:
            note(text)
        if dry_run:
            _print_plan(plan)
            plan.check(force=force)
            return 0
        line = ProgressLine("converting", "bytes")
        try:
            convert(plan, force=force, progress=lambda done, total, tensor: line(done, total))
        finally:
            line.finish()
    for file in plan.files:
        note(f"wrote {file.path}: {len(file.infos)} tensors, {show_size(file.n_bytes)}")
    return 0


def _print_plan(plan: ConversionPlan) -> None:
    for file in plan.files:
        print(f"{file.path}: {len(file.infos)} tensors, {file.n_bytes} bytes ({show_size(file.n_bytes)})")
        totals: Counter[tuple[str, str]] = Counter()
        counts: Counter[tuple[str, str]] = Counter()
        for tensor, info in zip(file.tensors, file.infos, strict=True):
            key = (_GROUP_OF_ROLE[tensor.role], info.type)
            totals[key] += info.n_bytes
            counts[key] += 1
        for (group, kind), n_bytes in totals.most_common():
            print(f"  {group:<40} {kind:>5} {counts[group, kind]:>6} tensors {n_bytes:>16} bytes")
