"""A server with its chat page, in a thread of this process, on a free port of the loopback address."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from ds4.server.api import Settings, create_app
from ds4.server.api.serve import _Server, bind, url_of
from ds4.server.engine import LocalEngine
from ds4.server.engine import Settings as EngineSettings


class PageServer:
    """Serves a model, real or scripted, as long as the context lasts."""

    def __init__(self, model: Any, *, n_ctx: int = 4096, **settings: Any) -> None:
        self._engine = LocalEngine(model, EngineSettings(model_id="test-model", n_ctx=n_ctx))
        self._listener = bind("127.0.0.1", 0)
        self.url = url_of(self._listener)
        self._ready = threading.Event()
        self._server = _Server(create_app(self._engine, Settings(drain=0.0, **settings)), self._ready.set)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        await self._engine.start()
        await self._server.serve(sockets=[self._listener])

    def __enter__(self) -> PageServer:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *rest: object) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()
