"""GGUF files of the tiny models, in the layout of ds4 files and in that of llama.cpp's converter.

`write_tiny_gguf` makes the file, `effective_weights` the weights a reader of that file gets back under their official
names, which is what the numpy reference needs to predict the logits of a quantized file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from oracle import tiny_shapes

from support.dequant import decode
from support.gguf_write import (
    GGMLType,
    Raw,
    Tensor,
    Value,
    ValueType,
    array,
    boolean,
    f32,
    make_tensor,
    string,
    u32,
    write_gguf,
)
from support.quant_encode import encode

TypeRule = Callable[[str], GGMLType]
"""GGUF tensor name -> storage type."""

Weights = Mapping[str, NDArray[Any]]

DIALECTS = ("ds4", "llama.cpp")
PARTS = ("all", "main", "mtp")

# ---------------------------------------------------------------------------------------------------------- names

_LEAVES = {
    "hc_attn_fn": "hc_attn_fn",
    "hc_attn_scale": "hc_attn_scale",
    "hc_attn_base": "hc_attn_base",
    "hc_ffn_fn": "hc_ffn_fn",
    "hc_ffn_scale": "hc_ffn_scale",
    "hc_ffn_base": "hc_ffn_base",
    "attn_norm.weight": "attn_norm",
    "ffn_norm.weight": "ffn_norm",
    "attn.wq_a.weight": "attn_q_a",
    "attn.q_norm.weight": "attn_q_a_norm",
    "attn.wq_b.weight": "attn_q_b",
    "attn.wkv.weight": "attn_kv",
    "attn.kv_norm.weight": "attn_kv_a_norm",
    "attn.attn_sink": "attn_sinks",
    "attn.wo_a.weight": "attn_output_a",
    "attn.wo_b.weight": "attn_output_b",
    "attn.compressor.ape": "attn_compressor_ape",
    "attn.compressor.wkv.weight": "attn_compressor_kv",
    "attn.compressor.wgate.weight": "attn_compressor_gate",
    "attn.compressor.norm.weight": "attn_compressor_norm",
    "attn.indexer.wq_b.weight": "indexer.attn_q_b",
    "attn.indexer.weights_proj.weight": "indexer.proj",
    "attn.indexer.compressor.ape": "indexer_compressor_ape",
    "attn.indexer.compressor.wkv.weight": "indexer_compressor_kv",
    "attn.indexer.compressor.wgate.weight": "indexer_compressor_gate",
    "attn.indexer.compressor.norm.weight": "indexer_compressor_norm",
    "ffn.gate.weight": "ffn_gate_inp",
    "ffn.gate.tid2eid": "ffn_gate_tid2eid",
    "ffn.shared_experts.w1.weight": "ffn_gate_shexp",
    "ffn.shared_experts.w3.weight": "ffn_up_shexp",
    "ffn.shared_experts.w2.weight": "ffn_down_shexp",
}
_EXPERT = re.compile(r"ffn\.experts\.(\d+)\.(w[123])\.weight")
_EXPERT_LEAVES = {"w1": "ffn_gate_exps", "w2": "ffn_down_exps", "w3": "ffn_up_exps"}

_ROOT = {
    "embed.weight": "token_embd",
    "head.weight": "output",
    "norm.weight": "output_norm",
    "hc_head_fn": "output_hc_fn",
    "hc_head_base": "output_hc_base",
    "hc_head_scale": "output_hc_scale",
}
_MTP_DS4 = {
    "e_proj.weight": "e_proj",
    "h_proj.weight": "h_proj",
    "enorm.weight": "enorm",
    "hnorm.weight": "hnorm",
    "norm.weight": "norm",
    "hc_head_fn": "hc_head_fn",
    "hc_head_base": "hc_head_base",
    "hc_head_scale": "hc_head_scale",
}
# The two halves of eh_proj stand side by side in one row: columns of e_proj, then columns of h_proj.
_MTP_LLAMA = {
    "e_proj.weight": "nextn.eh_proj",
    "h_proj.weight": "nextn.eh_proj",
    "enorm.weight": "nextn.enorm",
    "hnorm.weight": "nextn.hnorm",
    "norm.weight": "nextn.shared_head_norm",
}


def gguf_name(official: str, config: tiny_shapes.Config, dialect: str = "ds4") -> str:
    """The GGUF tensor that holds an official tensor (several share one: experts, and eh_proj of llama.cpp)."""
    if official in _ROOT:
        return _ROOT[official] + ".weight"
    head, number, leaf = official.split(".", 2)
    prefix = f"blk.{number}."
    if head == "mtp":
        if dialect == "llama.cpp":
            prefix = f"blk.{config['num_hidden_layers'] + int(number)}."
            if leaf.startswith("hc_head_"):
                return _ROOT[leaf] + ".weight"
        else:
            prefix = f"mtp.{number}."
        extra = (_MTP_LLAMA if dialect == "llama.cpp" else _MTP_DS4).get(leaf)
        if extra:
            return f"{prefix}{extra}.weight"
    if leaf == "ffn.gate.bias":
        return prefix + "exp_probs_b.bias"
    expert = _EXPERT.fullmatch(leaf)
    return f"{prefix}{_EXPERT_LEAVES[expert[2]] if expert else _LEAVES[leaf]}.weight"


def _check_part(dialect: str, part: str) -> None:
    if dialect not in DIALECTS or part not in PARTS:
        raise ValueError(f"no such layout: dialect {dialect!r}, part {part!r}")
    if dialect == "llama.cpp" and part == "all":
        raise ValueError("llama.cpp keeps the MTP block in a file of its own: its output_hc_* would clash")


def tensor_values(
    config: tiny_shapes.Config, weights: Weights, dialect: str = "ds4", part: str = "all"
) -> dict[str, NDArray[Any]]:
    """GGUF tensor name -> values in numpy shape, in file order: root, then layer by layer."""
    _check_part(dialect, part)
    keep = {"all": lambda mtp: True, "main": lambda mtp: not mtp, "mtp": lambda mtp: mtp}[part]
    groups: dict[str, list[str]] = {}
    for official in sorted(tiny_shapes.tensor_specs(config), key=_file_order):
        if keep(official.startswith("mtp.")):
            groups.setdefault(gguf_name(official, config, dialect), []).append(official)
    out: dict[str, NDArray[Any]] = {}
    for name, members in groups.items():
        values = [weights[m] for m in members]
        if len(members) == 1:
            out[name] = values[0].astype(np.int32) if values[0].dtype == np.int64 else values[0]
        else:
            out[name] = np.concatenate(values, 1) if name.endswith("eh_proj.weight") else np.stack(values)
    return out


def _file_order(official: str) -> tuple[Any, ...]:
    parts = [int(p) if p.isdigit() else p for p in official.split(".")]
    rank = {"layers": 1, "mtp": 2}.get(str(parts[0]), 0)
    number = parts[1] if rank else 0
    return rank, number, [f"{p:06d}" if isinstance(p, int) else p for p in parts]


# ---------------------------------------------------------------------------------------------------------- types

_ATTENTION = {"attn_q_a", "attn_q_b", "attn_kv", "attn_output_a", "attn_output_b", "e_proj", "h_proj", "nextn.eh_proj"}
_SHARED = {"ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"}
_EXPERTS = set(_EXPERT_LEAVES.values())
_HALF = {
    "token_embd",
    "ffn_gate_inp",
    "indexer.attn_q_b",
    "indexer.proj",
    "attn_compressor_kv",
    "attn_compressor_gate",
    "indexer_compressor_kv",
    "indexer_compressor_gate",
}
_APE = {"attn_compressor_ape", "indexer_compressor_ape"}
_HC = {"hc_attn_fn", "hc_ffn_fn", "output_hc_fn", "hc_head_fn"}
MATRICES = _ATTENTION | _SHARED | _EXPERTS | _HALF | _HC | {"output"}
"""Leaf names of the tensors that are multiplied with; the others are norms, scales, biases and tables."""


def leaf_of(name: str) -> str:
    """``blk.3.attn_q_a.weight`` -> ``attn_q_a``."""
    return re.sub(r"^(blk|mtp)\.\d+\.", "", name).removesuffix(".weight")


def types_f32(name: str) -> GGMLType:
    """Everything F32: no rounding anywhere."""
    return GGMLType.I32 if leaf_of(name) == "ffn_gate_tid2eid" else GGMLType.F32


def types_bf16(name: str) -> GGMLType:
    """Matrices BF16: the same values as F32 in half the space, since the weights are BF16-exact."""
    return GGMLType.BF16 if leaf_of(name) in MATRICES else types_f32(name)


def types_f16(name: str) -> GGMLType:
    """Matrices and position encodings F16; differs from F32 only in subnormal weights."""
    return GGMLType.F16 if leaf_of(name) in MATRICES | _APE else types_f32(name)


def types_q8(name: str) -> GGMLType:
    """Matrices Q8_0, experts included."""
    return GGMLType.Q8_0 if leaf_of(name) in MATRICES else types_f32(name)


def _ds4_recipe(gate_up: GGMLType, down: GGMLType) -> TypeRule:
    def rule(name: str) -> GGMLType:
        leaf = leaf_of(name)
        if leaf in _EXPERTS:
            if name.startswith("mtp."):
                return GGMLType.Q4_K
            return down if leaf == "ffn_down_exps" else gate_up
        if leaf in _ATTENTION | _SHARED | {"output"}:
            return GGMLType.Q8_0
        if leaf in _HALF | _APE or (leaf in _HC and not name.startswith("mtp.")):
            return GGMLType.F16
        return types_f32(name)

    return rule


def _types_llama(name: str) -> GGMLType:
    leaf = leaf_of(name)
    if leaf in _EXPERTS:
        return GGMLType.MXFP4
    if leaf in {"attn_output_a", "output"} | (_HALF - {"indexer.attn_q_b"}):
        return GGMLType.BF16
    if leaf in _ATTENTION | _SHARED | {"indexer.attn_q_b"}:
        return GGMLType.Q8_0
    return types_f32(name)


RECIPES: dict[str, TypeRule] = {
    "f32": types_f32,
    "bf16": types_bf16,
    "f16": types_f16,
    "q8": types_q8,
    "ds4-q2": _ds4_recipe(GGMLType.IQ2_XXS, GGMLType.Q2_K),
    "ds4-q4": _ds4_recipe(GGMLType.Q4_K, GGMLType.Q4_K),
    "llama-mxfp4": _types_llama,
}
"""The type mixes of published files (`ds4-q2`, `ds4-q4`, `llama-mxfp4`) and simple ones."""


def effective_weights(
    variant: str, types: TypeRule = types_f32, *, dialect: str = "ds4", weights: Weights | None = None
) -> tiny_shapes.Weights:
    """What is left of the weights after storing them with these types, under official names, float32."""
    config = tiny_shapes.VARIANTS[variant]
    source = tiny_shapes.weights_of(variant) if weights is None else weights
    out: tiny_shapes.Weights = {}
    for official, values in source.items():
        kind = types(gguf_name(official, config, dialect))
        exact = kind in (GGMLType.F32, GGMLType.I32)
        out[official] = values if exact else decode(kind, encode(kind, values), values.shape)
    return out


# ------------------------------------------------------------------------------------------------------- tokenizer

_MERGES = (
    # Every merged token can be split into two tokens in one way only, so that applying the list and joining the pair
    # with the lowest id are the same rule. Some tokens are parts of UTF-8 sequences.
    "Ġ t|h e|i n|r e|o n|e r|Ġ a|a t|Ġt he|i s|e n|o r|Ġ s|n d|e s|o u|Ġ in|Ġ o|in g|e d|Ġa nd|Ġo f|l l|a ll|c all"
    "|call s|t o|o l|to ol|_ calls|tool _calls|Ċ Ċ|. ĊĊ|Ġ Ġ|ĠĠ ĠĠ|> Ċ|< /|1 0|2 0|0 0|( )|() ;|Ġ =|= =|a r|g s|ar gs"
    "|Ã ©|Ã ¨|ä ½|ä½ ł|å ¥|å¥ ½|ï ¼|ï¼ ģ|â Ģ|âĢ Ļ|ð Ł|ðŁ ĺ"
)
PROTOCOL_TOKENS = (
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
)
_SPECIAL = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
_USER_DEFINED = {"<think>", "</think>", "｜DSML｜"}
FIRST_MERGE = 259


def byte_alphabet() -> list[str]:
    """The GPT-2 alphabet in the order of token ids: entry k stands for byte `byte_order()[k]`."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in plain] + [chr(256 + k) for k in range(256 - len(plain))]


