"""Files after a template: its metadata, order, shapes and types with the weights of a source, or every difference."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ds4
import pytest
from ds4.imatrix import Imatrix
from ds4.quantize import (
    Plan,
    PlanError,
    Policy,
    TemplateError,
    plan_conversion,
    plan_quantization,
    plan_splice,
    quantize,
    splice,
)
from oracle import tiny_shapes
from support.gguf_write import GGMLType, Raw, Tensor, Value, ValueType, array, make_tensor, string, u32, u64
from support.tiny_gguf import RECIPES, tiny_tensors, write_tiny_gguf

from .checkpoints import write_checkpoint

GATE, UP, DOWN = (f"blk.4.ffn_{part}_exps.weight" for part in ("gate", "up", "down"))


@pytest.fixture(scope="module")
def main_tensors() -> list[Tensor]:
    """The tensors of the tiny flash model in Q8_0, without MTP block."""
    return tiny_tensors("flash", part="main", types=RECIPES["q8"])


def _run(source: Path, out: Path, template: Path | None, policy: Policy | None = None, **options: Any) -> list[str]:
    with plan_quantization(source, out, policy=policy or Policy(), template=template, **options) as plan:
        quantize(plan, threads=2)
    return list(plan.notes)


def _plan(source: Path, out: Path, template: Path, policy: Policy | None = None, **options: Any) -> Plan:
    with plan_quantization(source, out, policy=policy or Policy(), template=template, **options) as plan:
        return plan


def _types(plan: Plan) -> dict[str, str]:
    return {t.name: t.type for t in plan.files[0].tensors}


def _records(path: Path) -> dict[str, bytes]:
    with ds4.GGUFFile(path) as file:
        return {key: file.metadata.record(key) for key in file.metadata}


def _empty(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same directory without any weights."""
    return [replace(t, data=bytes(len(t.data))) for t in tensors]


def _write(path: Path, tensors: Sequence[Tensor], **changes: Value | Raw | None) -> Path:
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return write_tiny_gguf(path, "flash", part="main", changes=keys, tensors=_empty(tensors))


# What it gives


@pytest.mark.parametrize("recipe", ["q8_0", "q4"])
def test_the_file_of_a_recipe_as_a_template_gives_that_file(
    flash_checkpoint: Path, imatrix: Imatrix, tmp_path: Path, recipe: str
) -> None:
    first, again = tmp_path / "first.gguf", tmp_path / "again.gguf"
    used = imatrix if recipe == "q4" else None
    _run(flash_checkpoint, first, None, Policy(recipe), imatrix=used)
    _run(flash_checkpoint, again, first, imatrix=used)
    assert again.read_bytes() == first.read_bytes()
    with plan_conversion(flash_checkpoint, tmp_path / "c.gguf", template=first, imatrix=used) as plan:
        quantize(plan, threads=2)
    assert (tmp_path / "c.gguf").read_bytes() == first.read_bytes()


def test_metadata_order_shapes_and_types_are_the_templates(
    flash_checkpoint: Path, main_tensors: list[Tensor], tmp_path: Path
) -> None:
    """A file by another writer: other order, other keys, odd text, dimensions of one; and none of its weights."""
    shuffled = list(main_tensors)
    random.Random(3).shuffle(shuffled)
    at = next(i for i, t in enumerate(shuffled) if t.name == "blk.2.attn_norm.weight")
    shuffled[at] = replace(shuffled[at], ne=(*shuffled[at].ne, 1))
    odd = Raw(ValueType.STRING, (3).to_bytes(8, "little") + b"\xff\xfeA")
    template = _write(
        tmp_path / "template.gguf",
        shuffled,
        general__author=odd,
        general__file_type=u32(7),
        tokenizer__chat_template=string("{{ messages }}"),
        quantize__imatrix__file=string("old.dat"),
        quantize__imatrix__chunks_count=u64(3),
        deepseek4__attention__compress_ratios=array(ValueType.I32, [0, 0, 4, 128, 4, 0, 0]),
    )
    out = tmp_path / "out.gguf"
    notes = _run(flash_checkpoint, out, template)
    wanted = {k: v for k, v in _records(template).items() if not k.startswith("quantize.")}
    assert _records(out) == wanted and list(_records(out)) == list(wanted)
    with ds4.GGUFFile(out) as file:
        assert list(file.tensors) == [t.name for t in shuffled]
        for tensor in shuffled:
            found = file.tensors[tensor.name]
            assert (found.type, found.ne, bytes(found.data())) == (
                GGMLType(tensor.type).name,
                tensor.ne,
                tensor.data,
            ), tensor.name
    assert [n for n in notes if "has no MTP block" in n]
    with ds4.Model.open(out) as model, model.session(n_ctx=32) as session:
        session.sync([1, 2, 3])
        assert not model.has_mtp and session.logits().argmax() >= 0


