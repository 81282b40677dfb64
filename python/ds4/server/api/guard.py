"""Who may ask at all: what is checked about a request before anybody reads its body.

In this order: the framing of the message, the name under which the server was addressed (a web page whose own name was
made to point here must not get in), the page that sent it, the key, and whether the server is still open.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from ..contract import RequestError
from .body import Disconnected, Receive
from .errors import Family, error_body, family_of, server_error
from .exchange import Send
from .metrics import Metrics
from .settings import Settings

logger = logging.getLogger("ds4.server")

App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_EXPOSED = b"x-request-id, request-id, retry-after, x-ds4-ignored"


class Guard:
    """Wraps the routes: checks requests, gives them ids, shapes errors, adds headers, counts and logs.

    Parameters
    ----------
    app : ASGI application
        Gets `request_id` in the state of the scope, and may raise `RequestError` until it has begun to answer.
    settings : Settings
    metrics : Metrics
    is_public : callable
        Whether a path is served without a key.
    """

    def __init__(self, app: App, settings: Settings, metrics: Metrics, is_public: Callable[[str], bool]) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._is_public = is_public
        self._keys = tuple(key.encode() for key in settings.api_keys)
        self.closing = False

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1003})
                return
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        request_id = f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = request_id
        headers = _by_name(scope["headers"])
        path: str = scope["path"]
        status = 0
        extra = [(b"x-request-id", request_id.encode()), (b"request-id", request_id.encode())]
        extra += self._cors(headers)

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
                if status >= 400 and b"expect" in headers:  # whether the body still comes is the client's choice
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        self._metrics.open.inc()
        try:
            self._check(scope["method"], path, headers)
            if scope["method"] == "OPTIONS":
                await _preflight(send_with_headers, headers)
            else:
                await self._app(scope, receive, send_with_headers)
        except RequestError as error:
            if status:
                raise
            await send_error(send_with_headers, error, family_of(path, headers), request_id)
        except Disconnected:
            self._metrics.dropped.labels(_known(scope)).inc()
        except Exception:
            logger.exception("%s %s failed", scope["method"], path)
            if not status:
                told = server_error("the server failed to answer; its log says more")
                await send_error(send_with_headers, told, family_of(path, headers), request_id)
            else:
                raise
        finally:
            self._metrics.open.dec()
            if status:
                self._metrics.responses.labels(_known(scope), str(status)).inc()
            took = (time.perf_counter() - began) * 1e3
            told = scope["state"].get("outcome")
            level = logging.DEBUG if path in ("/health", "/metrics") else logging.INFO
            what = status or "client left"
            rest = f": {told}" if told else ""
            logger.log(level, "%s %s %s, %.0f ms%s", scope["method"], shown(path), what, took, rest)

    def _check(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> None:
        if b"content-length" in headers and b"transfer-encoding" in headers:
            raise _FramingError("a request has Content-Length or Transfer-Encoding, not both")
        self._check_host(headers)
        self._check_origin(headers)
        if method != "OPTIONS" and self._keys and not self._is_public(path):
            self._check_key(headers)
        if self.closing and path != "/health":
            raise ShuttingDown

    def _check_host(self, headers: Mapping[bytes, bytes]) -> None:
        allowed = self._settings.hosts
        host = headers.get(b"host")
        if allowed is None or host is None:
            return
        name = host_name(host.decode("latin-1"))
        if name not in allowed and not _is_loopback(name):
            raise RequestError(
                f"the name {name!r} is not one of this server's; see --allow-host", status=403, code="host_not_allowed"
            )

    def _check_origin(self, headers: Mapping[bytes, bytes]) -> None:
        origin = headers.get(b"origin")
        if origin is None:
            foreign = headers.get(b"sec-fetch-site", b"none") == b"cross-site" and not self._settings.cors
        else:
            foreign = not self._allowed_origin(origin.decode("latin-1"), headers)
        if foreign:
            raise RequestError(
                "pages of other origins may not call this server; see --cors", status=403, code="origin_not_allowed"
            )

    def _allowed_origin(self, origin: str, headers: Mapping[bytes, bytes]) -> bool:
        if "*" in self._settings.cors or origin in self._settings.cors:
            return True
        try:
            own = urlsplit(origin).netloc.lower()
        except ValueError:
            return False
        return own != "" and own == headers.get(b"host", b"").decode("latin-1").lower()

    def _check_key(self, headers: Mapping[bytes, bytes]) -> None:
        shown = headers.get(b"x-api-key")
        kind, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        given = [shown] if shown else []
        if kind.lower() == b"bearer" and bearer.strip():
            given.append(bearer.strip())
        # Every pair is compared: the time tells nothing about which one was nearly right.
        matches = [hmac.compare_digest(one, key) for one in given for key in self._keys]
        if not any(matches):
            what = "the API key is wrong" if given else "an API key is needed"
            raise RequestError(
                f"{what}; send it as Authorization: Bearer KEY or x-api-key: KEY", status=401, code="invalid_api_key"
            )

    def _cors(self, headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        cors = self._settings.cors
        if not cors:
            return []
        if "*" in cors:
            return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", _EXPOSED)]
        origin = headers.get(b"origin", b"")
        out = [(b"vary", b"Origin")]
        if origin.decode("latin-1") in cors:
            out += [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED)]
        return out


class _FramingError(RequestError):
    """After this error nothing of the connection can be trusted."""


class ShuttingDown(RequestError):  # noqa: N818 - the name of a state of the server
    """No new requests are taken."""

    retry_after = 5

    def __init__(self) -> None:
        super().__init__("the server is shutting down", status=503, type="server_error", code="shutting_down")


async def send_error(send: Send, error: RequestError, family: Family, request_id: str) -> None:
    """Send an error as a whole response."""
    body = error_body(family, error, request_id)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    retry_after = getattr(error, "retry_after", None)
    if retry_after is not None:
        headers.append((b"retry-after", str(max(1, int(retry_after))).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, _FramingError) or error.status == 408:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def host_name(host: str) -> str:
    """Return the name in a `Host` header: without the port, an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


async def _preflight(send: Send, headers: Mapping[bytes, bytes]) -> None:
    out = [(b"allow", b"GET, POST, OPTIONS")]
    if b"access-control-request-method" in headers:
        wanted = headers.get(b"access-control-request-headers", b"*")
        out += [
            (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
            (b"access-control-allow-headers", wanted),
            (b"access-control-max-age", b"600"),
        ]
    await send({"type": "http.response.start", "status": 204, "headers": out})
    await send({"type": "http.response.body", "body": b""})


def shown(path: str) -> str:
    """Return a path for the log: one line, of a length that anybody wants to read."""
    text = path.encode("unicode_escape").decode("ascii")
    return text if len(text) <= 100 else text[:100] + "..."


def _by_name(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return headers by name; of one that comes twice the first counts."""
    out: dict[bytes, bytes] = {}
    for name, value in headers:
        out.setdefault(name, value)
    return out


def _known(scope: Mapping[str, Any]) -> str:
    """Return the path for the metrics; one that no route has is not named, or clients could make up endless names."""
    found = scope.get("state", {}).get("route")
    return found if isinstance(found, str) else "other"