def byte_order() -> list[int]:
    """The byte of each entry of `byte_alphabet`."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return plain + [b for b in range(256) if b not in set(plain)]


def vocabulary(size: int = 512) -> tuple[list[str], list[int], list[str]]:
    """Tokens, token types and merges: the structure of the real table in small.

    Three specials, 256 bytes, one token per merge, placeholders, and the protocol tokens as the last ids.
    """
    merges = _MERGES.split("|")
    tokens = [*_SPECIAL, *byte_alphabet(), *(m.replace(" ", "") for m in merges)]
    n_learned = len(tokens)
    n_placeholder = size - n_learned - len(PROTOCOL_TOKENS)
    tokens += [f"<｜place▁holder▁no▁{k}｜>" for k in range(n_placeholder)]
    tokens += PROTOCOL_TOKENS
    normal, control, user_defined = 1, 3, 4
    types = [control] * 3 + [normal] * (n_learned - 3) + [control] * n_placeholder
    types += [user_defined if t in _USER_DEFINED else control for t in PROTOCOL_TOKENS]
    return tokens, types, merges


def tokenizer_metadata(size: int = 512) -> dict[str, Value | Raw]:
    tokens, types, merges = vocabulary(size)
    return {
        "tokenizer.ggml.model": string("gpt2"),
        "tokenizer.ggml.pre": string("joyai-llm"),
        "tokenizer.ggml.tokens": array(ValueType.STRING, tokens),
        "tokenizer.ggml.token_type": array(ValueType.I32, types),
        "tokenizer.ggml.merges": array(ValueType.STRING, merges),
        "tokenizer.ggml.bos_token_id": u32(0),
        "tokenizer.ggml.eos_token_id": u32(1),
        "tokenizer.ggml.padding_token_id": u32(1),
        "tokenizer.ggml.add_bos_token": boolean(False),
    }


# --------------------------------------------------------------------------------------------------------- metadata


def model_metadata(variant: str, dialect: str = "ds4", part: str = "all") -> dict[str, Value | Raw]:
    """Architecture keys of a tiny model, types as the respective converter writes them."""
    _check_part(dialect, part)
    c = tiny_shapes.VARIANTS[variant]
    llama = dialect == "llama.cpp"
    n_layer, n_mtp = c["num_hidden_layers"], c["num_nextn_predict_layers"]
    n_block = n_layer + n_mtp if llama and part == "mtp" else n_layer
    yarn = c["rope_scaling"]
    p = "deepseek4."
    keys: dict[str, Value | Raw] = {
        "general.architecture": string("deepseek4"),
        "general.name": string(f"ds4 test {variant}" + (" MTP" if part == "mtp" else "")),
        p + "block_count": u32(n_block),
        p + "context_length": u32(c["max_position_embeddings"]),
        p + "embedding_length": u32(c["hidden_size"]),
        p + "vocab_size": u32(c["vocab_size"]),
        p + "attention.head_count": u32(c["num_attention_heads"]),
        p + "attention.head_count_kv": u32(c["num_key_value_heads"]),
        p + "attention.key_length": u32(c["head_dim"]),
        p + "attention.value_length": u32(c["head_dim"]),
        p + "attention.q_lora_rank": u32(c["q_lora_rank"]),
        p + "attention.output_lora_rank": u32(c["o_lora_rank"]),
        p + "attention.output_group_count": u32(c["o_groups"]),
        p + "attention.sliding_window": u32(c["sliding_window"]),
        p + "attention.layer_norm_rms_epsilon": f32(c["rms_norm_eps"]),
        p + "attention.compress_rope_freq_base": f32(c["compress_rope_theta"]),
        p + "attention.compress_ratios": array(
            ValueType.I32 if llama else ValueType.U32, c["compress_ratios"][: n_layer + n_mtp]
        ),
        p + "attention.indexer.head_count": u32(c["index_n_heads"]),
        p + "attention.indexer.key_length": u32(c["index_head_dim"]),
        p + "attention.indexer.top_k": u32(c["index_topk"]),
        p + "rope.dimension_count": u32(c["qk_rope_head_dim"]),
        p + "rope.freq_base": f32(c["rope_theta"]),
        p + "rope.scaling.factor": f32(yarn["factor"]),
        p + "rope.scaling.original_context_length": u32(yarn["original_max_position_embeddings"]),
        p + "rope.scaling.yarn_beta_fast": f32(yarn["beta_fast"]),
        p + "rope.scaling.yarn_beta_slow": f32(yarn["beta_slow"]),
        p + "expert_count": u32(c["n_routed_experts"]),
        p + "expert_used_count": u32(c["num_experts_per_tok"]),
        p + "expert_shared_count": u32(c["n_shared_experts"]),
        p + "expert_feed_forward_length": u32(c["moe_intermediate_size"]),
        p + "expert_weights_scale": f32(c["routed_scaling_factor"]),
        p + "expert_weights_norm": boolean(c["norm_topk_prob"]),
        p + "expert_group_count": u32(0),
        p + "expert_group_used_count": u32(0),
        p + "hash_layer_count": u32(c["num_hash_layers"]),
        p + "hyper_connection.count": u32(c["hc_mult"]),
        p + "hyper_connection.sinkhorn_iterations": u32(c["hc_sinkhorn_iters"]),
        p + "hyper_connection.epsilon": f32(c["hc_eps"]),
        p + "swiglu_clamp_exp": array(ValueType.F32, [c["swiglu_limit"]] * n_block),
    }
    if llama:
        keys[p + "swiglu_clamp_shexp"] = array(ValueType.F32, [c["swiglu_limit"]] * n_block)
        keys[p + "expert_gating_func"] = u32(4)
        keys[p + "embedding_length_out"] = u32(c["hc_mult"] * c["hidden_size"])
        keys[p + "rope.scaling.type"] = string("yarn")
        if part == "mtp":
            keys[p + "nextn_predict_layers"] = u32(n_mtp)
    return keys


def tiny_metadata(variant: str, dialect: str = "ds4", part: str = "all") -> dict[str, Value | Raw]:
    """All metadata of a tiny file, tokenizer included."""
    return {
        **model_metadata(variant, dialect, part),
        **tokenizer_metadata(tiny_shapes.VARIANTS[variant]["vocab_size"]),
    }


# ------------------------------------------------------------------------------------------------------------ files


def tiny_tensors(
    variant: str,
    *,
    dialect: str = "ds4",
    part: str = "all",
    types: TypeRule = types_f32,
    weights: Weights | None = None,
) -> list[Tensor]:
    """The tensors of a tiny file, encoded."""
    config = tiny_shapes.VARIANTS[variant]
    source = tiny_shapes.weights_of(variant) if weights is None else weights
    out = []
    for name, values in tensor_values(config, source, dialect, part).items():
        kind = types(name)
        out.append(make_tensor(name, kind, values.shape, encode(kind, values)))
    return out


def write_tiny_gguf(
    path: Path,
    variant: str,
    *,
    dialect: str = "ds4",
    part: str = "all",
    types: TypeRule = types_f32,
    weights: Weights | None = None,
    changes: Mapping[str, Value | Raw | None] | None = None,
    tensors: Sequence[Tensor] | None = None,
) -> Path:
    """Write a tiny model.

    Parameters
    ----------
    dialect
        ``ds4``: MTP tensors named ``mtp.0.*``, in the same file (part ``all``) or alone (part ``mtp``).
        ``llama.cpp``: MTP block as one more layer, only in a file of its own (parts ``main`` and ``mtp``).
    types
        Storage type by tensor name; see `RECIPES`.
    weights
        Official names; by default those of the golden data.
    changes
        Metadata to replace or add; None removes a key.
    tensors
        Instead of `tiny_tensors`, to write a file with something wrong.
    """
    metadata = {**tiny_metadata(variant, dialect, part), **(changes or {})}
    if tensors is None:
        tensors = tiny_tensors(variant, dialect=dialect, part=part, types=types, weights=weights)
    return write_gguf(path, {k: v for k, v in metadata.items() if v is not None}, tensors)
