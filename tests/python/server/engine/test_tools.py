"""Tool calls: as events, with their ids, replayed exactly as the model wrote them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from ds4.chat import ToolCall, render_tool_calls
from ds4.chat.protocol import DSML
from ds4.server.contract import (
    Event,
    Reasoning,
    RequestError,
    Sampling,
    Started,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from ds4.server.engine import LocalEngine, Settings
from support.scripted import SURE, ScriptedModel, turns
from support.serving import answers, ask, done, read, text


def tool(name: str = "read", **properties: Any) -> dict[str, Any]:
    properties = properties or {"path": {"type": "string"}}
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
    }


def block(*calls: tuple[str, dict[str, Any]]) -> str:
    return "".join(p.text for p in render_tool_calls([ToolCall(name, json.dumps(args)) for name, args in calls]))


READ = (tool(),)
# As no renderer writes it: another order, another form of a number, a line end where there is none.
ODD = (
    f'\n\n<{DSML}tool_calls>\n<{DSML}invoke name="read">\n<{DSML}parameter name="path" string="true">a.txt'
    f'</{DSML}parameter>\n<{DSML}parameter name="n" string="false">1.50</{DSML}parameter>\n\n</{DSML}invoke>\n'
    f"</{DSML}tool_calls>"
)


def calls(events: list[Event]) -> list[ToolCallEnd]:
    return [e for e in events if isinstance(e, ToolCallEnd)]


def turn_message(events: list[Event], *, reasoning: bool = False) -> dict[str, Any]:
    """What a client puts into its history for an answer."""
    message: dict[str, Any] = {"role": "assistant", "content": text(events)}
    if calls(events):
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in calls(events)
        ]
    if reasoning:
        message["reasoning_content"] = text(events, Reasoning)
    return message


def results(events: list[Event], content: str = "hello") -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": c.id, "content": content} for c in calls(events)]


def test_a_call_arrives_in_pieces() -> None:
    value = "word " * 400
    model = ScriptedModel(turns("I look.</think>" + block(("read", {"path": value, "n": 3}))))
    (events,) = answers(model, ask("q", tools=READ))
    (start,) = [e for e in events if isinstance(e, ToolCallStart)]
    (end,) = calls(events)
    pieces = [e.text for e in events if isinstance(e, ToolCallArguments)]
    assert (start.name, start.index) == ("read", 0) and start.id == end.id and start.id.startswith("call_")
    assert "".join(pieces) == end.arguments and json.loads(end.arguments) == {"path": value, "n": 3}
    assert len(pieces) > 200  # long arguments stream
    assert text(events, Reasoning) == "I look." and text(events) == ""
    assert done(events).finish == "tool_calls" and end.error is None


def test_ids_follow_the_dialect_and_are_new() -> None:
    model = ScriptedModel(turns("</think>" + block(("read", {}), ("read", {}))))
    one, two = answers(model, ask("q", tools=READ, dialect="messages"), ask("q", tools=READ, dialect="messages"))
    ids = [c.id for c in calls(one) + calls(two)]
    assert len(set(ids)) == 4 and all(i.startswith("toolu_") and len(i) == 38 for i in ids)


@pytest.mark.parametrize(
    "reply", [f"</think>Hi.{ODD}", f"thinks</think>{ODD}", "a</think>" + block(("read", {"path": "x"}))]
)
@pytest.mark.parametrize("reasoning", [True, False])
def test_the_next_turn_goes_on_where_this_one_ended(reply: str, reasoning: bool) -> None:
    """Whether the client returns the reasoning or not, and however it writes the arguments."""
    model = ScriptedModel(turns(reply, "</think>done"))

    async def run() -> tuple[list[Event], list[Event]]:
        async with LocalEngine(model, Settings(n_ctx=4096)) as engine:
            first = await read(engine, ask("q", tools=READ))
            message = turn_message(first, reasoning=reasoning)
            for call in message["tool_calls"]:  # another form of the same arguments
                call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=1)
            history = [{"role": "user", "content": "q"}, message, *results(first)]
            second = await read(engine, ask(tools=READ, messages=tuple(history)))
            assert engine.statistics()["replayed_turns_total"] == 1
            return first, second

    first, second = asyncio.run(run())
    assert model.prompts[1].startswith(model.prompts[0] + reply)
    started = next(e for e in second if isinstance(e, Started))
    usage = done(first).usage
    # All but the last token of the turn, which nobody computed, and what came after it.
    assert started.cached_tokens >= usage.prompt + usage.completion - 2
    assert started.why.startswith("live")


def test_many_turns_stay_cached() -> None:
    """L071, L046: forty tools, five rounds, the client drops the reasoning."""
    tools = tuple(tool(f"tool{i}") for i in range(40))
    replies = [f"round {i}</think>" + block((f"tool{i}", {"path": f"{i}"})) for i in range(5)]
    model = ScriptedModel(turns(*replies, "</think>That is all."))

    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=16384)) as engine:
            history: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
            held = 0
            for i in range(6):
                events = await read(engine, ask(tools=tools, messages=tuple(history)))
                started = next(e for e in events if isinstance(e, Started))
                assert started.cached_tokens >= held
                usage = done(events).usage
                held = usage.prompt + usage.completion - 2
                history += [turn_message(events), *results(events)]
                assert done(events).finish == ("tool_calls" if i < 5 else "stop")
            assert text(events) == "That is all."

    asyncio.run(run())


def test_a_changed_call_is_rendered_as_changed() -> None:
    model = ScriptedModel(turns("</think>" + ODD, "</think>done"))

    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=4096)) as engine:
            first = await read(engine, ask("q", tools=READ))
            message = turn_message(first)
            message["tool_calls"][0]["function"]["arguments"] = '{"path": "other.txt"}'
            await read(engine, ask(tools=READ, messages=({"role": "user", "content": "q"}, message, *results(first))))

    asyncio.run(run())
    assert "other.txt" in model.prompts[1] and "1.50" not in model.prompts[1]


def test_results_without_their_call_go_on() -> None:
    """The dialects of Responses and messages: the calls are known by their ids."""
    reply = "hm</think>" + block(("read", {"path": "a"}), ("read", {"path": "b"}))
    model = ScriptedModel(turns(reply, "</think>done"))

    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=4096)) as engine:
            first = await read(engine, ask("q", tools=READ, dialect="responses"))
            one, two = results(first)
            two["content"] = "second"
            system = {"role": "system", "content": "again"}
            request = ask(tools=READ, dialect="responses", messages=(system, two, one))
            second = await read(engine, request)
            assert text(second) == "done"
            assert next(e for e in second if isinstance(e, Started)).why.startswith("live")
            for bad, code in (
                ((one,), "missing_tool_result"),
                (({**one, "tool_call_id": "call_0"},), "unknown_call_id"),
            ):
                with pytest.raises(RequestError) as error:
                    await engine.open(ask(tools=READ, dialect="responses", messages=bad))
                assert (error.value.status, error.value.code) == (400, code)

    asyncio.run(run())
    whole = f"{model.prompts[0]}{reply}<｜end▁of▁sentence｜><｜User｜><tool_result>hello</tool_result>\n\n"
    assert model.prompts[1] == f"{whole}<tool_result>second</tool_result><｜Assistant｜><think>"


def test_tool_choice_none_hides_the_tools() -> None:
    """L038: the model does not see them, and does not call."""
    model = ScriptedModel(turns("</think>hello"))
    (events,) = answers(model, ask("q", tools=READ, tool_choice="none"))
    assert "read" not in model.prompts[0] and text(events) == "hello" and not calls(events)


def test_tool_choice_none_shows_no_markup() -> None:
    model = ScriptedModel(turns("</think>Well." + block(("read", {"path": "x"}))))
    (events,) = answers(model, ask("q", tools=READ, tool_choice="none"))
    assert text(events) == "Well." and not calls(events) and done(events).finish == "stop"
    assert any("tool_choice" in note for note in done(events).notes)


def test_thinking_that_is_not_closed_before_a_call() -> None:
    """L034."""
    model = ScriptedModel(turns("I will read it." + block(("read", {"path": "x"}))))
    (events,) = answers(model, ask("q", tools=READ))
    assert done(events).finish == "tool_calls" and [c.name for c in calls(events)] == ["read"]


@pytest.mark.parametrize("value", ["Tense", '{"a":1,}', "", "NaN", "1e999"])
def test_a_bad_value_has_a_defined_result(value: str) -> None:
    """L043: and the next request is answered."""
    damaged = ODD.replace("1.50", value)
    model = ScriptedModel(lambda prompt: "</think>" + (damaged if "bad" in prompt else "fine"))
    bad, good = answers(model, ask("bad", tools=READ), ask("good", tools=READ))
    (call,) = calls(bad)
    assert json.loads(call.arguments)["n"] in (value, None)
    assert text(good) == "fine"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_structure_is_drawn_greedily_and_text_is_not(seed: int) -> None:
    """A model that is unsure of everything behind the mark of the block writes sound calls with odd texts."""
    model = ScriptedModel(turns("</think>" + block(("read", {"path": "aaaa bbbb cccc dddd", "n": ["eeee", 1]}))))
    # Sure of what opens and closes values: that is drawn as text is.
    model.sure = lambda token: SURE if any(mark in token for mark in ("<", "DSML", "\n\n", '"')) else 3.0
    (events,) = answers(model, ask("q", tools=READ, sampling=Sampling(temperature=1.0, seed=seed), max_tokens=400))
    (call,) = calls(events)
    value = json.loads(call.arguments)
    assert call.error is None and call.name == "read" and list(value) == ["path", "n"]
    assert value["path"] != "aaaa bbbb cccc dddd" and str(value["n"]).endswith("1]")


def test_one_call_only() -> None:
    """parallel_tool_calls false: the second call is not made, and the turn is whole."""
    two = block(("read", {"path": "a"}), ("read", {"path": "b"}))
    model = ScriptedModel(turns("</think>" + two, "</think>done"))

    async def run() -> None:
        async with LocalEngine(model, Settings(n_ctx=4096)) as engine:
            first = await read(engine, ask("q", tools=READ, parallel_tool_calls=False))
            assert len(calls(first)) == 1 and done(first).finish == "tool_calls" and not done(first).notes
            await read(
                engine,
                ask(tools=READ, messages=({"role": "user", "content": "q"}, turn_message(first), *results(first))),
            )

    asyncio.run(run())
    assert model.prompts[1].startswith(model.prompts[0] + "</think>" + block(("read", {"path": "a"})))
