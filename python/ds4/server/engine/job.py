"""A request at work: a prompt is computed in pieces, then token by token an answer is drawn."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from dataclasses import asdict
from time import perf_counter
from typing import Any

import numpy as np

from ...costs import CostModel
from ...errors import Cancelled, StateError
from ...experts import ExpertUse
from ...kvstore import Reason
from ...model_options import DEFAULT_CHUNK
from ...session import Session
from ...speculation import Draft, Speculator
from ...tokenizer import Tokenizer
from .. import contract
from .choice import Choice
from .pool import Placement, Slot, common_prefix
from .prompts import Prepared, Preparer
from .replay import key_of_tokens, stored_blocks, written_turn
from .statistics import Statistics
from .storage import Fetched, Storage
from .trace import Trace, difference

_QUANTUM = 256

log = logging.getLogger("ds4.server")

Sink = Callable[[list[contract.Event]], None]


class Job:
    """The work for one request. All methods belong to the worker, but `run_errand`.

    Parameters
    ----------
    prepared : Prepared
    preparer : Preparer
        Its memories learn what the model writes.
    statistics : Statistics
    emit : callable
        Takes events; called from the worker's thread.
    storage : Storage, optional
    trace : Trace, optional
    drafting : (Draft, CostModel), optional
        How tokens are guessed, and what that costs on this machine.

    Attributes
    ----------
    alone : bool
        No other job is at work: the time for guesses takes nothing from anybody.
    cancelled : bool
        Nobody wants the answer; the work ends at the next step.
    over : bool
    decoding : bool
        Whether the next step draws a token.
    errand : callable or None
        Something slow that is to be done, in another thread, before the next step.
    """

    def __init__(
        self,
        prepared: Prepared,
        preparer: Preparer,
        statistics: Statistics,
        emit: Sink,
        *,
        storage: Storage | None = None,
        trace: Trace | None = None,
        drafting: tuple[Draft, CostModel] | None = None,
    ) -> None:
        self.prepared = prepared
        self.tokens = prepared.tokens
        self.cancelled = False
        self.over = False
        self.decoding = False
        self.alone = False
        self.errand: Callable[[], None] | None = None
        self.slot: Slot | None = None
        self._placement: Placement | None = None
        self._source = self._why = ""
        self._preparer = preparer
        self._tokenizer: Tokenizer = preparer.tokenizer
        self._statistics = statistics
        self._emit = emit
        self._storage = storage
        self._trace = trace
        self._drafting = drafting
        self._speculator: Speculator | None = None
        self._fetched: Fetched | None = None
        self._saves: dict[int, Reason] = {}
        self._choice = Choice(prepared, 0, self._tokenizer)
        self._last: list[contract.Event] = []
        self._kept: int | None = None
        self._created = perf_counter()
        self._begun = 0.0
        self._first_token = 0.0
        self._prefill = self._decode = 0.0
        self._use: ExpertUse | None = None

    @property
    def _anchor(self) -> int:
        """Where the next prompt of this conversation, or this one again, can go on from.

        When the reasoning will not be shown again, the last token of this prompt, which opens it, will be another one.
        """
        n = len(self.tokens)
        return n if self.prepared.keeps_reasoning or n == 1 else n - 1

    def queued(self, position: int) -> None:
        """Tell how many requests are before this one."""
        self._emit([contract.Queued(position)])

    def place(self, placement: Placement) -> None:
        """Take a session to work in."""
        self._placement = placement
        self._source, self._why = placement.source, placement.why
        self.slot = placement.slot
        self._begun = perf_counter()
        self._statistics.add("queue_seconds_total", self._begun - self._created)
        if self._storage is not None:
            if self._leaves or len(self.tokens) - placement.kept >= self._storage.policy.min_tokens:
                self.errand = self._fetch
        elif placement.replaced is not None:
            placement.replaced.session.close()
        if self.errand is None:
            self._steer(placement.slot)

    def _steer(self, slot: Slot) -> None:
        if slot.steering != self.prepared.steering:
            slot.steer(self.prepared.steering)

    # Errands

    def run_errand(self) -> None:
        """Do what is to be done before the next step."""
        errand, self.errand = self.errand, None
        start = perf_counter()
        try:
            if errand is not None:
                errand()
        except Exception as error:
            log.exception("request %s failed", self.prepared.request.id)
            self.fail(f"{type(error).__name__}: {error}")
        if not self.decoding:
            self._prefill += perf_counter() - start

    @property
    def _leaves(self) -> bool:
        """Whether something that may be worth saving is lost by working in this session."""
        slot, placement = self.slot, self._placement
        if slot is None or placement is None:
            return False
        behind = placement.source == "rewind" and placement.kept < slot.turn - 1
        return placement.replaced is not None or behind or (placement.source == "cold" and bool(slot.tokens))

    def _fetch(self) -> None:
        """Save what is about to be lost, then load a stored state if it helps: found first, lest it make room."""
        slot, placement, storage = self.slot, self._placement, self._storage
        assert slot is not None and placement is not None and storage is not None
        if slot.steering != self.prepared.steering:
            if slot.tokens:
                storage.save(slot, "evict")
            self._steer(slot)
        found = storage.find(slot, self.tokens, self.prepared.key, placement.kept)
        if placement.replaced is not None:
            storage.save(placement.replaced, "evict")
            placement.replaced.session.close()
        elif self._leaves:
            storage.save(slot, "evict")
        if found is None or not storage.load(slot, found):
            return
        self._fetched = found
        self.tokens = found.tokens
        slot.saved = found.kept
        self._source = "store"
        self._why = f"store: a stored state holds the first {found.kept} tokens of the prompt"

    def _save(self, reason: Reason) -> None:
        assert self.slot is not None and self._storage is not None
        self._storage.save(self.slot, reason)

    # Steps

    def step(self, quantum: int | None) -> None:
        """Compute a piece of the prompt of at most `Settings.prefill_quantum` tokens, or one token of the answer."""
        start = perf_counter()
        decoding = self.decoding
        try:
            if self.over:
                return
            if self.cancelled:
                self._finish("cancelled")
            elif decoding:
                self._step_decode()
            else:
                self._step_prefill(quantum)
        except Cancelled:
            if self.slot is not None:
                self.slot.look()
            self._finish("cancelled")
        except Exception as error:  # the server lives on, whatever a request does to it
            if not self._recovered(error):
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

    def _recovered(self, error: Exception) -> bool:
        """After the first computation on a loaded state failed: put the state aside and begin without it."""
        if self._fetched is None or self.slot is None or isinstance(error, MemoryError):
            return False
        log.warning("a stored state was of no use, the prompt is computed: %s", error)
        self._fetched.hit.reject(f"the first computation on it failed: {error}")
        self._fetched.hit.release()
        self._fetched = None
        self._statistics.count("store_total", "damaged")
        self.slot.session.reset()
        self.slot.tokens = array("i")
        self.tokens = self.prepared.tokens
        self._kept = None
        self._source, self._why = "cold", "cold: a stored state was of no use"
        return True

    # The prompt

    def _step_prefill(self, quantum: int | None) -> None:
        slot = self.slot
        assert slot is not None
        quantum = quantum or _quantum(slot.session)
        n = len(self.tokens)
        pos = len(slot.tokens)
        if self._kept is None and slot.session.model.streams:
            self._use = slot.session.expert_use()
        if self._kept is None or pos > n or (self._choice.index and not self._resumed):
            pos = self._go_back(slot)
        target = min([pos + quantum, n, *(at for at in (self._anchor, *self._saves) if at > pos)])
        if target > pos:
            slot.session.eval(np.frombuffer(self.tokens, np.int32)[pos:target])
            slot.tokens.extend(self.tokens[pos:target])
        self._release_fetched()
        if target == self._anchor:
            _checkpoint(slot)
        if target in self._saves:
            reason = self._saves.pop(target)
            self.errand = lambda: self._save(reason)
        if self._choice.index == 0 and self._kept is not None and target > pos:
            self._emit([contract.Prefill(target - self._kept, n - self._kept)])
        if target == n:
            self._start(slot, n)

    _resumed = False

    def _go_back(self, slot: Slot) -> int:
        """Bring the session to the last position from which the prompt can go on."""
        at = slot.reachable(common_prefix(slot.tokens, self.tokens))
        if self._trace is not None and self._kept is None:
            self._trace.write(
                "place",
                self.prepared.request,
                source=self._source,
                why=self._why,
                kept=at,
                prompt_tokens=len(self.tokens),
                difference=difference(self._tokenizer, self.tokens, slot.tokens),
            )
        if at < len(slot.tokens):
            at = slot.session.rewind(at)
            del slot.tokens[at:]
        slot.saved = min(slot.saved, at)
        self._resumed = True
        if self._kept is None:
            self._kept = at
            slot.blocks = dict(self.prepared.blocks)
            if self._storage is not None:
                self._saves = dict(self._storage.stops(self.tokens, at))
        return at

    def _release_fetched(self) -> None:
        if self._fetched is not None:
            self._fetched.hit.release()
            self._fetched = None

    def _start(self, slot: Slot, n: int) -> None:
        """Go over to the answer."""
        slot.turn = n
        self.decoding = True
        if self._choice.index:
            return
        kept = self._kept or 0
        self._statistics.add("prompt_tokens_total", n)
        self._statistics.add("cached_tokens_total", kept)
        self._statistics.add("computed_tokens_total", n - kept)
        self._statistics.count("prefixes_total", self._source)
        self._emit([contract.Started(n, kept, self._why)])

    # The answer

    def _step_decode(self) -> None:
        slot, choice = self.slot, self._choice
        assert slot is not None
        if choice.n_drawn and len(slot.tokens) < len(self.tokens) + len(choice.drawn):
            self._append(slot, choice)
            slot.tokens.append(choice.last)
            self._save_continued(slot)
        events = choice.step(slot.session)
        if not self._first_token:
            self._first_token = perf_counter()
        if events:
            self._emit(events)
        if choice.finish is not None:
            self._learn(slot, choice)
            self._finish(choice.finish)

    def _append(self, slot: Slot, choice: Choice) -> None:
        """Compute the token drawn last, and guesses at those that follow it."""
        if self._drafting is None:
            slot.session.eval(choice.last)
            return
        if self._speculator is None:
            draft, costs = self._drafting
            self._speculator = Speculator(slot.session, draft, costs=costs)
        self._speculator.eval(choice.last, sampler=choice.sampler, guessing=self.alone)

    def _save_continued(self, slot: Slot) -> None:
        storage = self._storage
        n = len(slot.tokens)
        if storage is None or self._choice.in_calls or storage.policy.next_continued(n - 1) != n:
            return
        self.errand = lambda: self._save("continued")

    def _learn(self, slot: Slot, choice: Choice) -> None:
        """Remember the turn as the model wrote it."""
        prepared = self.prepared
        if choice.stop is not None:
            return  # what was drawn is more than what was said
        sampled = key_of_tokens(self._tokenizer, choice.drawn)
        if choice.finish == "tool_calls":
            calls = [(i, name, arguments) for i, name, arguments, _ in choice.calls]
            texts = "".join(choice.reasoning), "".join(choice.content)
            turn = written_turn(sampled, prepared.reasons, *texts, calls)
            if turn is not None:
                self._preparer.tool_memory.put(turn)
                slot.blocks.update(stored_blocks([turn]))
            self._preparer.remember_calls(prepared, sampled, choice.drawn, [call[0] for call in calls])
        self._preparer.remember_turn(prepared.key, sampled, choice.drawn)

    # The end

    def _finish(self, reason: contract.FinishReason, error: str | None = None) -> None:
        """End the choice; and all of them, unless it ended well."""
        if self.over:
            return
        self._release_fetched()
        if self._speculator is not None:
            self._speculator.settle()
        good = reason not in ("cancelled", "error")
        n = self.prepared.request.n
        events: list[contract.Event] = []
        for index in range(self._choice.index, self._choice.index + 1 if good else n):
            choice = self._choice if index == self._choice.index else None
            done = self._done(index, choice, reason, error)
            events.append(done)
            self._speculator = None
            self._count(done)
            if self._trace is not None:
                self._trace.write("done", self.prepared.request, **self._described(done, choice))
        if good and self._choice.index + 1 < n:
            self._choice = Choice(self.prepared, self._choice.index + 1, self._tokenizer)
            self.decoding = self._resumed = False
            self._decode = 0.0
        else:
            self.over = True
            self._last = events
            return
        self._emit(events)

    def announce(self) -> None:
        """Tell that the work is over. Comes last: whoever hears it may rely on its session being free."""
        events, self._last = self._last, []
        if events:
            self._emit(events)
            self._emit = _nobody  # what listens holds the job: without this nobody would be freed before the collector

    def _done(
        self, index: int, choice: Choice | None, reason: contract.FinishReason, error: str | None
    ) -> contract.Done:
        now = perf_counter()
        n, kept = len(self.tokens), self._kept or 0
        drawn, reasoning = (choice.n_drawn, choice.n_reasoning) if choice is not None else (0, 0)
        timings = contract.Timings(
            queue=(self._begun or now) - self._created,
            prefill=self._prefill,
            decode=self._decode,
            first_token=self._first_token - self._created if self._first_token else 0.0,
            total=now - self._created,
        )
        return contract.Done(
            finish=reason,
            stop=choice.stop if choice is not None else None,
            usage=contract.Usage(n, kept, n - kept, drawn, reasoning),
            timings=timings,
            notes=(*self.prepared.notes, *(choice.notes if choice is not None else ())),
            error=error,
            choice=index,
            drafts=self._drafts(),
            experts=self._experts(),
        )

    def _experts(self) -> ExpertUse | None:
        """Return what streamed experts cost since this was asked last."""
        if self.slot is None or self._use is None or self.slot.session.closed:
            return None
        before, self._use = self._use, self.slot.session.expert_use()
        return self._use.minus(before)

    def _drafts(self) -> contract.Drafts | None:
        if self._drafting is None:
            return None
        if self._speculator is None:
            return contract.Drafts()
        found = self._speculator.statistics
        return contract.Drafts(found.drafted, found.accepted, found.verifies)

    def _count(self, done: contract.Done) -> None:
        self._statistics.count("finished_total", done.finish)
        self._statistics.add("completion_tokens_total", done.usage.completion)
        self._statistics.add("reasoning_tokens_total", done.usage.reasoning)
        if done.drafts is not None:
            self._statistics.add("drafted_tokens_total", done.drafts.drafted)
            self._statistics.add("accepted_drafts_total", done.drafts.accepted)
        if done.choice == 0 or done.finish in ("cancelled", "error"):
            self._statistics.add("prefill_seconds_total", done.timings.prefill)
        self._statistics.add("decode_seconds_total", done.timings.decode)

    def _described(self, done: contract.Done, choice: Choice | None) -> dict[str, Any]:
        out = asdict(done)
        if choice is not None:
            out |= {
                "text": self._tokenizer.decode(choice.drawn),
                "reasoning": "".join(choice.reasoning),
                "content": "".join(choice.content),
                "calls": choice.calls,
            }
        return out


def _quantum(session: Session) -> int:
    """Return the tokens of a prompt that are computed before others have their turn, when nobody chose a number."""
    return session.chunk if session.model.streams and session.chunk > DEFAULT_CHUNK else _QUANTUM


def _nobody(events: list[contract.Event]) -> None:
    """Take events that nobody waits for."""


def _checkpoint(slot: Slot) -> None:
    """Make the present position one that the session can go back to, if there is room for that."""
    try:
        slot.session.checkpoint()
    except StateError as error:
        log.debug("no checkpoint: %s", error)
