"""OpenAI Responses: the body of POST /v1/responses. The answer is made in `response_events`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ..contract import ModelInfo, Named, Request, RequestError, ResponseFormat
from . import fields
from .conversation import check_results, in_order
from .fields import Call, Common, Count, ToolKind, TopLogprobs
from .response_items import Item, internal_name, read_items
from .settings import Settings

SUMMARIES = ("auto", "concise", "detailed")


class Reasoning(msgspec.Struct, kw_only=True):
    """How to reason, and whether to show it."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class Format(msgspec.Struct, kw_only=True):
    """The form of the answer."""

    type: str
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class Text(msgspec.Struct, kw_only=True):
    """Settings of the text of the answer."""

    format: Format | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A tool; which fields count follows from the type."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    tools: list[Any] | None = None
    execution: str | None = None


class ResponsesBody(Common, kw_only=True):
    """The body of a Responses request."""

    input: str | list[Item]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    max_tokens: Count | None = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    top_logprobs: TopLogprobs | None = None
    include: list[str] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    metadata: dict[str, Any] | None = None
    truncation: str | None = None


def read(body: ResponsesBody, settings: Settings, info: ModelInfo, request_id: str) -> Call:
    """Turn a body into a request.

    Raises
    ------
    RequestError
        A field is wrong; the error names it.
    """
    for name in ("previous_response_id", "conversation"):
        if getattr(body, name) is not None:
            raise RequestError(
                f"{name} is not supported: this server keeps no responses; send the whole input", param=name
            )
    if body.background:
        raise RequestError("background is not supported", param="background")
    given = [Item(type="message", role="user", content=body.input)] if isinstance(body.input, str) else body.input
    if not given:
        raise RequestError("input is empty", param="input")
    read_in = read_items(given)
    collector = _Tools()
    for i, tool in enumerate(body.tools or []):
        collector.add(tool, f"tools[{i}]")
    for place, found in read_in.tools:
        for j, raw in enumerate(found):
            collector.add(_convert(raw, f"{place}.tools[{j}]"), f"{place}.tools[{j}]", again=True)
    tools = fields.checked_tools(collector.tools)
    choice = fields.checked_choice(_choice(body.tool_choice, collector.kinds), tools)
    messages, places = read_in.messages, read_in.places
    if body.instructions:
        messages.insert(0, {"role": "system", "content": body.instructions})
        places.insert(0, "instructions")
    check_results(messages, places)
    ordered, continues = in_order(messages, param="input")
    reasoning = body.reasoning or Reasoning()
    mode, effort = fields.thinking(body, settings, info, effort=reasoning.effort, effort_name="reasoning.effort")
    if continues:
        mode, effort = "chat", None
    summary = reasoning.summary or reasoning.generate_summary
    if summary is not None and summary not in (*SUMMARIES, "none"):
        raise RequestError(
            f"reasoning.summary is {summary!r}; known: {', '.join(SUMMARIES)}", param="reasoning.summary"
        )
    request = Request(
        dialect="responses",
        model=body.model or info.id,
        messages=ordered,
        tools=() if choice == "none" else tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        mode=mode,
        effort=effort,
        sampling=fields.sampling(body, settings.sampling),
        max_tokens=body.max_output_tokens or body.max_tokens,
        logprobs=_logprobs(body),
        response_format=_format(body.text),
        steering=body.steering,
        id=request_id,
    )
    return Call(
        request=request,
        stream=bool(body.stream),
        ignored=(*fields.unused(body), *collector.left_out),
        show_reasoning=summary in SUMMARIES,
        carry_reasoning="reasoning.encrypted_content" in (body.include or []),
        tools=collector.kinds,
        echo=_echo(body, request, summary),
    )


def _logprobs(body: ResponsesBody) -> int | None:
    if body.top_logprobs is not None:
        return body.top_logprobs
    return 0 if "message.output_text.logprobs" in (body.include or []) else None


def _format(text: Text | None) -> ResponseFormat | None:
    given = text.format if text is not None else None
    if given is None:
        return None
    return fields.response_format(given.type, given.schema, given.name, given.strict, "text.format")


