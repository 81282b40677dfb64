"""Checkpoints as they are released, in FP8 and FP4: exact values, and every fault by name and place."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest
from ds4.quantize import CheckpointError, Policy, convert, plan_conversion, plan_quantization, quantize
from numpy.typing import NDArray
from oracle import tiny_shapes
from support.released import QUANTIZATION_CONFIG, decode_fp4, put, released_form

from .checkpoints import write_checkpoint

RELEASED: dict[str, Any] = {"quantization_config": QUANTIZATION_CONFIG, "expert_dtype": "fp4"}
ATTENTION = "layers.2.attn.wq_b"
EXPERT = "layers.1.ffn.experts.7.w2"


@functools.cache
def _released(variant: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    return released_form(tiny_shapes.weights_of(variant))


@pytest.fixture(scope="module")
def released_flash(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A released checkpoint of the tiny flash model in four shards, whose scales lie apart from their codes."""
    arrays, records, _ = _released("flash")
    folder = tmp_path_factory.mktemp("released")
    yield write_checkpoint(folder / "flash", "flash", arrays, shards=4, config=RELEASED, records=records)


def _convert(source: Path, out: Path, recipe: str, **options: Any) -> None:
    plan = plan_conversion(source, out, recipe=recipe, **options)
    with plan:
        convert(plan)


def _file_values(path: Path) -> dict[str, NDArray[Any]]:
    with ds4.GGUFFile(path) as file:
        return {name: np.array(tensor.numpy()) for name, tensor in file.tensors.items()}


@pytest.mark.parametrize("variant", ["flash", "pro"])
def test_released_checkpoint_equals_its_decoded_values(tmp_path: Path, variant: str) -> None:
    """Converted to F32, the released form gives the file that its decoded values, stored as F32, give."""
    arrays, records, values = _released(variant)
    released = write_checkpoint(tmp_path / "a", variant, arrays, shards=2, config=RELEASED, records=records)
    plain_records = {n: ("F32", np.asarray(v, "<f4").tobytes()) for n, v in values.items() if v.dtype != np.int64}
    plain = write_checkpoint(tmp_path / "b", variant, values, records=plain_records)
    _convert(released, tmp_path / "a.gguf", "f32", name="x")
    _convert(plain, tmp_path / "b.gguf", "f32", name="x")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    with ds4.Model.open(tmp_path / "a.gguf") as model, model.session(n_ctx=160) as session:
        assert model.has_mtp and model.warnings == ()
        session.sync(tiny_shapes.make_prompt(tiny_shapes.VARIANTS[variant], 129).tolist())
        assert np.isfinite(session.logits()).all()


@pytest.mark.parametrize("recipe", ["f16", "bf16", "q8_0"])
def test_released_checkpoint_in_other_types(released_flash: Path, tmp_path: Path, recipe: str) -> None:
    """Every FP4 value is a BF16 and an F16 value; Q8_0 keeps within half a step."""
    _convert(released_flash, tmp_path / "out.gguf", recipe)
    found = _file_values(tmp_path / "out.gguf")["blk.1.ffn_down_exps.weight"].reshape(16, 256, 256)
    wanted = np.stack([_released("flash")[2][f"layers.1.ffn.experts.{e}.w2.weight"] for e in range(16)])
    if recipe == "q8_0":
        step = np.abs(wanted).reshape(-1, 32).max(axis=1) / 127
        error = np.abs(found - wanted).reshape(-1, 32).max(axis=1)
        assert (error <= 0.563 * step).all()
    else:
        np.testing.assert_array_equal(found, wanted)


def test_fp4_experts_become_mxfp4_without_loss(released_flash: Path, tmp_path: Path) -> None:
    """Recipe mxfp4: every expert of every layer and of the MTP block decodes to the values of the checkpoint."""
    _convert(released_flash, tmp_path / "out.gguf", "mxfp4")
    values = _released("flash")[2]
    layers = {"mtp.0": "mtp.0", **{f"blk.{i}": f"layers.{i}" for i in range(5)}}
    with ds4.GGUFFile(tmp_path / "out.gguf") as file:
        for block, layer in layers.items():
            for part, w in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
                tensor = file.tensors[f"{block}.ffn_{part}_exps.weight"]
                assert tensor.type == "MXFP4"
                found = ds4.gguf.dequantize("MXFP4", tensor.data()).reshape(16, 256, 256)
                for e in range(16):
                    np.testing.assert_array_equal(found[e], values[f"{layer}.ffn.experts.{e}.{w}.weight"])


