"""The official Anthropic client against a real server with the model of the package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from .processes import ServerProcess

KEY = "sk-test-0123456789"
PARIS: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL: Any = {
    "name": "get_weather",
    "description": "Get the weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
RESULT = '{"temp": 18, "sky": "sunny"}'
ANSWER = "In Paris it is sunny and 18 degrees."


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("-c", 4096, "--threads", 1, "--name", "tiny", DS4_API_KEY=KEY) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, timeout=60, max_retries=0) as made:
        yield made


def test_a_message(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(model="any", max_tokens=200, messages=PARIS)
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert answer.content[1].text == "The capital of France is Paris."  # type: ignore[union-attr]
    assert (answer.stop_reason, answer.role, answer.model) == ("end_turn", "assistant", "any")
    usage = answer.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) > 5 and usage.output_tokens > 5
    plain = client.messages.create(model="any", max_tokens=200, messages=PARIS, thinking={"type": "disabled"})
    assert [block.type for block in plain.content] == ["text"]


def test_a_stream_is_the_same_message(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(model="any", max_tokens=200, messages=PARIS)
    with client.messages.stream(model="any", max_tokens=200, messages=PARIS) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[1].text  # type: ignore[union-attr]
    assert [b.type for b in final.content] == ["thinking", "text"]
    assert final.content[0].thinking == whole.content[0].thinking  # type: ignore[union-attr]
    assert final.content[0].signature == final.id  # type: ignore[union-attr]
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0) == (
        whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    )


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("thinks", ["enabled", "disabled"])
def test_a_whole_tool_loop(client: anthropic.Anthropic, thinks: Any, streams: bool) -> None:
    """The blocks go back as they came; the second prompt reuses the first turn."""
    thinking: Any = {"type": thinks, **({"budget_tokens": 1024} if thinks == "enabled" else {})}
    options: dict[str, Any] = {"model": "any", "max_tokens": 2000, "tools": [TOOL], "thinking": thinking}

    def ask(messages: list[Any]) -> Any:
        if not streams:
            return client.messages.create(messages=messages, **options)
        with client.messages.stream(messages=messages, **options) as stream:
            return stream.get_final_message()

    first = ask(WEATHER)
    assert first.stop_reason == "tool_use"
    use = first.content[-1]
    assert (use.type, use.name, use.input) == ("tool_use", "get_weather", {"city": "Paris"})
    assert use.id.startswith("toolu_")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": RESULT}]}
    history = [*WEATHER, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = ask(history)
    assert second.content[-1].text == ANSWER and second.stop_reason == "end_turn"
    assert (second.usage.cache_read_input_tokens or 0) >= first.usage.input_tokens


def test_a_tool_must_be_called(client: anthropic.Anthropic) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        answer = client.messages.create(model="x", max_tokens=300, messages=PARIS, tools=[TOOL], tool_choice=choice)  # type: ignore[arg-type]
        assert answer.stop_reason == "tool_use"


def test_stop_sequences_are_echoed(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(model="any", max_tokens=200, messages=PARIS, stop_sequences=["nothing", " is"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", " is")
    assert answer.content[-1].text == "The capital of France"  # type: ignore[union-attr]


def test_counting_tokens_is_exact(client: anthropic.Anthropic) -> None:
    """The number is that of the prompt which the same request makes, tools and system text included."""
    options: dict[str, Any] = {"messages": WEATHER, "system": "You can use tools.", "tools": [TOOL]}
    counted = client.messages.count_tokens(model="any", **options).input_tokens
    usage = client.messages.create(model="any", max_tokens=1, **options).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_errors_are_the_clients_own(client: anthropic.Anthropic, server: ServerProcess) -> None:
    with pytest.raises(anthropic.BadRequestError, match="n_ctx"):
        client.messages.create(model="x", max_tokens=5, messages=[{"role": "user", "content": "word " * 6000}])
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]"):
        client.messages.create(model="x", max_tokens=5, messages=[{"role": "wizard", "content": "x"}])  # type: ignore[typeddict-item]
    result = {"type": "tool_result", "tool_use_id": "toolu_unknown", "content": "x"}
    with pytest.raises(anthropic.BadRequestError, match="toolu_unknown"):
        client.messages.create(
            model="x",
            max_tokens=5,
            messages=[*PARIS, {"role": "assistant", "content": "a"}, {"role": "user", "content": [result]}],  # type: ignore[list-item]
        )
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="sk-wrong").messages.create(model="x", max_tokens=5, messages=PARIS)


def test_both_headers_of_the_key_are_taken(server: ServerProcess) -> None:
    """L058: and no other; the liveness needs none."""
    body = {"model": "x", "max_tokens": 5, "messages": PARIS}
    for headers in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}):
        assert httpx.post(f"{server.url}/v1/messages", json=body, headers=headers).status_code == 200
    assert httpx.post(f"{server.url}/v1/messages", json=body).status_code == 401
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok", "model": "tiny"}


def test_models(client: anthropic.Anthropic) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
