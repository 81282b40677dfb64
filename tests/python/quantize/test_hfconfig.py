"""config.json: whatever stands in it, there is a shape or a message, never a crash."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import ds4
import pytest
from ds4.quantize import CheckpointError, plan_conversion
from ds4.quantize.hfconfig import read_shape
from support.synthetic_checkpoint import CONFIGS, write_released_checkpoint
from support.tiny_tokenizer import tokenizer_document

STRANGE: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 1 << 31, 1 << 63, 10**30, -0.5, 1e-320, 1e300, float("inf"), float("nan"),
    "", "fp8", "\ud800", [], [1], [[]], {}, {"type": "yarn"}, "x" * 5000,
)  # fmt: skip
"""Values that a key may have instead of its own."""


def _keys(config: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = config.items() if isinstance(config, dict) else enumerate(config) if isinstance(config, list) else ()
    return [place for key, value in items for place in ((*path, key), *_keys(value, (*path, key)))]


def _with(config: Any, place: tuple[Any, ...], value: Any) -> Any:
    changed = json.loads(json.dumps(config))
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


def test_flash_and_pro_are_read() -> None:
    flash, pro = read_shape(CONFIGS["flash"]), read_shape(CONFIGS["pro"])
    assert flash.fp8 and pro.fp8
    assert (flash.n_layer, pro.n_layer) == (43, 61)
    assert flash.compress_ratios[:6] == (0, 0, 4, 128, 4, 128) and len(flash.compress_ratios) == 44
    assert pro.compress_ratios[:6] == (128, 128, 4, 128, 4, 128) and len(pro.compress_ratios) == 62


def test_the_quantization_is_not_asked_for(tmp_path: Path) -> None:
    """A checkpoint that was unpacked to BF16 may keep or drop it; `fmt` and `scale_fmt` may be left out."""
    config = json.loads(json.dumps(CONFIGS["test-flash"]))
    del config["quantization_config"]["fmt"], config["quantization_config"]["scale_fmt"]
    assert read_shape(config).fp8
    del config["quantization_config"], config["expert_dtype"]
    assert not read_shape(config).fp8


@pytest.mark.parametrize("place", _keys(CONFIGS["test-flash"]), ids=str)
def test_strange_values(place: tuple[Any, ...]) -> None:
    """Every key, also those inside, with every strange value: accepted, or refused by name."""
    for value in STRANGE:
        try:
            read_shape(_with(CONFIGS["test-flash"], place, value))
        except CheckpointError as error:
            assert str(place[0]) in str(error)
            assert len(str(error)) < 2000


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sparse")
    write_released_checkpoint(folder, CONFIGS["test-flash"], json.dumps(tokenizer_document()), sparse=True)
    return folder


def test_every_number_reaches_the_engine(released: Path, tmp_path: Path) -> None:
    """A number that the tensors do not contradict is still compared with the shapes that ds4 runs."""
    for file in released.iterdir():
        os.link(file, tmp_path / file.name)
    accepted = []
    for key in CONFIGS["test-flash"]:
        for value in (1 << 30, 7, 1e14, 3.5):
            (tmp_path / "config.json").unlink()
            (tmp_path / "config.json").write_text(json.dumps({**CONFIGS["test-flash"], key: value}))
            try:
                plan = plan_conversion(tmp_path, tmp_path / "out.gguf", recipe="bf16")
            except (CheckpointError, ValueError) as error:
                assert not isinstance(error, UnicodeError)
                continue
            with plan:
                try:
                    plan.check()
                except ds4.UnsupportedModelError:
                    continue
            accepted.append(key)
    unused = {"architectures", "max_position_embeddings", "bos_token_id", "eos_token_id", "attention_dropout"}
    assert set(accepted) <= unused | {"initializer_range", "torch_dtype", "num_nextn_predict_layers"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_hidden_layers": 10_000}, ("num_hidden_layers is '10000', expected a whole number of 1 to 128",)),
        ({"num_hidden_layers": (1 << 31) - 1}, ("num_hidden_layers is '2147483647'",)),
        ({"compress_ratios": [0, 0, 4, 128]}, ("compress_ratios has 4 entries for 5 layers",)),
        ({"n_routed_experts": 1 << 30}, ("n_routed_experts is '1073741824', expected a whole number of 1 to 4096",)),
        ({"num_hash_layers": 6}, ("num_hash_layers 6 is more than num_hidden_layers 5",)),
        (
            {"head_dim": "256", "o_groups": None, "hidden_act": "gelu"},
            ("head_dim", "o_groups is missing", "hidden_act"),
        ),
    ],
)
def test_counts_that_drive_loops(change: dict[str, Any], words: tuple[str, ...]) -> None:
    """L014: a number of the file is compared with a limit before anything is made from it; all faults at once."""
    with pytest.raises(CheckpointError) as caught:
        read_shape({**CONFIGS["test-flash"], **change})
    for word in words:
        assert word in str(caught.value)
