"""Applications over replayed events, in this process or behind a real socket."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from ds4.server.api import Settings, create_app
from ds4.server.api.serve import _Server, bind, url_of
from support.replayed import ReplayEngine

QUICK = Settings(keepalive=0.1, settle=0.05, head_timeout=0.5, body_timeout=0.5, body_total_timeout=1.0, drain=1.0)


def until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


class Served:
    """A server in a thread of this process, on a free port of the loopback address."""

    def __init__(self, engine: Any, settings: Settings, host: str = "127.0.0.1") -> None:
        self.engine = engine
        self.listener = bind(host, 0)
        self.url = url_of(self.listener)
        self.host, self.port = self.listener.getsockname()[:2]
        self.app = create_app(engine, settings)
        self.clients: list[httpx.Client] = []
        self.ready = threading.Event()
        self.server = _Server(self.app, self.ready.set)
        self.thread = threading.Thread(target=lambda: asyncio.run(self.server.serve(sockets=[self.listener])))

    def __enter__(self) -> Served:
        self.thread.start()
        assert self.ready.wait(10)
        return self

    def __exit__(self, *rest: object) -> None:
        for client in self.clients:
            client.close()
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()

    def client(self, **options: Any) -> httpx.Client:
        """Make a client that ends with the server."""
        made = httpx.Client(base_url=self.url, timeout=10, **options)
        self.clients.append(made)
        return made

    def raw(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=10)


class Local:
    """Calls an application in this process, without a socket."""

    def __init__(self, app: Any, host: str = "127.0.0.1:8000") -> None:
        self._app = app
        self._host = host

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{self._host}") as http:
                return await http.request(method, path, **options)

        return asyncio.run(ask())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def options(self, path: str, **options: Any) -> httpx.Response:
        return self.request("OPTIONS", path, **options)


Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers over replayed events; all end with the test."""
    running: list[Served] = []

    def start(engine: Any = None, settings: Settings = QUICK, host: str = "127.0.0.1", **changes: Any) -> Served:
        if settings.hosts is None:
            changes.setdefault("hosts", ())
        served = Served(engine or ReplayEngine(), replace(settings, **changes), host)
        running.append(served.__enter__())
        return served

    yield start
    for served in running:
        served.__exit__()
