"""``ds4 splice``: the experts of some layers from another file, and the two layouts of experts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click

from ds4.gguf_experts import LAYOUTS
from ds4.gguf_partial import partial_path
from ds4.quantize import SplicePlan, format_layers, parse_layers, plan_splice, splice

from .completion import complete_model
from .memory import show_size
from .options import report_option
from .output import OutputFile, keep_apart
from .terminal import ProgressLine, ResumedProgress, note

_EXAMPLES = """\b
Examples:
  ds4 splice q2.gguf q4.gguf q2-q4.gguf --q4-layers 37-42
  ds4 splice q2.gguf q4.gguf out.gguf --layers 0-2,40-42 --dry-run
  ds4 splice q2.gguf q2-adjacent.gguf --layout adjacent

Takes the routed experts of the named layers from DONOR and everything else from BASE. Nothing is computed: stored
bytes are copied as they are, and metadata are those of BASE. Both must be the same model in different types; every
difference is listed before anything is written.

Without DONOR only the layout of the experts changes. In the adjacent layout gate, up and down of an expert lie side by
side, so that one read from a disk fetches a whole expert; ds4 runs both layouts alike, other programs know the standard
one only.

OUT appears when it is complete. What an interruption leaves in OUT.part is used when the same command runs again."""


def _layers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...]:
    try:
        return () if value is None else parse_layers(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


@click.command("splice", help=_EXAMPLES, short_help="Mix the experts of two model files, or change their layout.")
@click.argument(
    "files", type=click.Path(path_type=Path), nargs=-1, shell_complete=complete_model, metavar="BASE [DONOR] OUT"
)
@click.option(
    "--layers", "--q4-layers", metavar="LIST", callback=_layers, help="Layers of the donor: 37-42 or 0-2,40-42."
)
@click.option("--mtp", is_flag=True, help="Take the experts of the MTP block from the donor too.")
@click.option("--layout", type=click.Choice(LAYOUTS), help="Layout of the experts in OUT. Default: that of BASE.")
@click.option("--record", is_flag=True, help="Note the names of the files and the layers in the metadata of OUT.")
@report_option
@click.option("--dry-run", is_flag=True, help="Print what would be written, and check that it can be.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(
    files: tuple[Path, ...],
    layers: tuple[int, ...],
    mtp: bool,
    layout: str | None,
    record: bool,
    json_file: Path | None,
    dry_run: bool,
    force: bool,
) -> int:
    """Run the command."""
    base, donor, out = _files(files)
    if donor is not None and not layers and not mtp:
        raise click.UsageError("say which layers to take from the donor: --layers 37-42, or --mtp")
    if donor is None and (layers or mtp or record):
        raise click.UsageError("--layers, --mtp and --record need a donor: BASE DONOR OUT")
    if donor is None and layout is None:
        raise click.UsageError("give a donor and --layers, or a --layout")
    keep_apart([out, json_file], [base, donor])
    with plan_splice(base, donor, out, layers=layers, mtp=mtp, layout=layout, record=record) as plan:
        if json_file is not None:
            with OutputFile(json_file) as file:
                plan.check(force=force)
                file.write_json(_facts(plan))
        if dry_run:
            if json_file is None or str(json_file) != "-":
                print("\n".join(_lines(plan)))
            plan.check(force=force)
            return 0
        _write(plan, force)
    note(f"wrote {plan.out}: {len(plan.tensors)} tensors, {show_size(plan.n_bytes)}")
    return 0


def _files(files: tuple[Path, ...]) -> tuple[Path, Path | None, Path]:
    if len(files) not in (2, 3):
        raise click.UsageError(f"BASE DONOR OUT, or BASE OUT to change the layout; {len(files)} names were given")
    return files[0], files[1] if len(files) == 3 else None, files[-1]


def _write(plan: SplicePlan, force: bool) -> None:
    line = ProgressLine("splicing" if plan.donor else "copying", "bytes")
    try:
        splice(plan, force=force, progress=ResumedProgress(line))
    except BaseException:
        line.finish()
        if partial_path(plan.out).exists():
            note(f"{partial_path(plan.out)} keeps the tensors that are complete; the same command goes on with them")
        raise
    line.finish()


def _facts(plan: SplicePlan) -> dict[str, Any]:
    return {
        "base": plan.base.path,
        "donor": plan.donor.path if plan.donor else None,
        "out": str(plan.out),
        "layers": list(plan.layers),
        "mtp": plan.mtp,
        "layout": plan.layout,
        "base_bytes": plan.base.file.file_bytes,
        "out_bytes": plan.n_bytes,
        "size_change": plan.size_change,
        "n_tensors": len(plan.tensors),
        "taken": [{"tensor": name, "from": old, "to": new} for name, old, new in plan.taken],
    }


def _lines(plan: SplicePlan) -> list[str]:
    sign = "+" if plan.size_change >= 0 else "-"
    change = f"{sign}{abs(plan.size_change)} bytes ({sign}{show_size(abs(plan.size_change))})"
    out = [
        f"base    {plan.base.path}: {plan.base.file.file_bytes} bytes ({show_size(plan.base.file.file_bytes)})",
        f"out     {plan.out}: {plan.n_bytes} bytes ({show_size(plan.n_bytes)}), {change}",
        f"        {len(plan.tensors)} tensors, {plan.layout} layout",
    ]
    if plan.donor is not None:
        parts = [f"layers {format_layers(plan.layers)}"] if plan.layers else []
        parts += ["the MTP block"] if plan.mtp else []
        out.insert(1, f"donor   {plan.donor.path}: experts of {' and '.join(parts)}")
        changes = Counter((name.split("_")[-2], old, new) for name, old, new in plan.taken)
        out += [f"        {part:<4} {old} -> {new}, {n} tensors" for (part, old, new), n in changes.items()]
    return out
