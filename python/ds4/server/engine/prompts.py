"""From a request to the tokens of its prompt, with every check that can be made before there is work to do."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...chat import EFFORT_MAX_CONTEXT, Prompt, Special, render, with_system_role
from ...chat.messages import check_tools
from ...chat.protocol import BOS, END_THINK, EOS, THINK
from ...grammar import Grammar
from ...sampling import Sampler
from ...steering import Steering
from ...tokenizer import Tokenizer
from ..contract import JsonObject, Named, Request, RequestError
from .bounded import BoundedDict
from .limits import Limits, grammars_of
from .replay import (
    TextCache,
    ToolMemory,
    TurnMemory,
    WrittenTurn,
    before_of,
    call_ids,
    restore,
    stored_blocks,
    turn_of_blocks,
)
from .settings import Settings

FindBlocks = Callable[[Sequence[str]], Mapping[str, str]]

MAX_LOGPROBS = 20
MAX_STOPS = 64
MAX_CHOICES = 128

_CONTINUED = ("responses", "messages")  # dialects in which a request may send results without the calls

_PARAM = re.compile(r"((?:messages|tools|response_format|effort|mode)(?:\[\d+\]|\.\w+)*)")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can be worked on.

    Parameters
    ----------
    request : Request
    text : str
        The prompt as one text, for people.
    tokens : array of int
        Tokens of the prompt.
    key : bytes
        See `ds4.chat.Prompt.key`.
    tools : tuple of mappings
        Tools shown to the model.
    reasons : bool
        Whether the answer begins inside the reasoning. It does not when it continues an assistant's message.
    keeps_reasoning : bool
        Whether the next prompt of this conversation still shows the reasoning of this turn.
    max_tokens : int
        Tokens that may be drawn.
    grammars : tuple of Grammar
        What the answer is held to behind its reasoning: one of these, or nothing.
    n_replayed, n_unknown : int
        Turns with calls of which the exact text is known, and is not.
    blocks : mapping of str to str
        Of the former: what the store keeps of them, see `stored_blocks`.
    notes : tuple of str
    steering : tuple of Steering
        What the prompt and the answer are steered with.
    """

    request: Request
    text: str
    tokens: array[int]
    key: bytes
    tools: tuple[Mapping[str, Any], ...]
    reasons: bool
    keeps_reasoning: bool
    max_tokens: int
    grammars: tuple[Grammar, ...] = ()
    n_replayed: int = 0
    n_unknown: int = 0
    blocks: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    steering: tuple[Steering, ...] = ()


@dataclass(frozen=True, slots=True)
class _Rendered:
    text: str
    key: bytes
    tokens: array[int]
    tools: tuple[Mapping[str, Any], ...]
    reasons: bool
    shows_tools: bool
    n_replayed: int
    n_unknown: int
    blocks: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _OpenTurn:
    """A conversation that waits for the results of calls."""

    tokens: array[int]
    key: bytes
    calls: tuple[str, ...]


