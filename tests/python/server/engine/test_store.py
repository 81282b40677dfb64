"""States on disk: found again after a restart, used only when they help, never trusted blindly."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import ds4
import pytest
from ds4.kvstore import KVStore, SavePolicy
from ds4.server.contract import Event, Reasoning, Request, Sampling, Started
from ds4.server.engine import LocalEngine, Settings
from ds4.server.engine.storage import graft
from support.serving import answers, ask, done, read, text

SYSTEM = {"role": "system", "content": "Rules: " + "be brief, be kind, be right; " * 30}
POLICY = SavePolicy(min_tokens=64, align=64, continued_every=0, trim=8)


def question(text: str = "What is 2 + 3?", **options: Any) -> Request:
    options.setdefault("mode", "chat")
    options.setdefault("max_tokens", 12)
    return ask(messages=(SYSTEM, {"role": "user", "content": text}), **options)


def started(events: list[Event]) -> Started:
    (found,) = [e for e in events if isinstance(e, Started)]
    return found


def served(
    model: ds4.Model, folder: Path, *requests: Request, policy: SavePolicy = POLICY, **settings: Any
) -> tuple[list[list[Event]], dict[str, Any]]:
    """Answers of one life of a server with a store, and its statistics."""

    async def run() -> tuple[list[list[Event]], dict[str, Any]]:
        settings.setdefault("n_ctx", 2048)
        with KVStore(folder) as store:
            engine = LocalEngine(model, Settings(**settings), store=store, policy=policy)
            got = [await read(engine, request) for request in requests]
            await engine.close()
            return got, engine.statistics()

    return asyncio.run(run())


def same(model: ds4.Model, request: Request, events: list[Event]) -> bool:
    """Whether an answer is that of an engine without a store."""
    (alone,) = answers(model, request)
    return (text(alone, Reasoning), text(alone)) == (text(events, Reasoning), text(events))


def test_a_restart_goes_on(model: ds4.Model, tmp_path: Path) -> None:
    (first,), statistics = served(model, tmp_path, question())
    assert started(first).cached_tokens == 0
    assert statistics["store_total"]["saved_shutdown"] == 1
    history = (
        SYSTEM,
        {"role": "user", "content": "What is 2 + 3?"},
        {"role": "assistant", "content": text(first)},
        {"role": "user", "content": "What is 1 + 1?"},
    )
    request = ask(messages=history, mode="chat", max_tokens=12)
    (second,), statistics = served(model, tmp_path, request)
    usage = done(first).usage
    assert started(second).cached_tokens >= usage.prompt + usage.completion - 2
    assert started(second).why.startswith("store")
    assert statistics["prefixes_total"] == {"store": 1} and statistics["store_total"]["loaded"] == 1
    assert same(model, request, second)


def test_hidden_reasoning_is_no_miss_after_a_restart(model: ds4.Model, tmp_path: Path) -> None:
    """L071: the history comes back without it, so the state before the answer is stored as well. L070 on the way."""
    history: list[dict[str, str]] = [SYSTEM]
    before = 0
    for turn in range(3):
        history.append({"role": "user", "content": f"Question {turn}. " + "Think well about it. " * 20})
        request = ask(messages=tuple(history), mode="thinking", max_tokens=40)
        (events,), _ = served(model, tmp_path, request)
        if turn:
            assert started(events).cached_tokens == before - 1
            assert same(model, request, events)
        before = started(events).prompt_tokens
        (again,), _ = served(model, tmp_path, request)
        assert started(again).cached_tokens == before - 1
        assert text(again) == text(events)
        history.append({"role": "assistant", "content": text(events)})


def test_another_question_finds_the_anchor(model: ds4.Model, tmp_path: Path) -> None:
    """The system text of a first conversation is there for the next one."""
    served(model, tmp_path, question())
    request = question("Tell me a story.")
    (events,), _ = served(model, tmp_path, request)
    n_system = len(model.tokenizer.encode(SYSTEM["content"]))
    assert started(events).cached_tokens >= n_system
    assert started(events).prompt_tokens - started(events).cached_tokens < 20
    assert same(model, request, events)


def test_a_session_that_is_replaced_is_saved_and_comes_back(model: ds4.Model, tmp_path: Path) -> None:
    """L068, and P, Q, P with one session."""
    p, q = question(), ask("Once " + "upon a time " * 60, mode="chat", max_tokens=12)
    (one, _, three), statistics = served(model, tmp_path, p, q, p, keep_sessions=1)
    assert statistics["store_total"]["saved_evict"] >= 1
    assert started(three).why.startswith("store")
    assert started(three).prompt_tokens - started(three).cached_tokens < 20
    assert text(one) == text(three)


@pytest.mark.parametrize("where", [0.02, 0.5, 0.98])
def test_a_damaged_file_is_a_miss(model: ds4.Model, tmp_path: Path, where: float) -> None:
    """The answer is right, and the file is not tried again."""
    served(model, tmp_path, question())
    paths = [*tmp_path.rglob("*.state"), *tmp_path.rglob("*.rows")]
    assert len(paths) >= 3
    for path in paths:
        data = bytearray(path.read_bytes())
        data[int(where * (len(data) - 1))] ^= 0x40
        path.write_bytes(data)
    request = question()
    (events, again), _ = served(model, tmp_path, request, request)
    assert started(events).cached_tokens == 0
    assert same(model, request, events) and text(again) == text(events)


def test_a_state_whose_first_computation_fails_is_put_aside(
    model: ds4.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L065: cold run, right answer, no second load."""
    served(model, tmp_path, question())
    fresh = ds4.Session.eval
    failures: list[Exception] = []

    def fails_once(self: ds4.Session, tokens: Any, **options: Any) -> None:
        if failures:
            raise failures.pop()
        fresh(self, tokens, **options)

    load = ds4.kvstore.Hit.load

    def loads(self: Any, session: Any) -> int:
        failures.append(ds4.StateError("rows make no sense"))
        return load(self, session)

    monkeypatch.setattr(ds4.Session, "eval", fails_once)
    monkeypatch.setattr(ds4.kvstore.Hit, "load", loads)
    request = question("Tell me a story.")
    (events,), statistics = served(model, tmp_path, request)
    assert done(events).finish in ("stop", "length") and started(events).cached_tokens == 0
    assert statistics["store_total"]["loaded"] == 1 and statistics["store_total"]["damaged"] == 1
    monkeypatch.undo()
    assert same(model, request, events)


