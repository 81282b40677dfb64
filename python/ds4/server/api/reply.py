"""The answer of one request while it grows: what all dialects need of it."""

from __future__ import annotations

import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import msgspec

from ...experts import ExpertUse
from ..contract import (
    Candidate,
    Content,
    Done,
    Event,
    Reasoning,
    RequestError,
    Started,
    TokenLogprob,
    Tokens,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from .errors import Family, error_body, server_error
from .fields import Call

Objects = list[dict[str, Any]]

_CLOSERS = re.compile(r'(?:null|["{}\]\s])*')
LEAST_LOGPROB = -9999.0


@dataclass(slots=True)
class CallText:
    """Arguments of a call as they may be shown.

    A call that is cut off must not look whole to a client that would carry it out: what closes the JSON text is held
    back until the call has ended well.
    """

    index: int
    name: str
    id: str
    text: str = ""
    error: str | None = None
    over: bool = False
    _held: str = ""

    def feed(self, text: str) -> str:
        """Take a piece; return what may be shown now."""
        if _CLOSERS.fullmatch(text):
            self._held += text
            return ""
        return self._release(text)

    def end(self, event: ToolCallEnd) -> str:
        """Take the end; return the rest to show."""
        self.over, self.error = True, event.error
        return self._release("") if event.error is None else ""

    def _release(self, text: str) -> str:
        out, self._held = self._held + text, ""
        self.text += out
        return out


@dataclass(slots=True)
class Choice:
    """One choice as far as it is known."""

    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    calls: list[CallText] = field(default_factory=list)
    pending: list[TokenLogprob] = field(default_factory=list)
    tokens: list[TokenLogprob] = field(default_factory=list)
    done: Done | None = None


class Reply(ABC):
    """Turns the events of a generation into the objects of one dialect.

    Feeding all events gives the objects of a stream; afterwards `whole` gives the answer as one object. Both come from
    the same state, so joined pieces equal the whole.

    Parameters
    ----------
    call : Call
    prompt_tokens : int
        Tokens of the prompt.
    """

    family: Family = "openai"
    PING = b": keepalive\n\n"

    def __init__(self, call: Call, prompt_tokens: int) -> None:
        self.call = call
        self.request = call.request
        self.hex = call.request.id.removeprefix("req_")
        self.created = int(time.time())
        self.prompt_tokens = prompt_tokens
        self.started: Started | None = None
        self.choices = [Choice() for _ in range(call.request.n)]

    @property
    def over(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.done is not None for choice in self.choices)

    @property
    def failure(self) -> RequestError | None:
        """What a client must be told instead of an answer, if anything."""
        for choice in self.choices:
            done = choice.done
            if done is not None and done.finish == "error":
                return server_error(done.error or "the model failed to answer")
            if done is not None and done.finish == "cancelled":
                return server_error("the answer was stopped because the server shuts down", status=503)
        return None

    def feed(self, event: Event) -> Objects:
        """Take an event; return the objects of the stream that it causes."""
        if isinstance(event, Started):
            self.started = event
            return []
        choice = self.choices[event.choice]
        match event:
            case Tokens(tokens):
                choice.pending.extend(tokens)
            case Reasoning(text) if text:
                choice.reasoning.append(text)
                return self.reasoning(event.choice, text, self._taken(choice, "reasoning"))
            case Content(text) if text:
                choice.content.append(text)
                return self.content(event.choice, text, self._taken(choice, "content"))
            case ToolCallStart(index, name, id):
                made = CallText(index, name, id)
                choice.calls.append(made)
                return self.call_start(event.choice, made)
            case ToolCallArguments(_, text):
                made = choice.calls[-1]
                shown = made.feed(text)
                return self.call_arguments(event.choice, made, shown) if shown else []
            case ToolCallEnd():
                made = choice.calls[-1]
                rest = made.end(event)
                objects = self.call_arguments(event.choice, made, rest) if rest else []
                return objects + self.call_end(event.choice, made)
            case Done():
                choice.done = event
                choice.pending.clear()
                if self.failure is None:
                    objects = self.done(event.choice, event)
                    return objects + self.end() if self.over else objects
        return []

    def _taken(self, choice: Choice, part: str) -> list[TokenLogprob]:
        """Move the pending tokens to those of the answer; return those of a part."""
        taken = [token for token in choice.pending if token.part == part]
        choice.tokens.extend(taken)
        choice.pending.clear()
        return taken

    # What a dialect makes of it

    def begin(self) -> Objects:
        """Return the first objects of a stream."""
        return []

    @abstractmethod
    def reasoning(self, choice: int, text: str, tokens: Sequence[TokenLogprob]) -> Objects:
        """Return the objects of a piece of reasoning."""

    @abstractmethod
    def content(self, choice: int, text: str, tokens: Sequence[TokenLogprob]) -> Objects:
        """Return the objects of a piece of the visible answer."""

    @abstractmethod
    def call_start(self, choice: int, made: CallText) -> Objects:
        """Return the objects of a call that has named its tool."""

    @abstractmethod
    def call_arguments(self, choice: int, made: CallText, text: str) -> Objects:
        """Return the objects of a piece of arguments, which is in `made.text` already."""

    def call_end(self, choice: int, made: CallText) -> Objects:
        """Return the objects of a call that is over."""
        return []

    @abstractmethod
    def done(self, choice: int, event: Done) -> Objects:
        """Return the objects of a choice that is over."""

    def end(self) -> Objects:
        """Return the last objects of a stream."""
        return []

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """Return the answer as one object; valid once `over`."""

    def failed(self, error: RequestError) -> bytes:
        """Return what a stream says of an error instead of an end."""
        return b"event: error\ndata: " + error_body(self.family, error, self.request.id) + b"\n\n"

    def encode(self, item: dict[str, Any]) -> bytes:
        """Return an object as one event of a stream."""
        return b"data: " + msgspec.json.encode(item) + b"\n\n"

    def tail(self) -> bytes:
        """Return what follows the last object of a stream that ended well."""
        return b""

    # Numbers

    def usage(self) -> Usage:
        """Add the choices up; the prompt counts once."""
        done = [choice.done.usage for choice in self.choices if choice.done is not None]
        first = done[0] if done else Usage(prompt=self.prompt_tokens)
        return Usage(
            prompt=first.prompt,
            cached=first.cached,
            computed=first.computed,
            completion=sum(u.completion for u in done),
            reasoning=sum(u.reasoning for u in done),
        )

    def insight(self) -> dict[str, Any]:
        """Return what this server tells beyond the dialect: reuse of the prompt, times in ms, speeds in tokens/s."""
        usage = self.usage()
        times = [choice.done.timings for choice in self.choices if choice.done is not None]
        first = times[0]
        decode = sum(t.decode for t in times)
        experts = [c.done.experts for c in self.choices if c.done is not None and c.done.experts is not None]
        notes = [note for choice in self.choices if choice.done is not None for note in choice.done.notes]
        return {
            "request_id": self.request.id,
            "cached_tokens": usage.cached,
            "computed_tokens": usage.computed,
            "cache": self.started.why if self.started is not None else None,
            "queue_ms": round(first.queue * 1e3, 3),
            "prefill_ms": round(first.prefill * 1e3, 3),
            "decode_ms": round(decode * 1e3, 3),
            "first_token_ms": round(first.first_token * 1e3, 3),
            "total_ms": round(max(t.total for t in times) * 1e3, 3),
            "prefill_tps": round(usage.computed / first.prefill, 3) if first.prefill > 0 else None,
            "decode_tps": round(usage.completion / decode, 3) if decode > 0 else None,
            "notes": notes,
            **({"experts": reduce(ExpertUse.plus, experts).as_json()} if experts else {}),
        }


def openai_usage(usage: Usage) -> dict[str, Any]:
    """Return usage as chat and completions show it."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.computed},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def token_logprob(token: TokenLogprob) -> dict[str, Any]:
    """Return the log-probability of a token as chat and Responses show it."""
    return {**_candidate(token), "top_logprobs": [_candidate(other) for other in token.top]}


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can express."""
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB


def _candidate(token: TokenLogprob | Candidate) -> dict[str, Any]:
    return {"token": token.text, "logprob": finite(token.logprob), "bytes": list(token.bytes)}
