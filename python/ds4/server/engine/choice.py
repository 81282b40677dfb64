"""One choice of an answer: tokens are drawn and become events."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ...chat import CompletionParser, Content, Event, Finish, Reasoning, ToolCallArguments, ToolCallEnd, ToolCallStart
from ...chat.protocol import ASSISTANT, BOS, DSML, END_THINK, USER
from ...sampling import Sampler, log_softmax
from ...session import Session
from ...stops import StopStrings
from ...tokenizer import Tokenizer
from .. import contract
from .limits import Limits
from .prompts import Prepared, declared_tools, sampler_of

_ID_PREFIX = {"messages": "toolu_"}


class Choice:
    """Draws the tokens of one choice.

    Behind the reasoning the text is held to the grammars of the request, if there are any. Structure of tool calls is
    drawn greedily and their strings as the request asks: syntax stays sound, and long texts do not run into loops.

    Parameters
    ----------
    prepared : Prepared
    index : int
        Number of the choice.
    tokenizer : Tokenizer

    Attributes
    ----------
    drawn : array of int
        Tokens drawn, without the one that ended the turn.
    n_drawn, n_reasoning : int
        Tokens drawn, with the one that ended the turn, and those of the reasoning.
    finish : str or None
        Set when the choice is over.
    stop : str or None
        The stop string that was met.
    reasoning, content : list of str
        Text, in pieces, before stop strings are looked for.
    calls : list of (id, name, arguments, error)
    """

    def __init__(self, prepared: Prepared, index: int, tokenizer: Tokenizer) -> None:
        request = prepared.request
        self.index = index
        self.drawn: array[int] = array("i")
        self.n_drawn = self.n_reasoning = 0
        self.finish: contract.FinishReason | None = None
        self.stop: str | None = None
        self.notes: list[str] = []
        self.reasoning: list[str] = []
        self.content: list[str] = []
        self.calls: list[tuple[str, str, str, str | None]] = []
        self._tokenizer = tokenizer
        self._max_tokens = prepared.max_tokens
        self._logprobs = request.logprobs
        self._sampler = sampler_of(request, index)
        self._greedy = Sampler.greedy()
        self._decoder = tokenizer.stream_decoder()
        # Calls that nobody asked for are still recognised, so that their markup is not shown as an answer.
        self._parser = CompletionParser("thinking" if prepared.reasons else "chat", declared_tools(request))
        self._no_calls = request.tool_choice == "none"
        self._stops = StopStrings(request.stop)
        self._id_prefix = _ID_PREFIX.get(request.dialect, "call_")
        self._ids: dict[int, str] = {}
        self._limits = Limits(tokenizer, prepared.grammars) if prepared.grammars else None
        self._one_call = not request.parallel_tool_calls
        self._end_think = tokenizer.special(END_THINK)
        # A model that begins somebody else's turn has ended its own.
        self._ends = frozenset([tokenizer.eos_id, *map(tokenizer.special, (BOS, USER, ASSISTANT))])

    def step(self, session: Session) -> list[contract.Event]:
        """Draw one token; the session stays where it is.

        Returns
        -------
        list of events
            What became certain. When `finish` is set afterwards, nothing more comes.
        """
        phase = self._parser.phase
        sampler = self.sampler
        logits = session.logits_view()
        limits = None if phase == "reasoning" else self._limits
        token, logprob = sampler.sample(logits if limits is None else limits.mask(logits))
        if limits is not None:
            limits.accept(token)
            logprob = self._raw_logprob(logits, token)
        elif self._limits is not None and token in self._ends:
            token = self._end_think  # the answer that was asked for is still to come
            logprob = self._raw_logprob(logits, token)
            self.notes.append("the model ended its turn inside the reasoning; the reasoning was closed")
        self.n_drawn += 1
        self.n_reasoning += phase == "reasoning"
        out: list[contract.Event] = []
        if self._logprobs is not None:
            out.append(contract.Tokens((self._described(session, token, logprob, phase),), self.index))
        if token in self._ends:
            if token != self._tokenizer.eos_id:
                self.notes.append(f"the model began another turn ({self._tokenizer.piece(token)})")
            self._end("stop", out)
            return out
        self.drawn.append(token)
        self._take(self._parser.feed(self._decoder.feed(token)), out)
        if self._one_call and self.finish is None and any(error is None for *_, error in self.calls):
            self._close_block(out)
        if self.finish is None and self._parser.should_stop:
            self._end("stop", out)
        elif self.finish is None and self.n_drawn >= self._max_tokens:
            self._end("length", out)
        return out

    @property
    def sampler(self) -> Sampler:
        """What draws the next token."""
        return self._greedy if self._parser.phase in ("structure", "json") else self._sampler

    @property
    def last(self) -> int:
        """The token drawn last."""
        return self.drawn[-1]

    @property
    def in_calls(self) -> bool:
        """Whether a block of calls is being written."""
        return self._parser.phase not in ("reasoning", "content")

    def _raw_logprob(self, logits: NDArray[np.float32], token: int) -> float:
        """Return the log-probability that the model itself gave a token, if somebody wants to know."""
        return float(log_softmax(logits)[token]) if self._logprobs is not None else 0.0

    def _close_block(self, out: list[contract.Event]) -> None:
        """Write the end of the block of calls for the model: one call was asked for, and it is there."""
        if self._parser.should_stop:
            return
        said = self._tokenizer.decode(self.drawn[-8:])
        closing = self._tokenizer.encode(
            f"{'' if said.endswith(chr(10)) else chr(10)}</{DSML}tool_calls>", specials=True
        )
        self.drawn.extend(closing)
        self._take(self._parser.feed(self._decoder.feed(*closing)), out)

    def _end(self, reason: contract.FinishReason, out: list[contract.Event]) -> None:
        rest = self._decoder.flush()
        if rest:
            self._take(self._parser.feed(rest), out)
        if self.finish is None:
            self._take(self._parser.finish(reason), out)

    def _take(self, events: Iterable[Event], out: list[contract.Event]) -> None:
        """Pass on events of the text, up to the first stop string."""
        for event in events:
            if self.finish is not None:
                return
            match event:
                case Reasoning(text):
                    self.reasoning.append(text)
                    out.append(contract.Reasoning(text, self.index))
                case Content(text):
                    self.content.append(text)
                    self._show(self._stops.feed(text), out)
                    if self._stops.matched is not None:
                        self.finish, self.stop = "stop", self._stops.matched
                case ToolCallStart() | ToolCallArguments() | ToolCallEnd() if self._no_calls:
                    note = "tool calls were dropped: tool_choice is none"
                    self.notes += [note] if note not in self.notes else []
                case ToolCallStart(i, name):
                    self._show(self._stops.flush(), out)
                    self._ids[i] = self._id_prefix + secrets.token_hex(16)
                    out.append(contract.ToolCallStart(i, name, self._ids[i], self.index))
                case ToolCallArguments(i, text):
                    out.append(contract.ToolCallArguments(i, text, self.index))
                case ToolCallEnd(i, name, arguments, _, error):
                    self.calls.append((self._ids[i], name, arguments, error))
                    out.append(contract.ToolCallEnd(i, name, self._ids[i], arguments, error, self.index))
                case Finish(reason, notes):
                    self._show(self._stops.flush(), out)
                    self.notes += notes
                    dropped = reason == "tool_calls" and self._no_calls
                    self.finish = "stop" if dropped else reason  # type: ignore[assignment]

    def _show(self, text: str, out: list[contract.Event]) -> None:
        if text:
            out.append(contract.Content(text, self.index))

    def _described(self, session: Session, token: int, logprob: float, phase: str) -> contract.TokenLogprob:
        k = self._logprobs or 0
        best = session.logprobs(k) if k else []
        top = tuple(contract.Candidate(c.token, self._tokenizer.token_bytes(c.token), c.logprob) for c in best)
        part = phase if phase in ("reasoning", "content") else "tool_calls"
        return contract.TokenLogprob(
            token,
            self._tokenizer.token_bytes(token),
            logprob,
            top,
            part,  # type: ignore[arg-type]
        )
