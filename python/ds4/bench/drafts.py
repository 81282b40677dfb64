"""What guessing tokens costs: batches of a few tokens against tokens alone, and the guesses themselves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from ds4 import Session
from ds4.costs import MOST_DEPTH
from ds4.progress import Progress

_PREFIX = 12  # tokens computed before, so that every batch can be taken back


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """Seconds of batches and guesses.

    Attributes
    ----------
    batch : tuple of float
        Of a token alone, and of batches of a token and 1, 2, ... guesses.
    guess : tuple of float
        Of guessing 1, 2, ... tokens; empty when nothing can be guessed.
    """

    batch: tuple[float, ...]
    guess: tuple[float, ...]

    def seconds(self, depth: int) -> float:
        """Return the time of a batch with its guesses."""
        return self.batch[depth] + (self.guess[depth - 1] if depth and self.guess else 0.0)

    def worth(self, depth: int) -> float:
        """Return how many tokens a batch must be good for, to cost no more than tokens alone."""
        return self.seconds(depth) / self.batch[0]

    def break_even(self, depth: int) -> float | None:
        """Return the acceptance, the same for all guesses of a batch, from which on it pays; None if above 1."""
        need = self.worth(depth)
        if need > depth + 1:
            return None
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if expected_tokens([middle] * depth) < need else (low, middle)
        return high

    def gain(self, chances: list[float]) -> float:
        """Return how much faster decoding gets with guesses of that acceptance, one for each guess of a batch."""
        return expected_tokens(chances) / self.worth(len(chances))

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        depths = range(1, len(self.batch))
        return {
            "batch_seconds": list(self.batch),
            "guess_seconds": list(self.guess),
            "worth": [self.worth(d) for d in depths],
            "break_even": [self.break_even(d) for d in depths],
        }


def expected_tokens(chances: list[float]) -> float:
    """Return how many tokens a batch is good for, guess i being right with chances[i] when those before it were."""
    total, chance = 1.0, 1.0
    for c in chances:
        chance *= c
        total += chance
    return total


def measure_draft_costs(
    session: Session,
    *,
    depth: int = 3,
    context: int = 0,
    reps: int = 30,
    seed: int = 1,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> DraftCosts:
    """Take the times of batches of 1 to 1 + `depth` random tokens, in turn; what the session held is lost.

    Random tokens choose their experts independently, so that a batch shares fewer of them than one of text does.

    Parameters
    ----------
    session : Session
        Holds context + 24 positions. Guesses are measured when it was made with `mtp=True`.
    depth : int
        Guesses in the largest batch, 1..5.
    context : int
        Positions that the context holds before, filled with random numbers.
    reps : int
        Rounds, 1 or more; the medians are returned.
    seed : int
        Of the tokens and the filled context.
    progress : Progress, optional
        Called with (rounds done, rounds in all, "drafts").
    clock : callable
        Seconds.

    Raises
    ------
    ValueError
        Something is out of range, or the session is too small.
    """
    if not 1 <= depth <= MOST_DEPTH:
        raise ValueError(f"depth must be in 1..{MOST_DEPTH}, not {depth}")
    if reps < 1:
        raise ValueError(f"reps must be 1 or more, not {reps}")
    if session.n_ctx < context + _PREFIX + 12:
        raise ValueError(f"the session has {session.n_ctx} positions, {context + _PREFIX + 12} are needed")
    random = np.random.default_rng(seed)

    def tokens(n: int) -> list[int]:
        found: list[int] = random.integers(0, session.n_vocab, n).tolist()
        return found

    session.reset()
    if context:
        session.fill(context, seed=seed)
    session.eval(tokens(_PREFIX))
    at = session.pos
    batches: list[list[float]] = [[] for _ in range(depth + 1)]
    guesses: list[list[float]] = [[] for _ in range(depth if session.can_draft else 0)]
    for rep in range(reps + 1):
        for n, times in enumerate(batches):
            token, *others = tokens(n + 1)
            start = clock()
            session.eval_ahead(token, others)
            times.append(clock() - start)
            session.rewind(at)
        for n, times in enumerate(guesses):
            (token,) = tokens(1)
            start = clock()
            session.draft(token, n + 1)
            times.append(clock() - start)
        if progress is not None:
            progress(rep, reps, "drafts")
    # The first round warmed caches.
    return DraftCosts(tuple(median(t[1:]) for t in batches), tuple(median(t[1:]) for t in guesses))
