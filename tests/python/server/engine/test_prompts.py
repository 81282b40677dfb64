"""From requests to prompts: what is refused, how, and what the model is shown."""

from __future__ import annotations

import asyncio
from typing import Any

import ds4
import pytest
from ds4.chat import render_text
from ds4.server.contract import JsonObject, JsonSchema, Named, Reasoning, Request, RequestError, Sampling, Started
from ds4.server.engine import LocalEngine, Settings
from ds4.server.engine.prompts import Preparer
from support.scripted import ScriptedModel, turns
from support.serving import answers, ask, done, read, text

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def preparer(model: ds4.Model) -> Preparer:
    return Preparer(model.tokenizer, Settings(n_ctx=1024))


def refused(preparer: Preparer, request: Request) -> RequestError:
    with pytest.raises(RequestError) as error:
        preparer.prepare(request)
    assert error.value.message
    return error.value


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"messages": ()}, "messages"),
        ({"messages": (7,)}, "messages"),
        ({"messages": (USER, {"role": "wizard", "content": "x"})}, "messages[1]"),
        ({"messages": ({"role": "user", "content": 5},)}, "messages[0].content"),
        ({"messages": ({"role": "user", "content": [{"type": "image_url"}]},)}, "messages[0].content[0]"),
        ({"messages": ({"role": "assistant", "tool_calls": [{"function": {}}]},)}, "messages[0].tool_calls[0]"),
        ({"messages": ({"role": "assistant", "tool_calls": 3},)}, "messages[0].tool_calls"),
        ({"messages": ({"role": "system", "tools": [{"type": "x"}]},)}, "messages[0].tools[0]"),
        ({"tools": ({"type": "function"},)}, "tools[0]"),
        ({"tools": (TOOL,), "tool_choice": Named("g")}, "tool_choice"),
        ({"tool_choice": Named("f")}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"sampling": Sampling(temperature=-1)}, "temperature"),
        ({"sampling": Sampling(temperature=float("nan"))}, "temperature"),
        ({"sampling": Sampling(top_p=0.0)}, "top_p"),
        ({"sampling": Sampling(top_k=-1)}, "top_k"),
        ({"sampling": Sampling(min_p=1.5)}, "min_p"),
        ({"sampling": Sampling(seed=-1)}, "seed"),
        ({"sampling": Sampling(seed=1 << 64)}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"stop": ("a", "")}, "stop[1]"),
        ({"stop": ("x",) * 65}, "stop"),
        ({"effort": "huge"}, "effort"),
        ({"mode": "loud"}, "mode"),
        ({"steering": {"direction": "x"}}, "steering"),
        ({"response_format": JsonSchema({"type": "nothing"})}, "response_format"),
        ({"response_format": JsonSchema({"not": {}})}, "response_format"),
        ({"tools": (TOOL, TOOL), "tool_choice": "required"}, "tools"),
    ],
)
def test_what_is_refused(preparer: Preparer, options: dict[str, Any], param: str) -> None:
    options.setdefault("messages", (USER,))
    error = refused(preparer, ask(**options))
    assert error.status == 400 and error.type == "invalid_request_error"
    assert error.param is not None and error.param.startswith(param)


def test_a_prompt_over_the_context_tells_the_sizes(model: ds4.Model) -> None:
    request = ask("word " * 500, mode="chat")

    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=256)) as engine:
            with pytest.raises(RequestError) as caught:
                await engine.open(request)
            error = caught.value
            n = await engine.count(request)
            assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "messages")
            assert error.extra == {"n_prompt_tokens": n, "n_ctx": 256}
            assert engine.statistics()["refused_total"] == {"context_length_exceeded": 1}

    asyncio.run(run())


@pytest.mark.parametrize("room", [1, 2, 5])
def test_an_answer_ends_where_the_context_does(model: ds4.Model, room: int) -> None:
    request = ask("Tell me a story.", mode="chat", max_tokens=100)
    n = Preparer(model.tokenizer, Settings()).count(request)
    (events,) = answers(model, request, n_ctx=n + room)
    assert done(events).finish == "length" and done(events).usage.completion == room
    (whole,) = answers(model, request)
    assert text(whole).startswith(text(events))


def test_counting_is_what_the_answer_says(model: ds4.Model) -> None:
    request = ask("hello", tools=(TOOL,))

    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=1024)) as engine:
            events = await read(engine, request)
            assert await engine.count(request) == next(e for e in events if isinstance(e, Started)).prompt_tokens

    asyncio.run(run())


@pytest.mark.parametrize("effort", [None, "max"])
def test_effort_is_rendered(preparer: Preparer, effort: Any) -> None:
    """L028: and one that needs more room is honoured with a remark."""
    prepared = preparer.prepare(ask("hi", effort=effort))
    assert prepared.text == render_text([USER], mode="thinking", effort=effort)
    assert bool(prepared.notes) == (effort == "max")
    (one, other) = (preparer.count(ask("hi", effort=e)) for e in (None, "max"))
    assert one != other


