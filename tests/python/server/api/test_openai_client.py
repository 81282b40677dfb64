"""The official OpenAI client against a real server with the model of the package."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from .processes import ServerProcess

PARIS: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Get the weather of a city", "parameters": PARAMETERS},
}
FUNCTION: Any = {"type": "function", **TOOL["function"]}
RESULT = json.dumps({"temp": 18, "sky": "sunny"})
ANSWER = "In Paris it is sunny and 18 degrees."


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("-c", 4096, "--threads", 1) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=60, max_retries=0) as made:
        yield made


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="any-name", messages=PARIS)
    message = answer.choices[0].message
    assert message.content == "The capital of France is Paris."
    assert message.reasoning_content  # type: ignore[attr-defined]
    assert answer.model == "any-name" and answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert usage is not None and usage.completion_tokens_details is not None
    assert 0 < (usage.completion_tokens_details.reasoning_tokens or 0) < usage.completion_tokens
    assert answer._request_id and answer._request_id.startswith("req_")


def test_a_chat_stream_is_the_same_answer(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="ds4", messages=PARIS)
    stream = client.chat.completions.create(
        model="ds4", messages=PARIS, stream=True, stream_options={"include_usage": True}
    )
    text = reasoning = ""
    usage = None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
    assert text == whole.choices[0].message.content
    assert reasoning == whole.choices[0].message.reasoning_content  # type: ignore[attr-defined]
    assert usage is not None and whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize("thinks", [True, False])
def test_a_whole_tool_loop(client: openai.OpenAI, thinks: bool) -> None:
    """The model calls the tool, gets the result, and uses it; the second prompt reuses the first turn."""
    extra = {"thinking": thinks}
    first = client.chat.completions.create(model="ds4", messages=WEATHER, tools=[TOOL], extra_body=extra)
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls" and message.tool_calls is not None
    call = message.tool_calls[0]
    assert call.type == "function" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": call.id, "content": RESULT}
    history = [*WEATHER, message.model_dump(exclude_none=True), result]
    second = client.chat.completions.create(model="ds4", messages=history, tools=[TOOL], extra_body=extra)
    assert second.choices[0].message.content == ANSWER and second.choices[0].finish_reason == "stop"
    used = second.usage
    assert used is not None and used.prompt_tokens_details is not None and first.usage is not None
    assert (used.prompt_tokens_details.cached_tokens or 0) >= first.usage.prompt_tokens


def test_a_tool_loop_by_streams(client: openai.OpenAI) -> None:
    """Arguments joined from the stream are those of the whole answer; the client's own helper reads them."""
    with client.chat.completions.stream(model="ds4", messages=WEATHER, tools=[TOOL]) as stream:
        names = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in names
    message = final.choices[0].message
    assert message.tool_calls is not None
    call = message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": call.id, "content": RESULT}
    turn = {
        "role": "assistant",
        "tool_calls": [c.model_dump(include={"id", "type", "function"}) for c in message.tool_calls],
    }
    history = [*WEATHER, turn, result]
    pieces = client.chat.completions.create(model="ds4", messages=history, tools=[TOOL], stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in pieces if c.choices) == ANSWER


def test_a_tool_must_be_called(client: openai.OpenAI) -> None:
    """tool_choice required and named hold even where the model would rather talk; none never calls."""
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ("required", named):
        answer = client.chat.completions.create(model="ds4", messages=PARIS, tools=[TOOL], tool_choice=choice)
        calls = answer.choices[0].message.tool_calls
        assert calls and calls[0].type == "function" and calls[0].function.name == "get_weather"
        json.loads(calls[0].function.arguments)
    answer = client.chat.completions.create(model="ds4", messages=WEATHER, tools=[TOOL], tool_choice="none")
    assert not answer.choices[0].message.tool_calls
    assert "DSML" not in (answer.choices[0].message.content or "")


def test_a_schema_holds(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "n": {"type": "integer", "maximum": 99, "minimum": 0},
        },
        "required": ["city", "n"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "t", "schema": schema, "strict": True}}
    answer = client.chat.completions.create(model="ds4", messages=PARIS, response_format=form, max_tokens=300)
    value = json.loads(answer.choices[0].message.content or "")
    assert set(value) == {"city", "n"} and isinstance(value["n"], int)


@pytest.mark.parametrize("tools", [[], [TOOL]], ids=["alone", "with tools"])
@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("streams", [True, False])
def test_a_schema_holds_beside_everything(client: openai.OpenAI, streams: bool, thinks: bool, tools: list[Any]) -> None:
    """L052: with streams, thinking and tools; the answer is of the schema, or it is a call."""
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "t", "schema": schema}}
    options: dict[str, Any] = {"tools": tools, "parallel_tool_calls": False} if tools else {}
    options |= {"response_format": form, "max_tokens": 300, "extra_body": {"thinking": thinks}, "messages": PARIS}
    text, called, finish = "", False, None
    if streams:
        for chunk in client.chat.completions.create(model="ds4", stream=True, **options):
            for choice in chunk.choices:
                text += choice.delta.content or ""
                called = called or bool(choice.delta.tool_calls)
                finish = choice.finish_reason or finish
    else:
        answer = client.chat.completions.create(model="ds4", **options).choices[0]
        text, called, finish = answer.message.content or "", bool(answer.message.tool_calls), answer.finish_reason
    assert called == (finish == "tool_calls") and (tools or not called)
    if finish == "stop":
        assert isinstance(json.loads(text)["n"], int)
    else:
        assert called or finish == "length"


