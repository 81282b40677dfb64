"""Running the application in a process: sockets, signals, the end."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

import uvicorn

from ..contract import Engine
from .app import Application, create_app
from .protocol import MAX_HEAD, StrictProtocol
from .settings import Settings

logger = logging.getLogger("ds4.server")

EXIT_SECOND_SIGNAL = 130
BACKLOG = 128


class OpenServerError(ValueError):
    """The server would be open to a network without a key."""


def bind(host: str, port: int) -> socket.socket:
    """Open the listening socket.

    Parameters
    ----------
    host : str
        A name or an address of either kind; the first one that can be bound is taken.
    port : int
        0 takes a free one.

    Raises
    ------
    OSError
        It cannot be bound; the error names host and port.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise OSError(f"{host}: {error.strerror}") from None
    failure: OSError | None = None
    for family, kind, protocol, _, address in found:
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as error:
            failure = error
            listener.close()
            continue
        listener.setblocking(False)
        return listener
    assert failure is not None
    raise OSError(failure.errno, f"{failure.strerror}: cannot listen on {host} port {port}")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address or name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_open(host: str, settings: Settings, *, allow_open: bool) -> None:
    """Refuse to be open to a network without a key.

    Raises
    ------
    OpenServerError
    """
    if not is_loopback(host) and not settings.api_keys and not allow_open:
        raise OpenServerError(
            f"{host} can be reached from other machines, and there is no API key: give one with --api-key or "
            "--api-key-file, or allow everybody with --allow-open"
        )


def url_of(listener: socket.socket) -> str:
    """Return where a socket can be reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    engine: Engine,
    settings: Settings | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    listener: socket.socket | None = None,
    allow_open: bool = False,
    on_start: Callable[[str], None] | None = None,
) -> int:
    """Serve an engine until SIGINT or SIGTERM.

    The first signal refuses new requests, lets running answers come to their end (`Settings.drain` seconds at most)
    and closes the engine; a second one ends the process at once with status 130.

    Parameters
    ----------
    engine : Engine
        Closed at the end.
    settings : Settings, optional
        On a loopback address `hosts` becomes the names of this machine, unless it is given.
    host, port
        See `bind`.
    listener : socket, optional
        What `bind` made of the host, earlier. Closed at the end.
    allow_open : bool
        Serve others without a key.
    on_start : callable, optional
        Called with the URL when connections are taken.

    Returns
    -------
    int
        Exit code: 0.

    Raises
    ------
    OpenServerError
        The address is no loopback address and there is no key.
    OSError
        The address cannot be bound.
    """
    settings = settings or Settings()
    check_open(host, settings, allow_open=allow_open)
    if settings.hosts is None and is_loopback(host):
        settings = replace(settings, hosts=())
    listener = listener or bind(host, port)
    try:
        url = url_of(listener)
        app = create_app(engine, settings)
        server = _Server(app, lambda: on_start(url) if on_start is not None else None)
        server.run(sockets=[listener])
    finally:
        listener.close()
    return 0


class _Server(uvicorn.Server):
    def __init__(self, app: Application, on_start: Callable[[], None]) -> None:
        settings = app.settings
        config = uvicorn.Config(
            app,
            http=StrictProtocol,
            ws="none",
            lifespan="on",
            loop="asyncio",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=int(settings.idle_timeout),
            limit_concurrency=settings.max_connections,
            h11_max_incomplete_event_size=MAX_HEAD,
            timeout_graceful_shutdown=int(settings.drain) + 5,
        )
        super().__init__(config)
        self._application = app
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say so."""
        await super().startup(sockets)
        if self.started:
            self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening and bring everything to its end."""
        self._application.begin_closing()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals while the server runs."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop in good order; the second time at once."""
        if self.should_exit:
            os._exit(EXIT_SECOND_SIGNAL)
        self.should_exit = True
