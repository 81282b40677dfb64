"""Input items of the Responses interface, as messages of a conversation."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ds4.chat.jsontext import dumps

from ..contract import RequestError
from .conversation import BLANK_LINE, joined

TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")

TRANSPARENT = (
    "compaction",
    "context_compaction",
    "web_search_call",
    "image_generation_call",
    "web_search_call_output",
    "image_generation_call_output",
)
"""Items that tell of work done elsewhere and carry nothing that this model can read."""


class Part(msgspec.Struct, kw_only=True):
    """A part of a content."""

    type: str
    text: str | None = None


class Item(msgspec.Struct, kw_only=True):
    """An input item; which fields count follows from the type."""

    type: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    status: str | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    output: Any = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None
    action: dict[str, Any] | None = None
    tools: list[Any] | None = None


@dataclass(slots=True)
class Conversation:
    """What the items come to.

    Parameters
    ----------
    messages : list of dict
    places : list of str
        Where in the request each message begins.
    tools : list of (str, list)
        Tools that searches found, with the place of the item.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    tools: list[tuple[str, list[Any]]] = field(default_factory=list)

    def add(self, place: str, message: dict[str, Any]) -> None:
        """Add a message."""
        self.messages.append(message)
        self.places.append(place)


def read_items(items: list[Item]) -> Conversation:
    """Turn items into messages; reasoning, text and calls in a row become one assistant message.

    Raises
    ------
    RequestError
        An item is wrong; the error names its place.
    """
    out = Conversation()
    turn: dict[str, Any] | None = None

    def assistant(place: str) -> dict[str, Any]:
        nonlocal turn
        if turn is None:
            turn = {"role": "assistant", "content": ""}
            out.add(place, turn)
        return turn

    for i, item in enumerate(items):
        where = f"input[{i}]"
        if item.status not in (None, "completed"):
            raise RequestError(f"{where} has the status {item.status!r}; only completed items can be read", param=where)
        kind = item.type or ("message" if item.role is not None else None)
        match kind:
            case "message" if item.role == "assistant":
                message = assistant(where)
                message["content"] = joined(message["content"], _content(item.content, f"{where}.content", ""))
            case "message" if item.role in ("user", "system", "developer"):
                turn = None
                text = _content(item.content, f"{where}.content", BLANK_LINE)
                out.add(where, {"role": item.role, "content": text})
            case "message":
                raise RequestError(
                    f"{where} has the unknown role {item.role!r}; known: user, assistant, system, developer",
                    param=f"{where}.role",
                )
            case "reasoning":
                message = assistant(where)
                parts = item.summary or (item.content if isinstance(item.content, list) else [])
                text = opened(item.encrypted_content) or _content(parts, where, BLANK_LINE)
                if text:
                    message["reasoning_content"] = joined(message.get("reasoning_content", ""), text)
            case "function_call" | "custom_tool_call" | "tool_search_call" | "local_shell_call":
                assistant(where).setdefault("tool_calls", []).append(_call(kind, item, where))
            case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" | "tool_search_output":
                turn = None
                if kind == "tool_search_output" and item.tools is not None:
                    out.tools.append((where, item.tools))
                call_id = _required(item.call_id or (item.id if kind == "local_shell_call_output" else None), where)
                out.add(where, {"role": "tool", "tool_call_id": call_id, "content": _result(kind, item, where)})
            case _ if kind in TRANSPARENT:
                pass
            case _:
                raise RequestError(f"{where} is an item of the unknown type {kind!r}", param=f"{where}.type")
    return out


def _required(value: str | None, where: str, name: str = "call_id") -> str:
    if not value:
        raise RequestError(f"{where}.{name} is missing", param=f"{where}.{name}")
    return value


def _content(content: str | list[Part] | None, where: str, separator: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for i, part in enumerate(content):
        if part.type not in TEXT_PARTS:
            raise RequestError(
                f"{where}[{i}] is a part of type {part.type!r}; only text parts are supported", param=f"{where}[{i}]"
            )
        if part.text is None:
            raise RequestError(f"{where}[{i}].text is missing", param=f"{where}[{i}].text")
        texts.append(part.text)
    return separator.join(texts)


def _call(kind: str, item: Item, where: str) -> dict[str, Any]:
    """Return a call in the chat form."""
    call_id = _required(item.call_id or item.id, where)
    if kind == "function_call":
        name = _required(item.name, where, "name")
        name = internal_name(name, item.namespace)
        arguments: Any = item.arguments or "{}"
    elif kind == "custom_tool_call":
        name = _required(item.name, where, "name")
        arguments = {"input": item.input or ""}
    elif kind == "tool_search_call":
        name = "tool_search"
        arguments = item.arguments or {}
    else:
        name = "local_shell"
        arguments = {key: value for key, value in (item.action or {}).items() if key != "type" and value is not None}
    if not isinstance(arguments, str):
        try:
            arguments = dumps(arguments)
        except ValueError as error:
            raise RequestError(f"{where}: {error}", param=where) from None
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(kind: str, item: Item, where: str) -> str | list[dict[str, Any]]:
    """Return the content of a tool result; what is no text is named to the model by its type."""
    if kind == "tool_search_output" and item.output is None:
        names = [tool.get("name") for tool in item.tools or [] if isinstance(tool, dict)]
        return "found: " + ", ".join(str(name) for name in names if name)
    output = item.output
    if output is None:
        raise RequestError(f"{where}.output is missing", param=f"{where}.output")
    if isinstance(output, str):
        return output
    if isinstance(output, dict):
        try:
            return dumps(output)
        except ValueError as error:
            raise RequestError(f"{where}.output: {error}", param=f"{where}.output") from None
    if not isinstance(output, list):
        raise RequestError(f"{where}.output must be a string or a list of parts", param=f"{where}.output")
    parts = []
    for i, part in enumerate(output):
        kind_of_part = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind_of_part, str):
            raise RequestError(f"{where}.output[{i}] must be a part with a type", param=f"{where}.output[{i}]")
        if kind_of_part not in TEXT_PARTS:
            parts.append({"type": kind_of_part})
        elif not isinstance(part.get("text"), str):
            raise RequestError(f"{where}.output[{i}].text must be a string", param=f"{where}.output[{i}].text")
        else:
            parts.append({"type": "text", "text": part["text"]})
    return parts


def sealed(reasoning: str) -> str:
    """Return reasoning in the form in which clients carry it for this server; it is not secret."""
    return _SEAL + base64.urlsafe_b64encode(reasoning.encode()).decode()


def opened(carried: str | None) -> str | None:
    """Return the reasoning that a client carried, or None if it is not of this server."""
    if carried is None or not carried.startswith(_SEAL):
        return None
    try:
        return base64.b64decode(carried.removeprefix(_SEAL), altchars=b"-_", validate=True).decode()
    except ValueError:
        return None


_SEAL = "ds4-reasoning-1:"


def internal_name(name: str, namespace: str | None) -> str:
    """Return the one name by which the model knows a tool of a namespace."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"