def _choice(given: str | dict[str, Any] | None, kinds: Mapping[str, ToolKind]) -> str | Named:
    if given is None:
        return "auto"
    if isinstance(given, str):
        return given
    name = given.get("name")
    if given.get("type") in ("function", "custom") and isinstance(name, str):
        known = [internal for internal, kind in kinds.items() if kind.name == name]
        return Named(known[0] if known else name)
    raise RequestError(
        'tool_choice must be auto, none, required or {"type": "function", "name": ...}', param="tool_choice"
    )


def _echo(body: ResponsesBody, request: Request, summary: str | None) -> dict[str, Any]:
    """Return the settings that a response repeats."""
    effort = body.reasoning.effort if body.reasoning is not None else body.reasoning_effort
    return {
        "instructions": body.instructions,
        "max_output_tokens": request.max_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": {"effort": effort, "summary": summary},
        "store": False,
        "temperature": request.sampling.temperature,
        "text": {"format": msgspec.to_builtins(_shown(body.text))},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": [msgspec.to_builtins(tool) for tool in body.tools or []],
        "top_p": request.sampling.top_p,
        "truncation": "disabled",
    }


def _shown(text: Text | None) -> dict[str, Any]:
    given = text.format if text is not None else None
    if given is None or given.type != "json_schema":
        return {"type": given.type if given is not None else "text"}
    return {"type": given.type, "name": given.name or "", "schema": given.schema, "strict": bool(given.strict)}


def _convert(raw: Any, where: str) -> Tool:
    try:
        return msgspec.convert(raw, Tool)
    except msgspec.ValidationError as error:
        raise RequestError(f"{where} is no tool: {error}", param=where) from None


class _Tools:
    """Tools in the chat form, and how calls of them are shown."""

    def __init__(self) -> None:
        self.tools: list[dict[str, Any]] = []
        self.kinds: dict[str, ToolKind] = {}
        self.left_out: list[str] = []

    def add(self, tool: Tool, where: str, *, namespace: str | None = None, again: bool = False) -> None:
        """Add a tool; one that a tool search found `again` is there already."""
        match tool.type:
            case "function":
                self._function(tool, "function", where, namespace, tool.parameters, again)
            case "custom":
                self._function(tool, "custom", where, namespace, _CUSTOM, again)
            case "tool_search" if tool.execution in (None, "client"):
                named = msgspec.structs.replace(tool, name="tool_search")
                self._function(named, "tool_search", where, None, tool.parameters or _SEARCH, again)
            case "local_shell":
                named = msgspec.structs.replace(tool, name="local_shell", description=_SHELL_TEXT)
                self._function(named, "local_shell", where, None, _SHELL, again)
            case "namespace" if tool.name:
                for i, raw in enumerate(tool.tools or []):
                    at = f"{where}.tools[{i}]"
                    self.add(_convert(raw, at), at, namespace=tool.name, again=again)
            case _:
                self.left_out.append(where)

    def _function(
        self,
        tool: Tool,
        kind: Literal["function", "custom", "tool_search", "local_shell"],
        where: str,
        namespace: str | None,
        parameters: dict[str, Any] | None,
        again: bool,
    ) -> None:
        if not tool.name:
            raise RequestError(f"{where}.name is missing", param=f"{where}.name")
        name = internal_name(tool.name, namespace)
        if again and name in self.kinds:
            return
        function: dict[str, Any] = {"name": name}
        if tool.description is not None:
            function["description"] = tool.description
        function["parameters"] = parameters or {"type": "object", "properties": {}}
        self.tools.append({"type": "function", "function": function})
        self.kinds[name] = ToolKind(kind, tool.name, namespace)


_CUSTOM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
_SEARCH = {
    "type": "object",
    "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
    "required": ["query"],
}
_SHELL_TEXT = "Runs a command on the user's machine and returns its output."
_SHELL = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}},
        "working_directory": {"type": "string"},
        "timeout_ms": {"type": "integer"},
    },
    "required": ["command"],
}
