"""Output recipes: which tensor type each role of a tensor gets.

Small float tensors stay F32 and the expert tables I32 in every recipe. In the quantized recipes the matrices that
decide selections (router, indexer, compressors, hyper-connections) and the embedding are F16, as in the published
files: they are small, and an error there changes what is computed, not only how exactly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ROLES = ("float", "table", "mixing", "selection", "dense", "experts")
"""What a tensor is for.

float      norms, scales, bases, sinks, router bias
table      expert ids of hash-routed layers
mixing     hyper-connection matrices and the position tables of the compressors: F32 in the checkpoint
selection  embedding, compressor and indexer matrices, router
dense      attention projections, shared expert, output, projections of the MTP block
experts    the routed experts
"""

_LEAVES = {
    "table": ("ffn_gate_tid2eid",),
    "mixing": (
        "hc_attn_fn", "hc_ffn_fn", "output_hc_fn", "hc_head_fn", "attn_compressor_ape", "indexer_compressor_ape",
    ),
    "selection": (
        "token_embd", "ffn_gate_inp", "indexer.attn_q_b", "indexer.proj", "attn_compressor_kv",
        "attn_compressor_gate", "indexer_compressor_kv", "indexer_compressor_gate",
    ),
    "dense": (
        "attn_q_a", "attn_q_b", "attn_kv", "attn_output_a", "attn_output_b", "ffn_gate_shexp", "ffn_up_shexp",
        "ffn_down_shexp", "output", "e_proj", "h_proj", "nextn.eh_proj",
    ),
    "experts": ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
    "float": (
        "hc_attn_base", "hc_ffn_base", "output_hc_base", "hc_head_base", "hc_attn_scale", "hc_ffn_scale",
        "output_hc_scale", "hc_head_scale", "attn_norm", "ffn_norm", "attn_q_a_norm", "attn_kv_a_norm", "attn_sinks",
        "attn_compressor_norm", "indexer_compressor_norm", "exp_probs_b", "output_norm", "norm", "enorm", "hnorm",
        "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm",
    ),
}  # fmt: skip
_ROLE_OF = {leaf: role for role, leaves in _LEAVES.items() for leaf in leaves}
_NAME = re.compile(r"(?:(blk|mtp)\.(\d+)\.)?(.+)\.(?:weight|bias)")

Q4_LAYERS = 6
"""Layers at the end that get Q4_K experts in the recipe q2-q4, or half of the layers of a small model."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Tensor types by role; routed experts have three matrices, and those of the MTP block a type of their own."""

    summary: str
    mixing: str
    selection: str
    dense: str
    gate_up: str
    down: str
    mtp_experts: str
    file_type: int
    """Number of `general.file_type` that other programs show."""


def _published(summary: str, gate_up: str, down: str, mtp_experts: str, file_type: int) -> Recipe:
    return Recipe(summary, "F16", "F16", "Q8_0", gate_up, down, mtp_experts, file_type)


RECIPES: dict[str, Recipe] = {
    "f32": Recipe("all F32", "F32", "F32", "F32", "F32", "F32", "F32", 0),
    "f16": Recipe("all matrices F16", "F16", "F16", "F16", "F16", "F16", "F16", 1),
    "bf16": Recipe("all matrices BF16", "F32", "BF16", "BF16", "BF16", "BF16", "BF16", 32),
    "q8_0": _published("experts, attention and output Q8_0", "Q8_0", "Q8_0", "Q8_0", 7),
    "mxfp4": _published("experts MXFP4: lossless from the published checkpoints", "MXFP4", "MXFP4", "MXFP4", 38),
    "q4": _published("experts Q4_K", "Q4_K", "Q4_K", "Q4_K", 15),
    "q2": _published("experts IQ2_XXS (gate, up) and Q2_K (down)", "IQ2_XXS", "Q2_K", "Q4_K", 19),
    "q2-q4": _published("as q2, but experts of the last layers Q4_K", "IQ2_XXS", "Q2_K", "Q4_K", 19),
    "pro-q2": _published("q2 for the Pro model", "IQ2_XXS", "Q2_K", "Q4_K", 19),
}
"""The recipes by name. Attention, shared experts and output of the quantized ones are Q8_0."""


FILE_TYPES = {
    "F32": 0, "F16": 1, "Q8_0": 7, "Q2_K": 10, "Q4_K": 15, "IQ2_XXS": 19, "BF16": 32, "MXFP4": 38,
}  # fmt: skip
"""Number of `general.file_type` of a file whose values are mostly of a type."""


def split_name(name: str) -> tuple[str | None, int, str]:
    """Split the name of a tensor of a GGUF file: "blk.3.attn_kv.weight" into ("blk", 3, "attn_kv").

    Returns
    -------
    (str or None, int, str)
        "blk", "mtp" or None for a tensor of no layer; the layer, or -1; the rest without its ending.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None, -1, name
    return found[1], int(found[2]) if found[2] else -1, found[3]


def role_of(name: str) -> str | None:
    """Return the role of a tensor of a GGUF file, by its name; None for one that no DeepSeek V4 model has."""
    return _ROLE_OF.get(split_name(name)[2])


def is_mtp(name: str, n_layer: int) -> bool:
    """Whether a tensor belongs to the MTP block: `mtp.N.`, or a layer after the last (llama.cpp's form)."""
    group, layer, _ = split_name(name)
    return group == "mtp" or (group == "blk" and layer >= n_layer)


def default_q4_layers(n_layer: int) -> frozenset[int]:
    """Return the layers with Q4_K experts in the recipe q2-q4: the last six, or half of a small model's."""
    return frozenset(range(n_layer - min(Q4_LAYERS, n_layer // 2), n_layer))


def recipe_type(recipe: str, name: str, n_layer: int, q4_layers: frozenset[int] | None = None) -> str | None:
    """Return the tensor type that a recipe gives to a tensor.

    Parameters
    ----------
    recipe : str
        A key of `RECIPES`.
    name : str
        Name of the tensor in the GGUF file.
    n_layer : int
        Layers of the model without the MTP block.
    q4_layers : frozenset of int, optional
        Layers with Q4_K experts in the recipe q2-q4; `default_q4_layers` unless given.

    Returns
    -------
    str or None
        None for a tensor of no known role.
    """
    role, chosen = role_of(name), RECIPES[recipe]
    if role is None:
        return None
    if role == "float":
        return "F32"
    if role == "table":
        return "I32"
    if role != "experts":
        return str(getattr(chosen, role))
    if is_mtp(name, n_layer):
        return chosen.mtp_experts
    _, layer, leaf = split_name(name)
    if recipe == "q2-q4" and layer in (default_q4_layers(n_layer) if q4_layers is None else q4_layers):
        return "Q4_K"
    return chosen.down if leaf == "ffn_down_exps" else chosen.gate_up
