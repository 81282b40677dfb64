"""Answers in each dialect's shape; pieces of a stream joined equal the answer that is sent as a whole."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from ds4.server.api.dialects import DIALECTS
from ds4.server.api.response_items import opened
from ds4.server.api.settings import Settings
from ds4.server.contract import (
    Candidate,
    Content,
    ModelInfo,
    Reasoning,
    TokenLogprob,
    Tokens,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from support.replayed import done, started, text_answer, tool_answer

INFO = ModelInfo("ds4-replay", 4096, 2048, "replay", 1_700_000_000)
FORMS = {form.name: form for form in DIALECTS}
MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": MESSAGES},
    "completion": {"prompt": "hi"},
    "responses": {"input": "hi", "reasoning": {"summary": "auto"}},
    "messages": {"messages": MESSAGES, "max_tokens": 9},
}


def reply_to(name: str, steps: list[Any], **fields: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the objects of the stream and the whole answer."""
    form = FORMS[name]
    body = msgspec.json.decode(json.dumps({**BODIES[name], **fields}), type=form.body)
    call = form.read(body, Settings(), INFO, "req_0123456789abcdef01234567")
    reply = form.reply(call, 20)
    objects = reply.begin()
    for step in steps:
        objects += reply.feed(step)
    assert reply.over
    for item in objects:
        assert reply.encode(item).endswith(b"\n\n")
    return objects, reply.whole()


