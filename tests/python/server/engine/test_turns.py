"""Requests take turns: who waits for what, who is refused, and who leaves."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tracemalloc
import weakref
from typing import Any

import ds4
import pytest
from ds4.server.contract import (
    Content,
    Done,
    Event,
    Overloaded,
    Prefill,
    Queued,
    RequestError,
    Sampling,
    Started,
)
from ds4.server.engine import LocalEngine, Settings
from support.scripted import ScriptedModel, turns
from support.serving import answers, ask, done, read, text

STORY = "</think>" + "one two three four five six seven eight nine ten. " * 12


def n_tokens(model: Any, text: str) -> int:
    return len(model.tokenizer.encode(text))


def test_a_long_prompt_stops_nobody_for_more_than_one_piece() -> None:
    """Between two tokens of an answer at most one piece of a prompt is computed; three prompts wait in turn."""
    model = ScriptedModel(lambda prompt: STORY if "story" in prompt else "</think>ok")
    long = "word " * 3000

    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=32_768, prefill_quantum=128)) as engine:
            story = await engine.open(ask("story"))
            async for event in story:
                if isinstance(event, Content):
                    break
            model.gate.clear()
            mark = len(model.calls)
            others = [await engine.open(ask(f"{i} {long}")) for i in range(3)]
            model.gate.set()
            async for _ in story:
                pass
            during = model.calls[mark:]
            for other in others:
                async for _ in other:
                    pass
        teller = during[0][0]
        during = during[: max(i for i, (session, _) in enumerate(during) if session == teller)]
        assert max(n for _, n in during) <= 128
        pieces = 0
        for session, n in during:
            pieces = 0 if session == teller else pieces + (n > 1)
            assert pieces <= 1
        order = [session for session, n in during if n > 1][3:]  # the first ones came before the others did
        assert len(order) > 60 and all(len(set(order[i : i + 3])) == 3 for i in range(60))  # all three go on, in turn

    asyncio.run(run())


def test_answers_are_drawn_token_by_token_in_turn() -> None:
    model = ScriptedModel(lambda prompt: STORY)
    model.gate.clear()

    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=4096)) as engine:
            stories = [await engine.open(ask(f"story {i}")) for i in range(4)]
            model.gate.set()
            for story in stories:
                async for _ in story:
                    pass

    asyncio.run(run())
    singles = [session for session, n in model.calls if n == 1][20:-20]
    assert len(singles) > 200
    for i in range(0, len(singles) - 4, 4):
        assert len(set(singles[i : i + 4])) == 4


def test_a_short_request_does_not_wait_for_a_long_answer() -> None:
    """L061: its first token comes long before the end of the other."""
    model = ScriptedModel(lambda prompt: STORY if "story" in prompt else "</think>ok")

    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=4096)) as engine:
            story = await engine.open(ask("story"))
            async for event in story:
                if isinstance(event, Content):
                    break
            assert text(await read(engine, ask("hi"))) == "ok"
            n = 0
            async for event in story:
                n += isinstance(event, Content)
            assert n > 0

    asyncio.run(run())


def test_those_that_wait_know_their_place_and_more_are_refused() -> None:
    """Also L061: a place in the queue, or 429."""
    model = ScriptedModel(lambda prompt: STORY, seconds_a_token=0.002)

    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=4096, max_active=1, max_queued=2)) as engine:
            first = await engine.open(ask("1"))
            second = await engine.open(ask("2"))
            third = await engine.open(ask("3"))
            with pytest.raises(Overloaded) as error:
                await engine.open(ask("4"))
            assert error.value.status == 429 and error.value.retry_after >= 1
            assert engine.statistics()["refused_total"] == {"queue_full": 1}
            await first.cancel()
            events = [[event async for event in generation] for generation in (first, second, third)]
            assert done(events[0]).finish == "cancelled"
            positions = [[e.position for e in got if isinstance(e, Queued)] for got in events]
            assert positions[0] == [] and positions[1][0] == 0
            assert positions[2][0] == 1 and positions[2][-1] == 0
            assert text(events[1]) == text(events[2]) == STORY.removeprefix("</think>")
            assert done(events[2]).timings.queue > 0

    asyncio.run(run())


def test_nobody_waits_when_nobody_may() -> None:
    model = ScriptedModel(lambda prompt: STORY, seconds_a_token=0.002)

    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=4096, max_active=2, max_queued=0)) as engine:
            running = [await engine.open(ask("1")), await engine.open(ask("2"))]
            with pytest.raises(Overloaded):
                await engine.open(ask("3"))
            for generation in running:
                await generation.cancel()

    asyncio.run(run())


def test_cancelling_stops_the_work() -> None:
    """L062: within a token, and the next request begins at once."""
    model = ScriptedModel(lambda prompt: STORY if "story" in prompt else "</think>ok")

    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=4096)) as engine:
            story = await engine.open(ask("story"))
            async for event in story:
                if isinstance(event, Content):
                    break
            await story.cancel()
            rest = [event async for event in story]
            assert done(rest).finish == "cancelled" and isinstance(rest[-1], Done)
            n = len(model.calls)
            await asyncio.sleep(0.05)
            assert len(model.calls) <= n + 1
            assert text(await read(engine, ask("hi"))) == "ok"
            assert engine.statistics()["finished_total"] == {"cancelled": 1, "stop": 1}
            assert engine.statistics()["active"] == 0

    asyncio.run(run())


def test_cancelling_breaks_a_piece_of_a_prompt_off() -> None:
    """Not even the piece that is being computed is waited for."""
    model = ScriptedModel(turns("</think>no"), seconds_a_token=1.0)

    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=4096, prefill_quantum=4096)) as engine:
            generation = await engine.open(ask("word " * 1000))
            while not model.calls:
                await asyncio.sleep(0.005)
            await generation.cancel()
            async with asyncio.timeout(5):
                events = [event async for event in generation]
            assert done(events).finish == "cancelled"
            assert done(events).usage.completion == 0

    asyncio.run(run())


def test_a_cancelled_prompt_is_gone_on_with() -> None:
    """What was computed of it is kept."""
    model = ScriptedModel(turns("</think>yes"), seconds_a_token=0.0005)
    request = ask("word " * 1000)

    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=4096, prefill_quantum=64)) as engine:
            generation = await engine.open(request)
            async for event in generation:
                if isinstance(event, Prefill) and event.done >= 256:
                    break
            await generation.cancel()
            async for _ in generation:
                pass
            events = await read(engine, request)
            assert next(e for e in events if isinstance(e, Started)).cached_tokens >= 256
            assert text(events) == "yes"

    asyncio.run(run())


def test_cancelling_in_the_queue_and_twice_and_afterwards() -> None:
    model = ScriptedModel(lambda prompt: STORY, seconds_a_token=0.001)

    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=4096, max_active=1)) as engine:
            first = await engine.open(ask("1"))
            second = await engine.open(ask("2", n=3))
            await second.cancel()
            await second.cancel()
            events = [event async for event in second]
            assert [e.finish for e in events if isinstance(e, Done)] == ["cancelled"] * 3
            await first.cancel()
            assert [event async for event in first][-1].finish == "cancelled"  # type: ignore[union-attr]
            await first.cancel()
            assert [event async for event in first] == []

    asyncio.run(run())


def test_a_request_that_breaks_its_session_harms_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(prompt: str) -> str:
        if "bad" in prompt:
            raise RuntimeError("the script fails")
        return STORY

    model = ScriptedModel(script)

    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=4096)) as engine:
            good, bad = await asyncio.gather(read(engine, ask("good")), read(engine, ask("bad", n=2)))
            assert text(good) == STORY.removeprefix("</think>")
            assert [e.finish for e in bad if isinstance(e, Done)] == ["error", "error"]
            assert "the script fails" in (done(bad, 0).error or "")
            assert text(await read(engine, ask("good"))) == STORY.removeprefix("</think>")

    asyncio.run(run())


def test_no_memory_for_a_session_is_an_error_of_that_request(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedModel(turns("</think>ok"))
    make, failures = model.session, [MemoryError("no memory")]

    def session(**options: Any) -> Any:
        if failures:
            raise failures.pop()
        return make(**options)

    monkeypatch.setattr(model, "session", session)
    bad, good = answers(model, ask("q"), ask("q"))
    assert done(bad).finish == "error" and "no memory" in (done(bad).error or "")
    assert text(good) == "ok"


def test_without_memory_for_more_sessions_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """One session can be made: all are answered, one after the other, and nobody hears of it."""
    model = ScriptedModel(lambda prompt: STORY)
    make, made = model.session, []

    def session(**options: Any) -> Any:
        if made:
            raise MemoryError("no memory")
        made.append(make(**options))
        monkeypatch.setattr(made[0], "fork", session)
        return made[0]

    monkeypatch.setattr(model, "session", session)
    got = answers(model, *(ask(f"{i}") for i in range(4)), together=True)
    assert [text(events) for events in got] == [STORY.removeprefix("</think>")] * 4


def test_a_worker_that_ends_answers_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for an engine that is no more."""
    model = ScriptedModel(lambda prompt: STORY, seconds_a_token=0.002)

    async def run() -> None:
        engine = LocalEngine(model, Settings(n_ctx=4096, max_active=1))
        first, second = await engine.open(ask("1")), await engine.open(ask("2"))

        def broken() -> None:
            raise SystemError("a bug")

        monkeypatch.setattr(engine._worker, "_round", broken)
        async with asyncio.timeout(5):
            ends = [[event async for event in generation][-1] for generation in (first, second)]
        assert all(isinstance(end, Done) and end.finish == "error" and "a bug" in str(end.error) for end in ends)
        with pytest.raises(RequestError, match="a bug"):
            await engine.open(ask("3"))
        await engine.close()

    asyncio.run(run())


