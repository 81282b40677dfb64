"""Anthropic messages: POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from ds4.chat.jsontext import dumps

from ..contract import Done, ModelInfo, Named, Request, RequestError, ResponseFormat, TokenLogprob, Usage
from . import fields
from .conversation import check_results, in_order, joined
from .fields import Call, Common, Count
from .reply import CallText, Objects, Reply
from .settings import Settings

PRIVATE_PREFIX = "x-anthropic-"
"""How parts of a system text begin that are meant for the service, not for the model."""


class Block(msgspec.Struct, kw_only=True):
    """A block of a message; which fields count follows from the type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: Any = None
    is_error: bool | None = None


class Message(msgspec.Struct, kw_only=True):
    """A message of the conversation."""

    role: str
    content: str | list[Block]


class Tool(msgspec.Struct, kw_only=True):
    """A tool; one without a schema is run by the service itself."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class Choice(msgspec.Struct, kw_only=True):
    """Which tools may or must be called."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Format(msgspec.Struct, kw_only=True):
    """The form of the answer."""

    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, kw_only=True):
    """How the answer shall be made."""

    effort: str | None = None
    format: Format | None = None


class CountBody(Common, kw_only=True):
    """The body of a request for the number of tokens."""

    messages: list[Message]
    system: str | list[Block] | None = None
    tools: list[Tool] | None = None
    tool_choice: Choice | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = None


class MessagesBody(CountBody, kw_only=True):
    """The body of a message request."""

    max_tokens: Count | None = None
    stop_sequences: list[str] | None = None


def read(body: CountBody, settings: Settings, info: ModelInfo, request_id: str) -> Call:
    """Turn a body into a request.

    Raises
    ------
    RequestError
        A field is wrong; the error names it.
    """
    tools, left_out = _tools(body.tools or [])
    given = body.tool_choice or Choice(type="auto")
    choice = fields.checked_choice(_choice(given), tools)
    config = body.output_config or OutputConfig()
    mode, effort = fields.thinking(body, settings, info, effort=config.effort, effort_name="output_config.effort")
    messages, continues = _conversation(body)
    if continues:
        mode, effort = "chat", None
    request = Request(
        dialect="messages",
        model=body.model or info.id,
        messages=messages,
        tools=() if choice == "none" else tools,
        tool_choice=choice,
        parallel_tool_calls=not given.disable_parallel_tool_use,
        mode=mode,
        effort=effort,
        sampling=fields.sampling(body, settings.sampling),
        max_tokens=body.max_tokens if isinstance(body, MessagesBody) else None,
        stop=fields.stops(body.stop_sequences if isinstance(body, MessagesBody) else None, "stop_sequences"),
        response_format=_format(config.format or body.output_format),
        steering=body.steering,
        id=request_id,
    )
    return Call(request=request, stream=bool(body.stream), ignored=(*fields.unused(body), *left_out))


def _conversation(body: CountBody) -> tuple[tuple[dict[str, Any], ...], bool]:
    out: list[dict[str, Any]] = []
    places: list[str] = []
    system = _system(body.system)
    if system:
        out.append({"role": "system", "content": system})
        places.append("system")
    for i, message in enumerate(body.messages):
        where = f"messages[{i}]"
        blocks = [Block(type="text", text=message.content)] if isinstance(message.content, str) else message.content
        if message.role == "user":
            made = _user(blocks, where)
        elif message.role == "assistant":
            made = [_assistant(blocks, where)]
        elif message.role == "system":
            made = [{"role": "system", "content": joined(*(_text(b, f"{where}.content") for b in blocks))}]
        else:
            raise RequestError(
                f"{where} has the unknown role {message.role!r}; known: user, assistant, system", param=f"{where}.role"
            )
        out.extend(made)
        places.extend([where] * len(made))
    if not body.messages:
        raise RequestError("messages is empty", param="messages")
    check_results(out, places)
    return in_order(out)


def _system(given: str | list[Block] | None) -> str:
    if isinstance(given, str):
        return given
    texts = [_text(block, f"system[{i}]") for i, block in enumerate(given or [])]
    return joined(*(text for text in texts if not text.startswith(PRIVATE_PREFIX)))


