"""Fields that the dialects share, and what they mean together.

Which of the switches of thinking wins is stated once, in `thinking`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from ds4.chat import EFFORT_MAX_CONTEXT, check_tools, mode_of_effort

from ..contract import JsonObject, JsonSchema, ModelInfo, Named, Request, RequestError, ResponseFormat, Sampling
from .settings import Settings

MAX_STOPS = 16
MAX_STOP = 256
MAX_TOP_K = 1024
MAX_SEED = (1 << 64) - 1

Temperature = Annotated[float, Meta(ge=0, le=100)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1)]
Choices = Annotated[int, Meta(ge=1, le=128)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class Thinking(msgspec.Struct, kw_only=True):
    """The object form of `thinking`: {"type": "enabled"}."""

    type: str | None = None


class TemplateKwargs(msgspec.Struct, kw_only=True):
    """Switches that some servers pass to their chat template."""

    thinking: bool | None = None
    enable_thinking: bool | None = None


class Common(msgspec.Struct, kw_only=True):
    """What every request may carry."""

    model: str | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: int | None = None
    min_p: Share | None = None
    seed: int | None = None
    thinking: bool | Thinking | None = None
    think: bool | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    reasoning_effort: str | None = None
    steering: dict[str, Any] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class ToolKind:
    """How a call of a tool is shown to the client.

    Parameters
    ----------
    kind : {"function", "custom", "tool_search", "local_shell"}
    name : str
        The tool's name as the client knows it.
    namespace : str or None
    """

    kind: Literal["function", "custom", "tool_search", "local_shell"]
    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A request as it was read: what the engine gets, and how the answer shall look.

    Parameters
    ----------
    request : Request
    stream : bool
    ignored : tuple of str
        Fields that were sent, are known, and have no effect here.
    include_usage : bool
        Chat and completions: whether a stream ends with a chunk of usage.
    show_reasoning : bool
        Whether the client wants to see the reasoning.
    carry_reasoning : bool
        Responses: whether the reasoning goes along in a form that only this server reads, for the client to send back.
    tools : mapping of str to ToolKind
        Responses: tools by the name that the model knows.
    echo : mapping
        Responses: fields that the answer repeats.
    """

    request: Request
    stream: bool = False
    ignored: tuple[str, ...] = ()
    include_usage: bool = False
    show_reasoning: bool = True
    carry_reasoning: bool = False
    tools: Mapping[str, ToolKind] = field(default_factory=dict)
    echo: Mapping[str, Any] = field(default_factory=dict)


def sampling(body: Common, defaults: Sampling) -> Sampling:
    """Return how to draw: what the request says, else the server's settings."""
    top_p = defaults.top_p if body.top_p is None else body.top_p
    top_k = defaults.top_k if body.top_k is None else min(max(body.top_k, 0), MAX_TOP_K)
    if top_p == 0.0:  # the smallest share that is not nothing: the best token
        top_p, top_k = 1.0, 1
    seed = defaults.seed
    if body.seed is not None:
        seed = None if body.seed < 0 else body.seed
        if seed is not None and seed > MAX_SEED:
            raise RequestError(f"seed: expected an integer of at most {MAX_SEED}", param="seed", code="invalid_value")
    return Sampling(
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=defaults.min_p if body.min_p is None else body.min_p,
        seed=seed,
    )


def thinking(
    body: Common,
    settings: Settings,
    info: ModelInfo,
    *,
    effort: str | None = None,
    effort_name: str = "reasoning_effort",
    default: tuple[str, str | None] | None = None,
) -> tuple[Literal["chat", "thinking"], Literal["max"] | None]:
    """Return mode and effort of a request.

    The first of these that the request carries decides: a switch (`thinking`, `think`, `enable_thinking`,
    `chat_template_kwargs.thinking`, `chat_template_kwargs.enable_thinking`, in this order); an effort; the model names
    `deepseek-chat` (off) and `deepseek-reasoner` (on); then `default`, else the server's settings. A switch that is on
    keeps "max" of an effort beside it. Effort "max" needs a context of `EFFORT_MAX_CONTEXT`, else it is plain thinking.
    """
    effort = effort if effort is not None else body.reasoning_effort
    mode: str
    level: str | None
    by_effort: tuple[str, str | None] | None = None
    if effort is not None:
        try:
            by_effort = mode_of_effort(effort)
        except ValueError as error:
            raise RequestError(f"{effort_name}: {error}", param=effort_name, code="invalid_value") from None
    switch = _switch(body)
    if switch is not None:
        mode, level = ("thinking", by_effort[1] if by_effort else None) if switch else ("chat", None)
    elif by_effort is not None:
        mode, level = by_effort
    elif body.model == "deepseek-chat":
        mode, level = "chat", None
    elif body.model == "deepseek-reasoner":
        mode, level = "thinking", None
    else:
        mode, level = default or (settings.mode, settings.effort)
    if level == "max" and info.n_ctx < EFFORT_MAX_CONTEXT:
        level = None
    return cast(Literal["chat", "thinking"], mode), cast(Literal["max"] | None, level)


