"""A file is a registered model in every number and tensor, or it is refused with every difference at once."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ds4
import numpy as np
import pytest
from support.gguf_write import (
    GGMLType,
    Raw,
    Tensor,
    Value,
    ValueType,
    array,
    boolean,
    f32,
    f64,
    i32,
    string,
    u32,
    u64,
    write_gguf,
)
from support.tiny_gguf import RECIPES, tiny_metadata, tiny_tensors

Changes = dict[str, Value | Raw | None]
Refused = Callable[..., str]


@pytest.fixture(scope="module")
def parts() -> tuple[dict[str, Value | Raw], list[Tensor]]:
    return tiny_metadata("flash", part="main"), tiny_tensors("flash", part="main", types=RECIPES["q8"])


@pytest.fixture
def write(tmp_path: Path, parts: tuple[dict[str, Value | Raw], list[Tensor]]) -> Callable[..., Path]:
    def make(changes: Changes | None = None, edit: Callable[[list[Tensor]], list[Tensor]] | None = None) -> Path:
        metadata, tensors = parts
        metadata = {**metadata, **(changes or {})}
        path = tmp_path / "model.gguf"
        kept = {k: v for k, v in metadata.items() if v is not None}
        return write_gguf(path, kept, edit(list(tensors)) if edit else tensors)

    return make


@pytest.fixture
def refused(write: Callable[..., Path]) -> Refused:
    def check(*args: object, **kwargs: object) -> str:
        with pytest.raises(ds4.UnsupportedModelError) as caught:
            ds4.Model.open(write(*args, **kwargs))
        return str(caught.value)

    return check


def replace(which: str, **fields: object) -> Callable[[list[Tensor]], list[Tensor]]:
    return lambda tensors: [dataclasses.replace(t, **fields) if t.name == which else t for t in tensors]


def test_the_unchanged_file_loads(write: Callable[..., Path]) -> None:
    with ds4.Model.open(write()) as model:
        assert (model.shape.name, model.has_mtp, model.warnings) == ("test-flash", False, ())


NUMBERS = (
    "block_count", "embedding_length", "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.value_length", "rope.dimension_count", "attention.q_lora_rank", "attention.output_lora_rank",
    "attention.output_group_count", "expert_count", "expert_used_count", "expert_shared_count",
    "expert_feed_forward_length", "hash_layer_count", "attention.sliding_window", "attention.indexer.head_count",
    "attention.indexer.key_length", "attention.indexer.top_k", "hyper_connection.count",
    "hyper_connection.sinkhorn_iterations", "vocab_size",
)  # fmt: skip
FLOATS = (
    "expert_weights_scale", "attention.layer_norm_rms_epsilon", "hyper_connection.epsilon", "rope.freq_base",
    "attention.compress_rope_freq_base", "rope.scaling.factor", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
)  # fmt: skip


@pytest.mark.parametrize("key", NUMBERS)
def test_every_count_must_match(refused: Refused, key: str) -> None:
    text = refused({f"deepseek4.{key}": u32(10_007)})
    assert f"deepseek4.{key} is 10007" in text, text


@pytest.mark.parametrize("key", FLOATS)
def test_every_float_must_match(refused: Refused, key: str) -> None:
    text = refused({f"deepseek4.{key}": f32(0.125)})
    assert f"deepseek4.{key} is 0.125" in text, text


@pytest.mark.parametrize("key", [k for k in NUMBERS if k not in ("vocab_size",)])
def test_every_count_must_be_there(refused: Refused, key: str) -> None:
    text = refused({f"deepseek4.{key}": None})
    assert f"deepseek4.{key} is missing" in text, text


@pytest.mark.parametrize("value", [u64(256), f32(256.0)])
def test_numbers_are_read_whatever_their_width(write: Callable[..., Path], value: Value) -> None:
    with ds4.Model.open(write({"deepseek4.embedding_length": value, "deepseek4.vocab_size": None})) as model:
        assert model.shape.n_embd == 256


@pytest.mark.parametrize("value", [string("256"), boolean(True), array(ValueType.U32, [256])])
def test_a_value_of_the_wrong_kind_is_named(refused: Refused, value: Value) -> None:
    assert "deepseek4.embedding_length" in refused({"deepseek4.embedding_length": value})


def test_arrays_that_are_too_short_or_differ(refused: Refused) -> None:
    key = "deepseek4.attention.compress_ratios"
    assert "has 3 values, test-flash has 5 layers" in refused({key: array(ValueType.I32, [0, 0, 4])})
    assert f"{key}[3] is 4, test-flash has 128" in refused({key: array(ValueType.U32, [0, 0, 4, 4, 4, 0])})
    clamp = "deepseek4.swiglu_clamp_exp"
    assert f"{clamp}[4] is 7" in refused({clamp: array(ValueType.F32, [10, 10, 10, 10, 7])})
    shared = "deepseek4.swiglu_clamp_shexp"
    assert f"{shared}[0] is 7" in refused({shared: array(ValueType.F32, [7, 10, 10, 10, 10])})
    assert "block_count is 10000" in refused({"deepseek4.block_count": u32(10_000)})


def test_all_differences_come_in_one_message(refused: Refused) -> None:
    """Two keys removed, one changed, one tensor renamed, one of another shape, one of another type."""

    def edit(tensors: list[Tensor]) -> list[Tensor]:
        tensors = replace("blk.1.attn_q_a.weight", name="blk.1.attn_wq_a.weight")(tensors)
        tensors = replace("blk.2.attn_kv.weight", ne=(128, 512))(tensors)
        return [
            dataclasses.replace(t, type=GGMLType.I32, ne=(256,)) if t.name == "output_norm.weight" else t
            for t in tensors
        ]

    text = refused(
        {"deepseek4.hash_layer_count": None, "deepseek4.rope.freq_base": None, "deepseek4.expert_count": u32(3)}, edit
    )
    for part in (
        "hash_layer_count is missing",
        "rope.freq_base is missing",
        "expert_count is 3",
        "tensor blk.1.attn_q_a.weight is missing",
        "tensor blk.2.attn_kv.weight has shape [128, 512], wanted [256, 256]",
        "tensor output_norm.weight is I32, wanted F32",
        "6 difference(s)",
        "test-flash",
    ):
        assert part in text, text


def test_gate_and_up_share_a_type(tmp_path: Path) -> None:
    def rule(name: str) -> GGMLType:
        return GGMLType.MXFP4 if name == "blk.3.ffn_up_exps.weight" else RECIPES["q8"](name)

    path = write_gguf(
        tmp_path / "m.gguf", tiny_metadata("flash", part="main"), tiny_tensors("flash", part="main", types=rule)
    )
    with pytest.raises(ds4.UnsupportedModelError, match="must share a type"):
        ds4.Model.open(path)


def test_extra_tensors_are_a_warning(write: Callable[..., Path]) -> None:
    def edit(tensors: list[Tensor]) -> list[Tensor]:
        return [*tensors, Tensor("rope_freqs.weight", GGMLType.F32, (8,), bytes(32))]

    with ds4.Model.open(write(None, edit)) as model:
        assert "rope_freqs.weight" in model.warnings[0]


@pytest.mark.parametrize("bad", [-1, 16, 2**31 - 1, -(2**31)])
def test_a_hash_table_entry_outside_the_experts(refused: Refused, bad: int) -> None:
    """It would be used as an index into the weights."""

    def edit(tensors: list[Tensor]) -> list[Tensor]:
        at = next(i for i, t in enumerate(tensors) if t.name == "blk.2.ffn_gate_tid2eid.weight")
        table = np.frombuffer(tensors[at].data, "<i4").copy()
        table[-1] = bad
        tensors[at] = dataclasses.replace(tensors[at], data=table.tobytes())
        return tensors

    text = refused(None, edit)
    assert "blk.2.ffn_gate_tid2eid.weight: entry 5 of token 511" in text and str(bad) in text, text


def test_vocabulary_arrays_agree_with_the_embedding(refused: Refused) -> None:
    tokens = [f"t{i}" for i in range(502)]
    text = refused({"tokenizer.ggml.tokens": array(ValueType.STRING, tokens)})
    assert "tokenizer.ggml.tokens has 502 entries, the vocabulary has 512" in text
    text = refused({"tokenizer.ggml.token_type": array(ValueType.I32, [1] * 511)})
    assert "tokenizer.ggml.token_type has 511 entries, tokenizer.ggml.tokens has 512" in text
    assert "tokens has 0 entries" in refused({"tokenizer.ggml.tokens": array(ValueType.STRING, [])})
    assert "eos_token_id is not an id below 512" in refused({"tokenizer.ggml.eos_token_id": u32(512)})


@pytest.mark.parametrize(
    ("architecture", "hint"),
    [("deepseek_v41", "V4.1"), ("deepseek4.1", "V4.1"), ("deepseek2", "earlier DeepSeek"), ("llama", "no other family"),
     ("deepseek4-dspark", "DSpark"), ("dflash", "DSpark")],
)  # fmt: skip
def test_other_architectures_are_refused_with_a_hint(refused: Refused, architecture: str, hint: str) -> None:
    text = refused({"general.architecture": string(architecture)})
    assert f"'{architecture}'" in text and hint in text, text


def test_nan_weights_are_found_by_check_and_never_come_out(write: Callable[..., Path]) -> None:
    def edit(tensors: list[Tensor]) -> list[Tensor]:
        at = next(i for i, t in enumerate(tensors) if t.name == "output_norm.weight")
        values = np.frombuffer(tensors[at].data, "<f4").copy()
        values[7] = np.nan
        tensors[at] = dataclasses.replace(tensors[at], data=values.tobytes())
        return tensors

    with ds4.Model.open(write(None, edit)) as model:
        with pytest.raises(ds4.WeightDataError, match=r"output_norm\.weight: 1 value.*row 0, column 7"):
            model.check()
        with model.session(n_ctx=16) as session:
            with pytest.raises(ds4.WeightDataError, match="not finite"):
                session.eval([1, 2, 3])
            assert session.pos == 0


def test_text_survives_the_file(write: Callable[..., Path]) -> None:
    """The tokenizer owns its bytes: decoding works although the file has been cut short under the mapping."""
    path = write()
    code = """
