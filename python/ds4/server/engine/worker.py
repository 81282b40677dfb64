"""The thread that computes: jobs take turns, by one token or by one piece of a prompt.

A round gives every job that draws one token, and one of the jobs that still compute their prompt one piece. So an
answer never waits for more than one piece, however many prompts are being computed beside it.
"""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from threading import Condition, Thread

from ..contract import Overloaded, RequestError
from .job import Job
from .pool import Pool
from .settings import Settings
from .storage import Storage

log = logging.getLogger("ds4.server")


class Worker:
    """Steps jobs in a thread of its own.

    Parameters
    ----------
    pool : Pool
        Belongs to the thread once that runs.
    settings : Settings
    storage : Storage, optional
        Gets the sessions at the end.
    """

    def __init__(self, pool: Pool, settings: Settings, storage: Storage | None = None) -> None:
        self._pool = pool
        self._quantum = settings.prefill_quantum
        self._max_active = settings.max_active
        self._max_queued = settings.max_queued
        self._storage = storage
        self._thread = Thread(target=self._run, name="ds4-worker", daemon=True)
        self._errands = ThreadPoolExecutor(2, thread_name_prefix="ds4-store")
        # Of the thread alone.
        self._active: list[Job] = []
        # Of everybody, under the lock.
        self._changed = Condition()
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._parked: set[Job] = set()
        self._n_active = 0
        self._sessions = (0, 0)
        self._stopping = self._abort = False
        self._failure: str | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def _most(self) -> int:
        """How many jobs may be worked on: each needs a session."""
        return min(self._max_active, self._pool.most)

    # For other threads

    def submit(self, job: Job) -> None:
        """Have a job worked on.

        Raises
        ------
        RequestError
            Too many are waiting (`Overloaded`), or the engine has ended.
        """
        with self._changed:
            self.check_room()
            self._waiting.append(job)
            if self._n_active + len(self._waiting) > self._most:
                job.queued(len(self._waiting) - 1)
            self._changed.notify()

    def check_room(self) -> None:
        """Raise what `submit` would raise."""
        if self._failure is not None:
            raise RequestError(f"the engine ended ({self._failure})", status=500, type="server_error")
        if self._stopping:
            raise RequestError("the server is shutting down", status=503, type="server_error", code="shutting_down")
        waiting = len(self._waiting)
        if self._n_active + waiting >= self._most + self._max_queued:
            raise Overloaded(
                f"{waiting} requests are waiting and {self._n_active} are being answered; no more are taken",
                retry_after=1 + waiting // self._most,
            )

    def cancel(self, job: Job) -> None:
        """End a job: now if it waits, else within one piece of a prompt."""
        with self._changed:
            job.cancelled = True
            if job in self._waiting:
                self._waiting.remove(job)
                self._drop(job)
                self._tell_positions()
            elif self._running is job and job.slot is not None:
                job.slot.session.cancel()
            self._changed.notify()

    def stop(self, *, drain: bool) -> None:
        """Have the thread end, after the jobs that are there (`drain`) or without them."""
        with self._changed:
            self._stopping = True
            self._abort = self._abort or not drain
            if self._abort and self._running is not None and self._running.slot is not None:
                self._running.cancelled = True
                self._running.slot.session.cancel()
            self._changed.notify()

    def join(self) -> None:
        """Wait for the thread to end."""
        self._thread.join()

    def levels(self) -> dict[str, int]:
        """Return how many jobs wait and work, how many sessions there are, and their bytes."""
        with self._changed:
            sessions, n_bytes = self._sessions
            return {
                "waiting": len(self._waiting),
                "active": self._n_active,
                "sessions": sessions,
                "session_bytes": n_bytes,
            }

    # The thread

    def _run(self) -> None:
        try:
            while self._await_work():
                self._round()
            self._save_all()
        except BaseException as error:
            log.critical("the worker ended", exc_info=True)
            with self._changed:
                self._failure = f"{type(error).__name__}: {error}"
                jobs = [*self._waiting, *self._active]
                self._waiting.clear()
            for job in jobs:
                job.fail(f"the engine ended ({self._failure})")
                job.announce()
        finally:
            self._errands.shutdown(wait=True)
            self._pool.close()

    def _save_all(self) -> None:
        """Put what is alive into the store."""
        storage = self._storage
        if storage is None:
            return
        for slot in self._pool.slots:
            try:
                storage.save(slot, "shutdown")
            except Exception:
                log.exception("a session was not saved")

    def _round(self) -> None:
        """Give every job that draws a token, and one of the others a piece of its prompt."""
        self._admit()
        ready = [job for job in self._active if job not in self._parked]
        for job in ready:
            job.alone = len(self._active) == 1
            if job.decoding or job.over:
                self._step(job)
        waiting = next((job for job in ready if not job.decoding and not job.over), None)
        if waiting is not None:
            self._active.remove(waiting)  # the next round is another's
            self._active.append(waiting)
            self._step(waiting)

    def _await_work(self) -> bool:
        """Wait while there is nothing to do; False when the thread is to end."""
        with self._changed:
            while True:
                if self._abort:
                    for job in [*self._waiting, *self._active]:
                        job.cancelled = True
                    while self._waiting:
                        self._drop(self._waiting.popleft())
                if len(self._parked) < len(self._active):
                    return True
                if self._waiting and self._n_active < self._most:
                    return True
                if self._stopping and not self._waiting and not self._active:
                    return False
                self._changed.wait()

    def _admit(self) -> None:
        while True:
            with self._changed:
                if not self._waiting or self._n_active >= self._most:
                    return
                job = self._waiting.popleft()
                self._n_active += 1
            try:
                placement = self._pool.take(job.tokens, job, job.prepared.steering)
                job.place(placement)
                self._active.append(job)
                self._park(job)
            except Exception as error:  # no memory for a session, most likely
                if isinstance(error, MemoryError) and self._active:
                    with self._changed:  # it waits for one that is there
                        self._waiting.appendleft(job)
                        self._n_active -= 1
                    return
                log.exception("no session for request %s", job.prepared.request.id)
                job.fail(f"{type(error).__name__}: {error}")
                with self._changed:
                    self._n_active -= 1
                job.announce()
            with self._changed:
                self._tell_positions()
                self._sessions = self._pool.size()

    @staticmethod
    def _drop(job: Job) -> None:
        """End a job that was cancelled before it began."""
        job.step(0)
        job.announce()

    def _tell_positions(self) -> None:
        for position, job in enumerate(self._waiting):
            job.queued(position)

    def _step(self, job: Job) -> None:
        with self._changed:
            self._running = job
        job.step(self._quantum)
        with self._changed:
            self._running = None
        if job.over:
            self._active.remove(job)
            if job.slot is not None:
                self._pool.free(job.slot)
            with self._changed:
                self._n_active -= 1
                self._sessions = self._pool.size()
            job.announce()
        else:
            self._park(job)

    def _park(self, job: Job) -> None:
        """Let a job stand aside while something slow is done for it."""
        if job.errand is None:
            return
        if job.slot is not None:
            job.slot.parked = True
        with self._changed:
            self._parked.add(job)
        self._errands.submit(self._run_errand, job)

    def _run_errand(self, job: Job) -> None:
        try:
            job.run_errand()
        finally:
            if job.slot is not None:
                job.slot.parked = False
            with self._changed:
                self._parked.discard(job)
                self._changed.notify()
