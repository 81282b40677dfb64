"""Many requests at once, some of which are broken off: every answer that comes is the one that it would be alone."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import ds4
import pytest
from ds4.kvstore import KVStore, SavePolicy
from ds4.server.contract import Content, Done, Event, Reasoning, Request, Sampling
from ds4.server.engine import LocalEngine, Settings
from support.serving import answers, ask, done, text

SHARED = "The quick brown fox jumps over the lazy dog. " * 30


def some_requests(rng: random.Random) -> list[Request]:
    """Conversations that begin alike and leave each other at different places, greedy and drawn."""
    out = []
    for i in range(10):
        first = SHARED[: rng.choice((0, 300, 900, 1350))] + f"Q{i % 3}"
        messages: list[dict[str, Any]] = [{"role": "user", "content": first}]
        for k in range(rng.randrange(3)):
            messages += [
                {"role": "assistant", "content": rng.choice(("Yes.", "No, it is not.", "Perhaps " * 20))},
                {"role": "user", "content": f"What is {k} + {i % 4}?"},
            ]
        sampling = Sampling(temperature=rng.choice((0.0, 1.0)), seed=i)
        mode = rng.choice(("chat", "thinking"))
        n, most = rng.choice((1, 1, 2)), rng.randrange(1, 25)
        out.append(ask(messages=tuple(messages), mode=mode, sampling=sampling, max_tokens=most, n=n))
    return out


def shown(events: list[Event], n: int) -> list[tuple[str, str, str]]:
    return [(text(events, Reasoning, i), text(events, choice=i), done(events, i).finish) for i in range(n)]


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_those_of_requests_alone(model: ds4.Model, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    requests = some_requests(rng)
    alone = [shown(events, r.n) for r, events in zip(requests, answers(model, *requests, keep_sessions=1), strict=True)]
    settings = Settings(
        n_ctx=2048, keep_sessions=rng.choice((2, 3, 6)), max_active=4, prefill_quantum=rng.choice((1, 13, 200))
    )
    policy = SavePolicy(min_tokens=32, align=64, continued_every=200, trim=8)

    async def one(engine: LocalEngine, i: int, leave: int | None) -> None:
        await asyncio.sleep(rng.random() * 0.05)
        generation = await engine.open(requests[i])
        events = []
        async for event in generation:
            events.append(event)
            if leave is not None and len(events) > leave:
                await generation.cancel()
                leave = None
        assert isinstance(events[-1], Done)
        finishes = [done(events, k).finish for k in range(requests[i].n)]
        if "cancelled" not in finishes:
            assert shown(events, requests[i].n) == alone[i]
        else:
            whole = alone[i][0][1]
            assert whole.startswith("".join(e.text for e in events if isinstance(e, Content) and e.choice == 0))

    async def run() -> None:
        with KVStore(tmp_path) as store:
            engine = LocalEngine(model, settings, store=store, policy=policy)
            order = [rng.randrange(len(requests)) for _ in range(30)]
            await asyncio.gather(*(one(engine, i, rng.randrange(12) if rng.random() < 0.3 else None) for i in order))
            numbers = engine.statistics()
            await engine.close()
            assert numbers["active"] == numbers["waiting"] == 0
            assert sum(numbers["prefixes_total"].values()) <= 30
            assert "error" not in numbers["finished_total"]
            assert set(numbers["prefixes_total"]) - {"cold"}

    asyncio.run(run())
