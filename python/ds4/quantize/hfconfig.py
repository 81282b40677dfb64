"""config.json of an official checkpoint: checked, and turned into the `deepseek4.*` keys of a GGUF file.

Everything that a key of the GGUF file cannot express must have the one value that DeepSeek V4 has: another value
means another computation, and is refused here instead of giving wrong text later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from ds4.gguf_writer import KV

from .safetensors import CheckpointError, shown

MODEL_TYPE = "deepseek_v4"
ARCHITECTURE = "deepseek4"

_GATING_SQRT_SOFTPLUS = 4
"""Number that llama.cpp gives to the router function sqrt(softplus(x)) in `expert_gating_func`."""

_MAX_LAYERS = 128
_MAX_EXPERTS = 4096
"""What decides how many tensors are listed is bounded, well above what ds4 runs."""

_MAX_COUNT = 1 << 31

_FIXED: dict[str, Any] = {
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "hidden_act": "silu",
    "num_key_value_heads": 1,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
"""Settings without a GGUF key; missing ones have these values."""

_FP8_METHOD = "fp8"
_FP8_FIXED: dict[str, Any] = {"fmt": "e4m3", "scale_fmt": "ue8m0"}
_FP8_BLOCK = [128, 128]
_EXPERT_DTYPES = ("fp4", "fp8", "bf16")


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of config.json that decide shapes and arithmetic, under the names of the GGUF keys."""

    n_layer: int
    n_embd: int
    n_vocab: int
    n_head: int
    head_dim: int
    n_rot: int
    q_lora: int
    o_lora: int
    o_groups: int
    n_expert: int
    n_expert_used: int
    n_expert_shared: int
    n_ff: int
    n_hash_layer: int
    window: int
    n_index_head: int
    index_dim: int
    index_top_k: int
    n_hc: int
    sinkhorn_iterations: int
    n_mtp: int
    n_ctx: int
    expert_scale: float
    norm_eps: float
    hc_eps: float
    swiglu_clamp: float
    rope_base: float
    compress_rope_base: float
    yarn: Mapping[str, float] | None
    compress_ratios: tuple[int, ...]
    fp8: bool
    """Whether weights may be stored in FP8 with 128 x 128 scales, and experts in FP4."""


