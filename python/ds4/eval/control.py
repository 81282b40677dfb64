"""Steering a run from another thread: pause, stop, and which case comes next."""

from __future__ import annotations

import threading
import time


class Stopped(Exception):  # noqa: N818  # not an error
    """The run is to end."""


class Jumped(Exception):  # noqa: N818
    """Another case is to run now; the one at hand goes back to the waiting ones."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class Control:
    """Wishes of a user; the run looks at them between tokens and between chunks of a prompt."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._paused = False
        self._stopped = False
        self._wanted: int | None = None
        self._paused_since = 0.0
        self._paused_s = 0.0

    @property
    def paused(self) -> bool:
        """Whether the run waits."""
        with self._condition:
            return self._paused

    @property
    def paused_s(self) -> float:
        """Seconds that were spent waiting, the running pause included."""
        with self._condition:
            return self._paused_s + (time.monotonic() - self._paused_since if self._paused else 0.0)

    def toggle_pause(self) -> None:
        """Pause, or go on."""
        with self._condition:
            now = time.monotonic()
            if self._paused:
                self._paused_s += now - self._paused_since
            self._paused = not self._paused
            self._paused_since = now
            self._condition.notify_all()

    def stop(self) -> None:
        """End the run; what is unfinished stays so."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def run_next(self, index: int) -> None:
        """Run a case now, in place of the running one."""
        with self._condition:
            self._wanted = index
            self._condition.notify_all()

    def take_wanted(self) -> int | None:
        """Return the case that was asked for, once."""
        with self._condition:
            wanted, self._wanted = self._wanted, None
            return wanted

    def check(self) -> None:
        """Wait while paused.

        Raises
        ------
        Stopped, Jumped
            As asked for.
        """
        with self._condition:
            while self._paused and not self._stopped and self._wanted is None:
                self._condition.wait()
            if self._stopped:
                raise Stopped
            if self._wanted is not None:
                wanted, self._wanted = self._wanted, None
                raise Jumped(wanted)

    def rest(self, seconds: float) -> None:
        """Wait so long, or until something is asked for.

        Raises
        ------
        Stopped
            The run is to end.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._stopped or self._wanted is not None, seconds)
            if self._stopped:
                raise Stopped
