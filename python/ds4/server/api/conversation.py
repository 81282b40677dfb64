"""Bringing the messages of any dialect into the form in which a prompt is well formed.

The protocol of the model has one place for a system text, the beginning, and every other turn needs its frame. What
clients send beside that is moved, never dropped:

- system (and developer) messages at the beginning become one, joined by blank lines;
- a later one becomes part of the user turn where it stands, so that what came before keeps its bytes;
- assistant messages in a row become one;
- an assistant message at the end is a beginning that the model continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..contract import RequestError

SYSTEM_ROLES = ("system", "developer")
BLANK_LINE = "\n\n"


def in_order(messages: Sequence[dict[str, Any]], *, param: str = "messages") -> tuple[tuple[dict[str, Any], ...], bool]:
    """Return the messages in order, and whether the last one is to be continued.

    Parameters
    ----------
    messages : sequence of dict
        Checked messages; the content of system messages is a string.
    param : str
        Name of the field that they came from, for errors.

    Raises
    ------
    RequestError
        There is nothing to answer, or calls at the end wait for their results.
    """
    out: list[dict[str, Any]] = []
    for message in messages:
        role = message["role"]
        last = out[-1] if out else None
        if role in SYSTEM_ROLES:
            if last is None:
                out.append({"role": "system", "content": message["content"]})
            elif last["role"] == "system":
                last["content"] = joined(last["content"], message["content"])
            elif message["content"]:
                out.append({"role": "user", "content": message["content"]})
        elif role == "assistant" and last is not None and last["role"] == "assistant" and not last.get("tool_calls"):
            out[-1] = _merged(last, message)
        else:
            out.append(dict(message))
    if not out or (len(out) == 1 and out[0]["role"] == "system"):
        out.append({"role": "user", "content": ""})
    end = out[-1]
    if end["role"] != "assistant":
        return tuple(out), False
    if end.get("tool_calls"):
        raise RequestError(f"{param} ends with tool calls; their results must follow", param=param)
    end.pop("reasoning_content", None)
    end["wo_eos"] = True
    return tuple(out), True


def joined(*texts: str) -> str:
    """Join texts that are not empty by blank lines."""
    return BLANK_LINE.join(text for text in texts if text)


def text_of(content: Any) -> str:
    """Return a checked content as one string."""
    if isinstance(content, str):
        return content
    return joined(*(part if isinstance(part, str) else part["text"] for part in content or ()))


def call_ids(messages: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the ids of all calls that are shown in messages."""
    return {call["id"] for m in messages for call in m.get("tool_calls") or () if call.get("id")}


def check_results(messages: Sequence[Mapping[str, Any]], places: Sequence[str]) -> None:
    """Check that every tool result answers a call that came before, or continues a turn of this server.

    Results at the very beginning may answer calls that are not shown: the engine knows its own. Only such a
    beginning is left to it.

    Parameters
    ----------
    messages : sequence of mappings
    places : sequence of str
        Where in the request each message stands, for errors.
    """
    known: set[str] = set()
    begun = False
    for message, place in zip(messages, places, strict=True):
        if message["role"] == "tool":
            call_id = message.get("tool_call_id")
            if begun and call_id not in known:
                raise RequestError(
                    f"{place} answers the call {call_id!r}, which no earlier message makes",
                    param=place,
                    code="unknown_tool_call",
                )
        elif message["role"] not in SYSTEM_ROLES:
            begun = True
            known |= call_ids([message])


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    out = {"role": "assistant", "content": joined(text_of(first["content"]), text_of(second["content"]))}
    reasoning = joined(first.get("reasoning_content") or "", second.get("reasoning_content") or "")
    if reasoning:
        out["reasoning_content"] = reasoning
    if second.get("tool_calls"):
        out["tool_calls"] = second["tool_calls"]
    return out