def joined_chat(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Add the chunks of a chat stream up to a message."""
    out: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": [], "finish": None}
    for chunk in objects:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            out["content"] += delta.get("content") or ""
            out["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    out["calls"].append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
                out["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
            out["finish"] = choice["finish_reason"] or out["finish"]
    return out


def test_a_chat_stream_joined_is_the_whole_completion() -> None:
    """Role chunk first, then reasoning, content, the reason of the end; no usage unless it was asked for."""
    objects, whole = reply_to("chat", text_answer("Hello there", "Let me think."))
    message = whole["choices"][0]["message"]
    joined = joined_chat(objects)
    assert objects[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert (joined["content"], joined["reasoning_content"]) == ("Hello there", "Let me think.")
    assert (message["content"], message["reasoning_content"]) == ("Hello there", "Let me think.")
    assert joined["finish"] == whole["choices"][0]["finish_reason"] == "stop"
    assert all("usage" not in chunk for chunk in objects)
    assert {chunk["object"] for chunk in objects} == {"chat.completion.chunk"}
    assert whole["object"] == "chat.completion" and whole["id"].startswith("chatcmpl-")


def test_chat_usage_counts_the_kept_and_the_reasoning_tokens() -> None:
    objects, whole = reply_to("chat", text_answer(), stream_options={"include_usage": True})
    expected = {
        "prompt_tokens": 20,
        "completion_tokens": 5,
        "total_tokens": 25,
        "prompt_tokens_details": {"cached_tokens": 12, "cache_write_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert whole["usage"] == expected
    assert objects[-1]["choices"] == [] and objects[-1]["usage"] == expected


def test_chat_tool_calls_stream_their_arguments() -> None:
    """The header comes when the tool is named, then pieces whose concatenation is the whole text."""
    objects, whole = reply_to("chat", tool_answer())
    call = whole["choices"][0]["message"]["tool_calls"][0]
    joined = joined_chat(objects)
    header = next(
        c["choices"][0]["delta"]["tool_calls"][0] for c in objects if "tool_calls" in c["choices"][0]["delta"]
    )
    assert header == {
        "index": 0,
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": ""},
    }
    assert call == {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    }
    assert joined["calls"] == [{"id": "call_1", "name": "get_weather", "arguments": call["function"]["arguments"]}]
    assert joined["finish"] == "tool_calls"


@pytest.mark.parametrize(
    "pieces", [("{}",), ("{", "}"), ('{"n": ', "3", "}"), ('{"a": ', "null", ', "b": ', '""', "}")]
)
def test_arguments_are_whole_however_they_are_cut(pieces: tuple[str, ...]) -> None:
    """Calls without parameters, with a number, with null: closing pieces that are held back all arrive."""
    objects, whole = reply_to("chat", tool_answer(arguments=pieces))
    text = "".join(pieces)
    assert joined_chat(objects)["calls"][0]["arguments"] == text
    assert whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == text
    _, message = reply_to("messages", tool_answer(arguments=pieces))
    assert message["content"][-1]["input"] == json.loads(text)
    _, response = reply_to("responses", tool_answer(arguments=pieces))
    assert response["output"][-1]["arguments"] == text


def test_a_call_that_was_cut_off_cannot_be_taken_for_a_whole_one() -> None:
    """Its arguments do not parse in the OpenAI dialects, and the Anthropic answer leaves it out.

    A client would else carry out `rm -rf /tmp/x` cut to `rm -rf /`.
    """
    steps = tool_answer("run", ('{"command": "', "rm -rf /", '"', "}"), error="the call is cut off")
    objects, whole = reply_to("chat", steps)
    shown = joined_chat(objects)["calls"][0]["arguments"]
    assert shown == whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    with pytest.raises(ValueError):
        json.loads(shown)
    assert whole["choices"][0]["finish_reason"] == "length"
    _, message = reply_to("messages", steps)
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert message["stop_reason"] == "max_tokens"
    events, response = reply_to("responses", steps)
    assert response["status"] == "incomplete" and response["output"][-1]["status"] == "incomplete"
    assert not any(e["type"] == "response.function_call_arguments.done" for e in events)


def token(text: str, part: str) -> TokenLogprob:
    top = (Candidate(7, text.encode(), -0.25), Candidate(8, b"\xc3", float("-inf")))
    return TokenLogprob(7, text.encode(), -0.25, top, part)  # type: ignore[arg-type]


def test_logprobs_come_with_the_text_they_belong_to() -> None:
    """Chunks carry the tokens of their own text; reasoning has its own list; -inf becomes a number of JSON."""
    steps = [
        started(),
        Tokens((token("hm", "reasoning"),)),
        Reasoning("hm"),
        Tokens((token("He", "content"),)),
        Tokens((token("llo", "content"),)),
        Content("Hello"),
        Tokens((token("!", "content"),)),
        Content("!"),
        Tokens((token("<eos>", "content"),)),
        done(),
    ]
    objects, whole = reply_to("chat", steps, logprobs=True, top_logprobs=2)
    logprobs = whole["choices"][0]["logprobs"]
    assert [t["token"] for t in logprobs["content"]] == ["He", "llo", "!"]
    assert [t["token"] for t in logprobs["reasoning_content"]] == ["hm"]
    assert logprobs["content"][0]["top_logprobs"][1] == {"token": "\ufffd", "logprob": -9999.0, "bytes": [0xC3]}
    streamed = [c["choices"][0]["logprobs"]["content"] for c in objects if "logprobs" in c["choices"][0]]
    assert [[t["token"] for t in piece] for piece in streamed] == [[], ["He", "llo"], ["!"]]
    _, completion = reply_to("completion", steps, logprobs=2)
    assert completion["choices"][0]["logprobs"]["tokens"] == ["He", "llo", "!"]
    assert completion["choices"][0]["logprobs"]["text_offset"] == [0, 2, 5]


def test_choices_are_told_apart() -> None:
    """With n: 2 the events of both interleave; the prompt counts once."""
    steps = [started(), Content("a", 0), Content("b", 1), Content("A", 0), done(choice=1), done(choice=0)]
    objects, whole = reply_to("chat", steps, n=2)
    texts = ["", ""]
    for chunk in objects:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == ["aA", "b"] == [c["message"]["content"] for c in whole["choices"]]
    assert whole["usage"]["prompt_tokens"] == 20 and whole["usage"]["completion_tokens"] == 10


@pytest.mark.parametrize(
    ("finish", "stop", "chat", "messages", "responses"),
    [
        ("stop", None, "stop", "end_turn", "completed"),
        ("stop", "END", "stop", "stop_sequence", "completed"),
        ("length", None, "length", "max_tokens", "incomplete"),
        ("tool_calls", None, "tool_calls", "tool_use", "completed"),
    ],
)
def test_the_end_is_told_in_each_dialect(
    finish: str, stop: str | None, chat: str, messages: str, responses: str
) -> None:
    """The stop string that was met is echoed."""
    steps = [started(), Content("x"), done(finish, stop=stop)]
    _, whole = reply_to("chat", steps)
    assert (whole["choices"][0]["finish_reason"], whole["choices"][0]["stop_reason"]) == (chat, stop)
    _, message = reply_to("messages", steps)
    assert (message["stop_reason"], message["stop_sequence"]) == (messages, stop)
    _, response = reply_to("responses", steps)
    assert response["status"] == responses
    details = {"reason": "max_output_tokens"} if finish == "length" else None
    assert response["incomplete_details"] == details


def test_messages_events_have_the_order_of_the_interface() -> None:
    """Start, blocks one after the other, a signature before a thinking block closes, stop reason, stop."""
    objects, whole = reply_to("messages", text_answer("Hello there", "Hm."))
    kinds = [(o["type"], o.get("delta", {}).get("type")) for o in objects]
    assert kinds == [
        ("message_start", None),
        ("content_block_start", None),
        ("content_block_delta", "thinking_delta"),
        ("content_block_delta", "signature_delta"),
        ("content_block_stop", None),
        ("content_block_start", None),
        ("content_block_delta", "text_delta"),
        ("content_block_delta", "text_delta"),
        ("content_block_stop", None),
        ("message_delta", None),
        ("message_stop", None),
    ]
    assert [o["index"] for o in objects if "index" in o] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert objects[0]["message"]["usage"]["input_tokens"] == 20
    assert whole["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": whole["id"]},
        {"type": "text", "text": "Hello there"},
    ]
    assert whole["usage"]["input_tokens"] == 8 and whole["usage"]["cache_read_input_tokens"] == 12
    assert objects[-2]["usage"] == whole["usage"]


def test_a_thinking_block_is_never_the_last_one() -> None:
    steps = [started(), Reasoning("only this"), done("length")]
    objects, whole = reply_to("messages", steps)
    assert [b["type"] for b in whole["content"]] == ["thinking", "text"]
    starts = [o["content_block"]["type"] for o in objects if o["type"] == "content_block_start"]
    assert starts == ["thinking", "text"]


def test_messages_tool_input_streams_as_json_text() -> None:
    objects, whole = reply_to("messages", tool_answer(id="toolu_1"))
    text = "".join(o["delta"]["partial_json"] for o in objects if o.get("delta", {}).get("type") == "input_json_delta")
    assert whole["content"][-1] == {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "get_weather",
        "input": json.loads(text),
    }


def test_responses_events_are_numbered_and_ordered() -> None:
    """Every event has its number; items open, fill and close in turn; the last event holds the whole response."""
    steps = [*text_answer("Hello there", "Hm.")[:-1], *tool_answer(reasoning="")[1:]]
    objects, whole = reply_to("responses", steps)
    assert [o["sequence_number"] for o in objects] == list(range(len(objects)))
    assert all(list(o)[:2] == ["type", "sequence_number"] for o in objects)
    kinds = [o["type"].removeprefix("response.") for o in objects]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert objects[-1]["response"]["output"] == whole["output"]
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}
    assert objects[0]["response"]["status"] == "in_progress" and objects[0]["response"]["output"] == []


def test_responses_show_reasoning_only_when_a_summary_was_asked_for() -> None:
    objects, whole = reply_to("responses", text_answer("Hello", "Hm."), reasoning={"effort": "high"})
    assert [item["type"] for item in whole["output"]] == ["message"]
    assert not any("reasoning" in o["type"] for o in objects)


def test_responses_carry_hidden_reasoning_for_clients_that_ask() -> None:
    """What is not shown comes back with the next request, so a server that was restarted loses no reasoning."""
    include: dict[str, Any] = {"include": ["reasoning.encrypted_content"], "reasoning": None}
    for fields in (include, {**include, "reasoning": {"summary": "auto"}}):
        objects, whole = reply_to("responses", text_answer("Hello", "Hm, ho."), **fields)
        assert [item["type"] for item in whole["output"]] == ["reasoning", "message"]
        shown = [part["text"] for part in whole["output"][0]["summary"]]
        assert shown == ([] if fields is include else ["Hm, ho."])
        assert ("Hm" in str(objects)) == (fields is not include)
        items = [{"role": "user", "content": "hi"}, *whole["output"], {"role": "user", "content": "so?"}]
        items[1] = {**items[1], "summary": []}
        form = FORMS["responses"]
        body = msgspec.convert({"input": items}, form.body)
        turn = form.read(body, Settings(), INFO, "req_2").request.messages[1]
        assert (turn["reasoning_content"], turn["content"]) == ("Hm, ho.", "Hello")


@pytest.mark.parametrize("carried", ["gAAAAB-other", "ds4-reasoning-1:###", "ds4-reasoning-1:/w==", "", None])
def test_reasoning_of_other_servers_is_passed_over(carried: str | None) -> None:
    assert not opened(carried)


def test_reasoning_that_was_cut_stays_incomplete() -> None:
    _, whole = reply_to("responses", [started(), Reasoning("never clos"), done("length")])
    assert whole["output"][0]["status"] == "incomplete"


def test_responses_tools_of_other_kinds_keep_their_item_kind() -> None:
    """Custom tools give their input as it is, tools of a namespace both names, a search its arguments."""
    tools = [
        {"type": "custom", "name": "patch"},
        {"type": "namespace", "name": "mcp__files", "tools": [{"type": "function", "name": "read", "parameters": {}}]},
        {"type": "tool_search", "execution": "client"},
        {"type": "local_shell"},
    ]

    def item(name: str, arguments: str) -> dict[str, Any]:
        steps = [
            started(),
            ToolCallStart(0, name, "call_7"),
            ToolCallArguments(0, arguments),
            ToolCallEnd(0, name, "call_7", arguments),
            done("tool_calls"),
        ]
        return dict(reply_to("responses", steps, tools=tools)[1]["output"][-1])

    assert item("patch", '{"input": "*** Begin"}') | {"id": ""} == {
        "id": "",
        "call_id": "call_7",
        "status": "completed",
        "type": "custom_tool_call",
        "name": "patch",
        "input": "*** Begin",
    }
    found = item("mcp__files__read", '{"path": "a"}')
    assert (found["type"], found["namespace"], found["name"]) == ("function_call", "mcp__files", "read")
    found = item("tool_search", '{"query": "files"}')
    assert (found["type"], found["execution"], found["arguments"]) == ("tool_search_call", "client", {"query": "files"})
    found = item("local_shell", '{"command": ["ls"]}')
    assert (found["type"], found["action"]["command"]) == ("local_shell_call", ["ls"])
