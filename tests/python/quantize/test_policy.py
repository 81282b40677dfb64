"""Which type a tensor gets: the order of the rules, the recipes and the sizes that follow from them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from ds4.gguf_writer import TensorInfo, make_layout
from ds4.quantize import RECIPES, Policy
from ds4.quantize.hfconfig import Shape, read_shape
from ds4.quantize.hftensors import Tensor, expected_mtp_tensors, expected_tensors
from ds4.quantize.policy import parse_type, type_faults
from ds4.quantize.recipes import default_q4_layers, is_mtp, role_of, split_name
from oracle import tiny_shapes

_YARN = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1}
_BOTH: dict[str, Any] = {
    "model_type": "deepseek_v4", "vocab_size": 129280, "head_dim": 512, "qk_rope_head_dim": 64, "o_lora_rank": 1024,
    "num_experts_per_tok": 6, "n_shared_experts": 1, "num_hash_layers": 3, "sliding_window": 128, "index_n_heads": 64,
    "index_head_dim": 128, "hc_mult": 4, "hc_sinkhorn_iters": 20, "num_nextn_predict_layers": 1,
    "max_position_embeddings": 1048576, "rms_norm_eps": 1e-6, "hc_eps": 1e-6, "swiglu_limit": 10.0,
    "rope_theta": 10000.0, "compress_rope_theta": 160000.0, "rope_scaling": _YARN,
}  # fmt: skip
FLASH: dict[str, Any] = {
    **_BOTH, "num_hidden_layers": 43, "hidden_size": 4096, "num_attention_heads": 64, "q_lora_rank": 1024,
    "o_groups": 8, "n_routed_experts": 256, "moe_intermediate_size": 2048, "index_topk": 512,
    "routed_scaling_factor": 1.5, "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
}  # fmt: skip
PRO: dict[str, Any] = {
    **_BOTH, "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "q_lora_rank": 1536,
    "o_groups": 16, "n_routed_experts": 384, "moe_intermediate_size": 3072, "index_topk": 1024,
    "routed_scaling_factor": 2.5, "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0],
}  # fmt: skip


def _types(shape: Shape, policy: Policy, tensors: list[Tensor]) -> dict[str, TensorInfo]:
    kinds = {
        t.name: policy.type_of(t.name, t.ne, "I32" if t.role == "table" else "BF16", shape.n_layer) for t in tensors
    }
    return {t.name: TensorInfo(t.name, t.ne, kinds[t.name]) for t in tensors}


@pytest.mark.parametrize(
    ("config", "recipe", "wanted"),
    [
        (FLASH, "q2", 86_714_777_664),
        (FLASH, "q4", 164_628_168_768),
        (FLASH, "q2-q4", 97_586_413_632),
        (PRO, "pro-q2", 464_621_969_216),
        (FLASH, "mxfp4", 155_971_125_312),
    ],
)
def test_payload_of_the_published_files(config: dict[str, Any], recipe: str, wanted: int) -> None:
    shape = read_shape(config)
    infos = _types(shape, Policy(recipe), expected_tensors(shape))
    layout = make_layout([], list(infos.values()))
    assert layout.n_bytes - len(layout.header) == wanted


def test_flash_by_numbers() -> None:
    shape = read_shape(FLASH)
    infos = _types(shape, Policy("q2-q4"), expected_tensors(shape))
    assert len(infos) == 1328
    q4 = {name for name, t in infos.items() if t.type == "Q4_K"}
    assert q4 == {f"blk.{i}.ffn_{part}_exps.weight" for i in range(37, 43) for part in ("gate", "up", "down")}
    assert infos["blk.0.ffn_gate_exps.weight"].n_bytes == infos["blk.0.ffn_up_exps.weight"].n_bytes == 553_648_128
    assert infos["blk.36.ffn_down_exps.weight"].n_bytes == 704_643_072
    assert infos["blk.42.ffn_down_exps.weight"].n_bytes == 1_207_959_552
    assert round(sum(math.prod(t.ne) for t in infos.values()) / 1e9, 2) == 284.33


@pytest.mark.parametrize("variant", ["flash", "pro"])
def test_every_tensor_has_its_role_by_name(variant: str) -> None:
    shape = read_shape(tiny_shapes.VARIANTS[variant])
    for tensor in [*expected_tensors(shape), *expected_mtp_tensors(shape)]:
        assert role_of(tensor.name) == tensor.role, tensor.name
        assert is_mtp(tensor.name, shape.n_layer) == tensor.name.startswith("mtp."), tensor.name


def test_types_of_the_published_mtp_file() -> None:
    shape = read_shape(FLASH)
    infos = _types(shape, Policy("q2"), expected_mtp_tensors(shape))
    assert {t.type for n, t in infos.items() if "_exps" in n} == {"Q4_K"}
    assert infos["mtp.0.e_proj.weight"].type == "Q8_0"
    assert 3.5e9 < sum(t.n_bytes for t in infos.values()) < 4.0e9


@pytest.mark.parametrize(
    ("n_layer", "wanted"), [(43, range(37, 43)), (61, range(55, 61)), (12, range(6, 12)), (5, (3, 4)), (1, ())]
)
def test_layers_with_4_bits(n_layer: int, wanted: Any) -> None:
    assert default_q4_layers(n_layer) == set(wanted)


# The order of the rules. Flags are tried on names of every family.

EXPERTS = [f"blk.1.ffn_{part}_exps.weight" for part in ("gate", "down", "up")]
MATRIX, VECTOR = (4096, 1024), (4096, 1)
FAMILIES = {
    "embedding": {"token_embd"},
    "output": {"output"},
    "shared": {"ffn_gate_shexp", "ffn_down_shexp", "ffn_up_shexp"},
    "attention-proj": {"attn_kv", "attn_q_a", "attn_q_b", "attn_output_a", "attn_output_b"},
    "attention": {
        "attn_compressor_ape", "attn_compressor_kv", "attn_compressor_gate", "indexer.attn_q_b", "indexer.proj",
        "indexer_compressor_ape", "indexer_compressor_kv", "indexer_compressor_gate", "hc_attn_fn",
    },
    "dense": {"hc_ffn_fn", "output_hc_fn", "hc_head_fn", "ffn_gate_inp", "e_proj", "h_proj"},
    "routed-w1": {"ffn_gate_exps"},
    "routed-gate": {"ffn_gate_exps"},
    "routed-w2": {"ffn_down_exps"},
    "routed-down": {"ffn_down_exps"},
    "routed-w3": {"ffn_up_exps"},
    "routed-up": {"ffn_up_exps"},
    "experts": {"ffn_gate_exps", "ffn_down_exps", "ffn_up_exps"},
    "routed": {"ffn_gate_exps", "ffn_down_exps", "ffn_up_exps"},
}  # fmt: skip


def _type(name: str, *flags: tuple[str, str], ne: tuple[int, ...] = MATRIX, recipe: str | None = "f32") -> str:
    return Policy.from_flags(recipe, flags).type_of(name, ne, "BF16", 5)


@pytest.mark.parametrize("flag", list(FAMILIES))
def test_an_option_reaches_its_family_and_no_other(flag: str) -> None:
    shape = read_shape(tiny_shapes.VARIANTS["flash"])
    tensors = [*expected_tensors(shape), *expected_mtp_tensors(shape)]
    changed = {t.name for t in tensors if _type(t.name, (flag, "q4-k"), ne=t.ne) == "Q4_K"}
    assert {split_name(n)[2] for n in changed} == FAMILIES[flag]
    # all of them, in every layer; those of the MTP block too, but for its experts
    routed = FAMILIES[flag] <= FAMILIES["experts"]
    members = {t.name for t in tensors if split_name(t.name)[2] in FAMILIES[flag]}
    assert changed == {n for n in members if not (routed and n.startswith("mtp."))}


def test_a_name_wins_over_families_and_the_first_name_over_later_ones() -> None:
    name = "blk.3.ffn_down_exps.weight"
    assert _type(name, ("tensor-type", "blk.3.=q8_0"), ("experts", "q2_k")) == "Q8_0"
    assert _type(name, ("tensor-type", "blk.3.ffn=q4_k"), ("tensor-type", f"{name}=q8_0")) == "Q4_K"
    assert _type("blk.30.ffn_down_exps.weight", ("tensor-type", "blk.3.=q8_0")) == "F32"
    # the beginning of a name reaches matrices only
    assert _type("blk.3.attn_norm.weight", ("tensor-type", "blk.3.=f16"), ne=VECTOR) == "F32"
    assert _type("blk.3.attn_norm.weight", ("tensor-type", "blk.3.attn_norm.weight=f16"), ne=VECTOR) == "F16"
    assert _type("blk.0.ffn_gate_tid2eid.weight", ("tensor-type", "blk.0.=f16"), ne=(6, 512)) == "I32"
    # "copy" is a hit too: it keeps later rules away
    assert _type(name, ("tensor-type", "blk.3.=copy"), ("experts", "q2_k")) == "F32"


def test_of_two_options_for_experts_the_later_wins() -> None:
    down = EXPERTS[1]
    assert _type(down, ("experts", "q4_k"), ("routed-w2", "q2_k")) == "Q2_K"
    assert _type(down, ("routed-w2", "q2_k"), ("experts", "q4_k")) == "Q4_K"
    assert _type(down, ("routed-w2", "q2_k"), ("experts", "copy")) == "F32"


def test_vectors_and_tables_keep_their_type() -> None:
    flags = [("attention", "q8_0"), ("dense", "q8_0")]
    for name in ("blk.1.attn_norm.weight", "blk.1.attn_sinks.weight", "output_norm.weight"):
        assert _type(name, *flags, ne=VECTOR) == "F32"
    assert Policy.from_flags("q2", flags).type_of("blk.0.ffn_gate_tid2eid.weight", (6, 129280), "I32", 43) == "I32"


def test_experts_of_the_mtp_block_follow_the_recipe_only() -> None:
    for name in (
        "mtp.0.ffn_down_exps.weight",
        "blk.5.ffn_down_exps.weight",
    ):  # a layer after the last: llama.cpp's form
        for flag in ("experts", "dense", "routed-w2"):
            assert _type(name, (flag, "q2_k"), recipe="q2") == "Q4_K"
        assert _type(name, ("tensor-type", f"{name}=q8_0"), recipe="q2") == "Q8_0"


def test_without_a_recipe_the_source_decides() -> None:
    assert _type("output.weight", recipe=None) == "BF16"
    assert _type("output.weight", ("output", "Q8_0"), recipe=None) == "Q8_0"
    assert Policy("q2").type_of("blk.1.unheard_of.weight", MATRIX, "F16", 5) == "F16"


@pytest.mark.parametrize(
    ("text", "wanted"), [("q8_0", "Q8_0"), ("Q4-K", "Q4_K"), ("iq2xxs", "IQ2_XXS"), ("BF16", "BF16")]
)
def test_type_names(text: str, wanted: str) -> None:
    assert parse_type(text) == wanted
    assert parse_type("Copy") is parse_type("template") is None


@pytest.mark.parametrize("text", ["q3_k", "q9", "", "i32"])
def test_types_that_cannot_be_made(text: str) -> None:
    with pytest.raises(ValueError, match="Q8_0, MXFP4, Q4_K"):
        parse_type(text)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"recipe": "q5"}, "q2-q4"),
        ({"recipe": "q2", "q4_layers": frozenset({1})}, "belongs to the recipe q2-q4"),
        ({"dense": "q8_0"}, "'q8_0' is not a tensor type"),
        ({"tensor_types": (("", "Q8_0"),)}, "needs the name"),
    ],
)
def test_policies_that_cannot_be(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Policy(**arguments)


def test_flags_that_are_malformed() -> None:
    for value in ("q8_0", "=q8_0", "blk.0.=q9"):
        with pytest.raises(ValueError):
            Policy.from_flags("q2", [("tensor-type", value)])


def test_faults_of_types_are_all_listed() -> None:
    faults = type_faults(
        {
            "blk.0.ffn_gate_exps.weight": ((256, 128, 8), "Q2_K"),
            "blk.0.ffn_up_exps.weight": ((256, 128, 8), "Q4_K"),
            "blk.0.ffn_down_exps.weight": ((128, 256, 8), "Q2_K"),
            "output.weight": ((256, 512), "Q8_0"),
        }
    )
    assert len(faults) == 2
    assert "gate and up" in faults[0] and "Q2_K" in faults[0] and "Q4_K" in faults[0]
    assert "blk.0.ffn_down_exps.weight: rows of 128 values do not fill Q2_K blocks of 256" in faults[1]
    assert "Q8_0" in faults[1] and "--tensor-type" in faults[1]


def test_every_recipe_gives_gate_and_up_one_type() -> None:
    shape = read_shape(FLASH)
    for recipe in RECIPES:
        infos = _types(shape, Policy(recipe), [*expected_tensors(shape), *expected_mtp_tensors(shape)])
        assert type_faults({n: (t.ne, t.type) for n, t in infos.items()}) == []


def test_the_beginning_of_the_name_of_a_vector_fits_nothing() -> None:
    policy = Policy(tensor_types=(("blk.0.attn_norm", "F16"), ("blk.0.attn_q", "Q8_0"), ("blk.0.ffn_gate_tid", "F16")))
    tensors = [
        ("blk.0.attn_norm.weight", (256,), "F32"),
        ("blk.0.attn_q_a.weight", (256, 64), "BF16"),
        ("blk.0.ffn_gate_tid2eid.weight", (6, 500), "I32"),
    ]
    assert policy.unused(tensors) == ["blk.0.attn_norm", "blk.0.ffn_gate_tid"]
