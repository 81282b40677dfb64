"""Whatever a request holds, it is prepared or refused; nothing else happens."""

from __future__ import annotations

from typing import Any

import ds4
import pytest
from ds4.server.contract import JsonSchema, Named, Request, RequestError
from ds4.server.engine import Settings
from ds4.server.engine.prompts import Preparer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

special = ["", "a", "hello", "\ud83d", "<｜User｜>", "</think>", "\0", "call_1", "id"]
texts = st.sampled_from(special) | st.text(max_size=5)
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(
    ["role", "content", "tool_calls", "tool_call_id", "reasoning_content", "tools", "wo_eos", "task", "response_format"]
)
roles = st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "latest_reminder", "wizard"])
calls = st.lists(
    st.fixed_dictionaries(
        {"id": texts | json, "function": st.fixed_dictionaries({"name": texts, "arguments": texts | json}) | json}
    ),
    max_size=3,
)
messages = (
    st.fixed_dictionaries(
        {"role": roles},
        optional={"content": texts | json, "tool_calls": calls | json, "tool_call_id": texts | json, "tools": json},
    )
    | st.dictionaries(names, json, max_size=4)
    | json
)

sound_calls = st.lists(
    st.fixed_dictionaries(
        {"id": texts, "function": st.fixed_dictionaries({"name": st.just("f"), "arguments": texts | st.just("{}")})}
    ),
    min_size=1,
    max_size=2,
)
sound = (
    st.fixed_dictionaries({"role": st.sampled_from(["system", "developer", "user", "assistant"]), "content": texts})
    | st.fixed_dictionaries({"role": st.just("assistant"), "tool_calls": sound_calls}, optional={"content": texts})
    | st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": texts, "content": texts})
)
conversations = st.builds(
    lambda before, odd, after: [*before, *odd, *after],
    st.lists(sound, min_size=1, max_size=3),
    st.lists(messages, max_size=1),
    st.lists(sound, max_size=2),
)
tool_lists = st.just([]) | st.just([TOOL]) | st.lists(st.just(TOOL) | json, max_size=2)


@pytest.fixture(scope="module")
def preparer(model: ds4.Model) -> Preparer:
    return Preparer(model.tokenizer, Settings(n_ctx=4096), lambda names: {})


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    conversations | st.lists(messages, max_size=3),
    tool_lists,
    st.sampled_from(["auto", "auto", "none", "required", Named("f"), Named("g")]),
    st.sampled_from(["chat", "completion", "responses", "messages"]),
    st.sampled_from(["chat", "thinking"]),
    st.none() | st.none() | st.builds(JsonSchema, st.dictionaries(texts, json, max_size=2)),
)
def test_any_request_is_prepared_or_refused(
    preparer: Preparer, given_messages: list[Any], tools: list[Any], choice: Any, dialect: Any, mode: Any, shape: Any
) -> None:
    request = Request(
        dialect, "m", tuple(given_messages), tools=tuple(tools), tool_choice=choice, mode=mode, response_format=shape
    )
    try:
        prepared = preparer.prepare(request)
    except RequestError as error:
        assert error.status == 400 and error.message and error.param
    else:
        assert 0 < len(prepared.tokens) < 4096 and prepared.max_tokens >= 1
        assert preparer.count(request) == len(prepared.tokens)
        assert preparer.tokenizer.decode(prepared.tokens) == prepared.text