def test_policy_and_recipe_go_before_the_template(
    flash_checkpoint: Path, main_tensors: list[Tensor], tmp_path: Path
) -> None:
    half = [
        make_tensor(t.name, GGMLType.F16, t.ne[::-1], bytes(2 * 256)) if t.name == "output_norm.weight" else t
        for t in main_tensors
    ]
    template = _write(tmp_path / "template.gguf", half, general__file_type=u32(7))
    out = tmp_path / "out.gguf"
    flags = [("experts", "q4_k"), ("shared", "template"), ("output", "copy"), ("tensor-type", "blk.1.attn_=f16")]
    for recipe, embedding, projection in ((None, "Q8_0", "Q8_0"), ("f16", "F16", "F16")):
        plan = _plan(flash_checkpoint, out, template, Policy.from_flags(recipe, flags, template=True))
        kinds = _types(plan)
        assert {kinds[GATE], kinds[UP], kinds[DOWN]} == {"Q4_K"}
        assert kinds["blk.1.ffn_up_shexp.weight"] == kinds["output.weight"] == "Q8_0"
        assert kinds["blk.1.attn_q_a.weight"] == "F16" and kinds["blk.1.attn_norm.weight"] == "F32"
        assert (kinds["token_embd.weight"], kinds["blk.2.attn_q_a.weight"]) == (embedding, projection)
        assert kinds["output_norm.weight"] == "F16", "a vector keeps the type of the template"
        assert kinds["blk.0.ffn_gate_tid2eid.weight"] == "I32"
        number = {kv.key: kv.value for kv in plan.files[0].kvs}["general.file_type"]
        assert number == (15 if recipe is None else 1)
    # a change in few tensors does not make it another file
    plan = _plan(flash_checkpoint, out, template, Policy(output="F16"), name="Mine")
    values = {kv.key: kv.value for kv in plan.files[0].kvs}
    assert (values["general.file_type"], values["general.name"]) == (7, "Mine")


def test_copy_is_the_recipe_without_a_template_and_the_template_with_one() -> None:
    name, ne = "output.weight", (256, 512)
    for word in ("copy", "template"):
        assert Policy.from_flags("q4", [("output", word)]).type_of(name, ne, "BF16", 5) == "Q8_0"
        policy = Policy.from_flags("q4", [("output", word)], template=True)
        assert policy.type_of(name, ne, "BF16", 5, template_type="F16") == "F16"
    assert Policy("q4").type_of(name, ne, "BF16", 5, template_type="F16") == "Q8_0"
    assert Policy(dense="Q8_0").type_of("blk.0.x.weight", ne, "BF16", 5, template_type="I32") == "I32"