def test_a_disk_that_takes_nothing_stops_nobody(
    model: ds4.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saves that fail cost nothing but the state."""
    import ds4.kvstore.staged as staged

    def full(self: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(staged.Staged, "commit", full)
    (events,), statistics = served(model, tmp_path, question())
    assert done(events).finish in ("stop", "length")
    assert statistics["store_total"] == {"not_saved": 2}


def test_growing_states_are_saved_on_the_way(model: ds4.Model, tmp_path: Path) -> None:
    """While a prompt is computed and while an answer is drawn."""
    policy = SavePolicy(min_tokens=64, align=64, continued_every=64, trim=8, cold_max_tokens=0)
    request = question("Tell me a long story.", mode="chat", max_tokens=200, sampling=Sampling(temperature=1.5, seed=1))
    (events,), statistics = served(model, tmp_path, request, policy=policy)
    n = done(events).usage.prompt + done(events).usage.completion
    assert statistics["store_total"]["saved_continued"] in (n // 64, n // 64 - 1)
    assert same(model, request, events)


def test_calls_are_known_after_a_restart(model: ds4.Model, tmp_path: Path) -> None:
    """The exact block and the reasoning before it come back, so that the stored state fits."""
    tools = (
        {
            "type": "function",
            "function": {
                "name": "add",
                "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
            },
        },
    )
    first_request = ask(messages=(SYSTEM, {"role": "user", "content": "q"}), tools=tools, tool_choice="required",
                        sampling=Sampling(temperature=1.0, seed=4), max_tokens=400)  # fmt: skip
    (first,), _ = served(model, tmp_path, first_request)
    assert done(first).finish == "tool_calls"
    from ds4.server.contract import ToolCallEnd

    calls = [e for e in first if isinstance(e, ToolCallEnd)]
    history = (
        SYSTEM,
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls
            ],
        },
        *({"role": "tool", "tool_call_id": c.id, "content": "5"} for c in calls),
    )
    request = ask(messages=history, tools=tools, max_tokens=12)
    (second,), statistics = served(model, tmp_path, request)
    assert statistics["replayed_turns_total"] == 1
    usage = done(first).usage
    assert started(second).cached_tokens >= usage.prompt + usage.completion - 2


def test_a_graft_cuts_only_at_special_tokens(model: ds4.Model) -> None:
    from array import array

    tokenizer = model.tokenizer
    eos = tokenizer.eos_id
    word = tokenizer.encode("hello")
    letters: list[int] = [t for c in "hello" for t in tokenizer.encode(c)]
    assert word != letters
    prompt = array("i", [*word, eos, *word])

    def n(ids: list[int]) -> int:
        return len(tokenizer.decode_bytes(ids)) + ids.count(eos)

    assert graft(tokenizer, prompt, word, n(word)) is prompt
    assert list(graft(tokenizer, prompt, letters, n(letters)) or ()) == [*letters, eos, *word]
    assert list(graft(tokenizer, prompt, [*letters, eos], n([*letters, eos])) or ()) == [*letters, eos, *word]
    assert graft(tokenizer, prompt, letters[:2], n(letters[:2])) is None
    assert graft(tokenizer, array("i", [*word, *word]), letters, n(letters)) is None


def test_a_session_that_makes_room_for_a_copy_is_saved(model: ds4.Model, tmp_path: Path) -> None:
    """Two sessions: B is pushed out by a copy of A, and comes back from the disk."""
    long = "The quick brown fox jumps over the lazy dog. " * 100
    a = ask(messages=({"role": "user", "content": long + "A"},), mode="chat", max_tokens=4)
    b = ask("Once " + "upon a time " * 60, mode="chat", max_tokens=4)
    copy = ask(messages=({"role": "user", "content": long + "C"},), mode="chat", max_tokens=4)
    policy = SavePolicy(min_tokens=64, align=64, continued_every=0, trim=8, cold_max_tokens=0)
    (first,) = answers(model, b)
    turn = {"role": "assistant", "content": text(first)}
    on = ask(messages=(*b.messages, turn, {"role": "user", "content": "And?"}), mode="chat", max_tokens=4)
    requests = (b, a, copy, on)
    got, statistics = served(model, tmp_path, *requests, policy=policy, keep_sessions=2)
    assert [started(events).why.split(":")[0] for events in got] == ["cold", "cold", "fork", "store"]
    assert statistics["store_total"]["loaded"] == 1
    assert all(same(model, request, events) for request, events in zip(requests, got, strict=True))
