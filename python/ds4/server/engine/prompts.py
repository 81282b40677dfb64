"""From a request to the tokens of its prompt, with every check that can be made before there is work to do."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...chat import EFFORT_MAX_CONTEXT, Prompt, render, with_system_role
from ...chat.messages import check_tools
from ...sampling import Sampler
from ...tokenizer import Tokenizer
from ..contract import JsonObject, Named, Request, RequestError
from .replay import TextCache, ToolMemory, TurnMemory
from .settings import Settings

MAX_LOGPROBS = 20
MAX_STOPS = 64
MAX_CHOICES = 128

_PARAM = re.compile(r"((?:messages|tools|response_format|effort|mode)(?:\[\d+\]|\.\w+)*)")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can be worked on.

    Parameters
    ----------
    request : Request
    prompt : Prompt
    tokens : array of int
        Tokens of the prompt.
    key : bytes
        See `ds4.chat.Prompt.key`.
    tools : tuple of mappings
        Tools shown to the model.
    keeps_reasoning : bool
        Whether the next prompt of this conversation still shows the reasoning of this turn.
    max_tokens : int
        Tokens that may be drawn.
    n_unknown : int
        Turns with calls of which the exact text is not known.
    notes : tuple of str
    """

    request: Request
    prompt: Prompt
    tokens: array[int]
    key: bytes
    tools: tuple[Mapping[str, Any], ...]
    keeps_reasoning: bool
    max_tokens: int
    n_unknown: int = 0
    notes: tuple[str, ...] = ()


class Preparer:
    """Renders and tokenizes requests; may be used from several threads.

    Parameters
    ----------
    tokenizer : Tokenizer
    settings : Settings
    """

    def __init__(self, tokenizer: Tokenizer, settings: Settings) -> None:
        self.tokenizer = tokenizer
        self.tool_memory = ToolMemory(settings.tool_memory_ids, settings.tool_memory_bytes)
        self.turn_memory = TurnMemory(settings.turn_memory_bytes)
        self.texts = TextCache(tokenizer, settings.text_cache_bytes)
        self._settings = settings

    def prepare(self, request: Request) -> Prepared:
        """Check a request and make its prompt.

        Raises
        ------
        RequestError
            Something in the request cannot be done, or the prompt does not fit.
        """
        check_request(request)
        notes: list[str] = []
        if request.effort == "max" and self._settings.n_ctx < EFFORT_MAX_CONTEXT:
            notes.append(f"effort max is made for a context of {EFFORT_MAX_CONTEXT} tokens or more")
        tools = () if request.tool_choice == "none" else request.tools
        messages, blocks, n_unknown = self.tool_memory.restore(with_system_role(request.messages))
        prompt = _rendered(request, messages, tools, blocks)
        key = prompt.key()
        tokens = self.texts.encode_prompt(prompt, self.turn_memory.find(key))
        n, n_ctx = len(tokens), self._settings.n_ctx
        if n >= n_ctx:
            raise RequestError(
                f"the prompt has {n} tokens, but prompt and answer together have room for {n_ctx}",
                code="context_length_exceeded",
                param="messages",
                extra={"n_prompt_tokens": n, "n_ctx": n_ctx},
            )
        asked = self._settings.max_tokens if request.max_tokens is None else request.max_tokens
        return Prepared(
            request=request,
            prompt=prompt,
            tokens=tokens,
            key=key,
            tools=tuple(tools),
            keeps_reasoning=request.mode == "chat" or bool(tools) or any(m.get("tools") for m in messages),
            max_tokens=min(asked, self._settings.max_tokens, n_ctx - n),
            n_unknown=n_unknown,
            notes=tuple(notes),
        )

    def remember_turn(self, key: bytes, turn: bytes, tokens: array[int]) -> None:
        """Remember the tokens of a turn, if the tokenizer would choose others for its bytes.

        Parameters
        ----------
        key, turn : bytes
            Key bytes of the prompt, and of the turn without its end.
        tokens : array of int
        """
        tokenizer = self.tokenizer
        chosen: list[int] = []
        text: list[int] = []
        for token in tokens:
            if tokenizer.is_special(token):
                chosen += [*tokenizer.encode(tokenizer.decode(text)), token]
                text = []
            else:
                text.append(token)
        chosen += tokenizer.encode(tokenizer.decode(text))
        if chosen != list(tokens):
            self.turn_memory.put(key, turn, tokens)

    def count(self, request: Request) -> int:
        """Return the number of tokens of a request's prompt, whether it fits or not.

        Raises
        ------
        RequestError
            Something in the request cannot be rendered.
        """
        tools = () if request.tool_choice == "none" else request.tools
        messages, blocks, _ = self.tool_memory.restore(with_system_role(request.messages))
        prompt = _rendered(request, messages, tools, blocks)
        return len(self.texts.encode_prompt(prompt, self.turn_memory.find(prompt.key())))


