"""Names of entries: which tensors are stacks of experts, and the official names of tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator

_STACKED = re.compile(r"(blk|mtp)\.\d+\.ffn_(gate|up|down)_exps\.weight")
_BLOCK = re.compile(r"(?:blk\.(\d+)|(mtp\.\d+))\.(.+)\.weight")
_OFFICIAL = {
    "attn_q_a": "attn.wq_a",
    "attn_q_b": "attn.wq_b",
    "attn_kv": "attn.wkv",
    "attn_output_a": "attn.wo_a",
    "attn_output_b": "attn.wo_b",
    "attn_compressor_kv": "attn.compressor.wkv",
    "attn_compressor_gate": "attn.compressor.wgate",
    "indexer.attn_q_b": "attn.indexer.wq_b",
    "indexer.proj": "attn.indexer.weights_proj",
    "indexer_compressor_kv": "attn.indexer.compressor.wkv",
    "indexer_compressor_gate": "attn.indexer.compressor.wgate",
    "ffn_gate_inp": "ffn.gate",
    "ffn_gate_shexp": "ffn.shared_experts.w1",
    "ffn_down_shexp": "ffn.shared_experts.w2",
    "ffn_up_shexp": "ffn.shared_experts.w3",
    "ffn_gate_exps": "ffn.experts.{}.w1",
    "ffn_down_exps": "ffn.experts.{}.w2",
    "ffn_up_exps": "ffn.experts.{}.w3",
    "e_proj": "e_proj",
    "h_proj": "h_proj",
}
_PART_ORDER = {"gate": 0, "up": 1, "down": 2}


def is_stack(name: str) -> bool:
    """Whether a tensor of this name holds one matrix for each expert."""
    return _STACKED.fullmatch(name) is not None


def official_name(name: str, expert: int) -> str | None:
    """Return the name in the official checkpoint of a matrix with a GGUF name, or None if it has none."""
    if name in ("token_embd.weight", "output.weight"):
        return {"token_embd.weight": "embed.weight", "output.weight": "head.weight"}[name]
    found = _BLOCK.fullmatch(name)
    if found is None or found[3] not in _OFFICIAL:
        return None
    prefix = f"layers.{found[1]}" if found[1] is not None else found[2]
    return f"{prefix}.{_OFFICIAL[found[3]].format(expert)}.weight"


def entry_names(name: str, expert: int) -> Iterator[str]:
    """Yield the names under which the importance of one matrix may stand, the first choice first."""
    for base in (name, official_name(name, expert)):
        if base is not None:
            yield f"{base}.expert.{expert}"
            yield f"{base}.expert_{expert}"
            yield base


def file_order(name: str) -> tuple[int, int, int]:
    """Return a sort key: routed experts by layer, in the order gate, up, down; then the MTP block's, then the rest."""
    found = re.fullmatch(r"(blk|mtp)\.(\d+)\.ffn_(gate|up|down)_exps\.weight", name)
    if found is None:
        return (2, 0, 0)
    return (0 if found[1] == "blk" else 1, int(found[2]), _PART_ORDER[found[3]])
