"""A request at work: a prompt is computed in pieces, then token by token an answer is drawn."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from time import perf_counter

import numpy as np

from ...errors import Cancelled
from ...tokenizer import Tokenizer
from .. import contract
from .choice import Choice
from .pool import Placement, Slot
from .prompts import Prepared, Preparer
from .replay import key_of_tokens, written_turn
from .statistics import Statistics

log = logging.getLogger("ds4.server")

Sink = Callable[[list[contract.Event]], None]


class Job:
    """The work for one request. All methods but `cancelled` belong to the worker.

    Parameters
    ----------
    prepared : Prepared
    preparer : Preparer
        Its memories learn what the model writes.
    statistics : Statistics
    emit : callable
        Takes events; called from the worker's thread.

    Attributes
    ----------
    cancelled : bool
        Nobody wants the answer; the work ends at the next step.
    over : bool
    decoding : bool
        Whether the next step draws a token.
    """

    def __init__(self, prepared: Prepared, preparer: Preparer, statistics: Statistics, emit: Sink) -> None:
        self.prepared = prepared
        self.cancelled = False
        self.over = False
        self.decoding = False
        self.slot: Slot | None = None
        self._placement: Placement | None = None
        self._preparer = preparer
        self._tokenizer: Tokenizer = preparer.tokenizer
        self._statistics = statistics
        self._emit = emit
        self._choice = Choice(prepared, 0, self._tokenizer)
        self._pending: int | None = None  # drawn, not yet in the session
        self._created = perf_counter()
        self._begun = 0.0
        self._first_token = 0.0
        self._prefill = self._decode = 0.0
        self._notes = list(prepared.notes)
        n = len(prepared.tokens)
        # Where the next prompt of this conversation, or the same one again, can go on from. When the reasoning will not
        # be shown again, the prompt's last token, which opens it, will be another one.
        self._anchor = n if prepared.keeps_reasoning else n - 1

    @property
    def tokens(self) -> array[int]:
        """Tokens of the prompt."""
        return self.prepared.tokens

    def queued(self, position: int) -> None:
        """Tell how many requests are before this one."""
        self._emit([contract.Queued(position)])

    def place(self, placement: Placement) -> None:
        """Take a session to work in."""
        self._placement = placement
        self.slot = placement.slot
        self._begun = perf_counter()
        self._statistics.add("queue_seconds_total", self._begun - self._created)
        self._statistics.count("prefixes_total", placement.source)

    def step(self, quantum: int) -> None:
        """Compute one piece of the prompt of at most `quantum` tokens, or one token of the answer."""
        start = perf_counter()
        decoding = self.decoding
        try:
            if self.cancelled:
                self._finish("cancelled")
            elif decoding:
                self._step_decode()
            else:
                self._step_prefill(quantum)
        except Cancelled:
            assert self.slot is not None
            self.slot.look()
            self._finish("cancelled")
        except Exception as error:  # the server lives on, whatever a request does to it
            log.exception("request %s failed", self.prepared.request.id)
            self.fail(f"{type(error).__name__}: {error}")
        finally:
            spent = perf_counter() - start
            if decoding:
                self._decode += spent
            else:
                self._prefill += spent

    def fail(self, why: str) -> None:
        """End all choices with an error. What the session holds is not known any more: `Slot.broken`."""
        if self.slot is not None:
            self.slot.broken = True
        self._finish("error", why)

    # The prompt

    def _step_prefill(self, quantum: int) -> None:
        slot, placement = self.slot, self._placement
        assert slot is not None and placement is not None
        n = len(self.tokens)
        pos = len(slot.tokens)
        if pos > n or slot.tokens != self.tokens[:pos]:
            pos = slot.reachable(placement.kept)
        target = min(pos + quantum, n)
        if pos < self._anchor < target:
            target = self._anchor
        kept = slot.session.sync(np.frombuffer(self.tokens, np.int32, target))
        slot.tokens = self.tokens[:target]
        if self._choice.index == 0 and self._computed is None:
            self._computed = (kept, n - kept)
        if target == self._anchor:
            slot.session.checkpoint()
        if target < n:
            if self._choice.index == 0:
                first, total = self._computed or (0, n)
                self._emit([contract.Prefill(target - first, total)])
            return
        slot.turn = n
        self.decoding = True
        if self._choice.index == 0:
            cached = n - (self._computed or (0, n))[1]
            self._statistics.add("prompt_tokens_total", n)
            self._statistics.add("cached_tokens_total", cached)
            self._statistics.add("computed_tokens_total", n - cached)
            self._emit([contract.Prefill(n - cached, n - cached), contract.Started(n, cached, placement.why)])
        self._step_decode()

    _computed: tuple[int, int] | None = None

    # The answer

    def _step_decode(self) -> None:
        slot, choice = self.slot, self._choice
        assert slot is not None
        events = choice.step(slot.session)
        if not self._first_token:
            self._first_token = perf_counter()
        if events:
            self._emit(events)
        if choice.finish is not None:
            self._learn(choice)
            self._finish(choice.finish)
            return
        slot.session.eval(choice.last)
        slot.tokens.append(choice.last)

    def _learn(self, choice: Choice) -> None:
        """Remember the turn as the model wrote it."""
        prepared = self.prepared
        if choice.stop is not None or choice.finish not in ("stop", "tool_calls"):
            return
        sampled = key_of_tokens(self._tokenizer, choice.drawn)
        thinking = prepared.request.mode == "thinking"
        calls = [(i, name, arguments) for i, name, arguments, _ in choice.calls]
        if calls:
            turn = written_turn(sampled, thinking, "".join(choice.reasoning), "".join(choice.content), calls)
            if turn is not None:
                self._preparer.tool_memory.put(turn)
        self._preparer.remember_turn(prepared.key, sampled, choice.drawn)

    # The end

    def _finish(self, reason: contract.FinishReason, error: str | None = None) -> None:
        """End the choice; and all of them, unless it ended well."""
        request = self.prepared.request
        good = reason not in ("cancelled", "error")
        last = request.n if not good else self._choice.index + 1
        events: list[contract.Event] = []
        for index in range(self._choice.index, last):
            choice = self._choice if index == self._choice.index else None
            events.append(self._done(index, choice, reason, error))
            self._statistics.count("finished_total", reason)
        if good and last < request.n:
            self._choice = Choice(self.prepared, last, self._tokenizer)
            self.decoding = False
        else:
            self.over = True
        self._emit(events)

    def _done(
        self, index: int, choice: Choice | None, reason: contract.FinishReason, error: str | None
    ) -> contract.Done:
        now = perf_counter()
        n = len(self.tokens)
        computed = self._computed[1] if self._computed else 0
        usage = contract.Usage(n, n - computed if self._computed else 0, computed)
        notes = list(self._notes)
        if choice is not None:
            usage = contract.Usage(usage.prompt, usage.cached, computed, choice.n_drawn, choice.n_reasoning)
            notes += choice.notes
            self._statistics.add("completion_tokens_total", choice.n_drawn)
            self._statistics.add("reasoning_tokens_total", choice.n_reasoning)
        begun = self._begun or now
        timings = contract.Timings(
            queue=begun - self._created,
            prefill=self._prefill,
            decode=self._decode,
            first_token=self._first_token - self._created if self._first_token else 0.0,
            total=now - self._created,
        )
        stop = choice.stop if choice is not None else None
        return contract.Done(reason, stop, usage, timings, tuple(notes), error, index)
