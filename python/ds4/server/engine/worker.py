"""The thread that computes: jobs take turns, by one token or by one piece of a prompt.

A round gives every job that draws one token, and one of the jobs that still compute their prompt one piece. So an
answer never waits for more than one piece, however many prompts are being computed beside it.
"""

from __future__ import annotations

import logging
from collections import deque
from threading import Condition, Thread

from ..contract import Overloaded, RequestError
from .job import Job
from .pool import Pool
from .settings import Settings
from .statistics import Statistics

log = logging.getLogger("ds4.server")


class Worker:
    """Steps jobs in a thread of its own.

    Parameters
    ----------
    pool : Pool
        Belongs to the thread once that runs.
    settings : Settings
    statistics : Statistics
    """

    def __init__(self, pool: Pool, settings: Settings, statistics: Statistics) -> None:
        self._pool = pool
        self._settings = settings
        self._statistics = statistics
        self._changed = Condition()
        self._waiting: deque[Job] = deque()
        self._prefilling: deque[Job] = deque()
        self._decoding: list[Job] = []
        self._running: Job | None = None
        self._n_active = 0
        self._stopping = False
        self._drain = True
        self._failure: str | None = None
        self._thread = Thread(target=self._run, name="ds4-worker", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    # For other threads

    def submit(self, job: Job) -> None:
        """Have a job worked on.

        Raises
        ------
        Overloaded
            Too many are waiting.
        """
        with self._changed:
            self.check_room()
            self._waiting.append(job)
            position = self._n_active + len(self._waiting) - self._settings.max_active - 1
            if position >= 0:
                job.queued(position)
            self._changed.notify()

    def check_room(self) -> None:
        """Raise `Overloaded` when one more request would wait behind too many others."""
        if self._failure is not None:
            raise RequestError(f"the engine ended ({self._failure})", status=500, type="server_error")
        settings = self._settings
        if self._n_active + len(self._waiting) >= settings.max_active + settings.max_queued:
            waiting = len(self._waiting)
            raise Overloaded(
                f"{waiting} requests are waiting and {self._n_active} are being answered; no more are taken",
                retry_after=1 + waiting // settings.max_active,
            )

    def cancel(self, job: Job) -> None:
        """End a job: now if it waits, else within one piece of a prompt."""
        with self._changed:
            job.cancelled = True
            if job in self._waiting:
                self._waiting.remove(job)
                job.step(0)
                self._tell_positions()
            elif self._running is job and job.slot is not None:
                job.slot.session.cancel()
            self._changed.notify()

    def stop(self, *, drain: bool) -> None:
        """Have the thread end, after the jobs that are there (`drain`) or without them."""
        with self._changed:
            self._stopping = True
            self._drain = self._drain and drain
            if not self._drain and self._running is not None and self._running.slot is not None:
                self._running.cancelled = True
                self._running.slot.session.cancel()
            self._changed.notify()

    def join(self) -> None:
        """Wait for the thread to end."""
        self._thread.join()

    def levels(self) -> dict[str, int]:
        """Return how many jobs wait and work, and how many sessions there are."""
        with self._changed:
            return {
                "waiting": len(self._waiting),
                "active": self._n_active,
                "sessions": len(self._pool.slots),
                "session_bytes": sum(slot.session.n_bytes for slot in list(self._pool.slots)),
            }

    # The thread

    def _run(self) -> None:
        try:
            while self._await_work():
                for job in list(self._decoding):
                    self._step(job)
                if self._prefilling:
                    job = self._prefilling[0]
                    self._prefilling.rotate(-1)
                    self._step(job)
        except BaseException as error:
            log.critical("the worker ended", exc_info=True)
            with self._changed:
                self._stopping, self._failure = True, f"{type(error).__name__}: {error}"
                for job in self._jobs():
                    job.fail(f"the engine ended ({self._failure})")
        finally:
            self._pool.close()

    def _await_work(self) -> bool:
        """Admit what can be admitted, wait while there is nothing to do; False when the thread is to end."""
        with self._changed:
            while True:
                if self._stopping and not self._drain:
                    for job in self._jobs():
                        job.cancelled = True
                        if job.slot is None:
                            job.step(0)
                    self._waiting.clear()
                self._admit()
                if self._n_active:
                    return True
                if self._stopping and not self._waiting:
                    return False
                self._changed.wait()

    def _jobs(self) -> list[Job]:
        return [*self._waiting, *self._prefilling, *self._decoding]

    def _admit(self) -> None:
        moved = False
        while self._waiting and self._n_active < self._settings.max_active:
            job = self._waiting[0]
            try:
                placement = self._pool.take(job.tokens, job)
            except Exception as error:  # no memory for a session, most likely
                log.exception("no session for request %s", job.prepared.request.id)
                self._waiting.popleft()
                job.fail(f"{type(error).__name__}: {error}")
                continue
            if placement is None:
                break
            self._waiting.popleft()
            job.place(placement)
            self._prefilling.append(job)
            self._n_active += 1
            moved = True
        if moved:
            self._tell_positions()

    def _tell_positions(self) -> None:
        for position, job in enumerate(self._waiting):
            job.queued(position)

    def _step(self, job: Job) -> None:
        with self._changed:
            self._running = job
        was_decoding = job.decoding
        job.step(self._settings.prefill_quantum)
        with self._changed:
            self._running = None
            if job.over or job.decoding != was_decoding:
                (self._decoding if was_decoding else self._prefilling).remove(job)
                if job.over:
                    self._n_active -= 1
                    if job.slot is not None:
                        self._pool.free(job.slot)
                else:
                    (self._decoding if job.decoding else self._prefilling).append(job)
