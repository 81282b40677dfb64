"""Who may ask: keys, names, origins."""

from __future__ import annotations

from typing import Any

import pytest
from ds4.server.api import Settings, create_app
from ds4.server.api.guard import host_name
from ds4.server.api.serve import OpenServerError, check_open, serve
from support.replayed import ReplayEngine

from .conftest import Local

BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
KEY = "sk-0123456789abcdef"


def client(host: str = "127.0.0.1:8000", **settings: Any) -> Local:
    return Local(create_app(ReplayEngine(), Settings(**settings)), host)


@pytest.mark.parametrize(
    "headers", [{"authorization": f"Bearer {KEY}"}, {"authorization": f"bearer  {KEY}"}, {"x-api-key": KEY}]
)
def test_both_styles_of_a_key_are_taken(headers: dict[str, str]) -> None:
    """L058: clients of either family, and either of several keys."""
    http = client(api_keys=("another", KEY))
    assert http.post("/v1/chat/completions", json=BODY, headers=headers).status_code == 200
    assert http.get("/v1/models", headers=headers).status_code == 200


def test_wrong_keys_are_refused() -> None:
    """L058: none, wrong by one character at each place, shortened, of another scheme."""
    http = client(api_keys=(KEY,))
    near = [KEY[:i] + "X" + KEY[i + 1 :] for i in range(len(KEY))]
    wrong = [{"authorization": f"Bearer {key}"} for key in [*near, KEY[:-1], KEY + "x", ""]]
    wrong += [{"x-api-key": key} for key in near]
    wrong += [{}, {"authorization": f"Basic {KEY}"}, {"authorization": KEY}, {"x-api-key": "\xe9".encode()}]
    for headers in wrong:
        answer = http.post("/v1/chat/completions", json=BODY, headers=headers)
        assert answer.status_code == 401, headers
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
    assert http.post("/v1/messages", json=BODY).json()["error"]["type"] == "authentication_error"


def test_what_needs_no_key() -> None:
    """Whether the server lives may be asked by everybody; its numbers may not."""
    http = client(api_keys=(KEY,))
    assert http.get("/health").status_code == 200
    assert http.options("/v1/models").status_code == 204
    for path in ("/metrics", "/v1/models", "/openapi.json", "/nothing"):
        assert http.get(path).status_code == 401


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000", "127.8.9.1", "my.box:80"])
def test_own_names_are_served(host: str) -> None:
    assert client(host, hosts=("my.box",)).get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["other.example", "other.example:8000", "127.0.0.1.example", "192.168.0.1", "[::2]"])
def test_foreign_names_are_refused(host: str) -> None:
    """L059: a page whose own name was made to point to this machine does not get in."""
    answer = client(hosts=()).post("/v1/chat/completions", json=BODY, headers={"host": host})
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "host_not_allowed"


@pytest.mark.parametrize("origin", ["https://other.example", "null", "http://127.0.0.1:9", "http://[", ""])
def test_pages_of_other_origins_are_refused(origin: str) -> None:
    """L059: also when a browser asks no leave first, as for text/plain."""
    headers = {"origin": origin, "content-type": "text/plain"}
    answer = client(hosts=()).post("/v1/chat/completions", content=b"{}", headers=headers)
    assert answer.status_code == 403 and answer.json()["error"]["code"] == "origin_not_allowed"
    assert "access-control-allow-origin" not in answer.headers


def test_two_framings_are_refused_whatever_serves_the_application() -> None:
    """L049: a length beside chunks; the server in front may have let it through."""
    headers = {"content-length": "2", "transfer-encoding": "chunked"}
    answer = client().post("/v1/chat/completions", content=b"{}", headers=headers)
    assert answer.status_code == 400 and answer.headers["connection"] == "close"


def test_a_cross_site_request_without_an_origin_is_refused() -> None:
    headers = {"sec-fetch-site": "cross-site"}
    assert client().get("/v1/models", headers=headers).status_code == 403


def test_the_servers_own_page_may_ask() -> None:
    headers = {"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"}
    assert client(hosts=()).post("/v1/chat/completions", json=BODY, headers=headers).status_code == 200


def test_a_preflight_gets_no_leave_unless_it_is_set() -> None:
    """L059: off by default."""
    headers = {"origin": "https://other.example", "access-control-request-method": "POST"}
    answer = client(hosts=()).options("/v1/chat/completions", headers=headers)
    assert answer.status_code == 403 and "access-control-allow-origin" not in answer.headers


def test_cors_lets_the_named_origins_in() -> None:
    """On every kind of response: answers, streams, errors, preflights; other origins stay out."""
    http = client(cors=("https://my.example",), api_keys=(KEY,))
    headers = {"origin": "https://my.example", "x-api-key": KEY}
    for answer in (
        http.post("/v1/chat/completions", json=BODY, headers=headers),
        http.post("/v1/chat/completions", json={**BODY, "stream": True}, headers=headers),
        http.post("/v1/chat/completions", json={}, headers=headers),
        http.post("/v1/chat/completions", json=BODY, headers={"origin": "https://my.example"}),
        http.options("/v1/x", headers={"origin": "https://my.example", "access-control-request-method": "POST"}),
    ):
        assert answer.headers["access-control-allow-origin"] == "https://my.example"
        assert answer.headers["vary"] == "Origin"
    assert http.get("/v1/models", headers={"origin": "https://other.example", "x-api-key": KEY}).status_code == 403
    everybody = client(cors=("*",)).get("/v1/models", headers={"origin": "https://any.example"})
    assert everybody.headers["access-control-allow-origin"] == "*"


def test_names_in_host_headers() -> None:
    assert host_name("[::1]:80") == "::1" and host_name("A.b.:80") == "a.b" and host_name("x") == "x"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_an_open_address_needs_a_key(host: str) -> None:
    """L058: unless everybody is let in on purpose."""
    with pytest.raises(OpenServerError, match="--api-key"):
        serve(ReplayEngine(), Settings(), host=host, port=0)
    check_open(host, Settings(api_keys=("k",)), allow_open=False)
    check_open(host, Settings(), allow_open=True)
    for local in ("127.0.0.1", "::1", "localhost", "127.3.3.3"):
        check_open(local, Settings(), allow_open=False)


def test_requests_have_ids_and_errors_have_the_shape_of_their_family() -> None:
    http = client()
    ids = set()
    for path, body in (("/v1/chat/completions", {}), ("/v1/messages", {}), ("/v1/responses", {}), ("/nothing", {})):
        answer = http.post(path, json=body)
        ids.add(answer.headers["x-request-id"])
        error = answer.json()
        assert answer.headers["request-id"] == answer.headers["x-request-id"]
        if path == "/v1/messages":
            assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
            assert error["request_id"] == answer.headers["request-id"]
        else:
            assert set(error["error"]) == {"message", "type", "param", "code"}
    assert len(ids) == 4
    told = http.get("/v1/models/x", headers={"anthropic-version": "2023-06-01"}).json()
    assert told["type"] == "error" and told["error"]["type"] == "not_found_error"
    assert http.get("/v1/messages").status_code == 405
    assert http.post("/v1/embeddings", json={}).json()["error"]["code"] == "not_supported"
    assert http.get("/v1/models/ds4-replay").json()["context_length"] == 4096
    assert http.get("/v1/models/other").json()["error"]["code"] == "model_not_found"
