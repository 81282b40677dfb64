"""One exchange: a request comes in, its answer goes out, and either side may stop at any moment.

Three things run at once: the engine makes events, the client is watched for leaving, and a clock gives signs of life.
A client that leaves cancels the work at once, at every stage; one that does not read is dropped after a while. Neither
holds up anybody else: only this exchange waits for its client.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from ..contract import Engine, Event, Generation, Queued, RequestError
from .body import Disconnected, Receive
from .dialects import DialectForm
from .errors import server_error
from .fields import Call
from .metrics import Metrics
from .reply import Reply
from .settings import Settings

logger = logging.getLogger("ds4.server")

T = TypeVar("T")
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_WAITING = 256
"""Events that are read ahead of what the client takes."""

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Client:
    """The other end of the connection: what it is sent, and whether it is still there.

    Parameters
    ----------
    receive, send : callables
        Of the ASGI application; the body has been read.
    abort : callable or None
        Breaks the connection without waiting for what the client has not read.
    reader_timeout : float
        Seconds that a piece may wait to be taken.
    """

    def __init__(self, receive: Receive, send: Send, abort: Callable[[], None] | None, reader_timeout: float) -> None:
        self._receive = receive
        self._send = send
        self._abort = abort
        self._reader_timeout = reader_timeout
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self._watch = asyncio.ensure_future(self._watching())

    async def _watching(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if self.on_gone is not None:
            self.on_gone()

    async def unless_gone(self, work: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[None]]) -> T:
        """Do some work, unless the client leaves meanwhile; `undo` takes back what was done all the same.

        Raises
        ------
        Disconnected
            The client left; the work is cancelled.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._watch}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Disconnected
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError, RequestError):
                    await undo(await task)

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send a piece.

        Raises
        ------
        Disconnected
            The client left, or does not read.
        """
        if self.gone:
            raise Disconnected
        try:
            async with asyncio.timeout(self._reader_timeout):
                await self._send(message)
        except TimeoutError:
            self.gone = True
            if self._abort is not None:
                self._abort()
            raise Disconnected from None

    async def close(self) -> None:
        """Stop watching."""
        self._watch.cancel()
        with suppress(asyncio.CancelledError):
            await self._watch


async def answer(
    form: DialectForm,
    call: Call,
    engine: Engine,
    client: Client,
    settings: Settings,
    metrics: Metrics,
    state: MutableMapping[str, Any],
) -> None:
    """Answer one request; what came of it stands in the state of its scope afterwards, for the log.

    Raises
    ------
    RequestError
        It cannot be answered, and nothing has been sent.
    Disconnected
        The client left.
    """
    generation = await client.unless_gone(_opened(form, call, engine), lambda made: made.cancel())
    try:
        reply = form.reply(call, generation.prompt_tokens)
        events = _Events(generation)
        client.on_gone = events.wake
        try:
            if call.stream:
                await _stream(reply, events, client, settings)
            else:
                await _whole(reply, events, client)
        finally:
            client.on_gone = None
            await events.close()
            state["outcome"] = outcome(reply)
        metrics.answered(form.name, reply)
    finally:
        await generation.cancel()


def outcome(reply: Reply) -> str:
    """Return one line on what was kept, computed and written, and why no more was kept."""
    started = reply.started
    if started is None:
        return f"{reply.prompt_tokens} tokens in, not computed"
    text = f"{started.prompt_tokens} tokens in, {started.cached_tokens} kept ({started.why})"
    done = [choice.done for choice in reply.choices if choice.done is not None]
    if not done:
        return f"{text}, not answered to the end"
    finish = ", ".join(sorted({d.finish for d in done}))
    first = min(d.timings.first_token for d in done) * 1e3
    drafts = [d.drafts for d in done if d.drafts is not None]
    guessed = f", {sum(d.accepted for d in drafts)} of {sum(d.drafted for d in drafts)} drafts" if drafts else ""
    return f"{text}, {reply.usage().completion} out ({finish}{guessed}), first after {first:.0f} ms"


async def _opened(form: DialectForm, call: Call, engine: Engine) -> Generation:
    try:
        return await engine.open(call.request)
    except RequestError as error:
        if error.code == "context_length_exceeded" and error.param in (None, "messages"):
            error.param = form.prompt
        raise


class _Events:
    """The events of a generation, read ahead by a task of its own."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._waiting: deque[Event] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._failure: Exception | None = None
        self._task = asyncio.ensure_future(self._pump())

    async def _pump(self) -> None:
        try:
            async for event in self._generation:
                self._waiting.append(event)
                self._changed.set()
                if len(self._waiting) >= MAX_WAITING:
                    self._room.clear()
                    await self._room.wait()
            self._failure = server_error("the answer ended before it was complete")  # unless the reply is over by now
        except Exception as error:
            self._failure = error
        self._changed.set()

    def wake(self) -> None:
        """Let `wait` return."""
        self._changed.set()

    async def wait(self, seconds: float | None) -> None:
        """Return when there is something new, or after some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()

    def take(self) -> list[Event]:
        """Return the events that have come.

        Raises
        ------
        Exception
            That of the generation, after its last event.
        """
        events = list(self._waiting)
        self._waiting.clear()
        self._room.set()
        if self._failure is not None:
            if not events:
                raise self._failure
            self._changed.set()  # the next `wait` has nothing to wait for
        return events

    async def close(self) -> None:
        """Stop reading."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


