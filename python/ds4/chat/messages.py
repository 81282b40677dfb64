"""Checking of message lists: loose dictionaries in, one strict form out.

The input is the chat-completions form (dictionaries with `role`, `content`, `tool_calls`, ...) plus the
fields of the DeepSeek encoder (`tools` and `response_format` on a system or developer message, `task` on a
user message, `wo_eos` on an unfinished assistant message). Keys that nobody reads are ignored; keys that are
read are checked, and a field on a role that cannot carry it is an error, so nothing is lost in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .jsontext import dumps
from .protocol import TASKS

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "latest_reminder")

_TEXT_PARTS = ("text", "input_text", "output_text")
_PART_SEPARATOR = "\n\n"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call in an assistant message.

    Parameters
    ----------
    name : str
        Name of the tool.
    arguments : str
        JSON text of the arguments object as the client sent it (it may turn out not to be JSON).
    id : str or None
        The id that a tool result refers to.
    """

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One checked message; `index` is its place in the list it came from (-1: added by the renderer).

    `block` is the exact text of the calls, when it is to stand in place of `tool_calls`.
    """

    role: str
    content: str
    index: int
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    schemas: tuple[str, ...] = ()
    response_format: str | None = None
    task: str | None = None
    wo_eos: bool = False
    block: str | None = None


def check_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Check a message list and bring it into one form.

    Content may be a string, null (empty) or a list of text parts, which are joined by a blank line
    (assistant parts are joined without one: they are pieces of one output). Content that happens to look
    like JSON is left alone. The role `function` and the assistant field `function_call` are the older names
    of a tool result and of a single call.

    Raises
    ------
    ValueError
        The list is empty or a message is wrong; the text names the message's index and the field.
    TypeError
        `messages` is not a list or a message is not a mapping.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise TypeError(f"messages must be a list of mappings, not {type(messages).__name__}")
    if not messages:
        raise ValueError("messages is empty")
    return [_check_message(i, m) for i, m in enumerate(messages)]


def with_system_role(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return copies of the messages in which the role `developer` reads `system`.

    In the chat-completions API `developer` is the newer name of `system`. The V4 protocol has a developer
    turn of its own, opened like a user turn; a server for API clients applies this before rendering.
    """
    return [{**m, "role": "system"} if m.get("role") == "developer" else dict(m) for m in messages]


def check_tools(tools: Sequence[Mapping[str, Any]] | None, where: str = "tools") -> tuple[str, ...]:
    """Check a list of tools and return the JSON text of each function, as the prompt shows it.

    Keys keep their order and unknown keys are kept; the `{"type": "function"}` envelope is left out.

    Raises
    ------
    ValueError
        An entry is not `{"type": "function", "function": {"name": ...}}` or holds what JSON cannot express.
    """
    if tools is None:
        return ()
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise ValueError(f"{where} must be a list, not {type(tools).__name__}")
    texts = []
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping):
            raise ValueError(f'{where}[{i}] must be {{"type": "function", "function": {{...}}}}')
        kind = tool.get("type", "function")
        if kind != "function":
            raise ValueError(f"{where}[{i}].type is {kind!r}; only 'function' is known")
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise ValueError(f"{where}[{i}].function.name must be a non-empty string")
        texts.append(_json(function, f"{where}[{i}].function"))
    return tuple(texts)


def _check_message(index: int, message: Mapping[str, Any]) -> Message:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise TypeError(f"{where} must be a mapping, not {type(message).__name__}")
    role = message.get("role")
    if role not in ROLES:
        raise ValueError(f"{where} has the unknown role {role!r}; known roles: {', '.join(ROLES)}")
    if role == "function":
        role = "tool"
    _refuse_misplaced(where, role, message)
    task = message.get("task")
    if task is not None and task not in TASKS:
        raise ValueError(f"{where}.task is {task!r}; known tasks: {', '.join(TASKS)}")
    call_id = _optional_string(where, "tool_call_id", message)
    response_format = message.get("response_format")
    return Message(
        role=role,
        content=_content(f"{where}.content", role, message.get("content")),
        index=index,
        reasoning=_optional_string(where, "reasoning_content", message) or "",
        tool_calls=_calls(where, message),
        tool_call_id=call_id,
        schemas=check_tools(message.get("tools"), f"{where}.tools"),
        response_format=_json(response_format, f"{where}.response_format") if response_format else None,
        task=task,
        wo_eos=bool(message.get("wo_eos", False)),
    )


def _refuse_misplaced(where: str, role: str, message: Mapping[str, Any]) -> None:
    allowed = {
        "tools": ("system", "developer"),
        "response_format": ("system", "developer"),
        "task": ("user", "developer"),
        "tool_calls": ("assistant",),
        "function_call": ("assistant",),
        "wo_eos": ("assistant",),
    }
    for field, roles in allowed.items():
        if message.get(field) and role not in roles:
            raise ValueError(f"{where} has {field} but the role {role!r}; it belongs to: {', '.join(roles)}")


def _content(where: str, role: str, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, (bytes, Mapping)) or not isinstance(content, Sequence):
        raise ValueError(f"{where} must be a string, null or a list of parts, not {type(content).__name__}")
    texts = []
    for i, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind in _TEXT_PARTS:
            if not isinstance(text, str):
                raise ValueError(f"{where}[{i}].text must be a string")
            texts.append(text)
        elif role == "tool" and kind is not None:
            texts.append(f"[Unsupported {kind}]")  # the published encoder's form: the model is told
        else:
            raise ValueError(f"{where}[{i}] is a part of type {kind!r}; only text parts are supported")
    return ("" if role == "assistant" else _PART_SEPARATOR).join(texts)


def _calls(where: str, message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    calls = message.get("tool_calls")
    if not calls:
        legacy = message.get("function_call")
        return (_function(f"{where}.function_call", legacy, None),) if legacy else ()
    if isinstance(calls, (str, bytes, Mapping)) or not isinstance(calls, Sequence):
        raise ValueError(f"{where}.tool_calls must be a list, not {type(calls).__name__}")
    out = []
    for i, call in enumerate(calls):
        at = f"{where}.tool_calls[{i}]"
        if not isinstance(call, Mapping):
            raise ValueError(f"{at} must be a mapping, not {type(call).__name__}")
        out.append(_function(f"{at}.function", call.get("function"), _optional_string(at, "id", call)))
    return tuple(out)


def _function(where: str, function: Any, call_id: str | None) -> ToolCall:
    if not isinstance(function, Mapping):
        raise ValueError(f"{where} must be a mapping with name and arguments")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}.name must be a non-empty string")
    arguments = function.get("arguments")
    if isinstance(arguments, Mapping):
        arguments = _json(arguments, f"{where}.arguments")
    elif arguments is None:
        arguments = "{}"
    elif not isinstance(arguments, str):
        raise ValueError(f"{where}.arguments must be a JSON text or an object, not {type(arguments).__name__}")
    return ToolCall(name, arguments, call_id)


def _optional_string(where: str, field: str, message: Mapping[str, Any]) -> str | None:
    value = message.get(field)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{where}.{field} must be a string or null, not {type(value).__name__}")
    return value


def _json(value: Any, where: str) -> str:
    try:
        return dumps(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
