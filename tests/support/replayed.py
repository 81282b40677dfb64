"""An engine that replays given events: for tests of the network's side of the server, without a model.

The real engine runs through the same application in other tests; here a test decides what happens when.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ds4.server.contract import (
    Content,
    Done,
    Event,
    ModelInfo,
    Overloaded,
    Reasoning,
    Request,
    RequestError,
    Started,
    Timings,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)

TIMES = Timings(queue=0.001, prefill=0.01, decode=0.02, first_token=0.012, total=0.05)

Step = Event | float | Exception
"""An event, a pause in seconds, or an error of the generation."""


def done(
    finish: str = "stop", *, stop: str | None = None, choice: int = 0, error: str | None = None, **usage: int
) -> Done:
    """Make the end of a choice."""
    numbers = {"prompt": 20, "cached": 12, "computed": 8, "completion": 5, "reasoning": 2, **usage}
    return Done(finish, stop, Usage(**numbers), TIMES, error=error, choice=choice)  # type: ignore[arg-type]


def started(prompt: int = 20, cached: int = 12) -> Started:
    """Make the start of an answer."""
    return Started(prompt, cached, "live session")


def text_answer(text: str = "Hello there", reasoning: str = "") -> list[Step]:
    """Make the events of a plain answer, word by word."""
    steps: list[Step] = [started()]
    steps += [Reasoning(piece) for piece in pieces(reasoning)]
    steps += [Content(piece) for piece in pieces(text)]
    return [*steps, done()]


def tool_answer(
    name: str = "get_weather",
    arguments: Iterable[str] = ('{"city": "', "Par", "is", '"', "}"),
    *,
    id: str = "call_1",
    reasoning: str = "I call it.",
    error: str | None = None,
) -> list[Step]:
    """Make the events of an answer with one call."""
    parts = list(arguments)
    steps: list[Step] = [started()]
    steps += [Reasoning(piece) for piece in pieces(reasoning)]
    steps.append(ToolCallStart(0, name, id))
    steps += [ToolCallArguments(0, part) for part in parts]
    steps.append(ToolCallEnd(0, name, id, "".join(parts), error))
    return [*steps, done("length" if error else "tool_calls")]


def pieces(text: str) -> list[str]:
    """Cut a text into words that keep their spaces."""
    words = text.split(" ")
    return [word if i == 0 else " " + word for i, word in enumerate(words)] if text else []


class ReplayGeneration:
    """The answer that a test wrote."""

    def __init__(self, engine: ReplayEngine, request: Request, steps: Iterable[Step]) -> None:
        self.request = request
        self.info: Started | None = None
        self.prompt_tokens = 20
        self.cancelled = False
        self.finished = False
        self._engine = engine
        self._steps = list(steps)
        self._stop = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[Event]:
        for step in self._steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, float):
                try:
                    async with asyncio.timeout(step):
                        await self._stop.wait()
                    yield done("cancelled")
                    return
                except TimeoutError:
                    continue
            if isinstance(step, Started):
                self.info = step
            self._engine.produced += 1
            yield step
        self.finished = True

    async def cancel(self) -> None:
        if not self.finished:
            self.cancelled = True
        self._stop.set()


class ReplayEngine:
    """Replays events.

    Parameters
    ----------
    script : list of steps, or callable
        What every request is answered with; a callable gets the request. A `RequestError` as a whole refuses it.
    n_ctx : int
    """

    def __init__(
        self, script: list[Step] | RequestError | Callable[[Request], Any] | None = None, *, n_ctx: int = 4096
    ) -> None:
        self.script = text_answer() if script is None else script
        self.info = ModelInfo("ds4-replay", n_ctx, 2048, "replay", 1_700_000_000)
        self.requests: list[Request] = []
        self.generations: list[ReplayGeneration] = []
        self.produced = 0
        self.opening = 0.0
        self.gave_up_opening = 0
        self.stubborn = False
        self.closed = False
        self.starts = 0

    async def start(self) -> None:
        self.starts += 1

    async def open(self, request: Request) -> ReplayGeneration:
        if self.opening:
            try:
                await asyncio.sleep(self.opening)
            except asyncio.CancelledError:
                self.gave_up_opening += 1
                if not self.stubborn:
                    raise
        self.requests.append(request)
        script = self.script(request) if callable(self.script) else self.script
        if isinstance(script, RequestError):
            raise script
        if request.n > 1:
            script = [
                replace(step, choice=i) if hasattr(step, "choice") else step
                for i in range(request.n)
                for step in script
            ]
        generation = ReplayGeneration(self, request, script)
        self.generations.append(generation)
        return generation

    async def count(self, request: Request) -> int:
        self.requests.append(request)
        return 7 + sum(len(str(message.get("content"))) for message in request.messages)

    def experts(self) -> Mapping[str, Any] | None:
        return None

    def statistics(self) -> Mapping[str, Any]:
        return {"requests_total": {"chat": len(self.requests)}, "queue_length": 0, "prompt_tokens_total": 20}

    async def close(self, *, drain: float | None = None) -> None:
        self.closed = True
        end = time.monotonic() + (drain or 0.0)
        while time.monotonic() < end and any(not g.finished and not g.cancelled for g in self.generations):
            await asyncio.sleep(0.01)
        for generation in self.generations:
            if not generation.finished:
                await generation.cancel()


__all__ = ["Overloaded", "ReplayEngine", "ReplayGeneration", "done", "pieces", "started", "text_answer", "tool_answer"]
