"""Guessing tokens in the server: answers stay as they are, whoever else is asking."""

from __future__ import annotations

from typing import Any

import ds4
import pytest
from ds4.server.contract import Done, JsonSchema, Reasoning, Sampling
from support.serving import answers, ask, done, text

DRAFTS = [ds4.Draft(1, auto=False), ds4.Draft(3, auto=False), ds4.Draft(5)]

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
COLOUR = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}


def requests() -> list[Any]:
    return [
        ask("What is 17 + 25?"),
        ask("What is 100 - 58?", sampling=Sampling(temperature=1.3, seed=7)),
        ask("Tell me about Rome.", sampling=Sampling(temperature=0.8, top_p=0.9, seed=8), max_tokens=40),
        ask("What is the weather in Paris?", tools=(WEATHER,), tool_choice="required"),
        ask("Say a colour.", response_format=JsonSchema(COLOUR)),
        ask("What is 1 + 1?", n=3, sampling=Sampling(temperature=1.5, seed=9), max_tokens=30),
        ask("What is 3 + 4?", stop=("7",), logprobs=2),
    ]


def shown(events: list[Any]) -> list[Any]:
    """All but the times and the numbers of guesses."""
    out: list[Any] = []
    for e in events:
        if isinstance(e, Done):
            out.append((e.finish, e.stop, e.usage.completion, e.choice))
        elif type(e).__name__ in ("Content", "Tokens", "ToolCallArguments") or isinstance(e, Reasoning):
            out.append(e)
    return out


@pytest.mark.parametrize("draft", DRAFTS)
def test_answers_are_those_without(model: ds4.Model, draft: ds4.Draft) -> None:
    plain = answers(model, *requests())
    alone = answers(model, *requests(), draft=draft)
    together = answers(model, *requests(), draft=draft, together=True)
    for a, b, c in zip(plain, alone, together, strict=True):
        assert shown(a) == shown(b) == shown(c)
    assert done(plain[0]).drafts is None
    found = done(alone[0]).drafts
    assert found is not None
    if not draft.auto:
        assert found.accepted > 5
        assert found.drafted >= found.accepted


def test_nothing_is_guessed_while_others_wait_for_their_turn(model: ds4.Model) -> None:
    one = ask("What is 17 + 25?", max_tokens=20)
    got = answers(model, one, one, together=True, draft=ds4.Draft(1, auto=False))
    drafts = [done(events).drafts for events in got]
    assert all(d is not None for d in drafts)
    (both,) = answers(model, one, draft=ds4.Draft(1, auto=False))
    alone = done(both).drafts
    assert alone is not None
    assert sum(d.verifies for d in drafts if d is not None) < alone.verifies


def test_text_is_the_same(model: ds4.Model) -> None:
    (plain,) = answers(model, ask("What is 812 + 377?"))
    (found,) = answers(model, ask("What is 812 + 377?"), draft=ds4.Draft(2, auto=False))
    assert text(plain) == text(found)
