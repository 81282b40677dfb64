"""OpenAI chat completions: POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ds4.chat import check_messages

from ..contract import Done, ModelInfo, Named, Request, RequestError, ResponseFormat, TokenLogprob
from . import fields
from .conversation import SYSTEM_ROLES, in_order, text_of
from .fields import Call, Choices, Common, Count, TopLogprobs
from .reply import CallText, Choice, Objects, Reply, openai_usage, token_logprob
from .settings import Settings


class Part(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A part of a content; only texts are supported."""

    type: str
    text: str | None = None


class Function(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The function of a call."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A call in an assistant message."""

    id: str | None = None
    type: str | None = None
    function: Function | None = None


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message of the conversation."""

    role: str
    content: str | list[str | Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None
    tool_call_id: str | None = None
    tools: list[dict[str, Any]] | None = None


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    """The schema of a response format."""

    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class Format(msgspec.Struct, kw_only=True):
    """The form of the answer."""

    type: str
    json_schema: JsonSchemaFormat | None = None


class StreamOptions(msgspec.Struct, kw_only=True):
    """Options of a stream."""

    include_usage: bool | None = None


class ChatBody(Common, kw_only=True):
    """The body of a chat completion."""

    messages: list[Message]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    stop: str | list[str] | None = None
    stream_options: StreamOptions | None = None
    n: Choices | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: Format | None = None
    functions: list[dict[str, Any]] | None = None


def read(body: ChatBody, settings: Settings, info: ModelInfo, request_id: str) -> Call:
    """Turn a body into a request.

    Raises
    ------
    RequestError
        A field is wrong; the error names it.
    """
    if body.functions:
        raise RequestError("functions is the older form of tools; send tools", param="functions")
    messages, own_tools = _messages(body.messages)
    if own_tools and body.tools:
        raise RequestError("tools are given twice: beside the messages and on a system message", param="tools")
    tools = fields.checked_tools(body.tools or own_tools)
    choice = fields.checked_choice(_choice(body.tool_choice), tools)
    ordered, continues = in_order(messages)
    mode, effort = fields.thinking(body, settings, info)
    if continues:
        mode, effort = "chat", None
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    request = Request(
        dialect="chat",
        model=body.model or info.id,
        messages=ordered,
        tools=() if choice == "none" else tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        mode=mode,
        effort=effort,
        sampling=fields.sampling(body, settings.sampling),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        stop=fields.stops(body.stop, "stop"),
        n=fields.choices(body.n, settings),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        response_format=_format(body.response_format),
        steering=body.steering,
        id=request_id,
    )
    return Call(
        request=request,
        stream=bool(body.stream),
        ignored=tuple(fields.unused(body)),
        include_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
    )


def _messages(given: list[Message]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return messages in the renderer's form, and the tools that a system message brought."""
    out: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    for i, message in enumerate(given):
        for j, call in enumerate(message.tool_calls or ()):
            if call.type not in (None, "function") or call.function is None:
                raise RequestError(
                    f"messages[{i}].tool_calls[{j}] is of type {call.type!r}; only functions can be called",
                    param=f"messages[{i}].tool_calls[{j}]",
                )
        item = msgspec.to_builtins(message)
        item.setdefault("content", None)
        reasoning = item.pop("reasoning", None)
        if message.role == "assistant" and reasoning and not message.reasoning_content:
            item["reasoning_content"] = reasoning
        out.append(item)
    try:
        checked = check_messages(out)
    except (ValueError, TypeError) as error:
        text = str(error)
        param = text.split(" ")[0].rstrip(":") if text.startswith("messages[") else "messages"
        raise RequestError(text, param=param, code="invalid_value") from None
    for item, known in zip(out, checked, strict=True):
        if known.schemas:
            if tools:
                raise RequestError("two messages bring tools; send them in one list", param="messages")
            tools = item["tools"]
        item.pop("tools", None)
        if known.role in SYSTEM_ROLES:
            item["content"] = text_of(item["content"])
        elif known.role == "assistant":
            item["content"] = known.content
            if item.pop("function_call", None):
                first = known.tool_calls[0]
                item["tool_calls"] = [{"function": {"name": first.name, "arguments": first.arguments}}]
        elif known.role == "tool":
            item["role"] = "tool"
    return out, tools


def _choice(given: str | dict[str, Any] | None) -> str | Named:
    if given is None:
        return "auto"
    if isinstance(given, str):
        return given
    function = given.get("function")
    if given.get("type") == "function" and isinstance(function, dict) and isinstance(function.get("name"), str):
        return Named(function["name"])
    raise RequestError(
        'tool_choice must be auto, none, required or {"type": "function", "function": {"name": ...}}',
        param="tool_choice",
    )


def _format(given: Format | None) -> ResponseFormat | None:
    if given is None:
        return None
    schema = given.json_schema or JsonSchemaFormat()
    return fields.response_format(given.type, schema.schema, schema.name, schema.strict, "response_format")


class ChatReply(Reply):
    """A chat completion and its chunks."""

    def begin(self) -> Objects:
        """Return a chunk with the role, for every choice."""
        return [self._chunk(i, {"role": "assistant", "content": ""}) for i in range(len(self.choices))]

    def reasoning(self, choice: int, text: str, tokens: Sequence[TokenLogprob]) -> Objects:
        """Return a chunk."""
        return [self._chunk(choice, {"reasoning_content": text}, tokens=tokens)]

    def content(self, choice: int, text: str, tokens: Sequence[TokenLogprob]) -> Objects:
        """Return a chunk."""
        return [self._chunk(choice, {"content": text}, tokens=tokens)]

    def call_start(self, choice: int, made: CallText) -> Objects:
        """Return the chunk that names the call."""
        head = {
            "index": made.index,
            "id": made.id,
            "type": "function",
            "function": {"name": made.name, "arguments": ""},
        }
        return [self._chunk(choice, {"tool_calls": [head]})]

    def call_arguments(self, choice: int, made: CallText, text: str) -> Objects:
        """Return a chunk with a piece of arguments."""
        return [self._chunk(choice, {"tool_calls": [{"index": made.index, "function": {"arguments": text}}]})]

    def done(self, choice: int, event: Done) -> Objects:
        """Return the last chunk of a choice."""
        chunk = self._chunk(choice, {}, finish=event.finish, stop=event.stop)
        if self.over and not self.call.include_usage:
            chunk["ds4"] = self.insight()
        return [chunk]

    def end(self) -> Objects:
        """Return the chunk of the usage, if it was asked for."""
        if not self.call.include_usage:
            return []
        return [{**self._head("chat.completion.chunk"), "choices": [], **self._figures()}]

    def tail(self) -> bytes:
        """Return the end of a stream."""
        return b"data: [DONE]\n\n"

    def whole(self) -> dict[str, Any]:
        """Return the completion."""
        choices = []
        for i, choice in enumerate(self.choices):
            assert choice.done is not None
            message: dict[str, Any] = {"role": "assistant", "content": "".join(choice.content)}
            if choice.reasoning:
                message["reasoning_content"] = "".join(choice.reasoning)
            if choice.calls:
                message["content"] = message["content"] or None
                message["tool_calls"] = [
                    {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.text}}
                    for c in choice.calls
                ]
            choices.append(
                {
                    "index": i,
                    "message": message,
                    "logprobs": self._logprobs(choice),
                    "finish_reason": choice.done.finish,
                    "stop_reason": choice.done.stop,
                }
            )
        return {**self._head("chat.completion"), "choices": choices, **self._figures()}

    def _logprobs(self, choice: Choice) -> dict[str, Any] | None:
        if self.request.logprobs is None:
            return None
        return logprobs_object(choice.tokens)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.hex}",
            "object": kind,
            "created": self.created,
            "model": self.request.model,
        }

    def _figures(self) -> dict[str, Any]:
        return {"usage": openai_usage(self.usage()), "ds4": self.insight()}

    def _chunk(
        self,
        choice: int,
        delta: dict[str, Any],
        *,
        tokens: Sequence[TokenLogprob] = (),
        finish: str | None = None,
        stop: str | None = None,
    ) -> dict[str, Any]:
        item: dict[str, Any] = {"index": choice, "delta": delta}
        if tokens:
            item["logprobs"] = logprobs_object(tokens)
        item["finish_reason"] = finish
        if stop is not None:
            item["stop_reason"] = stop
        return {**self._head("chat.completion.chunk"), "choices": [item]}


def logprobs_object(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return the log-probabilities of a choice or of a piece of it, those of the reasoning apart."""
    out: dict[str, Any] = {"content": [token_logprob(t) for t in tokens if t.part == "content"]}
    reasoning = [token_logprob(t) for t in tokens if t.part == "reasoning"]
    if reasoning:
        out["reasoning_content"] = reasoning
    return out