def test_template_with_adjacent_experts_gives_the_standard_layout(
    flash_checkpoint: Path, main_tensors: list[Tensor], tmp_path: Path
) -> None:
    template, adjacent = _write(tmp_path / "t.gguf", main_tensors), tmp_path / "adjacent.gguf"
    splice(plan_splice(template, None, adjacent, layout="adjacent"))
    _run(flash_checkpoint, tmp_path / "a.gguf", template)
    _run(flash_checkpoint, tmp_path / "b.gguf", adjacent)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_gguf_file_as_source_and_the_importance_of_this_run(
    flash_bf16: Path, imatrix: Imatrix, tmp_path: Path, main_tensors: list[Tensor]
) -> None:
    template = _write(tmp_path / "t.gguf", main_tensors, quantize__imatrix__file=string("old.dat"))
    plan = _plan(flash_bf16, tmp_path / "out.gguf", template, Policy(routed_w2="Q4_K"), imatrix=imatrix)
    keys = [kv.key for kv in plan.files[0].kvs]
    assert keys.count("quantize.imatrix.file") == 1
    assert {kv.key: kv.value for kv in plan.files[0].kvs}["quantize.imatrix.dataset"] == "chats.txt"
    assert (_types(plan)[DOWN], _types(plan)[UP]) == ("Q4_K", "Q8_0")


# The MTP block


def test_mtp_block_in_a_file_of_its_own_beside_a_template_without_it(
    flash_checkpoint: Path, main_tensors: list[Tensor], tmp_path: Path
) -> None:
    template = _write(tmp_path / "t.gguf", main_tensors)
    out, mtp = tmp_path / "out.gguf", tmp_path / "mtp.gguf"
    with pytest.raises(PlanError, match="name a recipe"):
        _plan(flash_checkpoint, out, template, mtp_out=mtp)
    plan = _plan(flash_checkpoint, out, template, Policy("q8_0"), mtp_out=mtp)
    assert [t.name for t in plan.files[0].tensors] == [t.name for t in main_tensors]
    assert plan.files[1].tensors and all(t.name.startswith("mtp.0.") for t in plan.files[1].tensors)
    assert not [n for n in plan.notes if "left out" in n]


def test_template_with_a_block_for_a_source_without_one(
    flash_weights: tiny_shapes.Weights, flash_bf16: Path, tmp_path: Path
) -> None:
    main = {k: v for k, v in flash_weights.items() if not k.startswith("mtp.")}
    source = write_checkpoint(tmp_path / "flash", "flash", main)
    with pytest.raises(TemplateError) as caught:
        _plan(source, tmp_path / "out.gguf", flash_bf16)
    assert "has an MTP block (mtp.0." in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2, "one line for the block, not one for each of its tensors"


