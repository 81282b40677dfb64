"""Requests of the chat dialects: what they say, and what they are turned into."""

from __future__ import annotations

from typing import Any

import pytest
from ds4.chat import EFFORT_MAX_CONTEXT, render_text
from ds4.server.api.settings import Settings
from ds4.server.contract import JsonObject, JsonSchema, ModelInfo, Named, Sampling

from .reading import INFO, USER, WEATHER, chat, messages, read, refusal, responses

BIG = ModelInfo("ds4-replay", EFFORT_MAX_CONTEXT, 2048, "replay", 0)


def mode(body: dict[str, Any], **settings: Any) -> tuple[str, str | None]:
    call = read("chat", {"messages": [USER], **body}, Settings(**settings), BIG)
    return call.request.mode, call.request.effort


OFF, ON, MOST = ("chat", None), ("thinking", None), ("thinking", "max")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, ON),
        ({"model": "anything"}, ON),
        ({"model": "deepseek-chat"}, OFF),
        ({"model": "deepseek-reasoner"}, ON),
        ({"reasoning_effort": "none"}, OFF),
        ({"reasoning_effort": "minimal"}, ON),
        ({"reasoning_effort": "low"}, ON),
        ({"reasoning_effort": "high"}, ON),
        ({"reasoning_effort": "max"}, MOST),
        ({"thinking": False}, OFF),
        ({"thinking": {"type": "disabled"}}, OFF),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, ON),
        ({"thinking": {"type": "adaptive"}, "reasoning_effort": "max"}, MOST),
        ({"think": False}, OFF),
        ({"enable_thinking": False}, OFF),
        ({"chat_template_kwargs": {"thinking": False}}, OFF),
        ({"chat_template_kwargs": {"enable_thinking": False}}, OFF),
        # where they disagree
        ({"think": False, "reasoning_effort": "max"}, OFF),
        ({"thinking": True, "reasoning_effort": "none"}, ON),
        ({"thinking": True, "think": False}, ON),
        ({"enable_thinking": True, "chat_template_kwargs": {"thinking": False}}, ON),
        ({"model": "deepseek-chat", "reasoning_effort": "high"}, ON),
        ({"model": "deepseek-reasoner", "thinking": False}, OFF),
    ],
)
def test_switches_of_thinking(body: dict[str, Any], expected: tuple[str, str | None]) -> None:
    """L053, L028: every known switch is honoured, in the stated order when they disagree."""
    assert mode(body) == expected


def test_the_server_can_turn_thinking_off() -> None:
    """L053: a start flag is the default of every request that says nothing; a request wins."""
    assert mode({}, mode="chat") == OFF
    assert mode({"model": "anything"}, mode="chat") == OFF
    assert mode({"reasoning_effort": "high"}, mode="chat") == ON
    assert mode({}, effort="max") == MOST


def test_an_unknown_effort_is_refused() -> None:
    assert refusal("chat", {"messages": [USER], "reasoning_effort": "huge"}).param == "reasoning_effort"
    assert refusal("responses", {"input": "x", "reasoning": {"effort": "huge"}}).param == "reasoning.effort"
    assert refusal("chat", {"messages": [USER], "thinking": {"type": "yes"}}).param == "thinking.type"


def test_effort_max_needs_a_long_context() -> None:
    """L028: in a small context it is plain thinking."""
    assert chat(reasoning_effort="max").request.effort is None


def test_effort_high_and_max_render_differently() -> None:
    """L028: "high" adds nothing to the prompt, as in the published encoder; "max" adds its text."""
    prompts = {}
    for effort in ("low", "high", "max"):
        request = read("chat", {"messages": [USER], "reasoning_effort": effort}, info=BIG).request
        prompts[effort] = render_text(request.messages, mode=request.mode, effort=request.effort)
    assert prompts["low"] == prompts["high"] != prompts["max"]


def test_sampling_of_a_request_wins_over_the_settings() -> None:
    defaults = Settings(sampling=Sampling(temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=3))
    assert read("chat", {"messages": [USER]}, defaults).request.sampling == defaults.sampling
    body = {"messages": [USER], "temperature": 0, "top_p": 0.2, "top_k": 5000, "min_p": 0, "seed": 0}
    assert read("chat", body, defaults).request.sampling == Sampling(0, 0.2, 1024, 0, 0)
    assert chat(seed=-1, top_k=-1).request.sampling == Sampling(min_p=0.05)
    assert chat(top_p=0).request.sampling == Sampling(top_k=1, min_p=0.05)
    assert refusal("chat", {"messages": [USER], "seed": 1 << 64}).param == "seed"


