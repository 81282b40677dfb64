"""Asking the cases, one after the other."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, Protocol

from ds4.chat.protocol import END_THINK
from ds4.sampling import Sampler
from ds4.session import Session

from .closing import Closed
from .control import Control, Jumped, Stopped
from .outcome import Outcome, State, judged
from .plan import EvalSettings, Task


class Listener(Protocol):
    """Receives what happens, on the thread of the run. Cases are named by their index among the tasks."""

    def state(self, index: int, state: State) -> None:
        """Learn the state that a case is in now."""

    def progress(self, index: int, done: int, total: int) -> None:
        """Take the state of the prefill, in tokens."""

    def text(self, index: int, text: str, *, reasoning: bool, n_generated: int) -> None:
        """Take a piece of text, which may be empty, and the number of tokens so far."""

    def done(self, index: int, outcome: Outcome) -> None:
        """Take the outcome of a case that passed, failed or was stopped."""


class Runner:
    """Asks cases in a session.

    Parameters
    ----------
    session : Session
        Its context holds every task (see `plan.check_room`).
    tasks : sequence of Task
    settings : EvalSettings
        Those the tasks were made with.
    listener : Listener
    control : Control, optional
        Steers the run.
    pause_s : float
        Rest after each case.
    known : mapping of int to Outcome
        Outcomes of an earlier run by the index of the task: these are not asked again.
    """

    def __init__(
        self,
        session: Session,
        tasks: Sequence[Task],
        settings: EvalSettings,
        listener: Listener,
        *,
        control: Control | None = None,
        pause_s: float = 0.0,
        known: Mapping[int, Outcome] | None = None,
    ) -> None:
        self._session = session
        self._tasks = tasks
        self._settings = settings
        self._listener = listener
        self._control = control or Control()
        self._pause_s = pause_s
        self._outcomes: dict[int, Outcome] = dict(known or {})
        tokenizer = session.model.tokenizer
        self._tokenizer = tokenizer
        self._close = tokenizer.special(END_THINK)
        self.seconds = 0.0

    def run(self) -> list[Outcome]:
        """Ask all cases.

        Returns
        -------
        list of Outcome
            In the order of the tasks. After `Control.stop` the case at hand is "stopped" and the rest is "skipped".

        Raises
        ------
        DS4Error
            As `Session.sync` and `Session.eval`.
        """
        clock = _Clock(self._control)
        wanted: int | None = None
        index: int | None = None
        try:
            while True:
                wanted = wanted if wanted is not None else self._control.take_wanted()
                index = wanted if wanted is not None else self._next()
                wanted = None
                if index is None:
                    break
                self._outcomes.pop(index, None)
                try:
                    self._outcomes[index] = self._ask(index)
                except Jumped as jump:
                    self._listener.state(index, "pending")
                    wanted = jump.index
                    continue
                self._listener.done(index, self._outcomes[index])
                if self._pause_s:
                    index = None
                    self._control.rest(self._pause_s)
        except Stopped:
            if index is not None:
                self._listener.done(index, self._outcomes[index])
        self.seconds = clock.seconds()
        return self.outcomes()

    def outcomes(self) -> list[Outcome]:
        """Return what is known of every case; cases that were never asked are "skipped"."""
        return [self._outcomes.get(i) or _never_asked(task) for i, task in enumerate(self._tasks)]

    def _next(self) -> int | None:
        return next((i for i in range(len(self._tasks)) if i not in self._outcomes), None)

    def _ask(self, index: int) -> Outcome:
        task = self._tasks[index]
        answer = _Answer(task, len(task.prompt))
        try:
            self._prefill(index, task, answer)
            self._generate(index, task, answer)
        except (Stopped, KeyboardInterrupt):
            self._outcomes[index] = self._outcome(task, answer, stopped=True)
            raise
        outcome = self._outcome(task, answer, stopped=False)
        self._listener.state(index, outcome.state)
        return outcome

    def _prefill(self, index: int, task: Task, answer: _Answer) -> None:
        def progress(done: int, total: int) -> None:
            self._control.check()
            self._listener.progress(index, done, total)

        self._control.check()
        self._listener.state(index, "prefill")
        clock = _Clock(self._control)
        try:
            self._session.sync(task.prompt, progress=progress)
        finally:
            answer.prefill_s = clock.seconds()

    def _generate(self, index: int, task: Task, answer: _Answer) -> None:
        settings = self._settings
        sampler = Sampler(settings.temperature, settings.top_k, settings.top_p, settings.min_p, task.seed)
        decoder = self._tokenizer.stream_decoder()
        reasoning = task.thinking
        self._listener.state(index, "thinking" if reasoning else "answer")
        clock = _Clock(self._control)
        try:
            for n in range(task.max_tokens):
                self._control.check()
                logits = self._session.logits_view()
                token, _ = sampler.sample(logits)
                if reasoning:
                    closed = task.closing.decide(logits, token, self._close, n)
                    if closed is not None:
                        token, answer.closed = self._close, closed
                if token == self._tokenizer.eos_id:
                    answer.finish = "stop"
                    break
                answer.tokens.append(token)
                if reasoning and answer.closed is not None:
                    self._listener.text(index, decoder.flush(), reasoning=True, n_generated=n + 1)
                    self._listener.state(index, "answer")
                    reasoning = False
                else:
                    self._listener.text(index, decoder.feed(token), reasoning=reasoning, n_generated=n + 1)
                if n + 1 < task.max_tokens:
                    self._session.eval(token)
            else:
                answer.finish = "length"
            self._listener.text(index, decoder.flush(), reasoning=reasoning, n_generated=len(answer.tokens))
        finally:
            answer.decode_s = clock.seconds()

    def _outcome(self, task: Task, answer: _Answer, *, stopped: bool) -> Outcome:
        tokens, decode = answer.tokens, self._tokenizer.decode_bytes
        begin: int | None = None if task.thinking else 0
        if self._close in tokens:  # a model that was not to reason may do so all the same
            begin = len(decode(tokens[: tokens.index(self._close) + 1]))
        outcome = Outcome(
            task.case, task.number, "stopped", None, answer.n_prompt, len(tokens), None if stopped else answer.finish,
            answer.closed, task.thinking, decode(tokens), begin, tuple(tokens), task.prompt, task.system,
            task.question, task.seed, answer.prefill_s, answer.decode_s,
        )  # fmt: skip
        return outcome if stopped else regraded(outcome)


def regraded(outcome: Outcome) -> Outcome:
    """Return an outcome with the verdict of the graders as they are now; one that was stopped stays so."""
    if outcome.state not in ("passed", "failed") and outcome.finish is None:
        return outcome
    state, given = judged(outcome.case, outcome.answer)
    return replace(outcome, state=state, given=given)


def _never_asked(task: Task) -> Outcome:
    return Outcome(
        task.case, task.number, n_prompt=len(task.prompt), thinking=task.thinking, prompt=task.prompt,
        system=task.system, question=task.question, seed=task.seed,
    )  # fmt: skip


class _Answer:
    """What is known of an answer while it is made."""

    def __init__(self, task: Task, n_prompt: int) -> None:
        self.n_prompt = n_prompt
        self.tokens: list[int] = []
        self.closed: Closed | None = None
        self.finish: Literal["stop", "length"] | None = None
        self.prefill_s = self.decode_s = 0.0


class _Clock:
    """Seconds since it was made, pauses left out."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._begin, self._paused = time.monotonic(), control.paused_s

    def seconds(self) -> float:
        return time.monotonic() - self._begin - (self._control.paused_s - self._paused)
