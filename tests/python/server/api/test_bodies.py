"""Bodies: what is no JSON, too deep, or of the wrong type is refused with its place named."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from ds4.server.api.body import MAX_DEPTH, check_depth, decode, mend_surrogates
from ds4.server.api.settings import Settings
from ds4.server.contract import Request, RequestError
from hypothesis import given, settings
from hypothesis import strategies as st

from .reading import FORMS, INFO, read, refusal

ARRAYS = b"[" * 10_000 + b"]" * 10_000
OBJECTS = b'{"a":' * 10_000 + b"1" + b"}" * 10_000


@pytest.mark.parametrize("deep", [ARRAYS, OBJECTS], ids=["arrays", "objects"])
@pytest.mark.parametrize(
    "body",
    [b'{"x": %s, "messages": []}', b'{"messages": [], "tools": [{"type": "function", "function": {"p": %s}}]}'],
    ids=["ignored field", "tool schema"],
)
def test_deep_nesting_is_refused(body: bytes, deep: bytes) -> None:
    """L047: ten thousand levels, also in a field that nobody reads."""
    assert "deeper than 256" in str(refusal("chat", body % deep))


@pytest.mark.parametrize("n", [MAX_DEPTH, MAX_DEPTH + 1])
def test_the_depth_limit_is_exact(n: int) -> None:
    data = b"[" * n + b"]" * n
    if n <= MAX_DEPTH:
        check_depth(data)
    else:
        with pytest.raises(RequestError, match="deeper"):
            check_depth(data)


def test_brackets_in_strings_do_not_count() -> None:
    r"""Neither behind an escaped quotation mark nor behind an escaped backslash before one."""
    for text in ("[" * 1000, '"' + "[" * 1000, "\\" + "[" * 1000, '\\"' + "{" * 1000, '\\\\"\\' + "[" * 1000):
        check_depth(json.dumps({"a": text, "b": [text, {text: 1}]}).encode())
        check_depth(json.dumps(["ends with \\", text, '"', text]).encode())


def test_a_large_body_is_checked_quickly() -> None:
    """64 MiB full of brackets and escapes take a moment, not minutes."""
    data = b'["' + b'[\\"' * (16 << 20) + b'"]'
    began = time.perf_counter()
    check_depth(data)
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"messages": [NaN]}',
        b'{"temperature": NaN, "messages": []}',
        b'{"temperature": Infinity, "messages": []}',
        b"\xef\xbb\xbf{}",
        b'{"messages": "\xed\xa0\x80"}',
        b'{"messages": "\xff"}',
        b"{'messages': []}",
        b'{"messages": []} {}',
        b'{"a": "' + b"\x00" + b'"}',
        b'"' + b'["' * 500,
    ],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    error = refusal("chat", body)
    assert error.code in ("invalid_json", "invalid_value", "missing_required_parameter")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ([], None),
        ("text", None),
        (None, None),
        ({"messages": {}}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}, {"role": 1}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
        ({"messages": [], "max_tokens": 0}, "max_tokens"),
        ({"messages": [], "max_tokens": "9"}, "max_tokens"),
        ({"messages": [], "max_tokens": 1.5}, "max_tokens"),
        ({"messages": [], "temperature": -0.1}, "temperature"),
        ({"messages": [], "temperature": "hot"}, "temperature"),
        ({"messages": [], "top_p": 1.1}, "top_p"),
        ({"messages": [], "stream": "yes"}, "stream"),
        ({"messages": [], "stop": [1]}, "stop[0]"),
        ({"messages": [], "tools": {}}, "tools"),
        ({"messages": [], "thinking": {"type": 1}}, "thinking.type"),
        ({"messages": [], "top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_a_wrong_type_is_refused_with_its_place(body: Any, param: str | None) -> None:
    error = refusal("chat", json.dumps(body).encode())
    assert error.param == param
    assert param is None or param in error.message


def test_a_number_beyond_a_double_is_refused() -> None:
    assert refusal("chat", b'{"messages": [], "temperature": 1e999}').param == "temperature"
    assert refusal("chat", b'{"messages": [], "seed": ' + b"9" * 5000 + b"}").param == "seed"


def test_unknown_fields_are_ignored() -> None:
    """Clients send more with every release."""
    call = read("chat", {"messages": [{"role": "user", "content": "x", "new": [1]}], "newer": {"a": 1}, "user": "me"})
    assert call.request.messages == ({"role": "user", "content": "x"},)


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        (r'"\ud800"', "\ufffd"),
        (r'"a\udc00b"', "a\ufffdb"),
        (r'"\ud83d\ude00"', "\U0001f600"),
        (r'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
        (r'"\\ud800"', r"\ud800"),
        (r'"\\\ud800"', "\\\ufffd"),
        (r'"\uD83D"', "\ufffd"),
    ],
)
def test_lone_surrogates_become_replacement_characters(sent: str, meant: str) -> None:
    """Clients that cut texts by UTF-16 units send halves of characters; pairs and escaped backslashes stay."""
    assert decode(sent.encode(), str) == meant
    call = read("chat", b'{"messages": [{"role": "user", "content": %s}]}' % sent.encode())
    assert call.request.messages[0]["content"] == meant
    assert mend_surrogates(sent.encode()) == sent.encode() or "\ufffd" in meant


def test_null_stands_for_a_field_that_is_not_there() -> None:
    fields = ("max_tokens", "temperature", "top_p", "stop", "tools", "tool_choice", "stream", "n", "response_format")
    call = read("chat", {"messages": [{"role": "user", "content": "x"}], **dict.fromkeys(fields)})
    assert call.request == read("chat", {"messages": [{"role": "user", "content": "x"}]}).request


def accepted_or_refused(name: str, data: bytes) -> None:
    form = FORMS[name]
    try:
        call = form.read(decode(data, form.body), Settings(), INFO, "req_1")
    except RequestError as error:
        assert 400 <= error.status < 500 and error.message
    else:
        assert isinstance(call.request, Request)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
WORDS = st.sampled_from(
    [
        *("user", "assistant", "system", "tool", "developer", "text", "tool_use", "tool_result", "thinking", "message"),
        *("function", "custom", "function_call", "function_call_output", "reasoning", "namespace", "json_schema"),
    ]
)
KEYS = (
    *("role", "content", "type", "text", "id", "name", "input", "output", "call_id", "tool_use_id", "tool_call_id"),
    *("tool_calls", "function", "arguments", "thinking", "summary", "status", "action", "tools", "parameters"),
    *("input_schema", "schema", "json_schema", "format", "effort"),
)
NEAR = st.recursive(
    WORDS | st.text(max_size=4) | st.none() | st.integers(-2, 30) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=25,
)
FIELDS = (
    *("messages", "prompt", "input", "system", "instructions", "tools", "tool_choice", "thinking", "reasoning"),
    *("response_format", "text", "stop", "n", "logprobs", "stop_sequences", "output_config", "max_tokens", "top_k"),
    *("seed", "chat_template_kwargs", "reasoning_effort", "model"),
)


@pytest.mark.parametrize("name", list(FORMS))
@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=60) | JSON.map(lambda v: json.dumps(v).encode()))
def test_any_bytes_are_read_or_refused(name: str, data: bytes) -> None:
    accepted_or_refused(name, data)


@pytest.mark.parametrize("name", list(FORMS))
@settings(max_examples=300, deadline=None)
@given(body=st.dictionaries(st.sampled_from(FIELDS), NEAR, max_size=6), rest=NEAR)
def test_nearly_right_bodies_are_read_or_refused(name: str, body: dict[str, Any], rest: Any) -> None:
    """Right words in wrong places: nothing but a refusal of kind 4xx may come of it."""
    body.setdefault({"completion": "prompt", "responses": "input"}.get(name, "messages"), rest)
    accepted_or_refused(name, json.dumps(body).encode())
