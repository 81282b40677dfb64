"""The engine that answers with a model in this process."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from ...costs import CostModel
from ...kvstore import KVStore, SavePolicy
from ...model import Model
from ...session import Session
from ..contract import Done, Event, ModelInfo, Request, RequestError, Started
from .experts import expert_map, expert_numbers
from .job import Job, Sink
from .pool import Pool
from .prompts import Prepared, Preparer
from .settings import Settings
from .statistics import Statistics
from .storage import Storage
from .trace import Trace
from .worker import Worker


class LocalGeneration:
    """The answer to one request; see `ds4.server.contract.Generation`."""

    def __init__(self, prepared: Prepared, engine: LocalEngine) -> None:
        self._prepared = prepared
        self._engine = engine
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._n_done = 0
        self._info: Started | None = None
        self._loop = asyncio.get_running_loop()
        self._job = engine.job(prepared, self._emit)

    @property
    def request(self) -> Request:
        """What is answered."""
        return self._prepared.request

    @property
    def info(self) -> Started | None:
        """Size of the prompt and how much of it was cached; None until `Started` was read."""
        return self._info

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self._prepared.tokens)

    @property
    def job(self) -> Job:
        """The work behind it."""
        return self._job

    def _emit(self, events: list[Event]) -> None:
        """Take events, in the thread of the worker."""
        try:
            self._loop.call_soon_threadsafe(self._deliver, events)
        except RuntimeError:  # the loop is closed: nobody reads any more
            self._job.cancelled = True

    def _deliver(self, events: list[Event]) -> None:
        self._events.extend(events)
        self._arrived.set()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._n_done >= self._prepared.request.n:
            raise StopAsyncIteration
        while not self._events:
            self._arrived.clear()
            await self._arrived.wait()
        event = self._events.popleft()
        if isinstance(event, Done):
            self._n_done += 1
        elif isinstance(event, Started):
            self._info = event
        return event

    async def cancel(self) -> None:
        """End the work; choices that are not over end as "cancelled"."""
        self._engine.cancel(self._job)


class LocalEngine:
    """Answers requests with a model in this process; see `ds4.server.contract.Engine`.

    Use it as an asynchronous context manager, or call `start` and `close`.

    Parameters
    ----------
    model : Model
    settings : Settings, optional
    store : KVStore, optional
        Where session states are kept. It stays open when the engine is closed.
    policy : SavePolicy, optional
        When they are put there.

    Examples
    --------
    >>> async with LocalEngine(model, Settings(n_ctx=8192)) as engine:
    ...     async for event in await engine.open(request):
    ...         print(event)
    """

    def __init__(
        self,
        model: Model,
        settings: Settings | None = None,
        *,
        store: KVStore | None = None,
        policy: SavePolicy | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self._model = model
        self._counters = Statistics()
        self._storage = None
        if store is not None:
            self._storage = Storage(store, policy or SavePolicy(), model, self._counters, self.settings.n_ctx)
        find_blocks = self._storage.find_blocks if self._storage is not None else None
        self._preparer = Preparer(model.tokenizer, self.settings, find_blocks)
        # With drafts every session keeps the rows of the MTP block.
        self._options = {**self.settings.session, **({"mtp": True} if self.settings.draft is not None else {})}
        self._costs = CostModel()
        self._pool = Pool(self._session, self._most_sessions())
        self._worker = Worker(self._pool, self.settings, self._storage)
        self._preparers = ThreadPoolExecutor(2, thread_name_prefix="ds4-prepare")
        self._created = int(time.time())
        self._trace = Trace(self.settings.trace) if self.settings.trace is not None else None
        self._started = self._closed = False

    def _session(self) -> Session:
        return self._model.session(n_ctx=self.settings.n_ctx, **self._options)

    def _most_sessions(self) -> int:
        most = max(self.settings.keep_sessions, 1)
        if self.settings.memory_bytes is None:
            return most
        known = {name: self._options[name] for name in ("chunk", "threads", "rows", "mtp") if name in self._options}
        one = self._model.memory_plan(self.settings.n_ctx, **known).total_session_bytes
        if one > self.settings.memory_bytes:
            raise ValueError(
                f"a session of {self.settings.n_ctx} tokens takes {one} bytes, but memory_bytes is "
                f"{self.settings.memory_bytes}; give more memory or a smaller n_ctx"
            )
        return min(most, self.settings.memory_bytes // one)

    @property
    def info(self) -> ModelInfo:
        """The model served."""
        shape = self._model.shape.name
        settings = self.settings
        most = min(settings.max_tokens, settings.n_ctx)
        return ModelInfo(settings.model_id or shape, settings.n_ctx, most, shape, self._created)

    async def start(self) -> None:
        """Start the worker; the first request does it otherwise."""
        if not self._started and not self._closed:
            self._started = True
            self._worker.start()

    async def open(self, request: Request) -> LocalGeneration:
        """Take a request.

        Raises
        ------
        RequestError
            It cannot be answered; `Overloaded` if only now.
        """
        await self.start()
        self._counters.count("requests_total", request.dialect)
        try:
            self._worker.check_room()
            prepared = await asyncio.get_running_loop().run_in_executor(self._preparers, self._prepare, request)
            generation = LocalGeneration(prepared, self)
            self._worker.submit(generation.job)
        except RequestError as error:
            self._counters.count("refused_total", error.code or str(error.status))
            raise
        return generation

    def _prepare(self, request: Request) -> Prepared:
        if self._trace is not None:
            self._trace.request(request)
        try:
            prepared = self._preparer.prepare(request)
        except RequestError as error:
            if self._trace is not None:
                self._trace.write("refused", request, status=error.status, code=error.code, message=error.message)
            raise
        self._counters.add("replayed_turns_total", prepared.n_replayed)
        self._counters.add("unknown_turns_total", prepared.n_unknown)
        if self._trace is not None:
            self._trace.prompt(prepared)
        return prepared

    def job(self, prepared: Prepared, emit: Sink) -> Job:
        """Make the work for a request."""
        draft = self.settings.draft
        drafting = None if draft is None else (draft, self._costs)
        return Job(
            prepared, self._preparer, self._counters, emit, storage=self._storage, trace=self._trace, drafting=drafting
        )

    async def count(self, request: Request) -> int:
        """Return the number of tokens of a request's prompt.

        Raises
        ------
        RequestError
            It cannot be rendered.
        """
        return await asyncio.get_running_loop().run_in_executor(self._preparers, self._preparer.count, request)

    def cancel(self, job: Job) -> None:
        """End a job."""
        self._worker.cancel(job)

    def statistics(self) -> dict[str, Any]:
        """Return counters (see `Statistics`), levels (waiting, active, sessions, session_bytes), `expert_numbers`."""
        return {**self._counters.snapshot(), **self._worker.levels(), **expert_numbers(self._model)}

    def experts(self) -> dict[str, Any] | None:
        """Return `expert_map` of the model."""
        return expert_map(self._model)

    async def close(self, *, drain: float | None = None) -> None:
        """Refuse new requests, let those that run go on for `drain` seconds (None: to their end), stop."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        self._worker.stop(drain=True)
        if self._started:
            ended = loop.run_in_executor(None, self._worker.join)
            if drain is not None:
                await asyncio.wait([ended], timeout=drain)
                self._worker.stop(drain=False)
            await ended
        self._preparers.shutdown(wait=False)
        if self._storage is not None:
            await loop.run_in_executor(None, self._storage.close)
        if self._trace is not None:
            self._trace.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(drain=0.0)