def test_limits_of_tokens_and_choices() -> None:
    assert chat(max_tokens=5).request.max_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=7).request.max_tokens == 7
    assert responses(max_output_tokens=3).request.max_tokens == 3
    assert chat(n=4).request.n == 4
    assert refusal("chat", {"messages": [USER], "n": 17}).param == "n"


def test_stop_strings() -> None:
    assert chat(stop="END").request.stop == ("END",)
    assert chat(stop=["a", "b", "a"]).request.stop == ("a", "b")
    assert messages(stop_sequences=["x"]).request.stop == ("x",)
    assert refusal("chat", {"messages": [USER], "stop": ""}).param == "stop"
    assert refusal("chat", {"messages": [USER], "stop": ["a", ""]}).param == "stop[1]"
    assert refusal("chat", {"messages": [USER], "stop": ["x"] * 17}).param == "stop"
    assert refusal("chat", {"messages": [USER], "stop": "x" * 257}).param == "stop"


def test_logprobs() -> None:
    assert chat().request.logprobs is None
    assert chat(logprobs=True).request.logprobs == 0
    assert chat(logprobs=True, top_logprobs=3).request.logprobs == 3
    assert refusal("chat", {"messages": [USER], "top_logprobs": 3}).param == "top_logprobs"
    assert responses(top_logprobs=2).request.logprobs == 2
    assert responses(include=["message.output_text.logprobs"]).request.logprobs == 0


def test_fields_without_effect_are_named() -> None:
    """A penalty is not served; the answer says so in a header instead of pretending."""
    assert chat(frequency_penalty=0, presence_penalty=0, logit_bias={}).ignored == ()
    assert chat(frequency_penalty=0.5, logit_bias={"5": -100}).ignored == ("frequency_penalty", "logit_bias")


# Messages


def test_developer_acts_as_system() -> None:
    """L031: and two texts at the beginning become one, joined by a blank line."""
    call = chat(messages=[{"role": "developer", "content": "A"}, {"role": "system", "content": "B"}, USER])
    assert call.request.messages == ({"role": "system", "content": "A\n\nB"}, USER)


def test_a_later_system_message_stays_where_it_is() -> None:
    """L031: it joins the user turn there, so that what stands before it keeps its bytes."""
    history = [USER, {"role": "assistant", "content": "yes"}, {"role": "developer", "content": "Be brief."}, USER]
    request = chat(messages=history).request
    assert [m["role"] for m in request.messages] == ["user", "assistant", "user", "user"]
    text = render_text(request.messages, mode="chat")
    assert text.endswith("<｜User｜>Be brief.\n\nhi<｜Assistant｜></think>")


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([], "messages"),
        ([USER, {"role": "wizard", "content": "x"}], "messages[1]"),
        ([{"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}], "messages[0]"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages[0].content[0]"),
        ([USER, {"role": "assistant", "tool_calls": [{"type": "custom"}]}], "messages[1].tool_calls[0]"),
        ([USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}], "messages"),
        ([USER, {"role": "user", "content": "x", "tools": [WEATHER]}], "messages[1]"),
    ],
)
def test_wrong_messages_are_refused_with_their_index(given: list[Any], param: str) -> None:
    """L031, L055: unknown roles, an empty list, images, calls in the wrong place."""
    assert refusal("chat", {"messages": given}).param == param