def test_choices_stops_and_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="ds4", messages=PARIS, n=2, logprobs=True, top_logprobs=3, stop=[" Paris"], extra_body={"thinking": False}
    )
    assert [choice.message.content for choice in answer.choices] == ["The capital of France is"] * 2
    assert answer.choices[0].stop_reason == " Paris"  # type: ignore[attr-defined]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in logprobs.content)
    assert "".join(token.token for token in logprobs.content).startswith("The capital")


def test_length_ends_an_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="ds4", messages=PARIS, max_tokens=3)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == 3


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="ds4", prompt="What is the capital of France?")
    assert answer.choices[0].text == "The capital of France is Paris."
    pieces = client.completions.create(model="ds4", prompt="What is the capital of France?", stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == answer.choices[0].text


def test_responses(client: openai.OpenAI) -> None:
    question = "What is the capital of France?"
    answer = client.responses.create(model="ds4", input=question, reasoning={"effort": "high", "summary": "auto"})
    assert answer.output_text == "The capital of France is Paris." and answer.status == "completed"
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.usage is not None and answer.usage.output_tokens_details.reasoning_tokens > 0
    with client.responses.stream(model="ds4", input=question) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == answer.output_text


def test_a_tool_loop_by_responses(client: openai.OpenAI) -> None:
    """The whole history is sent back, as agents do, with the items as they came."""
    first = client.responses.create(model="ds4", input="What is the weather in Paris?", tools=[FUNCTION])
    calls = [item for item in first.output if item.type == "function_call"]
    assert len(calls) == 1 and json.loads(calls[0].arguments) == {"city": "Paris"}
    history: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    history += [item.model_dump(exclude_none=True) for item in first.output]
    history.append({"type": "function_call_output", "call_id": calls[0].call_id, "output": RESULT})
    second = client.responses.create(model="ds4", input=history, tools=[FUNCTION])
    assert second.output_text == ANSWER
    assert second.usage is not None and first.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens


def test_results_alone_continue_the_turn_that_asked_for_them(client: openai.OpenAI) -> None:
    """Live continuation: a client may send only what is new; calls that nobody remembers are refused."""
    first = client.responses.create(model="ds4", input="What is the weather in Paris?", tools=[FUNCTION])
    call = next(item for item in first.output if item.type == "function_call")
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    second = client.responses.create(model="ds4", input=[result], tools=[FUNCTION])
    assert second.output_text == ANSWER
    with pytest.raises(openai.APIStatusError) as info:
        client.responses.create(model="ds4", input=[{**result, "call_id": "call_unknown"}], tools=[FUNCTION])
    assert info.value.status_code in (400, 409)


def test_models(client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert len(models) == 1 and models[0].context_length == 4096  # type: ignore[attr-defined]
    assert client.models.retrieve(models[0].id).id == models[0].id
    with pytest.raises(openai.NotFoundError) as info:
        client.models.retrieve("gpt-5")
    assert info.value.code == "model_not_found"


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    long: Any = [{"role": "user", "content": "word " * 6000}]
    with pytest.raises(openai.BadRequestError) as info:
        client.chat.completions.create(model="ds4", messages=long)
    assert info.value.code == "context_length_exceeded" and info.value.param == "messages"
    assert isinstance(info.value.body, dict) and info.value.body["n_ctx"] == 4096
    assert info.value.body["n_prompt_tokens"] >= 6000
    wrong: Any = [{"role": "wizard", "content": "x"}]
    with pytest.raises(openai.BadRequestError, match="wizard"):
        client.chat.completions.create(model="ds4", messages=wrong)
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(model="ds4", input="x", previous_response_id="resp_1")
    with pytest.raises(openai.NotFoundError, match="embeddings"):
        client.embeddings.create(model="ds4", input="x")


def cancelled(server: ServerProcess) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    found = [line for line in text.splitlines() if line.startswith('ds4_finished_total{finish="cancelled"}')]
    return float(found[0].split()[-1]) if found else 0.0


def wait_for_cancelled(server: ServerProcess, n: float) -> bool:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if cancelled(server) >= n:
            return True
        time.sleep(0.02)
    return False


def endless() -> dict[str, Any]:
    """Return a request that goes on for seconds: so hot that any token may come, and the end seldom does."""
    extra = {"thinking": False, "min_p": 0}
    return {"model": "ds4", "messages": PARIS, "n": 8, "temperature": 100, "seed": 1, "extra_body": extra}


def test_a_stream_that_is_closed_stops_the_work(client: openai.OpenAI, server: ServerProcess) -> None:
    """L062: within a few tokens, and the next request starts at once."""
    before = cancelled(server)
    stream = client.chat.completions.create(**endless(), stream=True)
    for i, _ in enumerate(stream):
        if i == 3:
            break
    stream.close()
    assert wait_for_cancelled(server, before + 1)
    began = time.monotonic()
    test_chat(client)
    assert time.monotonic() - began < 5


def test_a_client_that_gives_up_waiting_stops_the_work(client: openai.OpenAI, server: ServerProcess) -> None:
    before = cancelled(server)
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.4).chat.completions.create(**endless())
    assert wait_for_cancelled(server, before + 1)
    test_chat(client)


def test_the_log_says_why_a_prompt_was_not_reused(client: openai.OpenAI, server: ServerProcess) -> None:
    """L062: every request has a line with what was kept and why no more."""
    client.chat.completions.create(model="ds4", messages=[{"role": "user", "content": "Hello there"}])
    lines = [line for line in server.log if "POST /v1/chat/completions 200" in line]
    assert lines and all(" kept (" in line for line in lines)
