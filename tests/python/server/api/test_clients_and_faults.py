"""What the official clients make of silence, overload and failures, by events that a test wrote."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest
from ds4.server.contract import Content, Overloaded, Prefill
from support.replayed import ReplayEngine, done, started, text_answer

from .conftest import Serve, Served

ASK: list[Any] = [{"role": "user", "content": "hi"}]
SLOW = [0.9, Prefill(1, 2), 0.3, started(), Content("Hello"), 0.9, Content(" there"), done()]
BROKEN = [started(), Content("Hello"), 0.1, done("error", error="the disk was lost")]


def openai_of(served: Served, retries: int = 0) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", timeout=5, max_retries=retries)


def anthropic_of(served: Served, retries: int = 0) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=served.url, api_key="none", timeout=5, max_retries=retries)


def test_signs_of_life_are_no_content(serve: Serve) -> None:
    """L050: the clients pass over comments and pings, and are not timed out by long silence."""
    served = serve(ReplayEngine(SLOW), keepalive=0.05, settle=0.02)
    with openai_of(served) as client:
        chunks = client.chat.completions.create(model="m", messages=ASK, stream=True, timeout=0.7)
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Hello there"
        with client.responses.stream(model="m", input="hi", timeout=0.7) as responses:
            assert responses.get_final_response().output_text == "Hello there"
    other = anthropic_of(served)
    with other, other.messages.stream(model="m", max_tokens=5, messages=ASK, timeout=0.7) as stream:
        assert stream.get_final_text() == "Hello there"


def test_a_failure_inside_a_stream_is_an_exception_of_the_client(serve: Serve) -> None:
    served = serve(ReplayEngine(BROKEN), settle=0.02)
    with openai_of(served) as client:
        with pytest.raises(openai.APIError, match="the disk was lost"):
            list(client.chat.completions.create(model="m", messages=ASK, stream=True))
        events = list(client.responses.create(model="m", input="hi", stream=True))
        last = events[-1]
        assert last.type == "response.failed"
        assert last.response.error is not None and last.response.error.message == "the disk was lost"
    with anthropic_of(served) as other, pytest.raises(anthropic.APIStatusError, match="the disk was lost"):
        list(other.messages.create(model="m", max_tokens=5, messages=ASK, stream=True))


def test_clients_try_again_when_they_are_told(serve: Serve) -> None:
    """A full queue is a 429 with Retry-After: by themselves the clients come back and are served."""

    def script(request: Any) -> Any:
        return Overloaded("full", retry_after=1) if len(engine.requests) % 2 else text_answer()

    engine = ReplayEngine(script)
    served = serve(engine)
    with openai_of(served, retries=1) as client:
        assert client.chat.completions.create(model="m", messages=ASK).choices[0].message.content == "Hello there"
    with anthropic_of(served, retries=1) as other:
        message = other.messages.create(model="m", max_tokens=5, messages=ASK)
        assert message.content[-1].text == "Hello there"  # type: ignore[union-attr]
    assert len(engine.requests) == 4
    with openai_of(served) as client, pytest.raises(openai.RateLimitError):
        client.chat.completions.create(model="m", messages=ASK)


def test_a_closing_server_is_an_exception_of_the_client(serve: Serve) -> None:
    served = serve()
    served.app._guard.closing = True
    with openai_of(served) as client, pytest.raises(openai.InternalServerError, match="shutting down"):
        client.chat.completions.create(model="m", messages=ASK)
    with anthropic_of(served) as other, pytest.raises(anthropic.APIStatusError, match="shutting down"):
        other.messages.create(model="m", max_tokens=5, messages=ASK)