def test_closing_waits_for_answers_as_long_as_it_may() -> None:
    model = ScriptedModel(lambda prompt: STORY, seconds_a_token=0.001)

    async def run(drain: float | None) -> Event:
        engine = LocalEngine(model, Settings(n_ctx=4096))
        generation = await engine.open(ask("q"))
        closing = asyncio.ensure_future(engine.close(drain=drain))
        await asyncio.sleep(0)
        with pytest.raises(RequestError) as error:
            await engine.open(ask("another"))
        assert (error.value.status, error.value.code) == (503, "shutting_down")
        last = [event async for event in generation][-1]
        await closing
        await engine.close()  # again: nothing happens
        return last

    assert getattr(asyncio.run(run(None)), "finish", None) == "stop"
    assert getattr(asyncio.run(run(0.0)), "finish", None) == "cancelled"


def test_a_loop_that_is_gone_takes_nobody_with_it() -> None:
    """The loop is closed in the middle of an answer: the worker ends its job and goes on to the end."""
    model = ScriptedModel(lambda prompt: STORY, seconds_a_token=0.001)
    loop = asyncio.new_event_loop()
    engine = LocalEngine(model, Settings(n_ctx=4096))
    generation = loop.run_until_complete(engine.open(ask("q")))
    loop.close()
    assert generation.request.dialect == "chat"

    async def close() -> None:
        async with asyncio.timeout(5):
            await engine.close()

    asyncio.run(close())


