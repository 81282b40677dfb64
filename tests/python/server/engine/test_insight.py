"""The trace, the numbers, and the times: what somebody can know of a request."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import ds4
import pytest
from ds4.server.contract import RequestError, Sampling
from ds4.server.engine import LocalEngine, Settings
from support.scripted import ScriptedModel, turns
from support.serving import answers, ask, done, read


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def test_a_trace_tells_everything(model: ds4.Model, tmp_path: Path) -> None:
    """L062: also why a prompt was not cached, with the tokens around the difference."""
    path = tmp_path / "trace"
    one = ask("What is 2 + 3?", mode="chat", max_tokens=20)
    two = ask("What is 2 + 4?", mode="chat", max_tokens=20, sampling=Sampling(seed=5))
    first, second = answers(model, one, two, trace=path, keep_sessions=1)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    by_event: dict[str, list[dict[str, Any]]] = {}
    for record in records(path):
        by_event.setdefault(record["event"], []).append(record)
    assert [r["id"] for r in by_event["request"]] == [one.id, two.id]
    assert by_event["request"][1]["fields"]["sampling"]["seed"] == 5
    assert by_event["prompt"][0]["text"].endswith("<｜User｜>What is 2 + 3?<｜Assistant｜></think>")
    place = by_event["place"][1]
    assert place["source"] in ("cold", "rewind") and place["why"].startswith(place["source"])
    difference = place["difference"]
    at = difference["at"] - difference["first"]
    assert difference["prompt"][at][1] == "4" and difference["session"][at][1] == "3"
    assert difference["prompt"][:at] == difference["session"][:at]
    for record, events in zip(by_event["done"], (first, second), strict=True):
        assert record["usage"]["completion"] == done(events).usage.completion
        assert record["finish"] == done(events).finish and record["text"]


def test_a_refused_request_is_traced(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    model = ScriptedModel(turns("</think>x"))

    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=64, trace=path)) as engine:  # type: ignore[arg-type]
            with pytest.raises(RequestError):
                await engine.open(ask("word " * 100 + "\ud83d"))

    asyncio.run(run())
    assert [r["event"] for r in records(path)] == ["request", "refused"]
    assert records(path)[1]["code"] == "context_length_exceeded"


def test_a_trace_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        LocalEngine(ScriptedModel(turns("x")), Settings(trace=tmp_path / "nowhere" / "x"))  # type: ignore[arg-type]


def test_numbers_add_up(model: ds4.Model) -> None:
    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=1024)) as engine:
            got = [await read(engine, ask(f"What is {i} + 3?", max_tokens=20, n=2)) for i in (1, 2, 1)]
            numbers = engine.statistics()
            usages = [done(events, i).usage for events in got for i in (0, 1)]
            assert numbers["requests_total"] == {"chat": 3}
            assert sum(numbers["finished_total"].values()) == 6
            assert numbers["prompt_tokens_total"] == sum(u.prompt for u in usages) / 2
            assert numbers["cached_tokens_total"] + numbers["computed_tokens_total"] == numbers["prompt_tokens_total"]
            assert numbers["completion_tokens_total"] == sum(u.completion for u in usages)
            assert numbers["reasoning_tokens_total"] == sum(u.reasoning for u in usages)
            assert sum(numbers["prefixes_total"].values()) == 3
            assert (numbers["waiting"], numbers["active"]) == (0, 0)
            assert numbers["sessions"] >= 1 and numbers["session_bytes"] > 0
            assert numbers["decode_seconds_total"] > 0 and numbers["prefill_seconds_total"] > 0

    asyncio.run(run())


def test_times_of_choices_add_up() -> None:
    """Each choice tells its own: decode times are not counted twice."""
    model = ScriptedModel(turns("</think>" + "word " * 20), seconds_a_token=0.002)
    (events,) = answers(model, ask("q", n=3))
    decodes = [done(events, i).timings.decode for i in range(3)]
    assert min(decodes) > 0
    timings = done(events, 2).timings
    assert timings.total >= sum(decodes) and 0 < timings.first_token < timings.total


def test_the_name_of_the_model() -> None:
    model = ScriptedModel(turns("x"))
    info = LocalEngine(model, Settings(n_ctx=4096)).info  # type: ignore[arg-type]
    assert (info.id, info.shape, info.n_ctx, info.max_tokens) == ("ds4-tiny", "ds4-tiny", 4096, 4096)
    info = LocalEngine(model, Settings(model_id="mine", max_tokens=100)).info  # type: ignore[arg-type]
    assert (info.id, info.max_tokens) == ("mine", 100)


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_ctx": 1}, {"max_tokens": 0}, {"max_active": 0}, {"max_queued": -1}, {"prefill_quantum": 0},
        {"keep_sessions": 0}, {"tool_memory_ids": -1}, {"memory_bytes": 0}, {"n_ctx": 1.5}, {"max_active": True},
    ],
)  # fmt: skip
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
        Settings(**wrong)