def check_request(request: Request) -> None:
    """Check what does not depend on the prompt.

    Raises
    ------
    RequestError
        The text and `param` name the field.
    """
    try:
        sampler_of(request)
    except (ValueError, TypeError) as error:
        raise RequestError(str(error), param=str(error).split()[0]) from None
    if request.max_tokens is not None and request.max_tokens < 1:
        raise RequestError(f"max_tokens must be at least 1, not {request.max_tokens}", param="max_tokens")
    if not 1 <= request.n <= MAX_CHOICES:
        raise RequestError(f"n must be in 1..{MAX_CHOICES}, not {request.n}", param="n")
    if request.logprobs is not None and not 0 <= request.logprobs <= MAX_LOGPROBS:
        raise RequestError(f"logprobs must be in 0..{MAX_LOGPROBS}, not {request.logprobs}", param="logprobs")
    if len(request.stop) > MAX_STOPS:
        raise RequestError(f"stop has {len(request.stop)} strings; at most {MAX_STOPS} are taken", param="stop")
    for i, stop in enumerate(request.stop):
        if not stop:
            raise RequestError("a stop string cannot be empty", param=f"stop[{i}]")
    try:
        check_tools(request.tools)
    except ValueError as error:
        raise RequestError(str(error), param=_param(str(error))) from None
    _check_choice(request)
    if request.steering is not None:
        raise RequestError("this server has no steering", param="steering", code="unsupported")


def _check_choice(request: Request) -> None:
    choice = request.tool_choice
    names = [tool["function"]["name"] for tool in request.tools]
    if isinstance(choice, Named):
        if choice.name not in names:
            known = ", ".join(names) or "none"
            raise RequestError(
                f"tool_choice names the tool {choice.name!r}, which is not declared; declared: {known}",
                param="tool_choice",
            )
    elif choice not in ("auto", "none", "required"):
        raise RequestError(f"tool_choice must be auto, none, required or a tool, not {choice!r}", param="tool_choice")
    elif choice == "required" and not names:
        raise RequestError("tool_choice is 'required', but no tools are declared", param="tool_choice")


def sampler_of(request: Request, choice: int = 0) -> Sampler:
    """Return the sampler of one choice; choices of one request draw from different streams."""
    s = request.sampling
    seed = s.seed
    if seed is not None and choice:
        seed = (seed + choice * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    return Sampler(s.temperature, s.top_k, s.top_p, s.min_p, seed)


def _rendered(
    request: Request, messages: list[Mapping[str, Any]], tools: tuple[Mapping[str, Any], ...], blocks: dict[int, str]
) -> Prompt:
    wanted = request.response_format
    shape = None if wanted is None else {"type": "object"} if isinstance(wanted, JsonObject) else wanted.schema
    try:
        return render(
            messages,
            mode=request.mode,
            tools=tools,
            effort=request.effort,
            response_format=shape,
            blocks=blocks,
        )
    except (ValueError, TypeError) as error:
        raise RequestError(str(error), param=_param(str(error))) from None


def _param(text: str) -> str:
    found = _PARAM.search(text)
    return found[1] if found else "messages"
