"""Teacher forcing: what a session says about tokens that are given, whatever it would have written itself.

The logits of a few hundred positions are held at once, never those of a whole text. Every row is reduced on its own, so
no sum depends on how the positions were cut into calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ds4.errors import ContextFullError, WeightDataError
from ds4.progress import Progress
from ds4.sampling import log_softmax
from ds4.session import Session

_LOGITS_AT_ONCE = 1 << 25  # 128 MiB of float32


class Meter:
    """Adds up the positions done over many sequences, for one progress function.

    Parameters
    ----------
    progress : callable or None
        Called with (positions done, positions in all, what).
    total : int
        Positions in all.
    """

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def within(self, what: str) -> Callable[[int, int], None]:
        """Return a progress function of (positions done, positions in all) for one sequence, called `what`.

        Several may be at work side by side.
        """
        counted = 0

        def report(done: int, total: int) -> None:
            nonlocal counted
            if done <= counted:
                return
            self._done += done - counted
            counted = done
            if self._progress is not None:
                self._progress(self._done, self._total, what)

        return report


def predictions(
    session: Session, ids: Sequence[int], first: int, *, progress: Callable[[int, int], None] | None = None
) -> Iterator[NDArray[np.float32]]:
    """Evaluate a sequence and yield the logits that predict `ids[first]`, `ids[first + 1]`, ... to its end.

    Parameters
    ----------
    session : Session
        Is brought to the sequence; what it holds of it is kept. The last token is not evaluated.
    ids : sequence of int
        Token ids.
    first : int
        Index of the first token to predict, 1 or more: before it something must stand.
    progress : callable, optional
        Called with (positions done, positions in all).

    Yields
    ------
    ndarray of float32, shape (n_vocab,)
        Valid until the next one is asked for.

    Raises
    ------
    ContextFullError
        The sequence needs more positions than the session has; nothing was computed.
    WeightDataError
        A logit is not finite.
    """
    n = len(ids) - 1
    if not 1 <= first <= n:
        raise ValueError(f"a sequence of {n + 1} tokens cannot be predicted from token {first} on")
    if n > session.n_ctx:
        raise ContextFullError(f"{n} positions are needed, but the context has room for {session.n_ctx}")
    done = first - 1
    if done:
        session.sync(ids[:done], progress=progress and (lambda part, whole: progress(min(part, done), n)))
    else:
        session.reset()
    step = max(1, min(session.chunk, _LOGITS_AT_ONCE // session.n_vocab))
    while done < n:
        rows = session.eval_logits(ids[done : min(done + step, n)])
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            raise WeightDataError(f"the logits after position {done + int(finite.argmin())} are not finite")
        yield from rows
        done += len(rows)
        if progress is not None:
            progress(done, n)


def logprob_of(row: NDArray[np.float32], token: int) -> tuple[float, bool]:
    """Return a token's log-probability under a row of logits, and whether it is the best (of equals the lowest id).

    The softmax is over the whole vocabulary, in float64.
    """
    return float(log_softmax(row)[token]), int(row.argmax()) == token