def _switch(body: Common) -> bool | None:
    given = body.thinking
    if isinstance(given, Thinking):
        if given.type in ("enabled", "adaptive"):
            return True
        if given.type == "disabled":
            return False
        if given.type is not None:
            raise RequestError(
                f"thinking.type is {given.type!r}; known: enabled, adaptive, disabled",
                param="thinking.type",
                code="invalid_value",
            )
        given = None
    kwargs = body.chat_template_kwargs or TemplateKwargs()
    for value in (given, body.think, body.enable_thinking, kwargs.thinking, kwargs.enable_thinking):
        if value is not None:
            return value
    return None


def stops(given: str | list[str] | None, name: str) -> tuple[str, ...]:
    """Check stop strings."""
    texts = [given] if isinstance(given, str) else given or []
    if len(texts) > MAX_STOPS:
        raise RequestError(f"{name} has {len(texts)} strings; at most {MAX_STOPS} are allowed", param=name)
    for i, text in enumerate(texts):
        where = name if isinstance(given, str) else f"{name}[{i}]"
        if not text:
            raise RequestError(f"{where} is empty; an empty text would stop every answer at once", param=where)
        if len(text) > MAX_STOP:
            raise RequestError(f"{where} has {len(text)} characters; at most {MAX_STOP} are allowed", param=where)
    return tuple(dict.fromkeys(texts))


def response_format(
    kind: str | None, schema: Any, name: str | None, strict: bool | None, where: str
) -> ResponseFormat | None:
    """Return the wanted form of an answer; `schema` belongs to the kind "json_schema"."""
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return JsonObject()
    if kind != "json_schema":
        raise RequestError(f"{where}.type is {kind!r}; known: text, json_object, json_schema", param=f"{where}.type")
    if not isinstance(schema, Mapping):
        raise RequestError(f"{where} has no schema; a JSON schema is an object", param=where)
    return JsonSchema(schema=schema, name=name or "", strict=bool(strict))


def checked_tools(tools: Sequence[Mapping[str, Any]], where: str = "tools") -> tuple[Mapping[str, Any], ...]:
    """Check tools of the chat form and that no two have one name."""
    try:
        check_tools(tools, where)
    except ValueError as error:
        raise RequestError(str(error), param=where, code="invalid_value") from None
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        name = tool["function"]["name"]
        if name in seen:
            raise RequestError(f"{where}[{i}] has the name {name!r}, which another tool has already", param=where)
        seen.add(name)
    return tuple(tools)


def checked_choice(choice: str | Named, tools: Iterable[Mapping[str, Any]], where: str = "tool_choice") -> Any:
    """Check that a choice of tools can be met by the tools declared."""
    names = [tool["function"]["name"] for tool in tools]
    if isinstance(choice, Named):
        if choice.name not in names:
            raise RequestError(f"{where} names {choice.name!r}, which is not among the tools", param=where)
    elif choice not in ("auto", "none", "required"):
        raise RequestError(f"{where} is {choice!r}; known: auto, none, required, or one tool by name", param=where)
    elif choice == "required" and not names:
        raise RequestError(f"{where} is 'required', but no tools are declared", param=where)
    return choice


def unused(body: Common) -> list[str]:
    """Return the sampling fields that were sent with an effect in mind and have none here."""
    names = []
    if body.frequency_penalty:
        names.append("frequency_penalty")
    if body.presence_penalty:
        names.append("presence_penalty")
    if body.logit_bias:
        names.append("logit_bias")
    return names


def choices(given: int | None, settings: Settings) -> int:
    """Check the number of choices."""
    n = given or 1
    if n > settings.max_choices:
        raise RequestError(f"n is {n}; at most {settings.max_choices} choices can be asked for", param="n")
    return n