@pytest.mark.parametrize("arguments", ['{"a": NaN}', "{", "", "[1]", '{"a": 1e999}'])
def test_arguments_that_are_no_json_object_are_shown_as_text(arguments: str) -> None:
    """NaN in arguments: a damaged call of the history is no reason to refuse the conversation."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    history = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "x"}]
    text = render_text(chat(messages=history).request.messages, mode="chat")
    assert f'name="arguments" string="true">{arguments}<' in text


def test_older_names_of_tool_messages() -> None:
    """L031: role `function` and `function_call`."""
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    request = chat(messages=[USER, call, {"role": "function", "name": "f", "content": "5"}]).request
    assert request.messages[1]["tool_calls"] == [{"function": {"name": "f", "arguments": "{}"}}]
    assert request.messages[2]["role"] == "tool"
    assert "<tool_result>5</tool_result>" in render_text(request.messages, mode="chat")


def rendered(content: Any, role: str = "user") -> str:
    history: list[Any] = [USER]
    if role == "tool":
        history.append({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]})
        history.append({"role": "tool", "tool_call_id": "c", "content": content})
    else:
        history = [{"role": role, "content": content}]
    return render_text(chat(messages=history).request.messages, mode="chat")


def test_a_list_of_text_parts_is_its_joined_text() -> None:
    """L055: in tool results, user and system messages; null is empty."""
    one = [{"type": "text", "text": "file.txt"}]
    two = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for role in ("tool", "user"):
        assert rendered(one, role) == rendered("file.txt", role)
        assert rendered(two, role) == rendered("a\n\nb", role)
        assert rendered(None, role) == rendered("", role)
    assert rendered(two, "system") == rendered("a\n\nb", "system")


@pytest.mark.parametrize("text", ["[1, 2, 3]", '[{"id":1}]', "null", '{"type":"text"}'])
def test_a_tool_result_that_looks_like_json_is_text(text: str) -> None:
    """L056: in all dialects that have tool results."""
    assert f"<tool_result>{text}</tool_result>" in rendered(text, "tool")
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": text}
    history = [USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    assert f"<tool_result>{text}</tool_result>" in render_text(messages(messages=history).request.messages, mode="chat")
    items = [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": text},
    ]
    assert f"<tool_result>{text}</tool_result>" in render_text(responses(input=items).request.messages, mode="chat")


def test_tools_on_the_system_message_are_tools_of_the_request() -> None:
    """L029: as if they stood beside the messages; both at once is refused."""
    system = {"role": "system", "content": "S", "tools": [WEATHER]}
    request = chat(messages=[system, USER]).request
    assert request.tools == (WEATHER,)
    beside = chat(messages=[{"role": "system", "content": "S"}, USER], tools=[WEATHER]).request
    assert (request.messages, request.tools) == (beside.messages, beside.tools)
    assert refusal("chat", {"messages": [system, USER], "tools": [WEATHER]}).param == "tools"


def test_an_assistant_message_at_the_end_is_continued() -> None:
    request = chat(messages=[USER, {"role": "assistant", "content": "The answer is"}]).request
    assert request.mode == "chat"
    assert render_text(request.messages, mode="chat").endswith("<｜Assistant｜></think>The answer is")


def test_reasoning_of_the_history_is_kept() -> None:
    """Under both names that servers give it."""
    for name in ("reasoning_content", "reasoning"):
        request = chat(messages=[USER, {"role": "assistant", "content": "a", name: "why"}, USER]).request
        assert request.messages[1]["reasoning_content"] == "why"


# Tools


def test_tool_choice_of_each_dialect() -> None:
    name = {"type": "function", "function": {"name": "get_weather"}}
    tool = {"name": "get_weather", "input_schema": {"type": "object"}}
    function = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
    for given, expected in (("auto", "auto"), ("required", "required"), (name, Named("get_weather")), (None, "auto")):
        assert chat(tools=[WEATHER], tool_choice=given).request.tool_choice == expected
    for kind, expected in (("auto", "auto"), ("any", "required"), ("tool", Named("get_weather"))):
        choice = {"type": kind, "name": "get_weather", "disable_parallel_tool_use": True}
        request = messages(tools=[tool], tool_choice=choice).request
        assert request.tool_choice == expected and not request.parallel_tool_calls
    for given, expected in (
        ("required", "required"),
        ({"type": "function", "name": "get_weather"}, Named("get_weather")),
    ):
        assert responses(tools=[function], tool_choice=given).request.tool_choice == expected


def test_tools_that_must_not_be_called_are_not_shown() -> None:
    """L038: tool_choice none takes the tools out of the prompt."""
    assert chat(tools=[WEATHER], tool_choice="none").request.tools == ()
    tool = {"name": "get_weather", "input_schema": {}}
    assert messages(tools=[tool], tool_choice={"type": "none"}).request.tools == ()
    function = {"type": "function", "name": "get_weather"}
    assert responses(tools=[function], tool_choice="none").request.tools == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [WEATHER], "tool_choice": "sometimes"},
        {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}},
        {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools"}},
        {"tool_choice": "required"},
    ],
)
def test_a_choice_that_cannot_be_met_is_refused(fields: dict[str, Any]) -> None:
    assert refusal("chat", {"messages": [USER], **fields}).param == "tool_choice"


def test_tools_that_are_none_are_refused() -> None:
    assert refusal("chat", {"messages": [USER], "tools": [WEATHER, WEATHER]}).param == "tools"
    assert refusal("chat", {"messages": [USER], "tools": [{"type": "custom", "custom": {}}]}).param == "tools"
    assert refusal("chat", {"messages": [USER], "functions": [{"name": "f"}]}).param == "functions"
    assert refusal("messages", {"messages": [USER], "tools": [{"description": "x"}]}).param == "tools"


def test_key_order_of_schemas_is_kept() -> None:
    """Else a prompt would change between runs of a client, and nothing of it could be reused."""
    schema = {"type": "object", "properties": {"zeta": {}, "alpha": {}}, "required": ["zeta"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert str(chat(tools=[tool]).request.tools[0]) == str(tool)
    request = messages(tools=[{"name": "f", "input_schema": schema}]).request
    assert list(request.tools[0]["function"]["parameters"]["properties"]) == ["zeta", "alpha"]


def test_response_formats() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    named = {"name": "thing", "schema": schema, "strict": True}
    assert chat(response_format={"type": "text"}).request.response_format is None
    assert chat(response_format={"type": "json_object"}).request.response_format == JsonObject()
    expected = JsonSchema(schema, "thing", True)
    assert chat(response_format={"type": "json_schema", "json_schema": named}).request.response_format == expected
    assert responses(text={"format": {"type": "json_schema", **named}}).request.response_format == expected
    config = {"format": {"type": "json_schema", "schema": schema}}
    assert messages(output_config=config).request.response_format == JsonSchema(schema, "", True)
    error = refusal("chat", {"messages": [USER], "response_format": {"type": "json_schema"}})
    assert error.param == "response_format"
    assert refusal("chat", {"messages": [USER], "response_format": {"type": "xml"}}).param == "response_format.type"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("parallel", [True, False])
def test_a_schema_goes_with_everything(stream: bool, thinks: bool, parallel: bool) -> None:
    """L052: json_schema beside tools, streams, thinking and parallel calls is one request, not a matter of luck."""
    form = {"type": "json_schema", "json_schema": {"name": "t", "schema": {"type": "object"}}}
    call = chat(tools=[WEATHER], response_format=form, stream=stream, thinking=thinks, parallel_tool_calls=parallel)
    request = call.request
    assert request.response_format == JsonSchema({"type": "object"}, "t", False)
    assert request.tools == (WEATHER,) and request.parallel_tool_calls == parallel
    assert request.mode == ("thinking" if thinks else "chat") and call.stream == stream


def test_the_model_is_echoed_or_is_the_one_served() -> None:
    assert chat(model="gpt-5").request.model == "gpt-5"
    assert chat().request.model == INFO.id


def test_completions_ask_one_user_message() -> None:
    """They do not think unless the request says so."""
    request = read("completion", {"prompt": ["Say hi"], "stop": "x", "logprobs": 2}).request
    assert request.messages == ({"role": "user", "content": "Say hi"},)
    assert (request.mode, request.stop, request.logprobs) == ("chat", ("x",), 2)
    assert read("completion", {"prompt": "x", "reasoning_effort": "high"}).request.mode == "thinking"
    for wrong in ({"prompt": [1, 2]}, {"prompt": ["a", "b"]}, {"prompt": []}):
        assert refusal("completion", wrong).param == "prompt"
    assert refusal("completion", {"prompt": "x", "suffix": "y"}).param == "suffix"
    assert refusal("completion", {"prompt": "x", "echo": True}).param == "echo"
    assert refusal("completion", {"prompt": "x", "best_of": 3}).param == "best_of"


def test_steering_is_passed_on() -> None:
    assert chat(steering={"scale": 1.5}).request.steering == {"scale": 1.5}
