"""Reading request bodies in tests."""

from __future__ import annotations

import json
from typing import Any

from ds4.server.api.body import decode
from ds4.server.api.dialects import COUNT, DIALECTS
from ds4.server.api.fields import Call
from ds4.server.api.settings import Settings
from ds4.server.contract import ModelInfo, RequestError

INFO = ModelInfo("ds4-replay", 4096, 2048, "replay", 1_700_000_000)
FORMS = {**{form.name: form for form in DIALECTS}, "count": COUNT}
USER = {"role": "user", "content": "hi"}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather", "parameters": {"type": "object"}},
}


def read(name: str, body: dict[str, Any] | bytes, settings: Settings | None = None, info: ModelInfo = INFO) -> Call:
    """Read a body as the application does."""
    form = FORMS[name]
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return form.read(decode(data, form.body), settings or Settings(), info, "req_1")


def chat(**fields: Any) -> Call:
    """Read a chat body; `messages` is one user message unless given."""
    return read("chat", {"messages": [USER], **fields})


def messages(**fields: Any) -> Call:
    """Read a messages body."""
    return read("messages", {"messages": [USER], "max_tokens": 9, **fields})


def responses(**fields: Any) -> Call:
    """Read a Responses body."""
    return read("responses", {"input": "hi", **fields})


def refusal(name: str, body: dict[str, Any] | bytes, settings: Settings | None = None) -> RequestError:
    """Return the error of a body that must be refused."""
    try:
        call = read(name, body, settings)
    except RequestError as error:
        assert error.status == 400, error
        return error
    raise AssertionError(f"accepted: {call.request}")