class Preparer:
    """Renders and tokenizes requests; may be used from several threads.

    Parameters
    ----------
    tokenizer : Tokenizer
    settings : Settings
    find_blocks : callable, optional
        Call ids -> what the store keeps of their turns, of as many as it has.
    """

    def __init__(self, tokenizer: Tokenizer, settings: Settings, find_blocks: FindBlocks | None = None) -> None:
        self.tokenizer = tokenizer
        self.tool_memory = ToolMemory(settings.tool_memory_ids, settings.tool_memory_bytes)
        self.turn_memory = TurnMemory(settings.turn_memory_bytes)
        self.texts = TextCache(tokenizer, settings.text_cache_bytes)
        self._open_turns: BoundedDict[str, _OpenTurn] = BoundedDict(settings.turn_memory_bytes)
        self._longest = 1 + max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.n_vocab))
        self._settings = settings
        self._find_blocks = find_blocks

    def prepare(self, request: Request) -> Prepared:
        """Check a request and make its prompt.

        Raises
        ------
        RequestError
            Something in the request cannot be done, or the prompt does not fit.
        """
        check_request(request)
        steering = steering_of(request, self._settings.steering)
        notes: list[str] = []
        if request.effort == "max" and self._settings.n_ctx < EFFORT_MAX_CONTEXT:
            notes.append(f"effort max is made for a context of {EFFORT_MAX_CONTEXT} tokens or more")
        n_ctx = self._settings.n_ctx
        rendered = self._render(request, most=n_ctx - 1)
        n = len(rendered.tokens)
        asked = self._settings.max_tokens if request.max_tokens is None else request.max_tokens
        grammars, remarks = grammars_of(request, rendered.tools)
        if grammars:
            try:
                Limits(self.tokenizer, grammars)  # what takes long the first time is done here
            except ValueError as error:
                raise RequestError(str(error), param="tools" if request.tools else "response_format") from None
        return Prepared(
            request=request,
            text=rendered.text,
            tokens=rendered.tokens,
            key=rendered.key,
            tools=rendered.tools,
            reasons=rendered.reasons,
            keeps_reasoning=not rendered.reasons or rendered.shows_tools,
            max_tokens=min(asked, self._settings.max_tokens, n_ctx - n),
            grammars=grammars,
            n_replayed=rendered.n_replayed,
            n_unknown=rendered.n_unknown,
            blocks=rendered.blocks,
            notes=(*notes, *remarks),
            steering=steering,
        )

    def count(self, request: Request) -> int:
        """Return the number of tokens of a request's prompt, whether it fits or not.

        Raises
        ------
        RequestError
            Something in the request cannot be rendered.
        """
        check_request(request)
        return len(self._render(request).tokens)

    def _render(self, request: Request, most: int | None = None) -> _Rendered:
        """Render and tokenize; a prompt of more than `most` tokens is refused."""
        messages: list[Mapping[str, Any]] = list(with_system_role(request.messages))
        shown = request.tool_choice != "none"
        if not shown:
            messages = [{k: v for k, v in message.items() if k != "tools"} for message in messages]
        tools = tuple(request.tools) if shown else ()
        before, messages = self._opened_before(request, messages)
        turns = self._known_turns(messages, tools)
        messages, blocks, n_unknown = restore(messages, turns)
        wanted = request.response_format
        shape = None if wanted is None else {"type": "object"} if isinstance(wanted, JsonObject) else wanted.schema
        try:
            prompt = render(
                messages,
                mode=request.mode,
                tools=tools if before is None else None,
                effort=request.effort if before is None else None,
                drop_thinking=before is None or not tools,
                response_format=shape if before is None else None,
                blocks=blocks,
            )
        except (ValueError, TypeError) as error:
            raise RequestError(str(error), param=_param(str(error))) from None
        key, text = prompt.key(), prompt.text
        if most is not None and len(key) > (most + 1) * self._longest:  # not worth the time of counting exactly
            raise _too_long(len(key) // self._longest, most + 1, "at least ")
        tokens = self.texts.encode_prompt(prompt, self.turn_memory.find(key))
        if before is not None:
            # What is rendered begins with the mark that begins a prompt; here it goes on from the end of a turn.
            bos = Special(BOS)
            assert prompt.parts[0] == bos
            tokens = before.tokens + array("i", [self.tokenizer.eos_id]) + tokens[1:]
            key = before.key + Prompt((Special(EOS),)).key() + key[len(Prompt((bos,)).key()) :]
            text = _text(before.key) + EOS + text[len(BOS) :]
        if most is not None and len(tokens) > most:
            raise _too_long(len(tokens), most + 1)
        kept = stored_blocks({turn for i, turn in turns.items() if i in blocks})
        shows_tools = bool(tools) or any(message.get("tools") for message in messages)
        declared = tuple(declared_tools(request)) if shown else ()
        marks = [p.text for p in prompt.parts if isinstance(p, Special) and p.text in (THINK, END_THINK)]
        reasons = marks[-1:] == [THINK]
        return _Rendered(text, key, tokens, declared, reasons, shows_tools, len(blocks), n_unknown, kept)

    def _known_turns(
        self, messages: list[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> dict[int, WrittenTurn]:
        """Return what is known of the turns with calls, by their place among the messages."""
        turns: dict[int, WrittenTurn] = {}
        missing: dict[int, list[str]] = {}
        for i, message in enumerate(messages):
            ids = call_ids(message)
            if ids:
                turn = self.tool_memory.get(ids[0])
                if turn is not None:
                    turns[i] = turn
                else:
                    missing[i] = ids
        if missing and self._find_blocks is not None:
            asked = [name for ids in missing.values() for call_id in ids for name in (call_id, before_of(call_id))]
            found = self._find_blocks(asked)
            for i, ids in missing.items():
                turn = turn_of_blocks(ids, found, tools)
                if turn is not None:
                    self.tool_memory.put(turn)
                    turns[i] = turn
        return turns

    def _opened_before(
        self, request: Request, messages: list[Mapping[str, Any]]
    ) -> tuple[_OpenTurn | None, list[Mapping[str, Any]]]:
        """Find the turn that leading tool results answer, when its calls are not shown.

        Returns
        -------
        turn : _OpenTurn or None
        messages : list of mappings
            Those that come after the turn; all of them without one.
        """
        start = next((i for i, m in enumerate(messages) if m.get("role") != "system"), len(messages))
        end = next((i for i in range(start, len(messages)) if messages[i].get("role") != "tool"), len(messages))
        if start == end or request.dialect not in _CONTINUED:
            return None, messages
        results = messages[start:end]
        ids = [str(result.get("tool_call_id")) for result in results]
        turn = self._open_turns.get(ids[0])
        unknown = [i for i in ids if turn is None or i not in turn.calls]
        if turn is None or unknown:
            raise RequestError(
                f"there is no call {unknown[0]!r}: neither does the request show it, nor is it remembered",
                param="messages",
                code="unknown_call_id",
            )
        missing = [call for call in turn.calls if call not in ids]
        if missing:
            raise RequestError(
                f"the result of the call {missing[0]!r} is missing", param="messages", code="missing_tool_result"
            )
        results.sort(key=lambda result: turn.calls.index(str(result["tool_call_id"])))
        return turn, results + messages[end:]

    def remember_calls(self, prepared: Prepared, turn: bytes, tokens: array[int], calls: Sequence[str]) -> None:
        """Remember a conversation by the calls that it waits for.

        Parameters
        ----------
        prepared : Prepared
        turn : bytes
            Key bytes of the turn without its end.
        tokens : array of int
            What was drawn.
        calls : sequence of str
            Ids.
        """
        if prepared.request.dialect in _CONTINUED:
            opened = _OpenTurn(prepared.tokens + tokens, prepared.key + turn, tuple(calls))
            for call in calls:
                weight = (200 + 4 * len(opened.tokens) + len(opened.key)) // len(calls)
                self._open_turns.put(call, opened, weight)

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
    if not all(isinstance(message, Mapping) for message in request.messages):
        raise RequestError("every message must be an object", param="messages")
    try:
        check_tools(request.tools)
        for i, message in enumerate(request.messages):
            check_tools(message.get("tools"), f"messages[{i}].tools")
    except ValueError as error:
        raise RequestError(str(error), param=_param(str(error))) from None
    _check_choice(request)


def steering_of(request: Request, steering: tuple[Steering, ...]) -> tuple[Steering, ...]:
    """Return what a request is steered with: what the server has, times the factor of the request; of 0 nothing.

    Raises
    ------
    RequestError
        The server has no steering, or the field is not {"scale": number}, or the scale is too large.
    """
    asked = request.steering
    if asked is None:
        return steering
    if not steering:
        raise RequestError("this server has no steering", param="steering", code="unsupported")
    unknown = sorted(str(name) for name in set(asked) - {"scale"})
    if unknown:
        raise RequestError(f"steering has no field {unknown[0]!r}; it has scale", param=f"steering.{unknown[0]}")
    scale = asked.get("scale", 1.0)
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise RequestError(f"steering.scale must be a number, not {scale!r}", param="steering.scale")
    try:
        return tuple(one.times(scale) for one in steering) if scale else ()
    except (ValueError, OverflowError) as error:
        raise RequestError(f"steering.scale cannot be that: {error}", param="steering.scale") from None


def declared_tools(request: Request) -> list[Mapping[str, Any]]:
    """Return the tools of a request, also those that stand on its messages."""
    return [*request.tools, *(tool for message in request.messages for tool in message.get("tools") or ())]


def _check_choice(request: Request) -> None:
    choice = request.tool_choice
    names = [tool["function"]["name"] for tool in declared_tools(request)]
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


def _too_long(n: int, n_ctx: int, how: str = "") -> RequestError:
    return RequestError(
        f"the prompt has {how}{n} tokens, but prompt and answer together have room for {n_ctx}",
        code="context_length_exceeded",
        param="messages",
        extra={"n_prompt_tokens": n, "n_ctx": n_ctx},
    )


def _param(text: str) -> str:
    found = _PARAM.search(text)
    return found[1] if found else "messages"


def _text(key: bytes) -> str:
    return key.replace(b"\xff", b"").decode("utf-8", "replace")
