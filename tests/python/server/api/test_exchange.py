"""Signs of life, clients that leave or do not read, overload, failures, the end of the server."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from itertools import pairwise
from typing import Any

import httpx
import pytest
from ds4.server.contract import Content, Overloaded, Prefill, Queued, RequestError, ToolCallArguments, ToolCallStart
from support.replayed import ReplayEngine, done, started, text_answer, tool_answer

from .conftest import Serve, Served, until

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {**CHAT, "max_tokens": 5},
}
LONG = [started(), Content("a"), 30.0, Content("b"), done()]


def start(served: Served, path: str = "/v1/chat/completions", *, stream: bool = True) -> socket.socket:
    """Send a request and return its connection, nothing read."""
    body = json.dumps({**PATHS[path], "stream": stream}).encode()
    connection = served.raw()
    connection.sendall(
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body))
    )
    connection.sendall(body)
    return connection


def read_until(connection: socket.socket, what: bytes) -> bytes:
    out = b""
    while what not in out:
        piece = connection.recv(65536)
        assert piece, out
        out += piece
    return out


# Signs of life


@pytest.mark.parametrize("path", list(PATHS))
def test_silence_is_filled_by_the_clock(serve: Serve, path: str) -> None:
    """L050: before the first token, within an answer and while an argument is made, whatever progress says."""
    script = [0.8, Prefill(1, 2), 0.8, started(), Content("a"), 0.8, Content("b"), done()]
    if path == "/v1/messages":
        script[6:] = [ToolCallStart(0, "f", "t"), ToolCallArguments(0, '{"a": "'), 0.8, *tool_answer(reasoning="")[2:]]
        script = [s for s in script if not isinstance(s, ToolCallStart) or s.id == "t"]
    served = serve(ReplayEngine(script), keepalive=0.1, settle=0.05)
    stamps: list[float] = []
    signs = 0
    with served.client() as http, http.stream("POST", path, json={**PATHS[path], "stream": True}) as answer:
        for piece in answer.iter_raw():
            stamps.append(time.monotonic())
            signs += piece.count(b": keepalive\n") + piece.count(b"event: ping\n")
    assert signs >= 12
    assert max(b - a for a, b in pairwise(stamps)) < 0.7


def test_progress_does_not_put_off_the_sign_of_life(serve: Serve) -> None:
    """L050: events that send nothing to the client are no sign of life."""
    script = [started(), Content("a"), *[step for i in range(40) for step in (0.02, Prefill(i, 40))], done()]
    served = serve(ReplayEngine(script), keepalive=0.1)
    answer = served.client().post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert answer.text.count(": keepalive") >= 5


def test_the_clock_starts_at_what_was_sent(serve: Serve) -> None:
    """L050: not at what the engine told meanwhile."""
    served = serve(ReplayEngine([0.5, Prefill(1, 2), 2.0, *text_answer()]), keepalive=0.6, settle=0.01)
    with served.client() as http, http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
        pieces = answer.iter_text()
        assert "assistant" in next(pieces)
        began = time.monotonic()
        assert ": keepalive" in next(pieces)
        assert time.monotonic() - began < 0.95


def test_an_agents_stream_begins_at_once(serve: Serve) -> None:
    """L064: the first event comes while the prompt is computed, with the size of the prompt, then pings."""
    served = serve(ReplayEngine([1.0, *text_answer()]), settle=0.05, keepalive=0.2)
    began = time.monotonic()
    with served.client() as http:
        body = {**PATHS["/v1/messages"], "stream": True}
        with http.stream("POST", "/v1/messages?beta=true", json=body) as answer:
            pieces = answer.iter_text()
            first = next(pieces)
            assert time.monotonic() - began < 0.9
            assert first.startswith("event: message_start") and '"input_tokens":20' in first
            assert "event: ping" in next(pieces)
            assert "message_stop" in "".join(pieces)


# Clients that leave


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", list(PATHS))
def test_a_client_that_leaves_stops_the_work(serve: Serve, path: str, stream: bool) -> None:
    """L062: in the middle of an answer, streamed or not; the next request starts at once."""
    served = serve(ReplayEngine(LONG))
    connection = start(served, path, stream=stream)
    assert until(lambda: served.engine.produced >= 2)
    connection.close()
    assert until(lambda: served.engine.generations[0].cancelled)
    served.engine.script = text_answer()
    assert served.client().post(path, json=PATHS[path]).status_code == 200


@pytest.mark.parametrize("script", [[30.0, done()], [Queued(1), 30.0, done()], [Prefill(1, 9), 30.0, done()]])
def test_a_client_that_leaves_before_the_first_token(serve: Serve, script: list[Any]) -> None:
    """L062: while it waits, and while its prompt is computed; before and after the head of the stream is sent."""
    for wait in (0.0, 0.2):
        served = serve(ReplayEngine(script), settle=0.1)
        connection = start(served)
        assert until(lambda: bool(served.engine.generations))  # noqa: B023
        time.sleep(wait)
        connection.close()
        assert until(lambda: served.engine.generations[0].cancelled, 1.0)  # noqa: B023


def test_a_client_that_leaves_while_its_prompt_is_rendered(serve: Serve) -> None:
    engine = ReplayEngine()
    engine.opening = 30.0
    served = serve(engine)
    connection = start(served)
    time.sleep(0.2)
    connection.close()
    assert until(lambda: engine.gave_up_opening == 1)
    assert served.app.metrics.dropped.labels("/v1/chat/completions")._value.get() == 1


def test_what_was_opened_too_late_is_cancelled(serve: Serve) -> None:
    """The client leaves while its prompt is rendered, but the engine takes the request all the same."""
    engine = ReplayEngine(LONG)
    engine.opening, engine.stubborn = 30.0, True
    connection = start(serve(engine))
    time.sleep(0.2)
    connection.close()
    assert until(lambda: bool(engine.generations) and engine.generations[0].cancelled)


def test_a_client_that_leaves_within_its_request(serve: Serve) -> None:
    """Half a head, half a body: nobody is asked, nothing is left over."""
    served = serve()
    for data in (
        b"POST /v1/chat",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n{",
    ):
        connection = served.raw()
        connection.sendall(data)
        time.sleep(0.05)
        connection.close()
    assert until(lambda: not served.server.server_state.connections, 2.0)
    assert not served.engine.requests and not served.server.server_state.tasks


def test_a_client_that_does_not_read_is_dropped_and_stops_nobody(serve: Serve) -> None:
    """A slow reader: others are served meanwhile, and its work ends when its time is over."""
    flood = [started(), *[Content("x" * 10_000)] * 3000, done()]
    served = serve(
        ReplayEngine(lambda request: flood if request.model == "flood" else text_answer()), reader_timeout=2.0
    )
    body = json.dumps({**CHAT, "stream": True, "model": "flood"}).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((served.host, served.port))
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    connection.sendall(head + body)
    assert until(lambda: bool(served.engine.generations))
    began = time.monotonic()
    assert served.client().post("/v1/chat/completions", json=CHAT).status_code == 200
    assert time.monotonic() - began < 1.5
    assert until(lambda: served.engine.generations[0].cancelled, 8.0)
    assert served.engine.produced < 2000
    assert until(lambda: len(served.server.server_state.connections) <= 1, 2.0)
    connection.close()


def test_a_slow_reader_that_reads_gets_everything(serve: Serve) -> None:
    served = serve(ReplayEngine([started(), *[Content("x" * 5000)] * 200, done()]), reader_timeout=2.0)
    connection = start(served)
    out = b""
    while b"[DONE]" not in out:
        out += connection.recv(20_000)
        time.sleep(0.001)
    connection.close()
    assert out.count(b"x" * 5000) == 200


def test_two_clients_are_answered_side_by_side(serve: Serve) -> None:
    """L061: the second one does not wait for the end of the first."""
    served = serve(ReplayEngine(lambda request: LONG if request.model == "long" else text_answer()))
    body = json.dumps({**CHAT, "stream": True, "model": "long"}).encode()
    first = served.raw()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    first.sendall(head + body)
    read_until(first, b'"content":"a"')
    began = time.monotonic()
    assert served.client().post("/v1/chat/completions", json=CHAT).status_code == 200
    assert time.monotonic() - began < 5.0
    first.close()


def test_idle_connections_do_not_starve_active_ones(serve: Serve) -> None:
    """64 connections that are kept open and 8 streams at one time."""
    served = serve(ReplayEngine([started(), *[step for _ in range(30) for step in (0.005, Content("x"))], done()]))

    async def run() -> list[float]:
        idle = [await asyncio.open_connection(served.host, served.port) for _ in range(64)]
        for _, writer in idle:
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with httpx.AsyncClient(base_url=served.url, timeout=20) as http:

            async def one() -> float:
                began = time.monotonic()
                answer = await http.post("/v1/chat/completions", json={**CHAT, "stream": True})
                assert answer.text.count('"content":"x"') == 30 and answer.text.endswith("[DONE]\n\n")
                return time.monotonic() - began

            took = await asyncio.gather(*(one() for _ in range(8)))
        for reader, writer in idle:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
        return list(took)

    assert max(asyncio.run(run())) < 3.0


# Refusals and failures


@pytest.mark.parametrize("path", list(PATHS))
def test_an_overloaded_engine_says_when_to_try_again(serve: Serve, path: str) -> None:
    served = serve(ReplayEngine(Overloaded("8 requests wait already", retry_after=3)))
    answer = served.client().post(path, json={**PATHS[path], "stream": True})
    assert answer.status_code == 429 and answer.headers["retry-after"] == "3"
    assert answer.json()["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize(
    ("path", "param"), [("/v1/chat/completions", "messages"), ("/v1/completions", "prompt"), ("/v1/responses", "input")]
)
def test_a_prompt_that_does_not_fit_is_refused_with_its_sizes(serve: Serve, path: str, param: str) -> None:
    extra = {"n_prompt_tokens": 5000, "n_ctx": 4096}
    error = RequestError("too long", code="context_length_exceeded", param="messages", extra=extra)
    served = serve(ReplayEngine(error))
    told = served.client().post(path, json=PATHS[path]).json()["error"]
    assert (told["code"], told["param"], told["n_prompt_tokens"], told["n_ctx"]) == (
        "context_length_exceeded",
        param,
        5000,
        4096,
    )
    told = served.client().post("/v1/messages", json=PATHS["/v1/messages"]).json()
    assert told["error"]["n_ctx"] == 4096 and told["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", list(PATHS))
def test_an_early_failure_is_told_by_the_status(serve: Serve, path: str) -> None:
    """Nothing has been sent yet: also a stream gets a plain error."""
    for script in ([done("error", error="a page could not be read")], [RuntimeError("bug")]):
        served = serve(ReplayEngine(script), settle=1.0)
        for stream in (True, False):
            answer = served.client().post(path, json={**PATHS[path], "stream": stream})
            assert answer.status_code == 500 and "error" in answer.json(), answer.text
            assert "bug" not in answer.text


@pytest.mark.parametrize("stream", [True, False])
def test_a_failure_right_behind_an_event_is_told(serve: Serve, stream: bool) -> None:
    served = serve(ReplayEngine([started(), Content("a"), RuntimeError("bug")]), settle=0.0)
    answer = served.client().post("/v1/chat/completions", json={**CHAT, "stream": stream}, timeout=5)
    assert "its log says more" in answer.text


@pytest.mark.parametrize("path", list(PATHS))
@pytest.mark.parametrize("end", [done("error", error="lost"), RuntimeError("bug"), None], ids=["error", "bug", "cut"])
def test_a_late_failure_is_told_inside_the_stream(serve: Serve, path: str, end: Any) -> None:
    """An error event and no end of a good answer."""
    served = serve(ReplayEngine([started(), Content("a"), 0.1, *([end] if end else [])]), settle=0.02)
    answer = served.client().post(path, json={**PATHS[path], "stream": True})
    last = answer.text.strip().split("\n\n")[-1]
    assert answer.status_code == 200 and "[DONE]" not in answer.text and "message_stop" not in answer.text
    if path == "/v1/responses":
        event = json.loads(last.removeprefix("data: "))
        assert event["type"] == "response.failed" and event["response"]["status"] == "failed"
        assert event["response"]["error"]["message"]
    else:
        assert last.startswith("event: error\ndata: ")
        told = json.loads(last.split("data: ")[1])
        assert told["error"]["type"] == ("api_error" if path == "/v1/messages" else "server_error")
    served.engine.script = text_answer()
    assert served.client().post(path, json=PATHS[path]).status_code == 200


def test_ignored_fields_are_named_in_a_header(serve: Serve) -> None:
    http = serve().client()
    for stream in (True, False):
        answer = http.post("/v1/chat/completions", json={**CHAT, "stream": stream, "presence_penalty": 1})
        assert answer.headers["x-ds4-ignored"] == "presence_penalty"
    assert "x-ds4-ignored" not in http.post("/v1/chat/completions", json=CHAT).headers


def test_counting_tokens(serve: Serve) -> None:
    answer = serve().client().post("/v1/messages/count_tokens", json={"messages": CHAT["messages"]})
    assert answer.json() == {"input_tokens": 9}


def test_metrics_count_what_happened(serve: Serve) -> None:
    served = serve()
    http = served.client()
    http.post("/v1/chat/completions", json=CHAT)
    http.post("/v1/chat/completions", json={})
    http.get("/made/up/path")
    text = http.get("/metrics").text
    assert 'ds4_http_responses_total{path="/v1/chat/completions",status="200"} 1.0' in text
    assert 'ds4_http_responses_total{path="/v1/chat/completions",status="400"} 1.0' in text
    assert 'ds4_http_responses_total{path="other",status="404"} 1.0' in text
    assert 'ds4_first_token_seconds_count{dialect="chat"} 1.0' in text
    assert 'ds4_requests_total{dialect="chat"} 1.0' in text and "ds4_queue_length 0.0" in text
    assert "made/up" not in text


# The end of the server


def test_a_closing_server_finishes_what_runs_and_refuses_what_is_new(serve: Serve) -> None:
    served = serve(ReplayEngine([started(), Content("a"), 0.6, Content("b"), done()]), drain=5.0)
    connection = start(served)
    read_until(connection, b'"content":"a"')
    kept = served.client()
    assert kept.get("/health").status_code == 200
    served.app._guard.closing = True
    answer = kept.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 503 and answer.headers["retry-after"]
    assert kept.get("/health").status_code == 503
    served.server.should_exit = True
    assert b'"content":"b"' in read_until(connection, b"[DONE]")
    connection.close()
    served.thread.join(10)
    assert served.engine.closed


def test_an_answer_that_takes_too_long_to_end_is_stopped(serve: Serve) -> None:
    served = serve(ReplayEngine(LONG), drain=0.3)
    connection = start(served)
    read_until(connection, b'"content":"a"')
    served.server.should_exit = True
    assert b"shuts down" in read_until(connection, b"event: error")
    connection.close()
    served.thread.join(10)
    assert not served.thread.is_alive()
