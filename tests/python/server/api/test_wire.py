"""The bytes of HTTP: what is ambiguous is refused, what is slow is cut off, what is allowed works."""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress

import pytest
from support.replayed import ReplayEngine

from .conftest import Serve, until

BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


def exchange(connection: socket.socket, data: bytes) -> bytes:
    """Send bytes and read until the server closes the connection."""
    connection.sendall(data)
    return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    out = b""
    while True:
        try:
            piece = connection.recv(65536)
        except ConnectionResetError:
            return out
        if not piece:
            return out
        out += piece


def read_response(connection: socket.socket) -> tuple[int, bytes]:
    """Read one response with a Content-Length."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    body = b""
    while len(body) < length:
        body += connection.recv(length - len(body))
    return int(head.split(b" ")[1]), body


@pytest.mark.parametrize(
    "data",
    [
        POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        POST + b"Content-Length: 46\r\nTransfer-Encoding: chunked\r\n\r\n2e\r\n" + BODY + b"\r\n0\r\n\r\n",
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Content-Length: +5\r\n\r\nabcde",
        POST + b"Content-Length: 5 5\r\n\r\nabcde",
        POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        GET.replace(b"\r\n", b"\n") + b"\n",
        GET + b"\n",
        GET + b"A: b\nC: d\r\n\r\n",
        GET + b"A: b\rC: d\r\n\r\n",
        GET + b"A : b\r\n\r\n",
        GET + b" folded: x\r\n\r\n",
        GET + b"A: \x00\r\n\r\n",
        GET + b"Host: other\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 40 + b"\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
def test_ambiguous_messages_are_refused_and_the_connection_closed(serve: Serve, data: bytes) -> None:
    """L049: two lengths, a length beside chunks, bare newlines, folded and broken lines."""
    served = serve()
    with served.raw() as connection:
        answer = exchange(connection, data)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in answer.lower()
    assert answer.count(b"HTTP/1.1") == 1
    assert "error" in json.loads(answer.split(b"\r\n\r\n", 1)[1])
    assert served.client().get("/health").status_code == 200


def test_a_second_message_in_one_piece_is_looked_at_as_well(serve: Serve) -> None:
    """L049: a good request does not carry a bad one past the check."""
    served = serve()
    with served.raw() as connection:
        answer = exchange(connection, GET + b"\r\n" + GET.replace(b"\r\n", b"\n") + b"\n")
    assert answer.count(b"HTTP/1.1 200") == 1 and answer.count(b"HTTP/1.1 400") == 1


def test_a_huge_head_is_refused(serve: Serve) -> None:
    """L049: a header of a megabyte, and an endless one."""
    served = serve()
    with served.raw() as connection:
        with suppress(OSError):  # the server does not wait for all of it
            connection.sendall(GET + b"A: " + b"x" * (1 << 20) + b"\r\n\r\n")
        assert read_all(connection)[:12] in (b"HTTP/1.1 400", b"")
    assert served.client().get("/health").status_code == 200


def test_a_large_body_is_refused_by_its_length_and_while_it_comes(serve: Serve) -> None:
    served = serve(max_body=1000)
    with served.raw() as connection:
        answer = exchange(connection, POST + b"Content-Length: 1001\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413") and b"request_too_large" in answer
    with served.raw() as connection:
        chunk = b"200\r\n" + b"x" * 0x200 + b"\r\n"
        assert exchange(connection, POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 2).startswith(
            b"HTTP/1.1 413"
        )
    assert served.client().post("/v1/chat/completions", content=BODY).status_code == 200


def test_a_refusal_reaches_a_client_that_still_sends(serve: Serve) -> None:
    """The rest of the body is read, so the client sees the answer, and the connection goes on; but not for ever."""
    served = serve(max_body=1000, api_keys=("key",), head_timeout=0.5)
    with served.client() as http:
        large = b" " * (8 << 20)
        assert http.post("/v1/chat/completions", content=large).status_code == 401
        assert http.post("/v1/chat/completions", content=large, headers={"x-api-key": "key"}).status_code == 413
        answer = http.post(
            "/v1/chat/completions", content=(large[:9999] for _ in range(99)), headers={"x-api-key": "key"}
        )
        assert answer.status_code == 413
        assert http.get("/health").status_code == 200
        assert len(served.server.server_state.connections) == 1
    with served.raw() as connection:
        connection.sendall(POST + b"Content-Length: 100000\r\n\r\n")
        assert read_response(connection)[0] == 401
        began = time.monotonic()
        with suppress(OSError):
            for _ in range(100):
                connection.sendall(b" ")
                time.sleep(0.05)
        assert time.monotonic() - began < 2


def test_all_bodies_together_have_a_limit(serve: Serve) -> None:
    """Many half sent bodies cannot fill the memory."""
    served = serve(max_bodies=1500)
    with served.raw() as first, served.raw() as second:
        first.sendall(POST + b"Content-Length: 1200\r\n\r\n" + b" " * 1000)
        assert until(lambda: served.app._bodies._held == 1000)
        second.sendall(POST + b"Content-Length: 1200\r\n\r\n" + b" " * 1000)
        assert read_response(second)[0] == 503
    assert until(lambda: served.app._bodies._held == 0)
    assert served.client().post("/v1/chat/completions", content=BODY + b" " * 1000).status_code == 200


def test_a_body_of_megabytes_is_read(serve: Serve) -> None:
    """It is refused only for what is in it, with the place, and answered when it is right."""
    served = serve()
    text = "word " * 500_000
    with served.client() as http:
        answer = http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": text}]})
        assert answer.status_code == 200 and served.engine.requests[0].messages[0]["content"] == text
        answer = http.post("/v1/chat/completions", json={"messages": [{"role": 5, "content": text}]})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "messages[0].role"


def test_an_encoded_body_is_refused(serve: Serve) -> None:
    http = serve().client()
    answer = http.post("/v1/chat/completions", content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    assert answer.status_code == 415
    assert http.post("/v1/chat/completions", content=BODY, headers={"content-encoding": "identity"}).status_code == 200


@pytest.mark.parametrize("start", [b"", b"G", GET, POST + b"Content-Length: 50\r\n"])
def test_a_slow_head_is_cut_off(serve: Serve, start: bytes) -> None:
    """Slow loris: a connection that sends a byte now and then is closed when its time is over."""
    served = serve(head_timeout=0.4)
    with served.raw() as connection:
        connection.sendall(start)
        began = time.monotonic()
        connection.settimeout(0.05)
        closed = False
        while time.monotonic() - began < 3 and not closed:
            try:
                connection.sendall(b"a" if start else b"")
                closed = connection.recv(100) == b""
            except TimeoutError:
                continue
            except OSError:
                closed = True
        assert closed and time.monotonic() - began < 2


def test_a_slow_second_head_is_cut_off(serve: Serve) -> None:
    """On a connection that was kept open as well."""
    served = serve(head_timeout=0.4)
    with served.raw() as connection:
        connection.sendall(GET + b"\r\n")
        assert read_response(connection)[0] == 200
        connection.sendall(b"GET /he")
        began = time.monotonic()
        assert connection.recv(100) == b"" and time.monotonic() - began < 5


def test_an_origin_without_a_name_is_foreign(serve: Serve) -> None:
    """Also when the request names no host, as HTTP/1.0 allows."""
    with serve().raw() as connection:
        answer = exchange(connection, b"GET /health HTTP/1.0\r\nOrigin: null\r\n\r\n")
    assert answer.split()[1] == b"403"


def test_a_slow_body_is_cut_off(serve: Serve) -> None:
    """Each piece must come in time, and all of them together."""
    served = serve(body_timeout=0.3, body_total_timeout=0.8)
    with served.raw() as connection:
        assert exchange(connection, POST + b"Content-Length: 50\r\n\r\n{").startswith(b"HTTP/1.1 408")
    with served.raw() as connection:
        connection.sendall(POST + b"Content-Length: 50\r\n\r\n{")
        began = time.monotonic()
        try:
            for _ in range(30):
                connection.sendall(b" ")
                time.sleep(0.1)
        except OSError:
            pass
        assert time.monotonic() - began < 2.5


def test_an_idle_connection_is_closed(serve: Serve) -> None:
    served = serve(idle_timeout=1)
    with served.raw() as connection:
        connection.sendall(GET + b"\r\n")
        assert read_response(connection)[0] == 200
        began = time.monotonic()
        assert connection.recv(1) == b""
        assert 0.5 < time.monotonic() - began < 4


def test_connections_are_kept_for_more_requests(serve: Serve) -> None:
    """Also behind an error and behind a stream."""
    served = serve()
    with served.client() as http:
        for fields in ({}, {"stream": True}, {"n": "x"}):
            answer = http.post("/v1/chat/completions", json={**json.loads(BODY), **fields})
            assert answer.status_code == (400 if "n" in fields else 200)
        assert http.get("/health").status_code == 200
        assert len(served.server.server_state.connections) == 1


def test_pipelined_requests_are_answered_in_order(serve: Serve) -> None:
    served = serve()
    with served.raw() as connection:
        connection.sendall((POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY) * 2 + GET + b"\r\n")
        assert [read_response(connection)[0] for _ in range(3)] == [200] * 3
    assert len(served.engine.requests) == 2


def test_chunked_bodies_and_a_wait_for_leave(serve: Serve) -> None:
    served = serve()
    with served.raw() as connection:
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (BODY[:7], BODY[7:])) + b"0\r\n\r\n"
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
        assert read_response(connection)[0] == 200
        connection.sendall(POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY))
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(BODY)
        assert read_response(connection)[0] == 200


def test_a_refusal_instead_of_leave_closes_the_connection(serve: Serve) -> None:
    """The client may send its body all the same or not: what comes next could be read in two ways."""
    with serve(max_body=10).raw() as connection:
        answer = exchange(connection, POST + b"Expect: 100-continue\r\nContent-Length: 99\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413") and b"connection: close" in answer.lower()


def test_the_query_is_no_part_of_the_path(serve: Serve) -> None:
    """One coding client asks for /v1/messages?beta=true."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    assert serve().client().post("/v1/messages?beta=true", json=body).status_code == 200