def test_a_model_with_mxfp4_experts_computes_the_same(released_flash: Path, tmp_path: Path) -> None:
    """The values are equal, and so are all logits, to the last bit."""
    experts = {"routed_w1": "MXFP4", "routed_w2": "MXFP4", "routed_w3": "MXFP4"}
    _convert(released_flash, tmp_path / "f32.gguf", "f32")
    plan = plan_conversion(released_flash, tmp_path / "mxfp4.gguf", policy=Policy("f32", **experts))
    with plan:
        convert(plan)
    tokens = tiny_shapes.make_prompt(tiny_shapes.VARIANTS["flash"], 100).tolist()
    logits = []
    for name in ("f32", "mxfp4"):
        with (
            ds4.Model.open(tmp_path / f"{name}.gguf") as model,
            model.session(n_ctx=128, activations="float32") as session,
        ):
            session.sync(tokens)
            logits.append(session.logits())
    np.testing.assert_array_equal(logits[0], logits[1])


def test_straight_into_a_recipe(released_flash: Path, tmp_path: Path) -> None:
    """From FP4 to Q4_K by way of float32, as from the MXFP4 file between."""
    _convert(released_flash, tmp_path / "between.gguf", "mxfp4", name="x")
    _convert(released_flash, tmp_path / "a.gguf", "q4", name="x")
    with plan_quantization(tmp_path / "between.gguf", tmp_path / "b.gguf", recipe="q4") as plan:
        quantize(plan)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def _faulty(
    tmp_path: Path, change: Any, *words: str, config: Any = RELEASED, recipe: str = "f32", absent: tuple[str, ...] = ()
) -> str:
    arrays, records, _ = _released("flash")
    arrays, records = dict(arrays), dict(records)
    change(arrays, records)
    source = write_checkpoint(tmp_path / "c", "flash", arrays, config=config, records=records)
    with pytest.raises(CheckpointError) as caught:
        _convert(source, tmp_path / "refused.gguf", recipe)
    for word in words:
        assert word in str(caught.value)
    for word in absent:
        assert word not in str(caught.value)
    assert not list(tmp_path.glob("*refused*"))
    return str(caught.value)


