"""Running tests in a session and taking their times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4 import GGUFFile, Session
from ds4.profile import PhaseProfile
from ds4.progress import Progress

from .workload import Workload

_WARM_DECODE = 4  # tokens decoded before the first timed run
_TOUCH = 64 << 20  # bytes between two reports of progress


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one test gave.

    Attributes
    ----------
    workload : Workload
    seconds : tuple of float
        Of each repetition.
    cpu_seconds : tuple of float
        Processor time of each repetition, all threads together. Much less than `seconds` times the threads, in prefill,
        means that other programs were using the processors.
    profile : PhaseProfile or None
        Times of the parts in one more run, if asked for.
    """

    workload: Workload
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    profile: PhaseProfile | None = None

    @property
    def samples(self) -> tuple[float, ...]:
        """Tokens a second of each repetition."""
        return tuple(self.workload.n / s for s in self.seconds)

    @property
    def tps(self) -> float:
        """Tokens a second, the median of the repetitions."""
        return statistics.median(self.samples)

    @property
    def cpus(self) -> float:
        """Processors that were at work, the median of the repetitions."""
        return statistics.median(c / s for c, s in zip(self.cpu_seconds, self.seconds, strict=True))

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        w = self.workload
        facts: dict[str, Any] = {
            "test": w.name, "phase": "decode" if w.is_decode else "prefill", "n": w.n, "depth": w.depth,
            "tps": self.tps, "tps_min": min(self.samples), "tps_max": max(self.samples), "seconds": list(self.seconds),
            "cpu_seconds": list(self.cpu_seconds),
        }  # fmt: skip
        return facts if self.profile is None else {**facts, "profile": self.profile.as_json()}


def run_bench(
    session: Session,
    workloads: Sequence[Workload],
    *,
    reps: int = 3,
    seed: int = 1,
    profile: bool = False,
    progress: Progress | None = None,
    sample: Callable[[Workload, float, float], object] | None = None,
) -> Iterator[Measurement]:
    """Run tests one after the other, each from an empty (or filled) session; what the session held is lost.

    Before the timed runs of a test a shorter one warms caches and memory. Tokens are drawn uniformly from the
    vocabulary: random tokens choose experts more evenly than text does, so that the numbers tend to be low.

    Parameters
    ----------
    session : Session
        Holds at least `n_ctx` positions of every workload.
    workloads : sequence of Workload
        See `parse_workloads`.
    reps : int
        Timed runs of each test, 1 or more.
    seed : int
        Of the tokens and of filled contexts.
    profile : bool
        Run each test once more with `Session.profile`.
    progress : Progress, optional
        Called with (runs done, runs in all, name of the test).
    sample : callable, optional
        Called with (workload, seconds, processor seconds) after each timed run.

    Yields
    ------
    Measurement
        One a workload, in their order.

    Raises
    ------
    ValueError
        reps is less than 1, there is no workload, or one does not fit into the session; before anything runs.
    """
    if reps < 1:
        raise ValueError(f"reps must be 1 or more, not {reps}")
    if not workloads:
        raise ValueError("there are no tests to run")
    for w in workloads:
        if w.n_ctx > session.n_ctx:
            raise ValueError(f"{w.name} needs {w.n_ctx} positions, the session has {session.n_ctx}")
    return _runs(session, workloads, reps, seed, profile, progress, sample)


def touch_weights(file: GGUFFile, *, progress: Progress | None = None) -> int:
    """Read one byte of every page of the tensors, so that the system has the whole file in memory if it can.

    Parameters
    ----------
    file : GGUFFile
        A model file.
    progress : Progress, optional
        Called with (bytes done, bytes in all, name of the tensor).

    Returns
    -------
    int
        Bytes of the tensors.
    """
    tensors = list(file.tensors.values())
    total, done = sum(t.n_bytes for t in tensors), 0
    for tensor in tensors:
        data = np.frombuffer(tensor.data(), np.uint8)
        for first in range(0, data.size, _TOUCH):
            part = data[first : first + _TOUCH]
            part[::4096].max()
            done += part.size
            if progress is not None:
                progress(done, total, tensor.name)
    return total


def _runs(
    session: Session, workloads: Sequence[Workload], reps: int, seed: int, profile: bool, progress: Progress | None,
    sample: Callable[[Workload, float, float], object] | None,
) -> Iterator[Measurement]:  # fmt: skip
    total = len(workloads) * (1 + reps + profile)
    done = 0

    def tell(w: Workload) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total, w.name)

    for w in workloads:
        tokens = _tokens(session, w.n, seed)
        _prepare(session, w, seed)
        _compute(session, w, tokens[: _WARM_DECODE if w.is_decode else session.chunk])
        tell(w)
        seconds: list[float] = []
        cpu: list[float] = []
        for _ in range(reps):
            _prepare(session, w, seed)
            begin, cpu_begin = time.perf_counter(), time.process_time()
            _compute(session, w, tokens)
            seconds.append(time.perf_counter() - begin)
            cpu.append(time.process_time() - cpu_begin)
            if sample is not None:
                sample(w, seconds[-1], cpu[-1])
            tell(w)
        phase = None
        if profile:
            _prepare(session, w, seed)
            with session.profile() as profiled:
                _compute(session, w, tokens)
            # The last chunk of a prompt may be a single token, which counts as decode.
            phase = profiled.prefill.plus(profiled.decode)
            tell(w)
        yield Measurement(w, tuple(seconds), tuple(cpu), phase)


def _tokens(session: Session, n: int, seed: int) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, session.n_vocab, n, dtype=np.int32)


def _prepare(session: Session, w: Workload, seed: int) -> None:
    if w.depth:
        session.fill(w.depth, seed=seed)
    else:
        session.reset()


def _compute(session: Session, w: Workload, tokens: NDArray[np.int32]) -> None:
    if w.is_decode:
        for token in tokens:
            session.eval(int(token))
    else:
        session.eval(tokens)
