"""A stand-in of `ds4.Model` and `ds4.Session` that says what a script tells it to.

Only the arithmetic is replaced: the tokenizer is that of the embedded model, and prompts, sessions, sampling, parsing
and everything behind them are the real ones. The logits of a position are a function of the tokens before it, as those
of a model are: the script gets the text of the prompt, up to the mark that opens the reply, and returns the reply. So
going back, forking and interleaving change nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import ds4
import numpy as np
from ds4.chat.protocol import ASSISTANT, EOS

Script = Callable[[str], str]

SURE = 40.0
"""Logit of the scripted token; all others have 0, so that even temperature 1 follows the script."""


def turns(*replies: str) -> Script:
    """A script that gives these replies one after the other: the one for a prompt is found by counting its turns."""

    def script(prompt: str) -> str:
        n = prompt.count(ASSISTANT) - 1
        if n >= len(replies):
            raise AssertionError(f"the script has {len(replies)} replies, but the prompt asks for number {n + 1}")
        return replies[n]

    return script


class ScriptedSession:
    """The part of `ds4.Session` that the server uses."""

    def __init__(self, model: ScriptedModel, n_ctx: int) -> None:
        self.model = model
        self.n_ctx = n_ctx
        self.n_vocab = model.tokenizer.n_vocab
        self.n_bytes = 1000
        self.closed = False
        self.n_computed = 0
        self._tokens: list[int] = []
        self._checkpoints: list[int] = []
        self._cancel = threading.Event()
        self._busy = threading.Lock()
        self.n_steps_back = 0  # as if after a load; a test may set it

    @property
    def tokens(self) -> list[int]:
        return list(self._tokens)

    @property
    def pos(self) -> int:
        return len(self._tokens)

    @property
    def checkpoints(self) -> list[int]:
        return list(self._checkpoints)

    def checkpoint(self) -> None:
        if self.pos not in self._checkpoints:
            self._checkpoints.append(self.pos)

    @property
    def steps_back(self) -> int:
        return self.n_steps_back

    def rewind(self, pos: int) -> int:
        at = self.pos if pos >= self.pos else max((c for c in self._checkpoints if c <= pos), default=0)
        if pos and self.pos - self.steps_back <= pos < self.pos:
            at = pos
        del self._tokens[at:]
        self._checkpoints = [c for c in self._checkpoints if c <= at]
        return at

    def sync(self, tokens: Sequence[int], *, progress: object = None) -> int:
        tokens = [int(t) for t in tokens]
        assert 0 < len(tokens) <= self.n_ctx
        common = 0
        while common < min(self.pos, len(tokens)) and self._tokens[common] == tokens[common]:
            common += 1
        kept = self.rewind(common)
        self._compute(tokens[kept:])
        return kept

    def eval(self, tokens: int | Sequence[int], *, progress: object = None) -> None:
        self._compute(np.atleast_1d(np.asarray(tokens)).tolist())

    def _compute(self, tokens: list[int]) -> None:
        assert not self.closed
        with self._busy:
            self._cancel.clear()
            self.model.calls.append((id(self), len(tokens)))
            while not self.model.gate.wait(0.002):
                if self._cancel.is_set():
                    raise ds4.Cancelled("cancelled")
            pause = self.model.seconds_a_token * len(tokens)
            if pause and self._cancel.wait(pause):
                raise ds4.Cancelled("cancelled")
            self._tokens += tokens
            self.n_computed += len(tokens)

    def fork(self) -> ScriptedSession:
        other = ScriptedSession(self.model, self.n_ctx)
        other._tokens, other._checkpoints = self.tokens, self.checkpoints
        return other

    def reset(self) -> None:
        self._tokens, self._checkpoints = [], []

    def cancel(self) -> None:
        self._cancel.set()

    def close(self) -> None:
        self.closed = True

    def logits(self) -> np.ndarray:
        out = np.zeros(self.n_vocab, dtype=np.float32)
        token = self.model.next_token(self._tokens)
        out[token] = self.model.sure(self.model.tokenizer.decode([token]))
        return out

    logits_view = logits

    def logprobs(self, top_k: int = 20) -> list[ds4.TokenLogprob]:
        logits = self.logits()
        logprobs = ds4.sampling.log_softmax(logits)
        best = np.argsort(-logits, kind="stable")[:top_k]
        return [ds4.TokenLogprob(int(i), float(logits[i]), float(logprobs[i])) for i in best]


class ScriptedModel:
    """The part of `ds4.Model` that the server uses.

    Parameters
    ----------
    script : callable
        Prompt text -> reply text. Contents of special tokens in the reply become special tokens.
    seconds_a_token : float
        How long computing takes.

    Attributes
    ----------
    gate : threading.Event
        Nothing is computed while it is cleared.
    sure : callable
        Text of the scripted token -> its logit, `SURE` by default.
    calls : list of (session, number of tokens)
        Every computation, in order.
    prompts : list of str
        Every prompt that was asked for a reply, once.
    """

    def __init__(self, script: Script, *, seconds_a_token: float = 0.0) -> None:
        with ds4.Model.open_embedded() as model:
            self.tokenizer = model.tokenizer
            self.shape = model.shape
            self.fingerprint = model.fingerprint
        self.streams = False
        self.script = script
        self.sure: Callable[[str], float] = lambda token: SURE
        self.seconds_a_token = seconds_a_token
        self.gate = threading.Event()
        self.gate.set()
        self.calls: list[tuple[int, int]] = []
        self.prompts: list[str] = []
        self._replies: dict[tuple[int, ...], list[int]] = {}
        self._assistant = self.tokenizer.special(ASSISTANT)

    def session(self, *, n_ctx: int = 32_768, **options: Any) -> ScriptedSession:
        return ScriptedSession(self, n_ctx)

    def memory_plan(self, n_ctx: int, **options: Any) -> ds4.MemoryPlan:
        return ds4.MemoryPlan(0, 0, 0, 0, 0, 0, 1000)

    def next_token(self, tokens: list[int]) -> int:
        """The token that the script says next."""
        opened = len(tokens) - 1 - tokens[::-1].index(self._assistant)
        prompt, said = tuple(tokens[: opened + 2]), len(tokens) - opened - 2
        if said < 0:  # at the assistant's mark, before that of the reasoning
            return self.tokenizer.eos_id
        reply = self._replies.get(prompt)
        if reply is None:
            text = self.tokenizer.decode(prompt)
            self.prompts.append(text)
            reply = self.tokenizer.encode(self.script(text), specials=True)
            self._replies[prompt] = reply
        return reply[said] if said < len(reply) else self.tokenizer.special(EOS)


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something that another thread does; an error if it takes too long."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not happen in time")
        time.sleep(0.002)
