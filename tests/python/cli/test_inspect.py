"""``ds4 inspect``: what a file holds, whether it runs, and why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from ds4 import Model
from support.gguf_write import GGMLType, ValueType, array, make_tensor, string, u32, write_gguf
from support.tiny_gguf import RECIPES, write_tiny_gguf


def test_text_and_json_tell_the_same(ds4: Any, model_path: Path) -> None:
    text = ds4("inspect", model_path, "--ctx", 4096)
    assert text.returncode == 0, text.stderr
    assert text.stderr == ""
    assert "test-flash" in text.stdout
    assert text.stdout.splitlines()[-1].split() == ["runs", "yes"]
    facts = json.loads(ds4("inspect", model_path, "--ctx", 4096, "--json").stdout)
    assert facts["loads"] is True and facts["differences"] == []
    assert facts["shape"]["name"] == "test-flash"
    assert facts["file_bytes"] == model_path.stat().st_size
    assert facts["tokenizer"]["n_tokens"] == 512
    assert facts["tokenizer"]["problem"] is None
    assert facts["memory"]["n_ctx"] == 4096
    assert facts["memory"]["total_session_bytes"] > 0
    assert facts["recipe"]["experts"] == "BF16"
    groups = {g["group"] for g in facts["groups"]}
    assert {"routed experts", "shared experts", "attention", "indexer", "compressor", "hyper-connections"} <= groups
    assert sum(g["n_tensors"] for g in facts["groups"]) == facts["n_tensors"]


def test_memory_grows_with_the_context(ds4: Any, model_path: Path) -> None:
    plans = [
        json.loads(ds4("inspect", model_path, "-c", n, "--json").stdout)["memory"]["total_session_bytes"]
        for n in (1024, 65536)
    ]
    assert plans[0] < plans[1]


def test_unknown_shape_lists_every_difference(ds4: Any, tmp_path: Path) -> None:
    path = tmp_path / "shape.gguf"
    changes = {"deepseek4.attention.sliding_window": u32(64), "deepseek4.expert_used_count": u32(4)}
    write_tiny_gguf(path, "flash", types=RECIPES["bf16"], part="main", changes=changes)
    done = ds4("inspect", path)
    assert done.returncode == 1, done.stderr
    assert "runs           no" in done.stdout
    assert "sliding_window" in done.stdout and "expert_used_count" in done.stdout
    assert json.loads(ds4("inspect", path, "--json").stdout)["loads"] is False


def test_broken_tokenizer_is_a_difference(ds4: Any, tmp_path: Path) -> None:
    path = tmp_path / "tokens.gguf"
    changes = {"tokenizer.ggml.pre": string("llama-bpe")}
    write_tiny_gguf(path, "flash", types=RECIPES["bf16"], part="main", changes=changes)
    facts = json.loads(ds4("inspect", path, "--json").stdout)
    assert facts["loads"] is False
    assert any("llama-bpe" in d for d in facts["differences"])


def _other_model(path: Path, architecture: str) -> Path:
    metadata = {
        "general.architecture": string(architecture),
        "general.name": string("Another model"),
        "tokenizer.ggml.tokens": array(ValueType.STRING, ["a", "b"]),
    }
    return write_gguf(path, metadata, [make_tensor("w", GGMLType.F32, (64, 32), np.zeros((64, 32), np.float32))])


def test_other_architecture_is_named(ds4: Any, tmp_path: Path) -> None:
    for architecture in ("llama", "deepseek_v41"):
        path = _other_model(tmp_path / f"{architecture}.gguf", architecture)
        done = ds4("inspect", path)
        assert done.returncode == 1, done.stderr
        assert architecture in done.stdout and "Another model" in done.stdout
        assert "runs           no" in done.stdout
        assert "DeepSeek V4 Flash and Pro" in done.stdout


def test_file_of_an_mtp_block_says_what_it_is_for(ds4: Any, mtp_path: Path) -> None:
    done = ds4("inspect", mtp_path)
    assert done.returncode == 1, done.stderr
    assert "--mtp" in done.stdout and "runs           no" in done.stdout


def test_unfinished_download_tells_what_it_will_be(ds4: Any, tmp_path: Path, model_path: Path) -> None:
    """The head of a file is enough to say what it is and how large it will be (L115)."""
    whole = _other_model(tmp_path / "whole.gguf", "llama")
    path = tmp_path / "part.gguf"
    path.write_bytes(whole.read_bytes()[:-5000])
    done = ds4("inspect", path)
    assert done.returncode == 1, done.stderr
    assert "llama" in done.stdout and "runs           no" in done.stdout
    facts = json.loads(ds4("inspect", path, "--json").stdout)
    assert facts["needed_bytes"] == whole.stat().st_size
    path.write_bytes(model_path.read_bytes()[:3000])  # not even the whole head
    facts = json.loads(ds4("inspect", path, "--json").stdout)
    assert facts["architecture"] == "deepseek4" and facts["loads"] is facts["runs"] is False
    assert facts["n_tensors"] > 0 and facts["n_parameters"] is facts["needed_bytes"] is None
    done = ds4("inspect", path)
    assert done.returncode == 1
    assert "billion" not in done.stdout and "runs           no" in done.stdout


def test_verdict_counts_the_memory(ds4: Any, model_path: Path) -> None:
    """The words of the verdict, its exit status, and that of a run agree."""
    done = ds4("inspect", model_path, "--simulate-memory", "1MiB")
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith("runs           no: needs ") and "1.0 MiB available" in last and "--force-memory" in last
    done = ds4("inspect", model_path, "--simulate-memory", "1MiB", "--json")
    facts = json.loads(done.stdout)
    assert done.returncode == 1
    assert facts["loads"] is True and facts["runs"] is facts["memory"]["fits"] is False
    assert facts["memory"]["available_bytes"] == 1 << 20
    assert ds4("-m", model_path, "-p", "hi", "-n", 1, "--simulate-memory", "1MiB").returncode == 1
    assert ds4("inspect", model_path, "--simulate-memory", "1TiB").returncode == 0


def test_the_plan_of_streaming_is_what_a_run_does(ds4: Any) -> None:
    """Where only streaming fits, the verdict says so, and the cache is the one that a run gets."""
    path = Model.embedded_path()
    whole = json.loads(ds4("inspect", path, "-c", 256, "--json").stdout)
    memory, plan = whole["memory"], whole["streaming"]
    assert plan["auto"]["share"] == 1
    assert plan["least_bytes"] < plan["auto"]["total_bytes"]
    room = memory["weights_bytes"] + memory["total_session_bytes"] - 1
    done = ds4("inspect", path, "-c", 256, "--simulate-memory", room)
    assert done.returncode == 1
    assert "--expert-cache auto streams its experts" in done.stdout.splitlines()[-1]
    auto = json.loads(ds4("inspect", path, "-c", 256, "--simulate-memory", room, "--json").stdout)["streaming"]["auto"]
    assert 0 < auto["n_experts"] < plan["n_experts"]
    assert f"for {auto['n_experts']} experts ({100 * auto['share']:.0f} %)" in done.stdout
    run = ds4("-p", "hi", "-n", 1, "-c", 256, "--simulate-memory", room, "--expert-cache", "auto")
    assert f"for {auto['n_experts']} of {plan['n_experts']} experts" in run.stderr
    tight = json.loads(ds4("inspect", path, "-c", 256, "--simulate-memory", "8MiB", "--json").stdout)["streaming"]
    assert tight["auto"] is None
    assert f"a cache of at least {tight['least_cache_bytes']} bytes" in tight["problem"]


def test_hostile_head_is_refused_at_once(ds4: Any, tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    for n_tensors, n_kv in ((0, 1 << 63), (1 << 40, 0)):
        path.write_bytes(
            b"GGUF" + (3).to_bytes(4, "little") + n_tensors.to_bytes(8, "little") + n_kv.to_bytes(8, "little")
        )
        done = ds4("inspect", path)
        assert done.returncode == 1
        assert str(path) in done.stderr