def test_memory_is_flat_over_many_small_requests(model: ds4.Model) -> None:
    async def run() -> int:
        async with LocalEngine(model, Settings(n_ctx=256, keep_sessions=2)) as engine:

            async def some(n: int) -> None:
                for i in range(n):
                    sampling = Sampling(temperature=1.0, seed=i)
                    generation = await engine.open(ask(f"Number {i}?", sampling=sampling, max_tokens=3))
                    if i % 5 == 0:
                        await generation.cancel()
                    async for _ in generation:
                        pass

            await some(150)
            gc.collect()
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            await some(300)
            gc.collect()
            after = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            assert engine.statistics()["sessions"] <= 2
            return after - before

    grown = asyncio.run(run())
    # The memory of texts and turns may grow to its bounds; what requests themselves took is gone.
    assert grown < 300 * 500


def test_what_is_over_is_freed_at_once() -> None:
    """Without waiting for the collector of cycles: prompts are large."""
    model = ScriptedModel(turns("</think>ok"))

    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=4096)) as engine:
            generation = await engine.open(ask("q"))
            job = weakref.ref(generation.job)
            async for _ in generation:
                pass
            assert job() is not None
            del generation
            for _ in range(100):  # the worker may be on its way to wait
                if job() is None:
                    return
                await asyncio.sleep(0.01)
            raise AssertionError("the job is still there")

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()


def test_a_memory_budget_bounds_the_sessions(model: ds4.Model) -> None:
    one = model.memory_plan(1024).total_session_bytes
    with pytest.raises(ValueError, match="memory_bytes"):
        LocalEngine(model, Settings(n_ctx=1024, memory_bytes=one // 2))

    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=1024, memory_bytes=2 * one + 1)) as engine:
            await asyncio.gather(*(read(engine, ask(f"{i}", max_tokens=5)) for i in range(5)))
            assert engine.statistics()["sessions"] == 2
            with contextlib.suppress(KeyError):
                assert engine.statistics()["session_bytes"] <= 2 * one

    asyncio.run(run())