def test_ipv6(serve: Serve) -> None:
    served = serve(host="::1")
    assert served.url.startswith("http://[::1]:")
    assert served.client().get("/v1/models").status_code == 200


def test_too_many_connections_are_turned_away(serve: Serve) -> None:
    served = serve(ReplayEngine(), max_connections=3, head_timeout=5.0)
    held = [served.raw() for _ in range(3)]
    try:
        assert until(lambda: len(served.server.server_state.connections) == 3)
        with served.raw() as connection:
            assert exchange(connection, GET + b"\r\n").startswith(b"HTTP/1.1 503")
    finally:
        for connection in held:
            connection.close()
    assert until(lambda: not served.server.server_state.connections)
    assert served.client().get("/health").status_code == 200


def test_random_bytes_never_end_the_server(serve: Serve) -> None:
    """A short storm of noise and of cut and twisted requests; every one is refused, the server lives."""
    import random

    rng = random.Random(5)
    served = serve(head_timeout=0.2, body_timeout=0.2)
    good = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    for _ in range(60):
        data = bytearray(good)
        for _ in range(rng.randint(1, 6)):
            place = rng.randrange(len(data))
            data[place : place + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        with served.raw() as connection:
            connection.sendall(bytes(data[: rng.randint(1, len(data))]))
            connection.shutdown(socket.SHUT_WR)
            answer = read_all(connection)
        assert not answer or (answer[:9] == b"HTTP/1.1 " and answer[9:10] != b"5"), answer
    assert served.client().get("/health").status_code == 200