class _Reader:
    """Takes values out of config.json and collects what is wrong with them."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.faults: list[str] = []

    def count(self, key: str, default: int | None = None, least: int = 1, most: int = _MAX_COUNT - 1) -> int:
        value = self.config.get(key, default)
        if type(value) is not int or not least <= value <= most:
            self.faults.append(f"{key} is {self._found(value)}, expected a whole number of {least} to {most}")
            return least
        return value

    def number(self, key: str) -> float:
        value = self.config.get(key)
        if not _is_positive(value, 1e30):
            self.faults.append(f"{key} is {self._found(value)}, expected a positive number")
            return 1.0
        return float(value)

    def fixed(self, key: str, wanted: Any) -> None:
        value = self.config.get(key, wanted)
        if value != wanted:
            self.faults.append(f"{key} is {self._found(value)}, DeepSeek V4 has {wanted!r}")

    @staticmethod
    def _found(value: Any) -> str:
        return "missing" if value is None else shown(str(value))


def _is_positive(value: Any, limit: float) -> TypeGuard[float]:
    return type(value) in (int, float) and 0 < value < limit


def read_shape(config: Mapping[str, Any]) -> Shape:
    """Read config.json.

    Raises
    ------
    CheckpointError
        Another architecture, another quantization than the published one, or values that are missing, out of range or
        unknown; all of them are listed.
    """
    kind = config.get("model_type")
    if kind != MODEL_TYPE:
        raise CheckpointError(
            f"config.json: model_type is {shown(str(kind))}; ds4 converts {MODEL_TYPE!r} (DeepSeek V4 Flash and Pro)"
        )
    r = _Reader(config)
    for key, wanted in _FIXED.items():
        r.fixed(key, wanted)
    n_layer = r.count("num_hidden_layers", most=_MAX_LAYERS)
    shape = Shape(
        n_layer=n_layer,
        n_embd=r.count("hidden_size"),
        n_vocab=r.count("vocab_size"),
        n_head=r.count("num_attention_heads"),
        head_dim=r.count("head_dim"),
        n_rot=r.count("qk_rope_head_dim"),
        q_lora=r.count("q_lora_rank"),
        o_lora=r.count("o_lora_rank"),
        o_groups=r.count("o_groups"),
        n_expert=r.count("n_routed_experts", most=_MAX_EXPERTS),
        n_expert_used=r.count("num_experts_per_tok"),
        n_expert_shared=r.count("n_shared_experts"),
        n_ff=r.count("moe_intermediate_size"),
        n_hash_layer=r.count("num_hash_layers", 0, least=0, most=_MAX_LAYERS),
        window=r.count("sliding_window"),
        n_index_head=r.count("index_n_heads"),
        index_dim=r.count("index_head_dim"),
        index_top_k=r.count("index_topk"),
        n_hc=r.count("hc_mult"),
        sinkhorn_iterations=r.count("hc_sinkhorn_iters"),
        n_mtp=r.count("num_nextn_predict_layers", 0, least=0),
        n_ctx=r.count("max_position_embeddings"),
        expert_scale=r.number("routed_scaling_factor"),
        norm_eps=r.number("rms_norm_eps"),
        hc_eps=r.number("hc_eps"),
        swiglu_clamp=r.number("swiglu_limit"),
        rope_base=r.number("rope_theta"),
        compress_rope_base=r.number("compress_rope_theta"),
        yarn=_yarn(r),
        compress_ratios=_ratios(r, n_layer),
        fp8=_quantization(r),
    )
    if shape.n_head * shape.head_dim % shape.o_groups:
        r.faults.append(f"o_groups {shape.o_groups} does not divide {shape.n_head} heads of {shape.head_dim}")
    if shape.n_hash_layer > n_layer:
        r.faults.append(f"num_hash_layers {shape.n_hash_layer} is more than num_hidden_layers {n_layer}")
    if shape.n_expert_used > shape.n_expert:
        r.faults.append(f"num_experts_per_tok {shape.n_expert_used} is more than n_routed_experts {shape.n_expert}")
    if r.faults:
        raise CheckpointError("config.json:\n  " + "\n  ".join(r.faults))
    return shape


def _quantization(r: _Reader) -> bool:
    kind = r.config.get("expert_dtype")
    if kind is not None and kind not in _EXPERT_DTYPES:
        r.faults.append(f"expert_dtype is {shown(str(kind))}; ds4 reads {', '.join(_EXPERT_DTYPES)}")
    content = r.config.get("quantization_config")
    if content is None:
        return False
    if not isinstance(content, Mapping):
        r.faults.append(f"quantization_config is {shown(str(content))}, expected an object")
        return False
    method = content.get("quant_method")
    if method != _FP8_METHOD:
        r.faults.append(f"quantization_config.quant_method is {shown(str(method))}; ds4 reads {_FP8_METHOD!r}")
        return False
    for key, wanted in _FP8_FIXED.items():
        value = content.get(key, wanted)
        if value != wanted:
            r.faults.append(f"quantization_config.{key} is {shown(str(value))}, DeepSeek V4 has {wanted!r}")
    block = content.get("weight_block_size")
    if block != _FP8_BLOCK:
        found = "missing" if block is None else shown(str(block))
        r.faults.append(f"quantization_config.weight_block_size is {found}, DeepSeek V4 has {_FP8_BLOCK}")
    return True


def _yarn(r: _Reader) -> dict[str, float] | None:
    scaling = r.config.get("rope_scaling")
    if scaling is None:
        return None
    if not isinstance(scaling, Mapping):
        r.faults.append(f"rope_scaling is {shown(str(scaling))}, expected an object")
        return None
    kind = scaling.get("type", scaling.get("rope_type"))
    if kind != "yarn":
        r.faults.append(f"rope_scaling.type is {shown(str(kind))}, DeepSeek V4 has 'yarn'")
    out = {}
    for key in ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow"):
        value = scaling.get(key)
        if not _is_positive(value, 1e15):
            r.faults.append(f"rope_scaling.{key} is {shown(str(value))}, expected a positive number")
            value = 1.0
        out[key] = float(value)
    return out


def _ratios(r: _Reader, n_layer: int) -> tuple[int, ...]:
    ratios = r.config.get("compress_ratios")
    if not isinstance(ratios, list) or not all(type(v) is int for v in ratios):
        r.faults.append(f"compress_ratios is {shown(str(ratios))}, expected a list of whole numbers")
        return (0,) * n_layer
    if len(ratios) < n_layer:
        r.faults.append(f"compress_ratios has {len(ratios)} entries for {n_layer} layers")
    unknown = sorted({v for v in ratios if v not in (0, 4, 128)})
    if unknown:
        r.faults.append(f"compress_ratios holds {unknown}; ds4 computes 0, 4 and 128")
    return (*ratios, *[0] * (n_layer - len(ratios)))


def model_keys(shape: Shape) -> list[KV]:
    """Return the `deepseek4.*` records of a shape, among them the ones that only llama.cpp reads."""
    s = shape
    layers = range(s.n_layer)
    table: list[tuple[str, str, Any]] = [
        ("block_count", "u32", s.n_layer),
        ("context_length", "u32", s.n_ctx),
        ("embedding_length", "u32", s.n_embd),
        ("embedding_length_out", "u32", s.n_hc * s.n_embd),
        ("vocab_size", "u32", s.n_vocab),
        ("attention.head_count", "u32", s.n_head),
        ("attention.head_count_kv", "u32", 1),
        ("attention.key_length", "u32", s.head_dim),
        ("attention.value_length", "u32", s.head_dim),
        ("attention.layer_norm_rms_epsilon", "f32", s.norm_eps),
        ("attention.q_lora_rank", "u32", s.q_lora),
        ("attention.output_lora_rank", "u32", s.o_lora),
        ("attention.output_group_count", "u32", s.o_groups),
        ("attention.sliding_window", "u32", s.window),
        ("attention.compress_ratios", "[u32]", s.compress_ratios),
        ("attention.compress_rope_freq_base", "f32", s.compress_rope_base),
        ("attention.indexer.head_count", "u32", s.n_index_head),
        ("attention.indexer.key_length", "u32", s.index_dim),
        ("attention.indexer.top_k", "u32", s.index_top_k),
        ("rope.dimension_count", "u32", s.n_rot),
        ("rope.freq_base", "f32", s.rope_base),
        ("expert_count", "u32", s.n_expert),
        ("expert_used_count", "u32", s.n_expert_used),
        ("expert_shared_count", "u32", s.n_expert_shared),
        ("expert_group_count", "u32", 0),
        ("expert_group_used_count", "u32", 0),
        ("expert_feed_forward_length", "u32", s.n_ff),
        ("expert_weights_scale", "f32", s.expert_scale),
        ("expert_weights_norm", "bool", True),
        ("expert_gating_func", "u32", _GATING_SQRT_SOFTPLUS),
        ("hash_layer_count", "u32", s.n_hash_layer),
        ("hyper_connection.count", "u32", s.n_hc),
        ("hyper_connection.sinkhorn_iterations", "u32", s.sinkhorn_iterations),
        ("hyper_connection.epsilon", "f32", s.hc_eps),
        ("swiglu_clamp_exp", "[f32]", [s.swiglu_clamp for _ in layers]),
        ("swiglu_clamp_shexp", "[f32]", [s.swiglu_clamp for _ in layers]),
    ]
    if s.yarn is not None:
        table += [
            ("rope.scaling.type", "string", "yarn"),
            ("rope.scaling.factor", "f32", s.yarn["factor"]),
            ("rope.scaling.original_context_length", "u32", int(s.yarn["original_max_position_embeddings"])),
            ("rope.scaling.yarn_beta_fast", "f32", s.yarn["beta_fast"]),
            ("rope.scaling.yarn_beta_slow", "f32", s.yarn["beta_slow"]),
        ]
    return [KV(f"{ARCHITECTURE}.{key}", kind, value) for key, kind, value in table]
