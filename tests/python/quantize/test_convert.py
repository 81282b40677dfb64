"""Conversion of checkpoints: the file equals the one written from the same weights by other code, or there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest
from ds4.quantize import CheckpointError, convert, plan_conversion
from oracle import tiny_shapes
from support.gguf_write import GGMLType
from support.tiny_gguf import RECIPES, TypeRule, leaf_of, tiny_metadata, tiny_tensors

from .checkpoints import write_checkpoint

ROLE_F32 = {"hc_attn_fn", "hc_ffn_fn", "output_hc_fn", "hc_head_fn"}


def _bf16_rule(name: str) -> GGMLType:
    return GGMLType.F32 if leaf_of(name) in ROLE_F32 else RECIPES["bf16"](name)


def _q8_rule(name: str) -> GGMLType:
    """The types of the published files, with routed experts in Q8_0 and F16 mixing matrices in the MTP block too."""
    kind = RECIPES["ds4-q4"](name)
    if kind is GGMLType.Q4_K:
        return GGMLType.Q8_0
    return GGMLType.F16 if leaf_of(name) in ROLE_F32 else kind


EXPECTED: dict[str, TypeRule] = {
    "f32": RECIPES["f32"],
    "f16": RECIPES["f16"],
    "bf16": _bf16_rule,
    "q8_0": _q8_rule,
}


def _run(source: Path, out: Path, recipe: str = "bf16", **options: Any) -> None:
    plan = plan_conversion(source, out, recipe=recipe, **options)
    with plan:
        convert(plan)


def _check_tensors(path: Path, weights: tiny_shapes.Weights, rule: TypeRule, part: str) -> None:
    expected = {t.name: t for t in tiny_tensors("flash", types=rule, weights=weights, part=part)}
    with ds4.GGUFFile(path) as file:
        assert set(file.tensors) == set(expected)
        end = file.data_offset
        for tensor in file.tensors.values():
            wanted = expected[tensor.name]
            assert (tensor.type, tensor.ne) == (GGMLType(wanted.type).name, wanted.ne), tensor.name
            assert bytes(tensor.data()) == wanted.data, tensor.name
            assert tensor.offset == end, "offsets are canonical"
            end = -(-(tensor.offset + tensor.n_bytes) // 32) * 32
        assert file.file_bytes == end


@pytest.mark.parametrize("recipe", list(EXPECTED))
def test_file_equals_one_written_from_the_same_weights(
    flash_checkpoint: Path, flash_weights: tiny_shapes.Weights, tmp_path: Path, recipe: str
) -> None:
    """Every tensor has the name, shape, type and bytes that the test writer gives it; every key its value."""
    out = tmp_path / "out.gguf"
    _run(flash_checkpoint, out, recipe)
    _check_tensors(out, flash_weights, EXPECTED[recipe], "all")
    with ds4.GGUFFile(out) as file:
        for key, value in tiny_metadata("flash").items():
            if key in ("general.name", "tokenizer.ggml.padding_token_id"):
                continue
            found, wanted = file.metadata[key], getattr(value, "value", None)
            if isinstance(wanted, float) or (isinstance(wanted, list) and isinstance(wanted[0], float)):
                assert found == pytest.approx(wanted, rel=1e-6), key
            else:
                assert found == wanted, key
        assert file.metadata["general.name"] == "flash"
        # What only llama.cpp asks for.
        assert file.metadata["deepseek4.expert_gating_func"] == 4
        assert file.metadata["deepseek4.swiglu_clamp_shexp"] == [10.0] * 5
    with ds4.Model.open(out) as model:
        assert model.shape.name == "test-flash"
        assert model.has_mtp
        assert model.warnings == ()


def test_other_readers_accept_the_file(flash_checkpoint: Path, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    out = tmp_path / "out.gguf"
    _run(flash_checkpoint, out, "q8_0")
    reader = gguf.GGUFReader(out)
    with ds4.GGUFFile(out) as file:
        assert [t.name for t in reader.tensors] == list(file.tensors)
        for tensor in reader.tensors[:40]:
            assert bytes(tensor.data.tobytes()) == bytes(file.tensors[tensor.name].data())


def test_converted_model_computes_the_same(flash_checkpoint: Path, flash_gguf: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    _run(flash_checkpoint, out, "f32")
    tokens = tiny_shapes.make_prompt(tiny_shapes.VARIANTS["flash"], 129).tolist()
    logits = []
    for path in (out, flash_gguf):
        with ds4.Model.open(path) as model, model.session(n_ctx=256) as session:
            session.sync(tokens)
            logits.append(session.logits())
    np.testing.assert_array_equal(logits[0], logits[1])


def test_mtp_block_in_its_own_file(flash_checkpoint: Path, flash_weights: tiny_shapes.Weights, tmp_path: Path) -> None:
    out, mtp = tmp_path / "out.gguf", tmp_path / "mtp.gguf"
    _run(flash_checkpoint, out, "q8_0", mtp_out=mtp, name="A name")
    _check_tensors(out, flash_weights, EXPECTED["q8_0"], "main")
    _check_tensors(mtp, flash_weights, EXPECTED["q8_0"], "mtp")
    with ds4.Model.open(out) as model:
        assert not model.has_mtp
        assert model.metadata["general.name"] == "A name"
    with ds4.Model.open(out, mtp=mtp) as model, model.session(n_ctx=32, mtp=True) as session:
        session.sync([1, 2, 3])
        assert np.isfinite(session.mtp_logits(4)).all()


def test_shards_give_the_same_file(flash_checkpoint: Path, flash_weights: tiny_shapes.Weights, tmp_path: Path) -> None:
    sharded = write_checkpoint(tmp_path / "flash", "flash", flash_weights, shards=3)
    _run(flash_checkpoint, tmp_path / "a.gguf")
    _run(sharded, tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_checkpoint_without_mtp(flash_weights: tiny_shapes.Weights, tmp_path: Path) -> None:
    main = {k: v for k, v in flash_weights.items() if not k.startswith("mtp.")}
    source = write_checkpoint(tmp_path / "flash", "flash", main)
    plan = plan_conversion(source, tmp_path / "out.gguf", recipe="bf16")
    plan.close()
    assert any("MTP" in note for note in plan.notes)
    with pytest.raises(ValueError, match="no MTP block"):
        plan_conversion(source, tmp_path / "out.gguf", recipe="bf16", mtp_out=tmp_path / "mtp.gguf")


# What is refused


def _refused(source: Path, tmp_path: Path, *words: str, recipe: str = "bf16") -> str:
    out = tmp_path / "refused.gguf"
    with pytest.raises((CheckpointError, ds4.UnsupportedModelError)) as caught:
        _run(source, out, recipe)
    for word in words:
        assert word in str(caught.value)
    assert not list(tmp_path.glob("*refused*")) and not list(tmp_path.glob(".*"))
    return str(caught.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_with_their_place(
    flash_weights: tiny_shapes.Weights, tmp_path: Path, bad: float
) -> None:
    values = flash_weights["layers.1.ffn.experts.7.w2.weight"].copy()
    values[200, 31] = bad
    source = write_checkpoint(tmp_path / "c", "flash", {**flash_weights, "layers.1.ffn.experts.7.w2.weight": values})
    _refused(source, tmp_path, "layers.1.ffn.experts.7.w2.weight", "row 200, column 31")


def test_values_too_large_for_the_type(flash_weights: tiny_shapes.Weights, tmp_path: Path) -> None:
    values = flash_weights["embed.weight"].copy()
    values[500, 3] = 2.0**17
    source = write_checkpoint(tmp_path / "c", "flash", {**flash_weights, "embed.weight": values})
    _refused(source, tmp_path, "embed.weight", "row 500, column 3", "F16", recipe="f16")
    _run(source, tmp_path / "ok.gguf", "bf16")


def test_expert_ids_out_of_range(flash_weights: tiny_shapes.Weights, tmp_path: Path) -> None:
    table = flash_weights["layers.0.ffn.gate.tid2eid"].copy()
    table[17, 2] = 16
    source = write_checkpoint(tmp_path / "c", "flash", {**flash_weights, "layers.0.ffn.gate.tid2eid": table})
    _refused(source, tmp_path, "tid2eid", "row 17, column 2", "16")


def test_every_difference_is_listed(flash_weights: tiny_shapes.Weights, tmp_path: Path) -> None:
    changed = dict(flash_weights)
    del changed["layers.3.attn.wq_a.weight"]
    changed["norm.weight"] = changed["norm.weight"][:100]
    changed["layers.0.extra"] = np.zeros((2, 2), np.float32)
    source = write_checkpoint(tmp_path / "c", "flash", changed)
    message = _refused(source, tmp_path, "layers.3.attn.wq_a.weight: missing", "norm.weight: shape [100]")
    assert "layers.0.extra" in message


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "deepseek_v41"}, ("deepseek_v41", "deepseek_v4")),
        ({"model_type": None}, ("model_type",)),
        ({"scoring_func": "softmax"}, ("scoring_func", "softmax")),
        ({"head_dim": None, "o_groups": "2"}, ("head_dim is missing", "o_groups")),
        ({"compress_ratios": [0, 0, 4]}, ("compress_ratios has 3 entries for 5 layers",)),
        ({"compress_ratios": [0, 0, 4, 64, 4, 0]}, ("compress_ratios", "64")),
        ({"num_hidden_layers": 10000}, ("num_hidden_layers is '10000'",)),
        ({"rope_scaling": {"type": "linear"}}, ("rope_scaling.type", "linear")),
        ({"rms_norm_eps": float("nan")}, ("rms_norm_eps",)),
        ({"quantization_config": {"quant_method": "awq"}}, ("quantization_config.quant_method is 'awq'", "'fp8'")),
        ({"quantization_config": {"quant_method": "fp8"}}, ("weight_block_size is missing",)),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32], "fmt": "e5m2"}},
            ("weight_block_size is '[32, 32]'", "fmt is 'e5m2'"),
        ),
        ({"quantization_config": [1]}, ("quantization_config is '[1]'",)),
        ({"expert_dtype": "nvfp4"}, ("expert_dtype is 'nvfp4'",)),
        ({"sliding_window": 64}, ("test-flash", "sliding_window")),
        ({"vocab_size": 600}, ("embed.weight: shape [512, 256], expected [600, 256]",)),
    ],
)
def test_configurations_that_are_refused(
    flash_checkpoint: Path, tmp_path: Path, config: dict[str, Any], words: tuple[str, ...]
) -> None:
    source = tmp_path / "c"
    source.mkdir()
    for file in flash_checkpoint.iterdir():
        os.link(file, source / file.name)
    content = {**json.loads((source / "config.json").read_text()), **config}
    (source / "config.json").unlink()
    (source / "config.json").write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    _refused(source, tmp_path, *words)


def test_missing_files(flash_checkpoint: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        source = tmp_path / name.replace(".", "-")
        source.mkdir()
        for file in flash_checkpoint.iterdir():
            if file.name != name:
                os.link(file, source / file.name)
        with pytest.raises(FileNotFoundError, match=name):
            plan_conversion(source, tmp_path / "out.gguf", recipe="bf16")


# Atomicity, through the program


def _command(*args: Any) -> list[str]:
    return [sys.executable, "-m", "ds4.cli.main", "convert", *map(str, args)]


def test_existing_files_are_kept_without_force(flash_checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_text("precious")
    done = subprocess.run(_command(flash_checkpoint, out, "--type", "bf16"), capture_output=True, text=True)
    assert done.returncode == 1
    assert "--force" in done.stderr and str(out) in done.stderr
    assert out.read_text() == "precious"
    done = subprocess.run(_command(flash_checkpoint, out, "--type", "bf16", "--force"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size > 1 << 20


def test_dry_run_writes_nothing(flash_checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = subprocess.run(
        _command(flash_checkpoint, out, "--type", "q8_0", "--dry-run"), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "routed experts" in done.stdout and "Q8_0" in done.stdout
    assert list(tmp_path.iterdir()) == []
    _run(flash_checkpoint, out, "q8_0")
    assert f"{out.stat().st_size} bytes" in done.stdout


def test_too_little_room_is_told_before_writing(flash_checkpoint: Path, tmp_path: Path, monkeypatch: Any) -> None:
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(OSError, match="1000 are free"):
        _run(flash_checkpoint, tmp_path / "out.gguf")
    assert list(tmp_path.iterdir()) == []