def test_file_of_an_mtp_block_as_a_template(
    flash_checkpoint: Path, tiny_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    template = tiny_gguf("flash", part="mtp", recipe="q8")
    plan = _plan(flash_checkpoint, tmp_path / "out.gguf", template)
    with ds4.GGUFFile(template) as file:
        assert _types(plan) == {t.name: t.type for t in file.tensors.values()}
    assert any("only that is written" in n for n in plan.notes)
    other = tiny_gguf("flash", dialect="llama.cpp", part="mtp", recipe="llama-mxfp4")
    with pytest.raises(TemplateError, match=r"in another form than the source's \(blk\.5\."):
        _plan(flash_checkpoint, tmp_path / "out.gguf", other)


# What is refused


def test_every_difference_is_listed_at_once(flash_checkpoint: Path, main_tensors: list[Tensor], tmp_path: Path) -> None:
    tensors = [t for t in main_tensors if t.name != "blk.3.attn_q_a.weight"]
    tensors = [make_tensor(t.name, GGMLType.F32, (255,), bytes(1020)) if t.name == "output_norm.weight" else t
               for t in tensors]  # fmt: skip
    tensors.append(make_tensor("blk.0.extra.weight", GGMLType.F32, (4,), bytes(16)))
    config = tiny_shapes.VARIANTS["flash"]
    with ds4.GGUFFile(_write(tmp_path / "plain.gguf", main_tensors)) as file:
        tokens = list(file.metadata["tokenizer.ggml.tokens"])
    tokens[400] = "another"
    template = _write(
        tmp_path / "template.gguf",
        tensors,
        deepseek4__expert_used_count=u32(config["num_experts_per_tok"] + 1),
        deepseek4__attention__compress_ratios=array(ValueType.I32, [0, 0, 4, 4, 4]),
        deepseek4__swiglu_clamp_exp=Value(ValueType.F32, config["swiglu_limit"]),
        tokenizer__ggml__tokens=array(ValueType.STRING, tokens),
    )
    with pytest.raises(TemplateError) as caught:
        _plan(flash_checkpoint, tmp_path / "out.gguf", template)
    lines = str(caught.value).splitlines()
    used = config["num_experts_per_tok"]
    assert str(template) in lines[0] and str(flash_checkpoint) in lines[0]
    for words in (
        f"metadata deepseek4.expert_used_count is {used + 1} in the template and {used} in the source",
        "metadata deepseek4.attention.compress_ratios[3] is 4 in the template and 128 in the source",
        "tokenizer.ggml.tokens[400] is 'another'",
        "tensor blk.3.attn_q_a.weight is in the source and not in the template",
        "tensor blk.0.extra.weight is in the template and not in the source",
        "tensor output_norm.weight is [255] in the template and [256] in the source",
    ):
        assert any(words in line for line in lines), words
    assert len(lines) == 7 and "another model" in str(caught.value)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("key", ["tokens", "token_type", "pre"])
def test_tokenizers_that_cannot_be_used(
    flash_checkpoint: Path, main_tensors: list[Tensor], tmp_path: Path, key: str
) -> None:
    changed = string("llama-bpe") if key == "pre" else None
    template = _write(tmp_path / "template.gguf", main_tensors, **{f"tokenizer__ggml__{key}": changed})
    words = {"tokens": "has no tokenizer", "token_type": "token_type is missing", "pre": "'llama-bpe'"}[key]
    with pytest.raises(TemplateError, match=words):
        _plan(flash_checkpoint, tmp_path / "out.gguf", template)


def test_types_of_a_template_that_ds4_does_not_make(
    flash_checkpoint: Path, main_tensors: list[Tensor], tmp_path: Path
) -> None:
    tensors = [make_tensor(t.name, GGMLType.Q6_K, t.ne[::-1], bytes(210 * 512)) if t.name == "output.weight" else t
               for t in main_tensors]  # fmt: skip
    template = _write(tmp_path / "t.gguf", tensors)
    out = tmp_path / "out.gguf"
    for policy in (Policy(), Policy(output="Q8_0")):  # the third rule goes before the families
        with pytest.raises(PlanError, match=r"output\.weight is Q6_K in the template, which ds4 does not make"):
            _plan(flash_checkpoint, out, template, policy)
    plan = _plan(flash_checkpoint, out, template, Policy(tensor_types=(("output.", "Q8_0"),)))
    assert _types(plan)["output.weight"] == "Q8_0"
    assert _types(_plan(flash_checkpoint, out, template, Policy("q8_0")))["output.weight"] == "Q8_0"


def test_files_that_are_no_template(flash_checkpoint: Path, main_tensors: list[Tensor], tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    template = _write(tmp_path / "t.gguf", main_tensors)
    with pytest.raises(PlanError, match="the template itself"):
        _plan(flash_checkpoint, template, template)
    with pytest.raises(FileNotFoundError):
        _plan(flash_checkpoint, out, tmp_path / "none.gguf")
    other = _write(tmp_path / "llama.gguf", main_tensors[:2], general__architecture=string("llama"))
    with pytest.raises(ds4.UnsupportedModelError, match=r"llama\.gguf.*'llama'"):
        _plan(flash_checkpoint, out, other)
    part = _write(tmp_path / "part.gguf", main_tensors[:2], split__count=u32(2))
    with pytest.raises(ds4.UnsupportedModelError, match="one of 2 parts"):
        _plan(flash_checkpoint, out, part)
    (tmp_path / "cut.gguf").write_bytes(template.read_bytes()[:5000])
    with pytest.raises(ds4.ModelFileError):
        _plan(flash_checkpoint, out, tmp_path / "cut.gguf")
    # what the engine needs and the template lacks, which the source would have had
    lacking = _write(tmp_path / "lacking.gguf", main_tensors, deepseek4__expert_count=None)
    with pytest.raises(ds4.UnsupportedModelError, match=r"deepseek4\.expert_count is missing"):
        _plan(flash_checkpoint, out, lacking).check()
    assert not out.exists()
