"""Rest between pieces of work, so that the machine stays cool and free for others. The output is the same.

At a power of p percent, each piece of work is followed by a rest of work * (100 - p) / p, where *work* is an
exponential average of the pieces so far: one slow piece does not mean one long silence. Pieces are what a prefill
computes between two reports of its progress (about 50 ms), and single tokens in a generation.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FULL = 100
WEIGHT = 0.25
_SLICE = 0.05


class Pace:
    """Decides how long to rest.

    Parameters
    ----------
    power : int
        Share of the time that is work, in percent, 1 to 100. At 100 there is no rest.
    clock : callable
        Returns seconds.
    sleep : callable
        Called with (seconds, stop), rests.

    Raises
    ------
    ValueError
        The power is out of range.
    """

    def __init__(
        self,
        power: int = FULL,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float, Callable[[], bool]], None] | None = None,
    ) -> None:
        self._clock = clock
        self._sleep = sleep or nap
        self._mark = clock()
        self._average: float | None = None
        self._ahead = 0.0  # seconds that earlier rests took too long: the system sleeps by its own grain
        self.power = power

    @property
    def power(self) -> int:
        """Share of the time that is work, in percent."""
        return self._power

    @power.setter
    def power(self, value: int) -> None:
        if not 1 <= value <= FULL:
            raise ValueError(f"the power is a number from 1 to {FULL}, not {value}")
        self._power = value

    def begin(self) -> None:
        """Begin with work of another kind, whose pieces are of another size."""
        self._average, self._ahead = None, 0.0
        self._mark = self._clock()

    def rest(self, stop: Callable[[], bool] = lambda: False) -> float:
        """Rest after a piece of work, and return for how many seconds; the rest before may have been a part of them.

        Parameters
        ----------
        stop : callable
            Ends the rest early when it returns true.
        """
        work = self._clock() - self._mark
        self._average = work if self._average is None else self._average + WEIGHT * (work - self._average)
        pause = self._average * (FULL - self._power) / self._power
        begin = self._mark = self._clock()
        if pause > self._ahead:
            self._sleep(pause - self._ahead, stop)
            self._mark = self._clock()
        self._ahead = max(self._ahead + self._mark - begin - pause, 0.0)
        return pause


def nap(seconds: float, stop: Callable[[], bool]) -> None:
    """Sleep in slices, so that a wish to stop is heard."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not stop():
        time.sleep(min(left, _SLICE))