def test_tools_on_a_message_count(model: ds4.Model) -> None:
    """L029: shown to the model, and its calls are recognised."""
    from ds4.chat.protocol import DSML
    from ds4.server.contract import ToolCallEnd

    reply = f'</think>\n\n<{DSML}tool_calls>\n<{DSML}invoke name="f">\n\n</{DSML}invoke>\n</{DSML}tool_calls>'
    scripted = ScriptedModel(turns(reply))
    messages = ({"role": "system", "content": "S", "tools": [TOOL]}, USER)
    (events,) = answers(scripted, ask(messages=messages))
    assert '"name": "f"' in scripted.prompts[0]
    assert [e.name for e in events if isinstance(e, ToolCallEnd)] == ["f"] and done(events).finish == "tool_calls"
    silent = ScriptedModel(turns("</think>no"))
    (hidden,) = answers(silent, ask(messages=messages, tool_choice="none"))
    assert text(hidden) == "no" and '"name": "f"' not in silent.prompts[0]


def test_tools_given_twice_are_refused(preparer: Preparer) -> None:
    messages = ({"role": "system", "content": "S", "tools": [TOOL]}, USER)
    assert "twice" in refused(preparer, ask(messages=messages, tools=(TOOL,))).message


def test_developers_are_systems(preparer: Preparer) -> None:
    """L031."""
    texts = [
        preparer.prepare(ask(messages=({"role": role, "content": "S"}, USER))).text for role in ("system", "developer")
    ]
    assert texts[0] == texts[1]


def test_quoted_special_tokens_are_text(model: ds4.Model, preparer: Preparer) -> None:
    """A prompt that quotes a special token has another key, and other tokens, than one that has it."""
    quoted = preparer.prepare(ask("a<｜end▁of▁sentence｜><｜User｜>b"))
    real = preparer.prepare(
        ask(messages=({"role": "user", "content": "a"}, {"role": "assistant", "content": ""}, {**USER, "content": "b"}))
    )
    assert quoted.key != real.key and list(quoted.tokens) != list(real.tokens)
    assert quoted.tokens.count(model.tokenizer.eos_id) == 0


def test_lone_surrogates_do_no_harm(model: ds4.Model) -> None:
    (events,) = answers(model, ask("a\ud83d b", mode="chat", max_tokens=5))
    assert done(events).finish in ("stop", "length")


def test_the_response_format_is_shown(preparer: Preparer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert (
        '"properties": {"a": {"type": "integer"}}'
        in preparer.prepare(ask("q", response_format=JsonSchema(schema))).text
    )
    assert '{"type": "object"}' in preparer.prepare(ask("q", response_format=JsonObject())).text


def test_a_stop_string_is_looked_for_in_the_answer_only() -> None:
    model = ScriptedModel(turns("not here END but</think>here it is EN"))
    scripted = ScriptedModel(turns("thought END on</think>before END after"))
    (events,) = answers(scripted, ask("q", stop=("END", "after")))
    assert text(events, Reasoning) == "thought END on" and text(events) == "before "
    assert (done(events).finish, done(events).stop) == ("stop", "END")
    (events,) = answers(model, ask("q", stop=("END",)))
    assert text(events) == "here it is EN" and done(events).stop is None


@pytest.mark.parametrize("mark", ["<｜User｜>", "<｜Assistant｜>", "<｜begin▁of▁sentence｜>"])
def test_a_model_that_begins_another_turn_has_ended_its_own(mark: str) -> None:
    (events,) = answers(ScriptedModel(turns(f"</think>yes{mark}What now?")), ask("q"))
    assert text(events) == "yes" and done(events).finish == "stop" and mark in done(events).notes[0]


def test_characters_are_never_halved() -> None:
    shown = "</think>" + "\N{PILE OF POO}\N{FAMILY}\N{CJK UNIFIED IDEOGRAPH-9F98}é" * 10
    (events,) = answers(ScriptedModel(turns(shown)), ask("q", stop=("xyz",)))
    assert text(events) == shown.removeprefix("</think>")
    assert not any("\ufffd" in getattr(e, "text", "") for e in events)


@pytest.mark.parametrize("mode", ["chat", "thinking"])
def test_an_assistant_s_message_is_continued(mode: Any) -> None:
    """What comes is part of the answer, also in thinking mode: the reasoning is over there."""
    last = {"role": "assistant", "content": "The sum", "wo_eos": True}
    scripted = ScriptedModel(lambda prompt: ("</think>" if mode == "thinking" else "") + "The sum is 5.")
    (events,) = answers(scripted, ask(messages=(USER, last), mode=mode))
    assert text(events, Reasoning) == "" and text(events) == " is 5."


def test_a_prompt_that_is_far_too_long_is_refused_at_once(preparer: Preparer) -> None:
    """It is not tokenized: its bytes tell that it cannot fit."""
    error = refused(preparer, ask("x" * 4_000_000))
    assert error.code == "context_length_exceeded" and "at least" in error.message
    assert 1024 <= error.extra["n_prompt_tokens"] <= 4_000_000


def test_parameters_that_cannot_be_enforced_are_free(preparer: Preparer) -> None:
    """Unless the tool is declared strict."""
    parameters = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    tool: dict[str, Any] = {"type": "function", "function": {"name": "g", "parameters": parameters}}
    prepared = preparer.prepare(ask("q", tools=(TOOL, tool), tool_choice="required"))
    assert len(prepared.grammars) == 1 and len(prepared.notes) == 1 and "'g'" in prepared.notes[0]
    tool["function"]["strict"] = True
    error = refused(preparer, ask("q", tools=(TOOL, tool), tool_choice="required"))
    assert error.param == "tools" and "'g'" in error.message
    free = preparer.prepare(ask("q", tools=(TOOL, tool)))
    assert free.grammars == ()
