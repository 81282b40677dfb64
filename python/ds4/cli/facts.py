"""The facts of a GGUF file that `ds4 inspect` shows, as plain data."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ds4 import DS4Error, GGUFFile, Model, ModelFileError, Tokenizer
from ds4.budget import cache_beside, expert_plan
from ds4.gguf import GGUFTensor
from ds4.gguf_experts import WeightView, expert_layout, standard_tensors

from .memory import available_memory

ARCHITECTURE = "deepseek4"

_GROUPS: tuple[tuple[str, str], ...] = (
    ("mtp", r"^mtp\.|\.nextn\."),
    ("routed experts", r"_exps\."),
    ("shared experts", r"_shexp\."),
    ("router", r"\.ffn_gate_inp\.|\.exp_probs_b\.|tid2eid"),
    ("indexer", r"\.indexer[._]"),
    ("compressor", r"\.attn_compressor_"),
    ("hyper-connections", r"(^|[._])hc_"),
    ("norms", r"_norm\."),
    ("attention", r"\.attn_"),
    ("embedding", r"^token_embd\."),
    ("output", r"^output\."),
    ("other", r""),
)
"""Groups of tensors, the first match counts."""

_RECIPE = {
    "experts": r"ffn_(gate|up)_exps\.",
    "experts down": r"ffn_down_exps\.",
    "attention": r"^blk\.\d+\.attn_(q_a|q_b|kv|output_a|output_b)\.weight",
    "shared experts": r"_shexp\.",
    "output": r"^output\.weight",
    "embedding": r"^token_embd\.",
}


def file_facts(path: Path, n_ctx: int, simulated: int | None = None) -> dict[str, Any]:
    """Return what a file holds and whether ds4 runs it.

    Raises
    ------
    OSError
        The file cannot be opened.
    ModelFileError
        It is damaged, cut short, or no GGUF file.
    """
    with GGUFFile(path) as file:
        metadata = file.metadata
        architecture = str(metadata.get("general.architecture", "unknown"))
        tensors, layout = _tensors(file)
        facts: dict[str, Any] = {
            "file": str(path),
            "file_bytes": file.file_bytes,
            "version": file.version,
            "alignment": file.alignment,
            "architecture": architecture,
            "name": str(metadata.get("general.name", "")),
            "n_kv": len(metadata),
            "n_tensors": len(file.tensors),
            "expert_layout": layout,
            "n_parameters": sum(t.size for t in tensors),
            "groups": _groups(tensors, detailed=architecture == ARCHITECTURE),
            "recipe": _recipe(tensors),
            "tokenizer": _tokenizer(metadata, check=architecture == ARCHITECTURE),
        }
    if _is_mtp_only(tensors):
        text = "it holds an MTP block only: give it with --mtp beside the file of the model"
        return facts | {"loads": False, "differences": [text]}
    try:
        with Model.open(path) as model:
            plan = model.memory_plan(n_ctx)
            available = available_memory() if simulated is None else simulated
            needed = plan.weights_bytes + plan.total_session_bytes
            memory = {"available_bytes": available, "simulated": simulated is not None}
            memory["fits"] = None if available is None else needed <= available
            facts |= {
                "shape": dataclasses.asdict(model.shape),
                "has_mtp": model.has_mtp,
                "memory": {"n_ctx": n_ctx, **dataclasses.asdict(plan), **memory},
                "streaming": _streaming(path, model, n_ctx, available),
                "warnings": list(model.warnings),
                "fingerprint": model.fingerprint.hex(),
                "loads": True,
                "differences": [],
            }
    except (DS4Error, ValueError) as error:
        text = str(error)
        facts |= {"loads": False, "differences": [text.removeprefix(f"{path}: ")]}
    if facts["tokenizer"] is None or facts["tokenizer"]["problem"]:
        facts["loads"] = False
        problem = "it has no tokenizer" if facts["tokenizer"] is None else facts["tokenizer"]["problem"]
        facts["differences"].append(problem)
    return facts


def _streaming(path: Path, model: Model, n_ctx: int, available: int | None) -> dict[str, Any] | None:
    """Return what streaming routed experts takes, and the cache that `auto` would have; None if there are none."""
    plan = expert_plan([path])
    if not plan.n_experts:
        return None
    need = model.session_need(n_ctx)
    facts: dict[str, Any] = {
        "resident_bytes": plan.resident_bytes,
        "expert_bytes": plan.slot_bytes,
        "n_experts": plan.n_experts,
        "least_cache_bytes": plan.slot_bytes,
        "least_bytes": plan.resident_bytes + plan.slot_bytes + need.short,
        "auto": None,
        "problem": None,
    }
    try:
        cache = cache_beside(plan, available, need)
    except ValueError as error:
        return facts | {"problem": str(error)}
    session = need.beside(plan, cache)
    facts["auto"] = {
        "cache_bytes": cache,
        "n_experts": cache // plan.slot_bytes,
        "share": round(cache / plan.all_bytes, 6),
        "session_bytes": session,
        "total_bytes": plan.resident_bytes + cache + session,
    }
    return facts


def _tensors(file: GGUFFile) -> tuple[list[GGUFTensor | WeightView], str]:
    """Return the tensors as the standard layout has them, and the layout; with damaged records as they stand."""
    try:
        return list(standard_tensors(file).values()), expert_layout(file)
    except ModelFileError:  # opening the model tells what is wrong
        return list(file.tensors.values()), "damaged"


def _groups(tensors: Iterable[GGUFTensor | WeightView], *, detailed: bool) -> list[dict[str, Any]]:
    """Sum tensors by group, the largest first; one group when the names mean nothing to ds4."""
    n_bytes: Counter[str] = Counter()
    types: dict[str, Counter[str]] = {}
    for tensor in tensors:
        group = next(g for g, pattern in _GROUPS if re.search(pattern, tensor.name)) if detailed else "all"
        n_bytes[group] += tensor.n_bytes
        types.setdefault(group, Counter())[tensor.type] += 1
    return [
        {"group": group, "bytes": n, "n_tensors": types[group].total(), "types": dict(types[group].most_common())}
        for group, n in n_bytes.most_common()
    ]


def _is_mtp_only(tensors: Iterable[GGUFTensor | WeightView]) -> bool:
    names = [t.name for t in tensors]
    has_block = any(re.search(_GROUPS[0][1], name) for name in names)
    return has_block and "token_embd.weight" not in names


def _recipe(tensors: Iterable[GGUFTensor | WeightView]) -> dict[str, str]:
    """Return the tensor types of the parts that recipes differ in."""
    found: dict[str, Counter[str]] = {}
    for tensor in tensors:
        if tensor.name.startswith("mtp."):
            continue
        for part, pattern in _RECIPE.items():
            if re.search(pattern, tensor.name):
                found.setdefault(part, Counter())[tensor.type] += 1
    out = {part: "/".join(kind for kind, _ in found[part].most_common()) for part in _RECIPE if part in found}
    if out.get("experts down") == out.get("experts"):
        out.pop("experts down", None)
    return out


def _tokenizer(metadata: Mapping[str, Any], *, check: bool) -> dict[str, Any] | None:
    prefix = "tokenizer.ggml."
    tokens, merges = metadata.get(prefix + "tokens"), metadata.get(prefix + "merges")
    if not isinstance(tokens, list):
        return None
    problem = None
    if check:
        try:
            Tokenizer.from_gguf_metadata(metadata)
        except (ValueError, TypeError) as error:
            problem = str(error)
    return {
        "model": str(metadata.get(prefix + "model", "unknown")),
        "pre": str(metadata.get(prefix + "pre", "unknown")),
        "n_tokens": len(tokens),
        "n_merges": len(merges) if isinstance(merges, list) else 0,
        "bos_id": metadata.get(prefix + "bos_token_id"),
        "eos_id": metadata.get(prefix + "eos_token_id"),
        "problem": problem,
    }