async def _whole(reply: Reply, events: _Events, client: Client) -> None:
    """Send the answer as one object."""
    while not reply.over:
        await events.wait(None)
        if client.gone:
            raise Disconnected
        for event in events.take():
            reply.feed(event)
    failure = reply.failure
    if failure is not None:
        raise failure
    body = msgspec.json.encode(reply.whole())
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += ignored_header(reply.call)
    await client.send({"type": "http.response.start", "status": 200, "headers": headers})
    await client.send({"type": "http.response.body", "body": body})


async def _stream(reply: Reply, events: _Events, client: Client, settings: Settings) -> None:
    """Send the answer as a stream of events."""
    clock = asyncio.get_running_loop().time
    out = [reply.encode(item) for item in reply.begin()]
    out += await _first(reply, events, client, clock() + settings.settle)
    headers = [*_STREAM_HEADERS, *ignored_header(reply.call)]
    await client.send({"type": "http.response.start", "status": 200, "headers": headers})
    error: RequestError | None = None
    last = clock()
    while True:
        if out:
            await client.send({"type": "http.response.body", "body": b"".join(out), "more_body": True})
            last = clock()
        if reply.over or error is not None:
            break
        await events.wait(max(0.0, last + settings.keepalive - clock()))
        if client.gone:
            raise Disconnected
        try:
            out = [reply.encode(item) for event in events.take() for item in reply.feed(event)]
        except Exception as failure:  # the status is sent: what happens now is told inside the stream
            error, out = as_request_error(failure), []
        if not out and clock() - last >= settings.keepalive:
            out = [reply.PING]
    error = error or reply.failure
    end = reply.tail() if error is None else reply.failed(error)
    await client.send({"type": "http.response.body", "body": end, "more_body": False})


async def _first(reply: Reply, events: _Events, client: Client, end: float) -> list[bytes]:
    """Wait a little for the first event: a failure then is told by the status, not inside the stream."""
    clock = asyncio.get_running_loop().time
    out: list[bytes] = []
    begun = False
    while not begun and clock() < end:
        await events.wait(end - clock())
        if client.gone:
            raise Disconnected
        taken = events.take()
        out += [reply.encode(item) for event in taken for item in reply.feed(event)]
        if reply.failure is not None:
            raise reply.failure
        begun = any(not isinstance(event, Queued) for event in taken)
    return out


def as_request_error(error: Exception) -> RequestError:
    """Return what a client is told of a failure; one that nobody foresaw goes to the log in full."""
    if isinstance(error, RequestError):
        return error
    logger.error("a request failed", exc_info=error)
    return server_error("the server failed to answer; its log says more")


def ignored_header(call: Call) -> list[tuple[bytes, bytes]]:
    """Return the header that names fields without effect."""
    return [(b"x-ds4-ignored", ", ".join(call.ignored).encode())] if call.ignored else []
