"""Requests as coding agents send them: Anthropic blocks, Responses items."""

from __future__ import annotations

from typing import Any

import pytest
from ds4.chat import render_text

from .reading import USER, messages, refusal, responses

USE = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a.txt", "lines": 3}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "hello"}]}
CALL = {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": '{"path": "a"}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "hello"}


def test_a_large_agent_request_is_read() -> None:
    """L064: a system text in blocks, fifteen tools, cache marks, a stream, 32,000 tokens, fields of tomorrow."""
    tools = [
        {
            "name": f"tool_{i}",
            "description": "Does it.",
            "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}},
            "cache_control": {"type": "ephemeral"},
        }
        for i in range(15)
    ]
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=9"},
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be careful."},
    ]
    call = messages(
        system=system,
        tools=tools,
        stream=True,
        max_tokens=32_000,
        metadata={"user_id": "x"},
        context_management={"edits": []},
        thinking={"type": "enabled", "budget_tokens": 31_999},
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}
        ],
    )
    assert call.stream and call.request.max_tokens == 32_000 and call.request.mode == "thinking"
    assert call.request.messages == ({"role": "system", "content": "You are an agent.\n\nBe careful."}, USER)
    assert [t["function"]["name"] for t in call.request.tools] == [f"tool_{i}" for i in range(15)]
    assert list(call.request.tools[0]["function"]) == ["name", "description", "parameters"]


def test_a_tool_round_in_blocks() -> None:
    thought = {"type": "thinking", "thinking": "I read it.", "signature": "msg_1"}
    history = [
        USER,
        {"role": "assistant", "content": [thought, {"type": "text", "text": "Reading."}, USE]},
        {"role": "user", "content": [RESULT, {"type": "text", "text": "and now?"}]},
    ]
    request = messages(messages=history).request
    assert request.messages[1] == {
        "role": "assistant",
        "content": "Reading.",
        "reasoning_content": "I read it.",
        "tool_calls": [
            {
                "id": "toolu_1",
                "type": "function",
                "function": {"name": "read", "arguments": '{"path": "a.txt", "lines": 3}'},
            }
        ],
    }
    text = render_text(request.messages, mode="chat")
    assert text.endswith("<｜User｜><tool_result>hello</tool_result>\n\nand now?<｜Assistant｜></think>")


@pytest.mark.parametrize(
    ("block", "role"),
    [
        ({"type": "image", "source": {}}, "user"),
        ({"type": "document", "source": {}}, "user"),
        ({"type": "tool_use", "id": "t", "name": "f", "input": {}}, "user"),
        ({"type": "tool_result", "tool_use_id": "t"}, "assistant"),
        ({"type": "server_tool_use"}, "assistant"),
        ({"type": "text"}, "user"),
        ({"type": "tool_use", "name": "f"}, "assistant"),
    ],
)
def test_blocks_that_cannot_be_read_are_named(block: dict[str, Any], role: str) -> None:
    error = refusal("messages", {"messages": [USER, {"role": role, "content": [block]}], "max_tokens": 5})
    assert error.param is not None and error.param.startswith("messages[1].content[0]")


def test_an_image_in_a_tool_result_is_named_to_the_model() -> None:
    result = {**RESULT, "content": [{"type": "text", "text": "see"}, {"type": "image", "source": {}}]}
    history = [USER, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [result]}]
    text = render_text(messages(messages=history).request.messages, mode="chat")
    assert "<tool_result>see\n\n[Unsupported image]</tool_result>" in text


def test_results_of_unknown_calls_are_refused() -> None:
    """Unless they stand at the very beginning: then they may continue a turn that this server remembers."""
    history = [USER, {"role": "assistant", "content": "ok"}, {"role": "user", "content": [RESULT]}]
    assert refusal("messages", {"messages": history, "max_tokens": 5}).code == "unknown_tool_call"
    assert refusal("responses", {"input": [{"role": "user", "content": "x"}, OUTPUT]}).code == "unknown_tool_call"
    alone = messages(messages=[{"role": "user", "content": [RESULT]}]).request
    assert alone.messages[0]["tool_call_id"] == "toolu_1"
    assert responses(input=[OUTPUT], instructions="S").request.messages[1]["tool_call_id"] == "call_1"


def test_tools_of_a_service_are_left_out_and_named() -> None:
    call = messages(tools=[{"type": "web_search_20250305", "name": "web_search"}, {"name": "f", "input_schema": {}}])
    assert [t["function"]["name"] for t in call.request.tools] == ["f"]
    assert call.ignored == ("tools[0]",)
    assert responses(tools=[{"type": "web_search"}]).ignored == ("tools[0]",)


