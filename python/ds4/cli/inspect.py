"""``ds4 inspect``: what a GGUF file holds, and whether ds4 runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ds4 import ModelFileError

from .completion import complete_model
from .facts import file_facts
from .gguf_head import head_facts
from .memory import show_size
from .options import DEFAULT_CONTEXT, MAX_CONTEXT, Whole, take

_EXAMPLES = """\b
Examples:
  ds4 inspect flash.gguf
  ds4 inspect flash.gguf --ctx 131072
  ds4 inspect other.gguf --json

Reads the head of the file, not the weights. Works on GGUF files of any architecture, and tells what an unfinished
download will be. The exit status is 1 when ds4 does not run the file on this machine."""

_SUPPORTED = "ds4 runs DeepSeek V4 Flash and Pro (architecture deepseek4)"


@click.command("inspect", help=_EXAMPLES, short_help="Show what a model file holds, and whether it runs.")
@click.argument("file", type=click.Path(path_type=Path), shell_complete=complete_model)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "-c",
    "--ctx",
    type=Whole(1, MAX_CONTEXT),
    default=DEFAULT_CONTEXT,
    show_default=True,
    metavar="N",
    help="Context of the memory plan.",
)
@take("simulate_memory")
def command(file: Path, as_json: bool, ctx: int, simulate_memory: int | None) -> int:
    """Run the command."""
    try:
        facts = file_facts(file, ctx, simulate_memory)
    except ModelFileError as error:
        # Cut short, perhaps: the head alone tells a lot. Anything else is the error that it is.
        head = head_facts(file)
        if head is None:
            raise
        facts = {**head, "differences": [str(error)]}
    facts["runs"] = facts["loads"] and facts["memory"]["fits"] is not False
    if as_json:
        print(json.dumps(facts, ensure_ascii=False, indent=1))
    else:
        print("\n".join(_lines(facts)))
    return 0 if facts["runs"] else 1


def _lines(facts: dict[str, Any]) -> list[str]:
    out = [f"{facts['file']}: GGUF version {facts['version']}, {_bytes(facts['file_bytes'])}"]
    name = f" ({facts['name']})" if facts["name"] else ""
    out.append(f"architecture   {facts['architecture']}{name}")
    if facts.get("needed_bytes"):
        out.append(f"incomplete     {facts['file_bytes']} of {facts['needed_bytes']} bytes are here")
    if facts["n_tensors"] is not None:
        values = facts["n_parameters"]
        size = "" if values is None else f", {values / 1e9:.3f} billion values"
        out.append(f"tensors        {facts['n_tensors']}{size}")
    if facts.get("shape"):
        out += _shape_lines(facts["shape"])
    if facts.get("recipe"):
        out.append("recipe         " + ", ".join(f"{k} {v}" for k, v in facts["recipe"].items()))
    if facts.get("expert_layout", "standard") != "standard":
        out.append(f"experts        {facts['expert_layout']} layout")
    out += _group_lines(facts.get("groups", []))
    if facts.get("tokenizer"):
        t = facts["tokenizer"]
        out.append(
            f"tokenizer      {t['model']}/{t['pre']}: {t['n_tokens']} tokens, {t['n_merges']} merges, "
            f"BOS {t['bos_id']}, EOS {t['eos_id']}"
        )
        out += [f"  not usable: {t['problem']}"] if t.get("problem") else []
    if facts.get("memory"):
        out += _memory_lines(facts["memory"])
    if facts.get("streaming"):
        out += _streaming_lines(facts["streaming"])
    out += [f"warning        {w}" for w in facts.get("warnings", [])]
    return out + _verdict(facts)


def _shape_lines(shape: dict[str, Any]) -> list[str]:
    ratios = shape["compress_ratio"]
    kinds = ", ".join(f"{ratios.count(r)} of ratio {r}" for r in (0, 4, 128) if r in ratios)
    return [
        f"shape          {shape['name']}: {shape['n_layer']} layers ({kinds}), width {shape['n_embd']}, "
        f"vocabulary {shape['n_vocab']}",
        f"               {shape['n_head']} heads of {shape['head_dim']}, {shape['n_expert']} experts of width "
        f"{shape['n_ff']}, {shape['n_expert_used']} used and {shape['n_expert_shared']} shared",
        f"               window {shape['window']}, indexer {shape['n_index_head']} x {shape['index_dim']} choosing "
        f"{shape['index_top_k']}, {shape['n_hc']} streams, {shape['n_hash_layer']} hash-routed layers",
    ]


def _group_lines(groups: list[dict[str, Any]]) -> list[str]:
    if not groups:
        return []
    out = ["weights"]
    for group in groups:
        types = ", ".join(f"{kind} x {n}" for kind, n in group["types"].items())
        out.append(f"  {group['group']:<16} {_bytes(group['bytes']):>36}   {types}")
    return out


def _memory_lines(memory: dict[str, Any]) -> list[str]:
    parts = ("window", "compressed", "indexer", "compressor", "scratch", "checkpoint")
    detail = ", ".join(f"{part} {show_size(memory[f'{part}_bytes'])}" for part in parts)
    available = memory["available_bytes"]
    when = "simulated" if memory["simulated"] else "available now"
    room = "" if available is None else f"; {show_size(available)} are {when}"
    return [
        f"memory         context {memory['n_ctx']}: weights {show_size(memory['weights_bytes'])} + session "
        f"{show_size(memory['total_session_bytes'])}{room}",
        f"               ({detail})",
    ]


def _streaming_lines(streaming: dict[str, Any]) -> list[str]:
    out = [
        f"streaming      {streaming['n_experts']} experts of {show_size(streaming['expert_bytes'])} beside "
        f"{show_size(streaming['resident_bytes'])} of other weights; takes at least "
        f"{show_size(streaming['least_bytes'])}, session included"
    ]
    auto = streaming["auto"]
    if auto is None:
        return [*out, f"               {streaming['problem']}"]
    return [
        *out,
        f"               --expert-cache auto: {show_size(auto['cache_bytes'])} for {auto['n_experts']} experts "
        f"({100 * auto['share']:.0f} %), {show_size(auto['total_bytes'])} in all",
    ]


def _verdict(facts: dict[str, Any]) -> list[str]:
    if facts["runs"]:
        return ["runs           yes"]
    if facts["loads"]:
        memory = facts["memory"]
        needed = memory["weights_bytes"] + memory["total_session_bytes"]
        streams = facts["streaming"] and facts["streaming"]["auto"]
        return [
            f"runs           no: needs {show_size(needed)}, {show_size(memory['available_bytes'])} available "
            f"{'as simulated' if memory['simulated'] else 'here'}; "
            f"{'--expert-cache auto streams its experts, ' if streams else ''}--force-memory would insist"
        ]
    out = ["runs           no"]
    if facts["architecture"] != "deepseek4":
        out.append(f"  this is a model of architecture {facts['architecture']}; {_SUPPORTED}")
    for difference in facts["differences"]:
        out += [f"  {line}" for line in difference.splitlines()]
    return out


def _bytes(n: int) -> str:
    return f"{n} bytes ({show_size(n)})" if n >= 1024 else f"{n} bytes"
