"""Requests that steer: each gets what it would get alone, whatever lies in sessions and the store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest
from ds4.kvstore import KVStore, SavePolicy
from ds4.server.contract import Event, RequestError, Started, Tokens, ToolCallEnd
from ds4.server.engine import LocalEngine, Settings
from ds4.server.engine.prompts import Preparer
from ds4.steering import Steering, SteeringDirections
from support.serving import answers, ask, done, read, text

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
POLICY = SavePolicy(min_tokens=8, align=1, continued_every=0, trim=0)


@pytest.fixture(scope="module")
def steering(model: ds4.Model) -> tuple[Steering, ...]:
    shape = (model.shape.n_layer, model.shape.n_embd)
    return (Steering(SteeringDirections(np.random.default_rng(3).standard_normal(shape)), ffn=2.0, attn=2.0),)


def request(scale: float | None, words: str = "What is 2 + 3? Explain it in detail.", **options: Any) -> Any:
    options.setdefault("max_tokens", 12)
    options.setdefault("logprobs", 0)
    return ask(words, steering=None if scale is None else {"scale": scale}, **options)


def said(events: list[Event]) -> list[tuple[int, float]]:
    """Every token with its log-probability: equal only if all that was computed is."""
    return [(token.token, token.logprob) for e in events if isinstance(e, Tokens) for token in e.tokens]


def started(events: list[Event]) -> Started:
    (found,) = [e for e in events if isinstance(e, Started)]
    return found


def test_the_scale_of_a_request(model: ds4.Model, steering: tuple[Steering, ...]) -> None:
    plain, off, on, whole, strong = (
        said(events)
        for events in (
            *answers(model, request(None)),
            *answers(model, request(0.0), request(None), request(1.0), request(-20), steering=steering),
        )
    )
    assert off == plain
    assert on == whole, "the server's own scales are the default"
    assert plain != on != strong != plain


def test_sessions_of_other_steering_are_not_gone_on_from(model: ds4.Model, steering: tuple[Steering, ...]) -> None:
    scales = [1.0, 0.0, 1.0, -1.0, 0.0, -1.0]
    alone = {scale: said(answers(model, request(scale), steering=steering)[0]) for scale in set(scales)}
    for keep_sessions in (1, 4):
        found = answers(model, *map(request, scales), steering=steering, keep_sessions=keep_sessions)
        assert [said(events) for events in found] == [alone[scale] for scale in scales]
        cached = [started(events).cached_tokens > 0 for events in found]
        assert cached == ([False] * 6 if keep_sessions == 1 else [False, False, True, False, True, True])
    together = answers(model, *map(request, scales), steering=steering, together=True)
    assert [said(events) for events in together] == [alone[scale] for scale in scales]


def test_the_store_keeps_them_apart(model: ds4.Model, steering: tuple[Steering, ...], tmp_path: Path) -> None:
    async def life(*scales: float) -> list[list[Event]]:
        with KVStore(tmp_path) as store:
            settings = Settings(n_ctx=512, steering=steering, keep_sessions=1)
            engine = LocalEngine(model, settings, store=store, policy=POLICY)
            found = [await read(engine, request(scale)) for scale in scales]
            await engine.close()
            return found

    alone = {scale: said(answers(model, request(scale), steering=steering)[0]) for scale in (0.0, 1.0, -1.0)}
    first = asyncio.run(life(1.0, 0.0))  # the first is saved when the second takes its session
    second = asyncio.run(life(1.0, -1.0, 0.0))
    assert [said(e) for e in (*first, *second)] == [alone[s] for s in (1.0, 0.0, 1.0, -1.0, 0.0)]
    assert [started(e).cached_tokens > 0 for e in second] == [True, False, True]
    assert started(second[0]).why.startswith("store")


@pytest.mark.parametrize("scale", [0.0, 1.0, -5.0, 50.0, -50.0])
def test_calls_are_whole_or_text(model: ds4.Model, steering: tuple[Steering, ...], scale: float) -> None:
    """L097: a required call is held to its grammar and parses at any scale; a free answer ends in order."""
    forced = request(scale, "Add 2 and 3.", tools=(TOOL,), tool_choice="required", max_tokens=200, mode="chat")
    free = request(scale, "Add 2 and 3.", tools=(TOOL,), max_tokens=60, mode="chat")
    one, two = answers(model, forced, free, steering=steering)
    ended = [e for e in one if isinstance(e, ToolCallEnd)]
    assert done(one).finish in ("tool_calls", "length")
    if done(one).finish == "tool_calls":
        assert ended
    assert done(two).finish in ("stop", "length", "tool_calls")
    if scale == 0.0:
        assert text(two) == text(answers(model, ask("Add 2 and 3.", tools=(TOOL,), max_tokens=60, mode="chat"))[0])


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"scale": 1e30}, "steering.scale"),
        ({"scale": -51}, "steering.scale"),
        ({"scale": float("nan")}, "steering.scale"),
        ({"scale": 10**400}, "steering.scale"),
        ({"scale": "1"}, "steering.scale"),
        ({"scale": True}, "steering.scale"),
        ({"scale": None}, "steering.scale"),
        ({"file": "/etc/passwd"}, "steering.file"),
    ],
)
def test_what_is_refused(model: ds4.Model, steering: tuple[Steering, ...], field: dict[str, Any], param: str) -> None:
    preparer = Preparer(model.tokenizer, Settings(steering=steering))
    with pytest.raises(RequestError) as error:
        preparer.prepare(ask(steering=field))
    assert error.value.status == 400 and error.value.param == param


def test_an_empty_field_is_the_default(model: ds4.Model, steering: tuple[Steering, ...]) -> None:
    preparer = Preparer(model.tokenizer, Settings(steering=steering))
    assert preparer.prepare(ask(steering={})).steering == steering
    assert preparer.prepare(ask()).steering == steering
    assert preparer.prepare(ask(steering={"scale": 0})).steering == ()
    assert preparer.prepare(ask(steering={"scale": 0.5})).steering == (steering[0].times(0.5),)
