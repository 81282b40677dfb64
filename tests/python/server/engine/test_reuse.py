"""Prompts go on from what sessions hold; what is computed is the same as without them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import ds4
import pytest
from ds4.server.contract import Event, Reasoning, Request, Sampling, Started
from ds4.server.engine import LocalEngine, Settings
from support.serving import answers, ask, done, read, text

LONG = "The quick brown fox jumps over the lazy dog, and the dog does not mind at all. " * 40


def started(events: list[Event]) -> Started:
    (found,) = [e for e in events if isinstance(e, Started)]
    return found


def said(events: list[Event]) -> tuple[str, str]:
    return text(events, Reasoning), text(events)


def chat(*texts: str, **options: Any) -> Request:
    """A conversation: user, assistant, user, ..."""
    roles = ("user", "assistant")
    return ask(messages=tuple({"role": roles[i % 2], "content": t} for i, t in enumerate(texts)), **options)


def in_order(model: ds4.Model, requests: Sequence[Request], **settings: Any) -> list[list[Event]]:
    """Answers of one engine, each compared with that of an engine of its own."""
    settings.setdefault("n_ctx", 4096)
    got: list[list[Event]] = answers(model, *requests, **settings)
    for request, events in zip(requests, got, strict=True):
        (alone,) = answers(model, request, n_ctx=settings["n_ctx"])
        assert said(events) == said(alone)
        assert done(events).usage.completion == done(alone).usage.completion
    return got


@pytest.mark.parametrize("mode", ["chat", "thinking"])
@pytest.mark.parametrize("size", [1, 600, 2048])
def test_the_same_prompt_again(model: ds4.Model, mode: Any, size: int) -> None:
    """L070, L074: any size is found again, and at most one token is computed."""
    n = len(model.tokenizer.encode(LONG))
    question = ask("Again: " + LONG * (size // n) + " What is 2 + 3?", mode=mode, max_tokens=20)
    first, second, third = in_order(model, [question] * 3)
    assert started(first).cached_tokens == 0 and started(first).why.startswith("cold")
    for again in (second, third):
        assert started(again).prompt_tokens - started(again).cached_tokens <= 1
        assert started(again).why.startswith("rewind")


def test_an_answer_that_is_shown_with_another_end(model: ds4.Model) -> None:
    """Whoever shows an answer without its last words goes on from where it differs, without a checkpoint there."""
    first = chat("What is 2 + 3?", mode="chat", max_tokens=40)
    (events,) = answers(model, first)
    tokens = model.tokenizer.encode(text(events))
    assert len(tokens) >= 3
    shorter = model.tokenizer.decode(tokens[:-1])
    second = chat("What is 2 + 3?", shorter, "What is 10 + 20?", mode="chat", max_tokens=10)
    one, two = in_order(model, [first, second])
    usage = done(one).usage
    assert started(two).why.startswith("rewind")
    assert started(two).cached_tokens > usage.prompt + 1
    assert started(two).cached_tokens >= usage.prompt + usage.completion - 1 - 8


def test_a_prompt_that_is_a_prefix(model: ds4.Model) -> None:
    """L070: an earlier turn again."""
    long = chat(LONG, "Yes.", "What is 2 + 3?", "5", "What is 4 + 4?", mode="chat", max_tokens=10)
    short = chat(LONG, "Yes.", "What is 2 + 3?", mode="chat", max_tokens=10)
    _, _, again = in_order(model, [short, long, short], keep_sessions=1)
    assert started(again).prompt_tokens - started(again).cached_tokens <= 1


def test_a_conversation_goes_on(model: ds4.Model) -> None:
    """Chat mode: nothing of the history is computed again."""
    first = chat("What is 2 + 3?", mode="chat")
    (events,) = answers(model, first)
    second = chat("What is 2 + 3?", text(events), "What is 10 + 20?", mode="chat")
    one, two = in_order(model, [first, second])
    usage = done(one).usage
    assert started(two).cached_tokens == usage.prompt + usage.completion - 1
    assert started(two).why.startswith("live")


def test_reasoning_that_is_dropped_costs_one_answer(model: ds4.Model) -> None:
    """Without tools the reasoning of earlier turns is not shown again: all but the last answer is kept."""
    first = ask(LONG + "What is 2 + 3?")
    (events,) = answers(model, first, n_ctx=4096)
    second = ask(
        messages=(
            *first.messages,
            {"role": "assistant", "content": text(events), "reasoning_content": text(events, Reasoning)},
            {"role": "user", "content": "What is 1 + 1?"},
        )
    )
    one, two = in_order(model, [first, second])
    assert started(two).cached_tokens == started(one).prompt_tokens - 1
    assert started(two).why.startswith("rewind")


def test_another_prompt_between(model: ds4.Model) -> None:
    """L073: P, Q, P with one session and with several."""
    p = ask(LONG + "What is 12 + 30?", max_tokens=24)
    q = ask("Tell me a story.", max_tokens=24)
    for sessions in (1, 4):
        one, _, three = in_order(model, [p, q, p], keep_sessions=sessions)
        assert said(one) == said(three)
        computed = started(three).prompt_tokens - started(three).cached_tokens
        assert computed <= 1 if sessions == 4 else computed > 1


def test_clients_that_alternate_keep_their_sessions(model: ds4.Model) -> None:
    """Two agents in turn, with the same beginning: neither pushes the other out."""
    histories = {name: [LONG + f"I am {name}."] for name in "AB"}
    requests: list[Request] = []
    for i in range(3):
        for name in "AB":
            requests.append(chat(*histories[name], mode="chat", max_tokens=5))
            histories[name] += ["All right.", f"And number {i}?"]
    got = in_order(model, requests, keep_sessions=2)
    for events in got[2:]:
        assert started(events).prompt_tokens - started(events).cached_tokens < 60


def test_a_stop_string_leaves_a_session_that_can_go_on(model: ds4.Model) -> None:
    first = ask("What is 2 + 3?", mode="chat", stop=("=",))
    (events,) = answers(model, first, n_ctx=4096)
    assert done(events).stop == "=" and done(events).finish == "stop" and "=" not in text(events)
    second = ask(
        mode="chat",
        messages=(
            *first.messages,
            {"role": "assistant", "content": text(events)},
            {"role": "user", "content": "What is 1 + 1?"},
        ),
    )
    one, two = in_order(model, [first, second])
    assert started(two).cached_tokens >= started(one).prompt_tokens


def test_an_edited_history_costs_what_comes_after_it(model: ds4.Model) -> None:
    a = chat(LONG, "Yes.", "What is 2 + 3?", mode="chat", max_tokens=5)
    b = chat(LONG, "No.", "What is 2 + 3?", mode="chat", max_tokens=5)
    _, two = in_order(model, [a, b], keep_sessions=1)
    assert 0 < started(two).prompt_tokens - started(two).cached_tokens <= 1100


def test_choices_of_one_request(model: ds4.Model) -> None:
    """They differ, do not depend on each other, and cost one prompt."""
    request = ask("Tell me a story.", n=3, sampling=Sampling(temperature=1.2, seed=3), max_tokens=30)
    (events,) = answers(model, request)
    texts = [(text(events, Reasoning, i), text(events, choice=i)) for i in range(3)]
    assert len(set(texts)) == 3
    (one,) = answers(model, ask("Tell me a story.", sampling=Sampling(temperature=1.2, seed=3), max_tokens=30))
    assert said(one) == texts[0]
    assert [done(events, i).choice for i in range(3)] == [0, 1, 2]


def test_seeds(model: ds4.Model) -> None:
    """L080: equal for equal seeds, also after a hit; different without one."""

    def request(seed: int | None) -> Request:
        return ask("Tell me a story.", sampling=Sampling(temperature=1.3, seed=seed), max_tokens=40)

    got = answers(model, *map(request, (7, 7, None, None, 0, 0, 2**40, 2**40)))
    texts = [said(events) for events in got]
    assert started(got[1]).cached_tokens > 0
    assert texts[0] == texts[1] and texts[4] == texts[5] and texts[6] == texts[7]
    assert len({texts[0], texts[2], texts[3], texts[4], texts[6]}) == 5


def test_greedy_answers_are_equal_with_any_number_of_threads(model: ds4.Model) -> None:
    """L079."""
    request = ask(LONG + "What is 12 + 30?", max_tokens=24)
    got = [said(answers(model, request, n_ctx=4096, session={"threads": t})[0]) for t in (1, 2, 1, 2, 4)]
    assert len(set(got)) == 1


def test_tokens_that_the_tokenizer_would_not_choose_are_kept(model: ds4.Model) -> None:
    """A drawn turn may be cut into tokens in another way than its text would be; the next prompt keeps the cut."""
    tokenizer = model.tokenizer

    async def run() -> None:
        found = 0
        async with LocalEngine(model, Settings(n_ctx=1024)) as engine:
            for seed in range(40):
                sampling = Sampling(temperature=2.0, seed=seed)
                first = await read(engine, ask("Tell me a story.", mode="chat", sampling=sampling, max_tokens=60))
                shown = text(first)
                if done(first).finish != "stop" or any(mark in shown for mark in ("\ufffd", "<", "｜")):
                    continue  # what a client cannot send back as it was: broken characters, special tokens
                usage = done(first).usage
                second = await read(engine, chat("Tell me a story.", text(first), "Go on.", mode="chat", max_tokens=1))
                assert started(second).cached_tokens == usage.prompt + usage.completion - 1
                found += len(tokenizer.encode(text(first))) != usage.completion - 1
        assert found

    asyncio.run(run())