def test_an_assistant_turn_at_the_end_is_continued() -> None:
    request = messages(messages=[USER, {"role": "assistant", "content": "{"}]).request
    assert render_text(request.messages, mode=request.mode).endswith("<｜Assistant｜></think>{")


# Responses


def test_items_in_a_row_are_one_assistant_turn() -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "D"}]},
        {"role": "user", "content": "q"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "think"}],
            "encrypted_content": "z",
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "calling"}],
            "status": "completed",
        },
        CALL,
        {**CALL, "call_id": "call_2"},
        OUTPUT,
        {**OUTPUT, "call_id": "call_2", "output": [{"type": "input_text", "text": "second"}]},
    ]
    request = responses(input=items, instructions="I").request
    assert [m["role"] for m in request.messages] == ["system", "user", "assistant", "tool", "tool"]
    assert request.messages[0]["content"] == "I\n\nD"
    turn = request.messages[2]
    assert (turn["content"], turn["reasoning_content"]) == ("calling", "think")
    assert [c["id"] for c in turn["tool_calls"]] == ["call_1", "call_2"]
    text = render_text(request.messages, mode="chat")
    assert text.endswith("<tool_result>hello</tool_result>\n\n<tool_result>second</tool_result><｜Assistant｜></think>")


def test_reasoning_before_a_user_item_is_an_empty_turn() -> None:
    items = [{"role": "user", "content": "a"}, {"type": "reasoning", "summary": []}, {"role": "user", "content": "b"}]
    assert [m["role"] for m in responses(input=items).request.messages] == ["user", "assistant", "user"]


def test_turns_of_the_assistant_stay_apart() -> None:
    """Only items in a row are joined, not those with a user or a result between them."""
    said = [{"role": "assistant", "content": text} for text in "ab"]
    items = [
        {"role": "user", "content": "1"},
        said[0],
        {"role": "user", "content": "2"},
        said[1],
        CALL,
        OUTPUT,
        said[0],
    ]
    request = responses(input=[*items, {"role": "user", "content": "3"}]).request
    assert [m["role"][0] for m in request.messages] == list("uauatau")
    assert [m["content"] for m in request.messages if m["role"] == "assistant"] == ["a", "b", "a"]


def test_other_items_of_agents() -> None:
    """Custom calls, shell calls, searches with tools that join the set, items of hosted tools, compaction."""
    items = [
        {"role": "user", "content": "q"},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "web_search_call", "status": "completed", "action": {"query": "x"}},
        {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
        {
            "type": "local_shell_call",
            "call_id": "c2",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"]},
        },
        {"type": "local_shell_call_output", "call_id": "c2", "output": "a b"},
        {"type": "tool_search_call", "call_id": "c3", "execution": "client", "arguments": {"query": "mail"}},
        {
            "type": "tool_search_output",
            "call_id": "c3",
            "execution": "client",
            "tools": [{"type": "function", "name": "send_mail", "parameters": {"type": "object"}}],
        },
        {**CALL, "name": "read", "namespace": "mcp__files", "call_id": "c4"},
        {**OUTPUT, "call_id": "c4"},
    ]
    call = responses(input=items, tools=[{"type": "custom", "name": "patch"}, {"type": "tool_search"}])
    made = [c["function"] for m in call.request.messages for c in m.get("tool_calls", [])]
    assert [(c["name"], c["arguments"]) for c in made] == [
        ("patch", '{"input": "*** Begin"}'),
        ("local_shell", '{"command": ["ls"]}'),
        ("tool_search", '{"query": "mail"}'),
        ("mcp__files__read", '{"path": "a"}'),
    ]
    assert [t["function"]["name"] for t in call.request.tools] == ["patch", "tool_search", "send_mail"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "conversation": {"id": "c"}}, "conversation"),
        ({"input": "x", "background": True}, "background"),
        ({"input": []}, "input"),
        ({"input": [{"type": "message", "role": "wizard"}]}, "input[0].role"),
        ({"input": [{"type": "mystery"}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{**CALL, "status": "in_progress"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [CALL, {"type": "function_call_output", "call_id": "call_1"}]}, "input[1].output"),
        ({"input": [CALL]}, "input"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "x", "tool_choice": {"type": "hosted"}}, "tool_choice"),
        ({"input": "x", "reasoning": {"summary": "poem"}}, "reasoning.summary"),
    ],
)
def test_what_would_be_misread_is_refused(body: dict[str, Any], param: str) -> None:
    """Ignoring `previous_response_id` would cut the prompt in silence."""
    assert refusal("responses", body).param == param
