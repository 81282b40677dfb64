"""Every program runs a model whose experts are streamed, and what comes out is the same."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ds4 as package
import pytest
from ds4.budget import expert_plan
from support.tiny_gguf import RECIPES, leaf_of, write_tiny_gguf

from ..server.api.processes import ServerProcess

STEER = Path(__file__).parents[2] / "data" / "steering"
STREAMED = ("--expert-cache", "500KiB", "--read-depth", 4)


def both(ds4: Any, *args: Any) -> tuple[str, str]:
    """What a program prints without streaming and with it."""
    found = []
    for more in ((), STREAMED):
        done = ds4(*args, *more)
        assert done.returncode == 0, done.stderr
        assert ("streaming: " in done.stderr) == bool(more)
        found.append(done.stdout)
    return found[0], found[1]


def test_eval(ds4: Any, tmp_path: Path) -> None:
    reports = []
    for name, more in (("plain", ()), ("streamed", STREAMED)):
        report = tmp_path / f"{name}.json"
        done = ds4("eval", "--questions", 3, "--plain", "--json", report, *more)
        assert done.returncode == 0, done.stdout + done.stderr
        reports.append([case["answer"] for case in json.loads(report.read_text())["cases"]])
    assert reports[0] == reports[1]
    assert len(reports[0]) == 3


def test_perplexity_and_dumps(ds4: Any, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("in the street and in the house, " * 10)
    plain, streamed = both(ds4, "--perplexity-file", text, "--json")
    assert json.loads(plain)["nll"] == json.loads(streamed)["nll"]
    plain, streamed = both(ds4, "-p", "hi", "--dump-logits", "-")
    assert plain == streamed


def test_steer(ds4: Any, tmp_path: Path) -> None:
    for name in ("verbose", "terse"):
        lines = (STEER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines[:2]) + "\n", encoding="utf-8")
    made = []
    for name, more in (("plain.f32", ()), ("streamed.f32", STREAMED)):
        done = ds4(
            "steer", "build", "--good", tmp_path / "verbose.jsonl", "--bad", tmp_path / "terse.jsonl",
            "-o", tmp_path / name, *more,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        made.append((tmp_path / name).read_bytes())
    assert made[0] == made[1]


def test_the_server_with_requests_side_by_side() -> None:
    """More sessions than the cache has slots for all at once."""
    httpx = pytest.importorskip("httpx")
    asks = ["What is 17 + 25?", "Tell me about Rome.", "What is the capital of France?", "Hello"]

    def answers(*args: Any) -> tuple[list[str], list[Any]]:
        with ServerProcess("-c", 512, *args) as server:

            def ask(text: str) -> Any:
                body = {"messages": [{"role": "user", "content": text}], "max_tokens": 12, "temperature": 0}
                return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()

            with ThreadPoolExecutor(len(asks)) as pool:
                found = list(pool.map(ask, asks))
            maps = httpx.get(f"{server.url}/experts", timeout=10)
        assert maps.status_code == (200 if args else 404)
        return [json.dumps(a["choices"][0]["message"], sort_keys=True) for a in found], [a["ds4"] for a in found]

    plain, _ = answers()
    streamed, told = answers("--expert-cache", "250KiB", "--read-depth", "4", "--cold")
    assert streamed == plain
    assert all(one["experts"]["misses"] > 0 for one in told)


def test_a_cache_smaller_than_the_largest_expert_of_a_mixed_file(ds4: Any, tmp_path: Path) -> None:
    """The smallest cache is one that holds the largest expert, which the refusal names; with it everything runs."""

    def mixed(name: str) -> Any:
        kind = {"blk.1.": "q8", "blk.2.": "f16"}.get(name[:6], "ds4-q4")
        return RECIPES[kind if "_exps" in leaf_of(name) else "ds4-q4"](name)

    path = write_tiny_gguf(tmp_path / "mixed.gguf", "flash", types=mixed)
    least = expert_plan([path]).slot_bytes
    with package.Model.open(path, expert_cache=1 << 30) as model:
        sizes = {block.expert_bytes for block in model.expert_stats().blocks}
    assert min(sizes) < max(sizes) <= least
    ask = ("-m", path, "-p", "hi", "-n", 2, "-c", 64, "--temp", 0, "--nothink")
    refused = ds4(*ask, "--expert-cache", min(sizes) + 4096)
    assert refused.returncode == 1
    assert f"the smallest possible one is {least} bytes" in refused.stderr
    plain, streamed = ds4(*ask), ds4(*ask, "--expert-cache", least)
    assert plain.returncode == streamed.returncode == 0, streamed.stderr
    assert plain.stdout == streamed.stdout
    assert "for 1 of " in streamed.stderr