def _codes_of(arrays: Any, records: Any, name: str, kind: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    codes, scales = arrays[f"{name}.weight"].copy(), arrays[f"{name}.scale"].copy()
    put(arrays, records, f"{name}.weight", kind, codes, scales)
    return codes, scales


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_nan_codes_are_refused_with_their_place(tmp_path: Path, code: int) -> None:
    def change(arrays: Any, records: Any) -> None:
        codes, scales = _codes_of(arrays, records, ATTENTION, "FP8")
        codes[700, 3] = code
        put(arrays, records, f"{ATTENTION}.weight", "FP8", codes, scales)

    _faulty(tmp_path, change, f"'{ATTENTION}.weight', row 700, column 3", f"0x{code:02X} is NaN")


@pytest.mark.parametrize(("name", "kind", "place"), [(ATTENTION, "FP8", (5, 0)), (EXPERT, "FP4", (200, 7))])
def test_nan_scales_are_refused_with_their_place(tmp_path: Path, name: str, kind: str, place: tuple[int, int]) -> None:
    def change(arrays: Any, records: Any) -> None:
        codes, scales = _codes_of(arrays, records, name, kind)
        scales[place] = 255
        put(arrays, records, f"{name}.weight", kind, codes, scales)

    _faulty(tmp_path, change, f"'{name}.scale', row {place[0]}, column {place[1]}", "255 is NaN")


def test_every_fault_of_the_scales_is_listed(tmp_path: Path) -> None:
    def change(arrays: Any, records: Any) -> None:
        del arrays["layers.0.attn.wq_a.scale"]
        arrays["layers.0.attn.wkv.weight_scale_inv"] = arrays.pop("layers.0.attn.wkv.scale")
        records["layers.0.attn.wkv.weight_scale_inv"] = records.pop("layers.0.attn.wkv.scale")
        arrays["layers.0.attn.wo_a.scale"] = arrays["layers.0.attn.wo_a.scale"].reshape(-1, 1)[:1]
        records["layers.0.attn.wo_a.scale"] = ("F8_E8M0", b"\x7f")
        scale = "layers.0.attn.wq_b.scale"
        records[scale] = ("F32", np.ones(arrays[scale].shape, "<f4").tobytes())
        arrays["layers.4.attn.compressor.wkv.scale"] = np.ones((4, 2), np.uint8)
        records["layers.4.attn.compressor.wkv.scale"] = ("F8_E8M0", bytes(8))
        arrays["norm.weight"] = np.zeros(256, np.uint8)
        records["norm.weight"] = ("F8_E4M3", bytes(256))
        arrays[f"{EXPERT}.weight"] = np.zeros((256, 120), np.uint8)
        records[f"{EXPERT}.weight"] = ("I8", bytes(256 * 120))

    _faulty(
        tmp_path,
        change,
        "layers.0.attn.wq_a.weight: FP8 (F8_E4M3) without its scales layers.0.attn.wq_a.scale",
        "'layers.0.attn.wkv.weight_scale_inv' is how other FP8 models name theirs",
        "layers.0.attn.wo_a.scale: shape [1, 1], expected [1, 4]",
        "layers.0.attn.wq_b.scale: type F32, expected F8_E8M0",
        "layers.4.attn.compressor.wkv.scale: scales without an FP8 or FP4 weight",
        "norm.weight: type F8_E4M3, shape [256]; FP8 is read for matrices",
        f"{EXPERT}.weight: an FP4 row of 120 bytes is not a whole number of groups",
        absent=("missing", "not a tensor of this model"),
    )


def test_names_of_another_dialect_are_listed_together(tmp_path: Path) -> None:
    """L016: two tensors are gone and two have other names; the message has all of them."""

    def change(arrays: Any, records: Any) -> None:
        del arrays["norm.weight"], arrays["layers.3.attn.attn_sink"]
        arrays["model.embed_tokens.weight"] = arrays.pop("embed.weight")
        for part in ("weight", "scale"):
            name = f"layers.0.self_attn.kv_proj.{part}"
            arrays[name] = arrays.pop(f"layers.0.attn.wkv.{part}")
            records[name] = records.pop(f"layers.0.attn.wkv.{part}")

    message = _faulty(
        tmp_path,
        change,
        "norm.weight: missing",
        "layers.3.attn.attn_sink: missing",
        "embed.weight: missing",
        "layers.0.attn.wkv.weight: missing",
        "'model.embed_tokens.weight': not a tensor of this model",
        "'layers.0.self_attn.kv_proj.weight': not a tensor of this model",
    )
    assert message.count("\n") == 6


def test_fp4_of_another_width(tmp_path: Path) -> None:
    """A shape in a message is the logical one."""

    def change(arrays: Any, records: Any) -> None:
        codes, scales = np.zeros((256, 64), np.uint8), np.ones((256, 4), np.uint8)
        put(arrays, records, f"{EXPERT}.weight", "FP4", codes, scales)

    _faulty(tmp_path, change, f"{EXPERT}.weight: shape [256, 128], expected [256, 256]")


def test_fp8_without_quantization_config(tmp_path: Path) -> None:
    message = _faulty(tmp_path, lambda arrays, records: None, "no quantization_config", config=None)
    assert "FP8 or FP4" in message


def test_fp4_keeps_its_sign_of_zero_and_order(released_flash: Path) -> None:
    plan = plan_conversion(released_flash, "unused.gguf", recipe="f32")
    arrays = _released("flash")[0]
    with plan:
        weight = plan.source.weights[f"{EXPERT}.weight"]
        assert (weight.stored, weight.shape, weight.n_rows) == ("FP4", (256, 256), 256)
        wanted = decode_fp4(arrays[f"{EXPERT}.weight"], arrays[f"{EXPERT}.scale"])
        found = weight.rows(37, 100)
        np.testing.assert_array_equal(found.view(np.uint32), wanted[37:137].view(np.uint32))
