"""Speeds at context frontiers: one sequence of tokens, measured piece by piece while the context grows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ds4 import Session, StateError
from ds4.progress import Progress

from .machine import clock_mhz, temperature
from .workload import MAX_CONTEXT

_WARM_DECODE = 4  # tokens decoded in the warm-up


@dataclass(frozen=True, slots=True)
class Run:
    """One timed pass at a frontier.

    Attributes
    ----------
    prefill_seconds : float
        Of the tokens since the frontier before.
    gen_seconds : tuple of float
        Of each decoded token: choosing it and computing it.
    prefill_cpus, gen_cpus : float
        Processors that were at work on average. Much less than the threads in prefill means that other programs were
        using them.
    """

    prefill_seconds: float
    gen_seconds: tuple[float, ...]
    prefill_cpus: float
    gen_cpus: float


@dataclass(frozen=True, slots=True)
class Frontier:
    """What was measured at one length of the context; rates are medians of the runs.

    Attributes
    ----------
    ctx_tokens : int
        Tokens in the context when the decode began.
    prefill_tokens : int
        Of them, those computed since the frontier before: their time is what was taken.
    gen_tokens : int
        Tokens decoded in every run.
    kvcache_bytes : int
        Size of the snapshot at the frontier.
    runs : tuple of Run
    mhz, celsius : float or None
        Clock of the processors and the highest temperature after the last run, where the machine tells.
    """

    ctx_tokens: int
    prefill_tokens: int
    gen_tokens: int
    kvcache_bytes: int
    runs: tuple[Run, ...]
    mhz: float | None = None
    celsius: float | None = None

    @property
    def prefill_rates(self) -> tuple[float, ...]:
        """Tokens a second of the prefill, run by run."""
        return tuple(self.prefill_tokens / r.prefill_seconds for r in self.runs)

    @property
    def gen_rates(self) -> tuple[float, ...]:
        """Tokens a second of the decode, run by run; 0 without one."""
        return tuple(self.gen_tokens / sum(r.gen_seconds) if r.gen_seconds else 0.0 for r in self.runs)

    @property
    def first_ms(self) -> float:
        """Milliseconds of the first decoded token; 0 without one."""
        return 1e3 * statistics.median(r.gen_seconds[0] if r.gen_seconds else 0.0 for r in self.runs)

    @property
    def steady_tokens(self) -> int:
        """Decoded tokens behind the first."""
        return max(self.gen_tokens - 1, 0)

    @property
    def steady_tps(self) -> float:
        """Tokens a second behind the first; 0 without any."""
        if not self.steady_tokens:
            return 0.0
        return statistics.median(self.steady_tokens / sum(r.gen_seconds[1:]) for r in self.runs)


def frontiers(start: int, stop: int, *, step_incr: int = 2048, step_mul: float = 1.0) -> list[int]:
    """Return the lengths at which a sweep stops, the last one always `stop`.

    Parameters
    ----------
    start, stop : int
        The first and the last; 1 <= start <= stop.
    step_incr : int
        Distance of two, when `step_mul` is 1.
    step_mul : float
        Factor between two when above 1; each is at least one token behind the one before.

    Raises
    ------
    ValueError
        A value is out of its range.
    """
    if not 1 <= start <= stop <= MAX_CONTEXT:
        raise ValueError(f"a sweep goes from 1 or more to at most {MAX_CONTEXT} tokens, not from {start} to {stop}")
    if step_incr < 1:
        raise ValueError(f"the step must be 1 token or more, not {step_incr}")
    if not 1.0 <= step_mul <= MAX_CONTEXT:
        raise ValueError(f"the factor of a step must be 1 or more, not {step_mul}")
    found, at = [], start
    while at < stop:
        found.append(at)
        at = at + step_incr if step_mul == 1.0 else max(at + 1, int(at * step_mul))
    return [*found, stop]


def warm_up(session: Session, tokens: Sequence[int] | NDArray[np.int32]) -> int:
    """Compute one chunk of the tokens and decode a few, so that weights and memory are at hand; then forget them.

    Returns
    -------
    int
        Tokens that were computed.
    """
    n = min(len(tokens), session.chunk, session.n_ctx)
    session.reset()
    session.sync(tokens[:n])
    steps = min(_WARM_DECODE, session.n_ctx - n)
    for _ in range(steps):
        session.eval(best_token(session, excluded=-1))
    session.reset()
    return n + steps


def run_sweep(
    session: Session,
    tokens: Sequence[int] | NDArray[np.int32],
    stops: Sequence[int],
    *,
    gen_tokens: int = 128,
    repeats: int = 1,
    eos: int = -1,
    progress: Progress | None = None,
    at_frontier: Callable[[Session, int, int], object] | None = None,
) -> Iterator[Frontier]:
    """Measure prefill and decode at every frontier; what the session held is lost.

    At each: the tokens since the one before are computed (timed), a snapshot is taken, `gen_tokens` tokens are decoded
    greedily (timed), and the snapshot is restored. A repetition begins with the snapshot of the frontier before, so it
    computes the same.

    Parameters
    ----------
    session : Session
        Holds more positions than the last frontier and `gen_tokens` together.
    tokens : sequence of int
        As many as the last frontier, or more.
    stops : sequence of int
        Rising, from `frontiers`.
    gen_tokens : int
        Tokens to decode; 0 measures the prefill alone.
    repeats : int
        Runs at every frontier, 1 or more.
    eos : int
        The token that the decode never takes, so that it does not end; -1 for none.
    progress : callable, optional
        Called with (tokens done, tokens in all, what is at hand).
    at_frontier : callable, optional
        Called once a frontier, untimed, with (session, tokens in it, tokens since the one before), before the decode.

    Yields
    ------
    Frontier
        As soon as it is measured.

    Raises
    ------
    ValueError
        A number does not fit; before anything runs.
    """
    if repeats < 1 or gen_tokens < 0:
        raise ValueError(f"repeats must be 1 or more and gen_tokens 0 or more, not {repeats} and {gen_tokens}")
    if not stops or list(stops) != sorted(set(stops)) or stops[0] < 1:
        raise ValueError("frontiers must rise from 1 or more")
    if len(tokens) < stops[-1]:
        raise ValueError(f"there are {len(tokens)} tokens, the last frontier needs {stops[-1]}")
    if session.n_ctx <= stops[-1] + gen_tokens:
        raise ValueError(
            f"the session has {session.n_ctx} positions, but the last frontier and the decode need more than "
            f"{stops[-1] + gen_tokens}"
        )
    return _sweep(session, tokens, stops, gen_tokens, repeats, eos, progress, at_frontier)


def best_token(session: Session, *, excluded: int) -> int:
    """Return the token with the highest logit, of equals the lowest id; never the excluded one.

    Raises
    ------
    StateError
        No logit is finite.
    """
    logits = session.logits_view()
    best = int(np.argmax(logits))
    if best == excluded or not np.isfinite(logits[best]):
        rest = np.where(np.isfinite(logits), logits, -np.inf)
        if 0 <= excluded < rest.size:
            rest[excluded] = -np.inf
        best = int(np.argmax(rest))
        if not np.isfinite(rest[best]):
            raise StateError("no logit is finite, so there is no best token")
    return best


class _Counter:
    """Tells how many tokens of the whole sweep are done, also in the middle of a call."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress, self._done, self._what = total, progress, 0, ""

    def name(self, what: str) -> None:
        self._what = what

    def __call__(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(self._done + done, self._total, self._what)

    def add(self, n: int) -> None:
        self._done += n
        self(0, 0)


def _sweep(
    session: Session, tokens: Sequence[int] | NDArray[np.int32], stops: Sequence[int], gen_tokens: int, repeats: int,
    eos: int, progress: Progress | None, at_frontier: Callable[[Session, int, int], object] | None,
) -> Iterator[Frontier]:  # fmt: skip
    counter = _Counter(repeats * (stops[-1] + len(stops) * gen_tokens), progress)
    session.reset()
    before, start = b"", 0
    for stop in stops:
        piece = tokens[start:stop]
        runs: list[Run] = []
        here = b""
        for number in range(repeats):
            if number:
                _go_back(session, before)
            counter.name(f"prefill to {stop}")
            begin, cpu = time.perf_counter(), time.process_time()
            session.eval(piece, progress=counter)
            seconds = time.perf_counter() - begin
            busy = (time.process_time() - cpu) / seconds
            counter.add(len(piece))
            if not number:
                if at_frontier is not None:
                    at_frontier(session, stop, len(piece))
                here = session.snapshot()
            counter.name(f"decode at {stop}")
            runs.append(Run(seconds, *_decode(session, gen_tokens, eos, counter, busy)))
        session.restore(here)
        yield Frontier(stop, len(piece), gen_tokens, len(here), tuple(runs), clock_mhz(), temperature())
        before, start = here if repeats > 1 else b"", stop


def _go_back(session: Session, snapshot: bytes) -> None:
    if snapshot:
        session.restore(snapshot)
    else:
        session.reset()


def _decode(
    session: Session, n: int, eos: int, counter: _Counter, prefill_cpus: float
) -> tuple[tuple[float, ...], float, float]:
    """Decode greedily; return the seconds of every token, and the processors at work in prefill and here."""
    seconds: list[float] = []
    first = time.process_time()
    for _ in range(n):
        begin = time.perf_counter()
        session.eval(best_token(session, excluded=eos))
        seconds.append(time.perf_counter() - begin)
        counter.add(1)
    busy = (time.process_time() - first) / sum(seconds) if seconds else 0.0
    return tuple(seconds), prefill_cpus, busy
