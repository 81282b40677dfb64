"""Answers that are held to a form, beside reasoning, tools, streams and each other."""

from __future__ import annotations

import json
from typing import Any

import ds4
import pytest
from ds4.chat import ToolCall, render_tool_calls
from ds4.server.contract import (
    Event,
    JsonObject,
    JsonSchema,
    Named,
    Reasoning,
    Sampling,
    Tokens,
    ToolCallArguments,
    ToolCallEnd,
)
from support.scripted import ScriptedModel, turns
from support.serving import answers, ask, done, text

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def tool(name: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "color": {"enum": ["red", "blue"]}},
        "required": ["n", "color"],
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = (tool("one"), tool("two"))


def calls(events: list[Event]) -> list[ToolCallEnd]:
    return [e for e in events if isinstance(e, ToolCallEnd)]


def valid(call: ToolCallEnd) -> bool:
    value = json.loads(call.arguments)
    return call.error is None and isinstance(value["n"], int) and value["color"] in ("red", "blue")


@pytest.mark.parametrize("mode", ["chat", "thinking"])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_json_of_a_schema(model: ds4.Model, mode: Any, seed: int | None) -> None:
    """Greedy and drawn wildly; reasoning stays free."""
    sampling = Sampling(temperature=0.0 if seed is None else 1.5, seed=seed)
    request = ask("Who are you?", mode=mode, sampling=sampling, response_format=JsonSchema(SCHEMA), max_tokens=800)
    (events,) = answers(model, request)
    value = json.loads(text(events))
    assert set(value) == {"name", "age"} and isinstance(value["age"], int) and len(value["name"]) <= 12
    assert done(events).finish == "stop"
    assert bool(text(events, Reasoning)) == (mode == "thinking")


def test_any_json_object() -> None:
    model = ScriptedModel(turns('</think>{"a": [1, {"b": null}]}  trailing'))
    (events,) = answers(model, ask("q", response_format=JsonObject()))
    assert json.loads(text(events)) == {"a": [1, {"b": None}]}


def test_a_model_that_ends_in_its_reasoning_still_answers(model: ds4.Model) -> None:
    """The turn cannot end before the answer that was asked for."""
    scripted = ScriptedModel(turns("I think"))
    (events,) = answers(scripted, ask("q", tools=TOOLS, tool_choice="required", max_tokens=300))
    assert text(events, Reasoning) == "I think" and calls(events)
    assert any("reasoning" in note for note in done(events).notes)


@pytest.mark.parametrize("mode", ["chat", "thinking"])
@pytest.mark.parametrize(("choice", "names"), [("required", {"one", "two"}), (Named("two"), {"two"})])
@pytest.mark.parametrize("parallel", [True, False])
def test_a_call_that_must_be_made(model: ds4.Model, mode: Any, choice: Any, names: set[str], parallel: bool) -> None:
    request = ask("Hi.", mode=mode, tools=TOOLS, tool_choice=choice, parallel_tool_calls=parallel, max_tokens=600)
    (events,) = answers(model, request)
    made = calls(events)
    assert made and {c.name for c in made} <= names and all(map(valid, made))
    assert parallel or len(made) == 1
    assert done(events).finish == "tool_calls" and text(events) == ""
    pieces = "".join(e.text for e in events if isinstance(e, ToolCallArguments) and e.index == 0)
    assert pieces == made[0].arguments


# L052: each combination has one answer, told in docs/server.md.


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("mode", ["chat", "thinking"])
def test_json_or_a_call(mode: Any, parallel: bool) -> None:
    """Tools and a schema: the model may do either, and whatever it does is held to its form."""
    think = "</think>" if mode == "thinking" else ""
    block = "".join(p.text for p in render_tool_calls([ToolCall("one", '{"n": 1, "color": "red"}')]))
    answer = '{"name": "x", "age": 3}'
    options = {"tools": TOOLS, "response_format": JsonSchema(SCHEMA), "mode": mode, "parallel_tool_calls": parallel}
    (call,) = answers(ScriptedModel(turns(think + block)), ask("q", **options))
    assert [valid(c) for c in calls(call)] == [True] and text(call) == ""
    (plain,) = answers(ScriptedModel(turns(think + answer)), ask("q", **options))
    assert text(plain) == answer and not calls(plain) and done(plain).finish == "stop"


def test_neither_json_nor_a_call_is_not_possible(model: ds4.Model) -> None:
    sampling = Sampling(temperature=1.5, seed=5)
    request = ask("Tell me a story.", tools=TOOLS, response_format=JsonSchema(SCHEMA), mode="chat",
                  sampling=sampling, max_tokens=800)  # fmt: skip
    (events,) = answers(model, request)
    if calls(events):
        assert all(map(valid, calls(events)))
    else:
        assert set(json.loads(text(events))) == {"name", "age"}


def test_a_call_that_must_be_made_comes_before_a_schema() -> None:
    model = ScriptedModel(turns('</think>{"name": "x", "age": 3}'))
    request = ask("q", tools=TOOLS, tool_choice="required", response_format=JsonSchema(SCHEMA), max_tokens=300)
    (events,) = answers(model, request)
    assert calls(events) and text(events) == ""


def test_no_tools_and_a_schema() -> None:
    model = ScriptedModel(turns('</think>{"name": "x", "age": 3}'))
    (events,) = answers(model, ask("q", tools=TOOLS, tool_choice="none", response_format=JsonSchema(SCHEMA)))
    assert json.loads(text(events)) == {"name": "x", "age": 3}


def test_an_answer_cut_short_is_a_length(model: ds4.Model) -> None:
    (events,) = answers(model, ask("q", mode="chat", response_format=JsonSchema(SCHEMA), max_tokens=3))
    assert done(events).finish == "length"


def test_log_probabilities_are_the_model_s_own(model: ds4.Model) -> None:
    """Also where a form holds the answer: what the model itself thought of the token."""
    request = ask("q", mode="chat", response_format=JsonSchema(SCHEMA), logprobs=3, max_tokens=8)
    (events,) = answers(model, request)
    tokens = [t for e in events if isinstance(e, Tokens) for t in e.tokens]
    assert len(tokens) == done(events).usage.completion
    prompt = ds4.chat.render([{"role": "user", "content": "q"}], mode="chat", response_format=SCHEMA).encode(
        model.tokenizer
    )
    with model.session(n_ctx=1024) as session:
        session.sync(prompt)
        for token in tokens:
            assert [c.token for c in token.top] == [c.token for c in session.logprobs(3)]
            own = {c.token: c.logprob for c in session.logprobs(session.n_vocab)}
            assert token.logprob == pytest.approx(own[token.token], abs=1e-6)
            assert token.part == "content" and token.text == model.tokenizer.decode([token.token])
            session.eval(token.token)


def test_parts_of_tokens() -> None:
    block = "".join(p.text for p in render_tool_calls([ToolCall("one", '{"n": 1, "color": "red"}')]))
    (events,) = answers(ScriptedModel(turns("hm</think>Well." + block)), ask("q", tools=TOOLS, logprobs=0))
    parts = [t.part for e in events if isinstance(e, Tokens) for t in e.tokens]
    assert list(dict.fromkeys(parts)) == ["reasoning", "content", "tool_calls"]
    assert all(t.top == () for e in events if isinstance(e, Tokens) for t in e.tokens)
    assert done(events).usage.reasoning == parts.count("reasoning")
