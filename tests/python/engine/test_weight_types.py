"""A quantized file gives the logits of the same values stored as F32: every decoder and every place that uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest
from support.compare import compare_logits
from support.gguf_write import GGMLType, Tensor, payload_bytes, write_gguf
from support.golden import load_golden
from support.tiny_gguf import RECIPES, effective_weights, tiny_metadata, tiny_tensors, write_tiny_gguf

PLAIN: dict[str, Any] = {"qat": False, "rows": "f32", "n_ctx": 512, "activations": "float32"}


def logits(path: Path, tokens: np.ndarray, **options: object) -> np.ndarray:
    with ds4.Model.open(path) as model, model.session(**{**PLAIN, **options}) as session:
        return session.eval_logits(tokens)


@pytest.mark.parametrize("recipe", [r for r in RECIPES if r != "f32"])
def test_file_equals_its_values_in_f32(tmp_path: Path, recipe: str) -> None:
    tokens = load_golden("flash").prompts[129].tokens
    rule = RECIPES[recipe]
    packed = write_tiny_gguf(tmp_path / "packed.gguf", "flash", types=rule)
    plain = write_tiny_gguf(tmp_path / "plain.gguf", "flash", weights=effective_weights("flash", rule))
    ours, expected = logits(packed, tokens), logits(plain, tokens)
    compare_logits(ours, expected, 2e-6, what=f"logits of recipe {recipe}")
    np.testing.assert_array_equal(logits(packed, tokens, chunk=5), ours)
    # 8-bit activations: another arithmetic, near enough to say the same most of the time, and never broken.
    rough = logits(packed, tokens, activations="quantized")
    assert np.isfinite(rough).all()
    np.testing.assert_array_equal(logits(packed, tokens, activations="quantized", chunk=7), rough)
    if recipe not in ("f16", "bf16"):
        assert np.abs(rough - ours).max() > 1e-4
    correlation = np.corrcoef(rough.ravel(), ours.ravel())[0, 1]
    assert correlation > 0.99, correlation


def test_llama_cpp_dialect_gives_the_same_logits(tmp_path: Path) -> None:
    """Metadata and MTP names as llama.cpp's converter writes them, MTP in its own file."""
    golden = load_golden("flash").prompts[129]
    main = write_tiny_gguf(tmp_path / "main.gguf", "flash", dialect="llama.cpp", part="main")
    mtp = write_tiny_gguf(tmp_path / "mtp.gguf", "flash", dialect="llama.cpp", part="mtp")
    with ds4.Model.open(main) as model:
        assert not model.has_mtp
    with ds4.Model.open(main, mtp=mtp) as model, model.session(mtp=True, **PLAIN) as session:
        assert model.has_mtp
        compare_logits(session.eval_logits(golden.tokens)[golden.positions], golden.logits)
        session.sync(golden.tokens[: golden.mtp_positions[-1] + 1])
        ours = session.mtp_logits(int(golden.tokens[golden.mtp_positions[-1] + 1]))
        compare_logits(ours, golden.mtp_logits[-1], what="MTP logits")


def test_separate_ds4_mtp_file(tmp_path: Path) -> None:
    golden = load_golden("flash").prompts[5]
    main = write_tiny_gguf(tmp_path / "main.gguf", "flash", part="main")
    mtp = write_tiny_gguf(tmp_path / "mtp.gguf", "flash", part="mtp")
    with ds4.Model.open(main, mtp=mtp) as model, model.session(mtp=True, **PLAIN) as session:
        session.sync(golden.tokens[: golden.mtp_positions[-1] + 1])
        ours = session.mtp_logits(int(golden.tokens[golden.mtp_positions[-1] + 1]))
        compare_logits(ours, golden.mtp_logits[-1], what="MTP logits")
    with pytest.raises(ds4.UnsupportedModelError, match="no MTP block"):
        ds4.Model.open(main, mtp=main)


def test_a_type_without_kernels_is_refused_by_name(tmp_path: Path) -> None:
    """Q6_K is a sound type of the container that ds4 does not compute with."""
    down = "blk.3.ffn_down_exps.weight"
    tensors = [
        Tensor(t.name, GGMLType.Q6_K, t.ne, bytes(payload_bytes(GGMLType.Q6_K, t.ne))) if t.name == down else t
        for t in tiny_tensors("flash", part="main", types=RECIPES["q8"])
    ]
    path = write_gguf(tmp_path / "q6.gguf", tiny_metadata("flash", part="main"), tensors)
    with pytest.raises(ds4.UnsupportedModelError, match=f"{down} is Q6_K, wanted F32, F16"):
        ds4.Model.open(path)
