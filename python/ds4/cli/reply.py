"""One reply of the model: prefill, generation, and the parts of the text as they arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ds4 import Cancelled, Draft, DraftStatistics, ExpertUse, Sampler, Session
from ds4.chat import CompletionParser, Content, Event, Reasoning

from .pace import Pace

_REASONS = {
    "length": "; stopped by the token limit (-n)",
    "context": "; stopped because the context is full (-c)",
    "interrupted": "; interrupted",
}


class Listener(Protocol):
    """Receives the parts of a reply while it is made."""

    def progress(self, done: int, total: int) -> None:
        """Take the state of the prefill, in tokens."""

    def prefilled(self) -> None:
        """Learn that the prefill is over."""

    def written(self, n_tokens: int, used: int) -> None:
        """Learn how many tokens the reply has by now, and how many positions of the context are in use."""

    def reasoning(self, text: str) -> None:
        """Take a piece of the reasoning."""

    def content(self, text: str) -> None:
        """Take a piece of the answer."""


@dataclass(slots=True)
class Reply:
    """What came of one request.

    Attributes
    ----------
    n_prompt, n_kept, n_computed : int
        Tokens of the prompt, how many of them the session held already, and how many were computed.
    reasoning, content : str
        The two parts of the text.
    tokens : list of int
        The tokens drawn, without the end token.
    finish : str
        "stop", "length", "context", or "interrupted".
    prefill_s, decode_s : float
        Seconds of both phases.
    drafts : DraftStatistics or None
        What guessing tokens brought, if tokens were guessed.
    experts : ExpertUse or None
        What streamed experts cost, if they are streamed.
    """

    n_prompt: int
    n_kept: int = 0
    n_computed: int = 0
    reasoning: str = ""
    content: str = ""
    tokens: list[int] = field(default_factory=list)
    finish: str = "interrupted"
    prefill_s: float = 0.0
    decode_s: float = 0.0
    drafts: DraftStatistics | None = None
    experts: ExpertUse | None = None

    @property
    def prefill_tps(self) -> float:
        """Tokens per second of the prefill; 0 when there was nothing to compute."""
        return _rate(self.n_computed, self.prefill_s)

    @property
    def decode_tps(self) -> float:
        """Tokens per second of the generation."""
        return _rate(len(self.tokens), self.decode_s)

    def summary(self) -> str:
        """Return the line about speeds that ends a reply."""
        kept = f" ({self.n_kept} reused)" if self.n_kept else ""
        some = "" if self.n_kept + self.n_computed == self.n_prompt else f"{self.n_computed} of "
        return (
            f"prefill {some}{self.n_prompt} tokens{kept}, {self.prefill_tps:.2f} t/s; "
            f"generation {len(self.tokens)} tokens, {self.decode_tps:.2f} t/s"
            + (f" ({self.drafts.describe()})" if self.drafts is not None else "")
            + (f"; {self.experts.describe()}" if self.experts is not None else "")
            + _REASONS.get(self.finish, "")
        )

    def as_json(self) -> dict[str, Any]:
        """Return the reply as an object for machines."""
        return {
            "reasoning": self.reasoning,
            "content": self.content,
            "tool_calls": [],  # this program declares no tools
            "finish_reason": self.finish,
            "prompt_tokens": self.n_prompt,
            "reused_tokens": self.n_kept,
            "completion_tokens": len(self.tokens),
            "prefill_seconds": round(self.prefill_s, 6),
            "decode_seconds": round(self.decode_s, 6),
            "prefill_tps": round(self.prefill_tps, 3),
            "decode_tps": round(self.decode_tps, 3),
            **({} if self.drafts is None else {"drafts": self.drafts.as_json()}),
            **({} if self.experts is None else {"experts": self.experts.as_json()}),
        }


def make_reply(
    session: Session,
    prompt: Sequence[int],
    listener: Listener,
    *,
    thinking: bool,
    sampler: Sampler,
    max_tokens: int,
    draft: Draft | None = None,
    pace: Pace | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Reply:
    """Bring the session to a prompt and let the model write.

    Ctrl-C and `stop` end the work between two tokens or inside the prefill; the reply then has `finish` "interrupted"
    and what was written so far.

    Parameters
    ----------
    thinking : bool
        Whether the prompt has opened the reasoning, so that the text up to its end mark is reasoning.
    draft : Draft, optional
        How to guess tokens; the session was made for it.
    pace : Pace, optional
        How to rest between pieces of the work; without it there is no rest.
    stop : callable
        Asked often; ends the work when it returns true.

    Raises
    ------
    DS4Error
        As `Session.sync` and `Session.generate`.
    """
    reply = Reply(len(prompt))
    parser = CompletionParser("thinking" if thinking else "chat")
    pace = pace or Pace()
    before = session.expert_use() if session.model.streams else None
    try:
        with _timer(reply, "prefill_s"):
            _prefill(session, prompt, reply, listener, pace, stop)
        listener.prefilled()
        pace.begin()
        with _timer(reply, "decode_s"):
            for step in session.generate(max_tokens=max_tokens, sampler=sampler, draft=draft):
                if step.finish != "stop":
                    reply.tokens.append(step.token)
                _pass_on(reply, listener, parser.feed(step.text))
                listener.written(len(reply.tokens), reply.n_prompt + len(reply.tokens))
                reply.finish = step.finish or reply.finish
                if step.finish is None:
                    pace.rest(stop)
                    if stop():
                        raise KeyboardInterrupt
    except (KeyboardInterrupt, Cancelled):
        reply.finish = "interrupted"
        listener.prefilled()
        if not reply.n_computed and session.pos < reply.n_prompt:
            reply.n_computed = session.pos
        if draft is None and session.pos > len(prompt):  # a token may have been computed and not been counted
            reply.tokens = session.tokens[len(prompt) :]
    if draft is not None:
        reply.drafts = session.draft_statistics
    if before is not None:
        reply.experts = session.expert_use().minus(before)
    _pass_on(reply, listener, parser.finish(reply.finish))
    return reply


def _prefill(
    session: Session, prompt: Sequence[int], reply: Reply, listener: Listener, pace: Pace, stop: Callable[[], bool]
) -> None:
    """Bring the session to the prompt."""
    rested = False

    def progress(done: int, total: int) -> None:
        nonlocal rested
        rested = done >= total
        listener.progress(done, total)
        pace.rest(stop)
        if stop():
            raise KeyboardInterrupt

    pace.begin()
    reply.n_kept = session.sync(list(prompt), progress=progress)
    reply.n_computed = reply.n_prompt - reply.n_kept
    if reply.n_computed and not rested:
        pace.rest(stop)
    if stop():
        raise KeyboardInterrupt


def _pass_on(reply: Reply, listener: Listener, events: Iterable[Event]) -> None:
    """Give parsed pieces to the reply and the listener. Without declared tools there are two kinds."""
    for event in events:
        if isinstance(event, Reasoning):
            reply.reasoning += event.text
            listener.reasoning(event.text)
        elif isinstance(event, Content):
            reply.content += event.text
            listener.content(event.text)


@contextmanager
def _timer(reply: Reply, name: str) -> Iterator[None]:
    begin = time.monotonic()
    try:
        yield
    finally:
        setattr(reply, name, time.monotonic() - begin)


def _rate(n: int, seconds: float) -> float:
    return n / seconds if n > 0 and seconds > 0 else 0.0
