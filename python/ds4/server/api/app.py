"""The application: routes over one engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.routing import Route, Router

from ..contract import Engine, RequestError
from . import models
from .body import BodyReader, Receive, decode
from .dialects import COUNT, DIALECTS, DialectForm
from .exchange import Client, Send, answer
from .fields import Call
from .guard import Guard
from .metrics import CONTENT_TYPE, Metrics
from .openapi import document
from .page import page_routes
from .settings import Settings

LARGE = 1 << 20
"""Bytes of a body from which on it is read in a thread."""

Scope = MutableMapping[str, Any]


class Application:
    """An ASGI application that serves an engine.

    Parameters
    ----------
    engine : Engine
        Started and closed with the lifespan of the application.
    settings : Settings, optional
    """

    def __init__(self, engine: Engine, settings: Settings | None = None) -> None:
        self.engine = engine
        self.settings = settings or Settings()
        self.metrics = Metrics(engine)
        self._bodies = BodyReader(self.settings)
        self._closed: asyncio.Task[None] | None = None
        self._router = Router(routes=self._routes(), lifespan=self._lifespan, redirect_slashes=False)
        self._guard = Guard(self._route, self.settings, self.metrics, self._is_public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's request, or the lifespan."""
        await self._guard(scope, receive, send)

    @property
    def closing(self) -> bool:
        """Whether new requests are refused."""
        return self._guard.closing

    def begin_closing(self) -> asyncio.Task[None]:
        """Refuse new requests from now on, and let the engine bring the running ones to their end.

        Returns
        -------
        asyncio.Task
            Done when the engine has closed.
        """
        self._guard.closing = True
        if self._closed is None:
            self._closed = asyncio.ensure_future(self.engine.close(drain=self.settings.drain))
        return self._closed

    @asynccontextmanager
    async def _lifespan(self, app: object) -> AsyncIterator[None]:
        self._guard.closing = False
        self._closed = None
        await self.engine.start()
        try:
            yield
        finally:
            await self.begin_closing()

    def _routes(self) -> list[Route]:
        routes = [
            Route("/health", self._health, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/experts", self._experts, methods=["GET"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/models/{id:path}", self._model, methods=["GET"]),
            Route("/v1/embeddings", self._no_embeddings, methods=["POST"]),
        ]
        routes += [Route(form.path, _Endpoint(self._answer, form), methods=["POST"]) for form in DIALECTS]
        routes.append(Route(COUNT.path, _Endpoint(self._count, COUNT), methods=["POST"]))
        return routes + page_routes()

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find the route; what is not found is told like every other error."""
        if scope["type"] == "http":
            scope["app"] = self  # so that a route that is missing raises
            for route in self._router.routes:
                if isinstance(route, Route) and route.path_regex.match(scope["path"]):
                    scope["state"]["route"] = route.path
                    break
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            raise _as_error(error, scope) from None

    def _is_public(self, path: str) -> bool:
        return path == "/health" or path == "/" or path.startswith("/page/")

    async def _health(self, request: HTTPRequest) -> Response:
        closing = self.closing
        return _json({"status": "closing" if closing else "ok", "model": self.engine.info.id}, 503 if closing else 200)

    async def _metrics(self, request: HTTPRequest) -> Response:
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    async def _experts(self, request: HTTPRequest) -> Response:
        found = self.engine.experts()
        if found is None:
            raise RequestError("the experts of this model are not streamed", status=404, code="not_streamed")
        return _json(found)

    async def _openapi(self, request: HTTPRequest) -> Response:
        return _json(document())

    async def _models(self, request: HTTPRequest) -> Response:
        return _json(models.all_models(self.engine.info))

    async def _model(self, request: HTTPRequest) -> Response:
        return _json(models.one_model(self.engine.info, request.path_params["id"]))

    async def _no_embeddings(self, request: HTTPRequest) -> Response:
        raise RequestError(
            "embeddings are not served: this model writes text and makes no embeddings",
            status=404,
            code="not_supported",
        )

    async def _read(self, form: DialectForm, scope: Scope, receive: Receive) -> Call:
        """Read a request; a large one in a thread, so that others are served meanwhile."""
        data = await self._bodies.read(scope["headers"], receive)

        def read() -> Call:
            body = decode(data, form.body)
            return form.read(body, self.settings, self.engine.info, scope["state"]["request_id"])

        return read() if len(data) <= LARGE else await asyncio.to_thread(read)

    async def _answer(self, form: DialectForm, scope: Scope, receive: Receive, send: Send) -> None:
        call = await self._read(form, scope, receive)
        client = Client(receive, send, scope.get("ds4.abort"), self.settings.reader_timeout)
        try:
            await answer(form, call, self.engine, client, self.settings, self.metrics, scope["state"])
        finally:
            await client.close()

    async def _count(self, form: DialectForm, scope: Scope, receive: Receive, send: Send) -> None:
        call = await self._read(form, scope, receive)
        response = _json({"input_tokens": await self.engine.count(call.request)})
        await response(scope, receive, send)


Handler = Callable[[DialectForm, Scope, Receive, Send], Awaitable[None]]


class _Endpoint:
    """A route that speaks ASGI itself."""

    def __init__(self, handler: Handler, form: DialectForm) -> None:
        self._handler = handler
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(self._form, scope, receive, send)


def create_app(engine: Engine, settings: Settings | None = None) -> Application:
    """Make an ASGI application that serves an engine; any ASGI server can run it.

    Parameters
    ----------
    engine : Engine
        Its methods are called in the event loop that runs the application. Started and closed with its lifespan.
    settings : Settings, optional

    Returns
    -------
    Application
    """
    return Application(engine, settings)


def _json(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def _as_error(error: HTTPException, scope: Scope) -> RequestError:
    if error.status_code == 405:
        return RequestError(f"{scope['path']} does not take {scope['method']}", status=405, code="method_not_allowed")
    return RequestError(f"there is nothing at {scope['path']}", status=error.status_code, code="not_found")