import os, sys, ds4
model = ds4.Model.open(sys.argv[1])
tokenizer = model.tokenizer
ids = tokenizer.encode("abc def")
os.truncate(sys.argv[1], 24)
assert tokenizer.decode(ids) == "abc def"
assert tokenizer.encode("abc def") == ids
print("alive")
"""
    done = subprocess.run([sys.executable, "-c", code, os.fspath(path)], capture_output=True, text=True, check=False)
    assert done.stdout == "alive\n", done.stderr


def test_a_tensor_that_does_not_belong_changes_nothing(write: Callable[..., Path]) -> None:
    """Names of one kind of layer on another kind: unchecked, so they must stay unused."""
    foreign = [
        Tensor("blk.3.ffn_gate_tid2eid.weight", GGMLType.I32, (6, 512), np.full(3072, 2**30, "<i4").tobytes()),
        Tensor("blk.4.ffn_gate_tid2eid.weight", GGMLType.F32, (1,), bytes(4)),
        Tensor("blk.0.indexer.proj.weight", GGMLType.F32, (1,), bytes(4)),
        Tensor("blk.3.indexer_compressor_ape.weight", GGMLType.F32, (3, 3), bytes(36)),
    ]
    tokens = list(range(40))
    with ds4.Model.open(write()) as model, model.session(n_ctx=64) as session:
        expected = session.eval_logits(tokens)
    with ds4.Model.open(write(None, lambda t: [*t, *foreign])) as model, model.session(n_ctx=64) as session:
        assert "4 tensor(s)" in model.warnings[0]
        np.testing.assert_array_equal(session.eval_logits(tokens), expected)


def test_infinite_weights_never_come_out_as_numbers(write: Callable[..., Path]) -> None:
    """The FP8 round trip must not turn an infinity back into an ordinary value."""

    def edit(tensors: list[Tensor]) -> list[Tensor]:
        at = next(i for i, t in enumerate(tensors) if t.name == "blk.1.attn_kv_a_norm.weight")
        values = np.frombuffer(tensors[at].data, "<f4").copy()
        values[3] = np.inf
        tensors[at] = dataclasses.replace(tensors[at], data=values.tobytes())
        return tensors

    with ds4.Model.open(write(None, edit)) as model:
        for qat in (True, False):
            with model.session(n_ctx=16, qat=qat) as session, pytest.raises(ds4.WeightDataError, match="not finite"):
                session.eval([1, 2, 3])


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 256.0001, -256.0])
def test_numbers_that_are_nearly_right_are_wrong(refused: Refused, value: float) -> None:
    assert "deepseek4.embedding_length is" in refused({"deepseek4.embedding_length": f64(value)})
    if not np.isfinite(value):
        assert "deepseek4.rope.freq_base is" in refused({"deepseek4.rope.freq_base": f64(value)})


def test_missing_layers_are_told_in_short(refused: Refused) -> None:
    text = refused(None, lambda tensors: [t for t in tensors if not str(t.name).startswith(("blk.0.", "blk.1."))])
    assert "tensor blk.{0-1}.attn_norm.weight is missing" in text, text
    text = refused(None, lambda tensors: [t for t in tensors if t.name != "blk.3.ffn_gate_exps.weight"])
    assert "1 difference(s)" in text and "must share" not in text, text
    text = refused(None, lambda tensors: [])
    assert "... and" not in text and len(text) < 30_000, "the whole list fits into one message"


def test_no_token_is_a_way_to_have_none(write: Callable[..., Path]) -> None:
    for none in (u32(2**32 - 1), i32(-1)):
        ds4.Model.open(write({"tokenizer.ggml.padding_token_id": none})).close()


def test_an_mtp_file_must_be_one_of_this_family_and_whole(
    write: Callable[..., Path], tmp_path: Path, parts: tuple[dict[str, Value | Raw], list[Tensor]]
) -> None:
    main = write()
    tensors = tiny_tensors("flash", part="mtp", types=RECIPES["q8"])
    other = {**tiny_metadata("flash", part="mtp"), "general.architecture": string("llama")}
    path = write_gguf(tmp_path / "mtp.gguf", other, tensors)
    with pytest.raises(ds4.UnsupportedModelError, match="llama"):
        ds4.Model.open(main, mtp=path)
    whole = [t for t in tensors if t.name != "mtp.0.h_proj.weight"]
    write_gguf(path, tiny_metadata("flash", part="mtp"), whole)
    with pytest.raises(ds4.UnsupportedModelError, match=r"tensor mtp.0.h_proj.weight is missing"):
        ds4.Model.open(main, mtp=path)
    # A block of another model (L085): more heads.
    write_gguf(path, tiny_metadata("pro", part="mtp"), tiny_tensors("pro", part="mtp", types=RECIPES["q8"]))
    with pytest.raises(ds4.UnsupportedModelError, match=r"mtp\.gguf.*test-flash") as caught:
        ds4.Model.open(main, mtp=path)
    assert "attn_q_b" in str(caught.value)
    inside = write(None, lambda t: [*t, *(x for x in tensors if x.name != "mtp.0.e_proj.weight")])
    with pytest.raises(ds4.UnsupportedModelError, match=r"tensor mtp.0.e_proj.weight is missing"):
        ds4.Model.open(inside)
