"""Errors of quantized tensors, against sums made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest
from ds4 import gguf
from ds4.imatrix import Entry, Imatrix
from ds4.quantize import Plan, PlanError, Policy, compare, plan_quantization, quantize
from ds4.quantize.encode import payload
from support.tiny_gguf import RECIPES, tiny_tensors, write_tiny_gguf

DOWN = "blk.4.ffn_down_exps.weight"
GATE = "blk.4.ffn_gate_exps.weight"


def _values(path: Path, name: str) -> np.ndarray[Any, Any]:
    with ds4.GGUFFile(path) as file:
        return np.array(file.tensors[name].numpy(), dtype=np.float64)


def test_every_figure(flash_bf16: Path, imatrix: Imatrix, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    seen: list[tuple[int, int, str]] = []
    with plan_quantization(flash_bf16, out, recipe="q4", imatrix=imatrix) as plan:
        planned = compare(plan, [DOWN], threads=2, progress=lambda *a: seen.append(a))
        assert list(tmp_path.iterdir()) == []
        quantize(plan)
        written = compare(plan, [DOWN], file=out)
    assert planned == written
    assert seen[-1] == (2**20, 2**20, DOWN)
    (error,) = planned
    x, q = _values(flash_bf16, DOWN), _values(out, DOWN)
    w = np.stack([imatrix.lookup(DOWN, 256, 16, e) for e in range(16)]).astype(np.float64)[:, None, :]
    d = q - x
    assert (error.name, error.source_type, error.type, error.n_values) == (DOWN, "BF16", "Q4_K", x.size)
    assert error.rmse == pytest.approx(np.sqrt((d**2).mean()))
    assert error.relative_rmse == pytest.approx(np.sqrt((d**2).sum() / (x**2).sum()))
    assert error.weighted_rmse == pytest.approx(np.sqrt((w * d**2).sum() / (w * np.ones_like(d)).sum()))
    assert error.relative_weighted_rmse == pytest.approx(np.sqrt((w * d**2).sum() / (w * x**2).sum()))
    e, r, c = np.unravel_index(np.abs(d).argmax(), d.shape)
    assert error.max_error == np.abs(d).max()
    assert (error.max_place.matrix, error.max_place.row, error.max_place.column) == (e, r, c)
    rows = np.sqrt((d**2).mean(axis=2))
    e, r = np.unravel_index(rows.argmax(), rows.shape)
    assert error.worst_row_rmse == pytest.approx(rows.max())
    assert (error.worst_row.matrix, error.worst_row.row) == (e, r)


def _relative(plan: Plan, name: str, x: Any, w: Any) -> float:
    """Relative weighted error of a tensor as the plan encodes it."""
    tensor = next(t for t in plan.tensors if t.name == name)
    raw = b"".join(payload(tensor, plan.importance, n_experts=16, threads=2))
    d = gguf.dequantize(tensor.type, raw).astype(np.float64).reshape(x.shape) - x
    return float(np.sqrt((w * d**2).sum() / (w * x**2).sum()))


@pytest.mark.parametrize("name", [GATE, DOWN])
def test_importance_lowers_the_weighted_error(flash_bf16: Path, imatrix: Imatrix, name: str) -> None:
    """What importance is for: a smaller error where inputs are large."""
    x = _values(flash_bf16, name)
    w = np.stack([imatrix.lookup(name, 256, 16, e) for e in range(16)]).astype(np.float64)[:, None, :]
    with plan_quantization(flash_bf16, None, recipe="q2") as plan:
        plain = _relative(plan, name, x, w)
    with plan_quantization(flash_bf16, None, recipe="q2", imatrix=imatrix) as plan:
        weighted = _relative(plan, name, x, w)
        (error,) = compare(plan, [name])
    assert error.relative_weighted_rmse == pytest.approx(weighted)
    assert weighted < 0.97 * plain


def test_an_expert_without_data_does_not_count_as_weighted(flash_bf16: Path, imatrix: Imatrix) -> None:
    counts = np.zeros(16)
    none = Imatrix({**imatrix.entries, DOWN: Entry(imatrix.entries[DOWN].sums, counts)})
    with plan_quantization(flash_bf16, None, policy=Policy(routed_w2="Q4_K"), imatrix=none) as plan:
        (error,) = compare(plan, [DOWN])
    assert error.weighted_rmse is None and error.relative_weighted_rmse is None
    assert error.rmse > 0


def test_prefixes_and_tensors_that_are_copied(flash_bf16: Path) -> None:
    with plan_quantization(flash_bf16, None, recipe="q8_0") as plan:
        errors = {e.name: e for e in compare(plan, ["blk.0.attn_", "output."])}
        assert "blk.0.attn_kv.weight" in errors and "output.weight" in errors
        assert not [n for n in errors if n.startswith("blk.1") or n == "output_norm.weight"]
        norm = errors["blk.0.attn_norm.weight"]
        assert (norm.type, norm.rmse, norm.relative_rmse, norm.max_error) == ("F32", 0, 0, 0)
        assert not [e for e in compare(plan, ["blk.0."]) if "tid2eid" in e.name]
        with pytest.raises(PlanError, match=r"begins with 'blk\.9\.'"):
            compare(plan, ["output.", "blk.9."])
        with pytest.raises(PlanError, match="tables of expert ids"):
            compare(plan, ["blk.0.ffn_gate_tid2eid"])


def test_a_file_of_another_model(flash_bf16: Path, tmp_path: Path) -> None:
    some = [t for t in tiny_tensors("flash", types=RECIPES["bf16"]) if t.name != "output.weight"]
    other = write_tiny_gguf(tmp_path / "other.gguf", "flash", tensors=some)
    with plan_quantization(flash_bf16, None) as plan:
        assert compare(plan, ["token_embd"], file=other)[0].rmse == 0
        with pytest.raises(PlanError, match=r"other\.gguf(?s:.*)output\.weight is missing"):
            compare(plan, ["output."], file=other)
