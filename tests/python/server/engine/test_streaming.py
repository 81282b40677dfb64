"""A server whose model streams its experts: the same answers, and figures of every request and of all."""

from __future__ import annotations

import asyncio
from typing import Any

import ds4
import pytest
from ds4.server.api import create_app
from ds4.server.api.metrics import Metrics
from ds4.server.contract import Sampling
from ds4.server.engine import LocalEngine, Settings
from starlette.testclient import TestClient
from support.serving import answers, ask, done, read, text


@pytest.fixture
def streamed() -> Any:
    with ds4.Model.open(ds4.Model.embedded_path(), expert_cache="1MiB") as model:
        yield model


def requests() -> list[Any]:
    return [
        ask("What is 17 + 25?"),
        ask("Tell me about Rome.", sampling=Sampling(temperature=0.8, seed=8), max_tokens=20),
        ask("What is 1 + 1?", n=2, sampling=Sampling(temperature=1.5, seed=9), max_tokens=10),
    ]


@pytest.mark.parametrize("together", [False, True])
def test_answers_and_what_they_cost(model: ds4.Model, streamed: ds4.Model, together: bool) -> None:
    plain = answers(model, *requests())
    opened = streamed.expert_stats().read_bytes
    found = answers(streamed, *requests(), together=together)
    for a, b in zip(plain, found, strict=True):
        assert text(a) == text(b)
        assert done(a).experts is None
    uses = [done(events, choice).experts for events, n in zip(found, (1, 1, 2), strict=True) for choice in range(n)]
    assert all(use is not None and use.asked == use.hits + use.late + use.misses > 0 for use in uses)
    stats = streamed.expert_stats()
    assert sum(use.asked for use in uses) == stats.total("asked")  # every expert is on somebody's bill, once
    assert sum(use.misses for use in uses) == stats.total("misses")
    for use in uses:
        assert use.file_bytes >= (0 if together else use.read_bytes)
        assert use.read_speed == pytest.approx(use.file_bytes / use.file_ns * 1e9 if use.file_ns else 0)
    if not together:  # what is read meanwhile is all theirs
        assert sum(use.file_bytes for use in uses) == stats.read_bytes - opened


def test_numbers_for_prometheus(streamed: ds4.Model) -> None:
    async def run() -> tuple[str, str]:
        async with LocalEngine(streamed, Settings(n_ctx=256)) as engine:
            metrics = Metrics(engine)
            before = metrics.text().decode()
            await read(engine, ask(max_tokens=4))
            return before, metrics.text().decode()

    before, after = asyncio.run(run())
    stats = streamed.expert_stats()
    assert 'ds4_expert_asked_total{block="0"} 0.0' in before
    for i, block in enumerate(stats.blocks):
        for name in ("asked", "hits", "misses", "read_bytes"):
            value = f'ds4_expert_{name}_total{{block="{i}"}} {float(getattr(block, name))!r}'
            shown = next(line for line in after.splitlines() if line.startswith(value.split(" ")[0]))
            assert float(shown.split()[1]) == getattr(block, name)
    cached = [float(line.split()[1]) for line in after.splitlines() if line.startswith("ds4_experts_cached{")]
    assert sum(cached) == (streamed.expert_map() > 1).sum() == stats.n_slots == 8
    assert "ds4_expert_slots 8.0" in after
    assert "ds4_expert_reading_seconds_total" in after


def test_over_http(model: ds4.Model, streamed: ds4.Model) -> None:
    """A client sees what a request cost, and which experts are in memory."""
    for served in (streamed, model):
        with TestClient(create_app(LocalEngine(served, Settings(n_ctx=256)))) as http:
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
            answer = http.post("/v1/chat/completions", json=body).json()
            map_ = http.get("/experts")
            assert http.get("/metrics").status_code == 200
        if served is model:
            assert "experts" not in answer["ds4"]
            assert map_.status_code == 404
            assert map_.json()["error"]["code"] == "not_streamed"
            continue
        cost = answer["ds4"]["experts"]
        assert cost["misses"] > 0
        assert cost["read_gb_per_s"] == pytest.approx(cost["file_bytes"] / cost["reading_ms"] / 1e6, rel=0.01, abs=1e-3)
        found = map_.json()
        assert found["slots"] == 8
        assert [block["experts"] for block in found["blocks"]] == [b.n_experts for b in streamed.expert_stats().blocks]
        assert "".join(block["map"] for block in found["blocks"]) == "".join(map(str, streamed.expert_map()))
        assert sum(block["cached"] for block in found["blocks"]) == 8