def _text(block: Block, where: str) -> str:
    if block.type != "text":
        raise RequestError(f"{where} is a block of type {block.type!r}; only text is supported here", param=where)
    if block.text is None:
        raise RequestError(f"{where}.text is missing", param=f"{where}.text")
    return block.text


def _user(blocks: list[Block], where: str) -> list[dict[str, Any]]:
    """Return the messages of a user message: texts and tool results, in their order."""
    out: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        at = f"{where}.content[{i}]"
        if block.type == "tool_result":
            if not block.tool_use_id:
                raise RequestError(f"{at}.tool_use_id is missing", param=f"{at}.tool_use_id")
            content = _result(block.content, at)
            out.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
        elif block.type == "text":
            out.append({"role": "user", "content": _text(block, at)})
        else:
            raise RequestError(
                f"{at} is a block of type {block.type!r}; a user message holds text and tool_result", param=at
            )
    return out or [{"role": "user", "content": ""}]


def _result(content: Any, where: str) -> str | list[dict[str, Any]]:
    """Check the content of a tool result; what is no text is named to the model by its type."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where}.content must be a string or a list of blocks", param=f"{where}.content")
    parts = []
    for i, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(kind, str):
            raise RequestError(f"{where}.content[{i}] must be a block with a type", param=f"{where}.content[{i}]")
        if kind == "text" and not isinstance(block.get("text"), str):
            raise RequestError(f"{where}.content[{i}].text must be a string", param=f"{where}.content[{i}].text")
        parts.append({"type": kind, "text": block["text"]} if kind == "text" else {"type": kind})
    return parts


def _assistant(blocks: list[Block], where: str) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for i, block in enumerate(blocks):
        at = f"{where}.content[{i}]"
        match block.type:
            case "text":
                texts.append(_text(block, at))
            case "thinking":
                thoughts.append(block.thinking or "")
            case "redacted_thinking":
                pass  # of another service; nobody here can read it
            case "tool_use":
                if not block.name or not block.id:
                    raise RequestError(f"{at} needs a name and an id", param=at)
                try:
                    arguments = dumps(block.input or {})
                except ValueError as error:
                    raise RequestError(f"{at}.input: {error}", param=f"{at}.input") from None
                call = {"name": block.name, "arguments": arguments}
                calls.append({"id": block.id, "type": "function", "function": call})
            case _:
                raise RequestError(
                    f"{at} is a block of type {block.type!r}; an assistant message holds text, thinking and tool_use",
                    param=at,
                )
    out: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if any(thoughts):
        out["reasoning_content"] = "".join(thoughts)
    if calls:
        out["tool_calls"] = calls
    return out


def _tools(given: list[Tool]) -> tuple[tuple[Any, ...], list[str]]:
    """Return the tools that the client runs, and a note for each one that a service would run."""
    tools, left_out = [], []
    for i, tool in enumerate(given):
        if tool.input_schema is None and tool.type not in (None, "custom"):
            left_out.append(f"tools[{i}]")
            continue
        function: dict[str, Any] = {"name": tool.name}
        if tool.description is not None:
            function["description"] = tool.description
        function["parameters"] = tool.input_schema or {"type": "object", "properties": {}}
        tools.append({"type": "function", "function": function})
    return fields.checked_tools(tools), left_out


def _choice(given: Choice) -> str | Named:
    match given.type:
        case "auto" | "none":
            return given.type
        case "any":
            return "required"
        case "tool" if given.name:
            return Named(given.name)
        case _:
            raise RequestError(
                f"tool_choice.type is {given.type!r}; known: auto, any, none, and tool with a name",
                param="tool_choice.type",
            )


def _format(given: Format | None) -> ResponseFormat | None:
    if given is None:
        return None
    return fields.response_format(given.type, given.schema, None, True, "output_config.format")


STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesReply(Reply):
    """A message and the events of its stream.

    Before a thinking block closes it gets a signature (the id of the message), and a text or tool block always follows
    it.
    """

    family = "anthropic"
    PING = b'event: ping\ndata: {"type": "ping"}\n\n'

    def __init__(self, call: Call, prompt_tokens: int) -> None:
        super().__init__(call, prompt_tokens)
        self.id = f"msg_{self.hex}"
        self.blocks: list[dict[str, Any]] = []
        self._open: str | None = None
        self._text: list[str] = []

    def encode(self, item: dict[str, Any]) -> bytes:
        """Return an event with its name."""
        kind: str = item["type"]
        return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(item) + b"\n\n"

    def begin(self) -> Objects:
        """Return the start of the message; the exact reuse of the prompt follows at the end."""
        usage = _usage(Usage(prompt=self.prompt_tokens, computed=self.prompt_tokens))
        return [{"type": "message_start", "message": self._message([], None, None, usage)}]

    def reasoning(self, choice: int, text: str, tokens: Sequence[TokenLogprob]) -> Objects:
        """Return a piece of the thinking block."""
        objects = self._ensure("thinking")
        self._text.append(text)
        return [*objects, self._delta({"type": "thinking_delta", "thinking": text})]

    def content(self, choice: int, text: str, tokens: Sequence[TokenLogprob]) -> Objects:
        """Return a piece of the text block."""
        objects = self._ensure("text")
        self._text.append(text)
        return [*objects, self._delta({"type": "text_delta", "text": text})]

    def call_start(self, choice: int, made: CallText) -> Objects:
        """Return the start of a tool block."""
        objects = self._close()
        self._open = "tool_use"
        self.blocks.append({"type": "tool_use", "id": made.id, "name": made.name, "input": {}})
        return [*objects, self._start(self.blocks[-1])]

    def call_arguments(self, choice: int, made: CallText, text: str) -> Objects:
        """Return a piece of the arguments."""
        return [self._delta({"type": "input_json_delta", "partial_json": text})]

    def call_end(self, choice: int, made: CallText) -> Objects:
        """Return the end of the tool block."""
        if made.error is None:
            self.blocks[-1]["input"] = json.loads(made.text)
        else:
            self.blocks[-1]["cut"] = True
        return self._close()

    def done(self, choice: int, event: Done) -> Objects:
        """Return the end of the last block, the stop reason and the usage."""
        objects = self._close()
        if not self.blocks or self.blocks[-1]["type"] == "thinking":
            objects += self._ensure("text") + self._close()
        reason, sequence = self._stop(event)
        last = {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": _usage(self.usage()),
            "ds4": self.insight(),
        }
        return [*objects, last, {"type": "message_stop"}]

    def whole(self) -> dict[str, Any]:
        """Return the message, without a call that was cut off: its input would not be what was meant."""
        done = self.choices[0].done
        assert done is not None
        blocks = [block for block in self.blocks if "cut" not in block]
        if not blocks or blocks[-1]["type"] == "thinking":
            blocks.append({"type": "text", "text": ""})
        reason, sequence = self._stop(done)
        return {**self._message(blocks, reason, sequence, _usage(self.usage())), "ds4": self.insight()}

    def _message(
        self, blocks: list[dict[str, Any]], reason: str | None, sequence: str | None, usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.request.model,
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage,
        }

    def _stop(self, event: Done) -> tuple[str, str | None]:
        if event.stop is not None:
            return "stop_sequence", event.stop
        return STOP_REASONS.get(event.finish, "end_turn"), None

    def _ensure(self, kind: str) -> Objects:
        """Open a block of a kind unless it is open."""
        if self._open == kind:
            return []
        objects = self._close()
        self._open = kind
        block = {"type": kind, kind: ""}
        if kind == "thinking":
            block["signature"] = ""
        self.blocks.append(block)
        return [*objects, self._start(block)]

    def _close(self) -> Objects:
        if self._open is None:
            return []
        objects = []
        block = self.blocks[-1]
        if self._open != "tool_use":
            block[self._open] = "".join(self._text)
            self._text.clear()
        if self._open == "thinking":
            block["signature"] = self.id
            objects.append(self._delta({"type": "signature_delta", "signature": self.id}))
        self._open = None
        return [*objects, {"type": "content_block_stop", "index": len(self.blocks) - 1}]

    def _start(self, block: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": dict(block)}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}


def _usage(usage: Usage) -> dict[str, Any]:
    """Return usage with the parts of the prompt apart: kept, and computed (which this server keeps as well)."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
