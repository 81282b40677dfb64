"""HTTP/1.1 as the server speaks it: uvicorn's protocol over h11, made strict and given deadlines.

Two servers in a row that read one message differently can be made to disagree about where it ends. So what is merely
tolerated by others is refused here: lines that end without a carriage return, folded lines, two lengths, a length
beside chunks (that one in `guard`). A refusal closes the connection, for nothing after it can be trusted.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import MutableMapping
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..contract import RequestError
from .body import Receive
from .errors import error_body
from .exchange import Send

MAX_HEAD = 64 << 10
"""Most bytes of a request's head."""

_HEAD_END = re.compile(rb"\r?\n\r?\n")
_LENIENT = re.compile(rb"(?<!\r)\n|\r\n[ \t]")  # a bare newline, or a header that goes on in the next line


class StrictProtocol(H11Protocol):
    """One connection. The configuration's application has `settings` (see `Settings`)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._settings = self.config.app.settings  # type: ignore[union-attr]
        self._deadline: asyncio.TimerHandle | None = None
        self._draining: asyncio.TimerHandle | None = None
        inner = self.app

        async def with_abort(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
            scope["ds4.abort"] = self._abort
            await inner(scope, receive, send)

        self.app = with_abort

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; the first head must come in time."""
        super().connection_made(transport)
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_deadline()
        self._stop_draining()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; those of a new head must be complete in time."""
        if self.conn.their_state is h11.IDLE and self._deadline is None:
            self._start_deadline()
        super().data_received(data)

    def handle_events(self) -> None:
        """Look at the head before h11 does, which is lenient."""
        if self.conn.their_state is h11.IDLE:
            head = self.conn.trailing_data[0]
            end = _HEAD_END.search(head)
            if _LENIENT.search(head, 0, end.end() if end else len(head)):
                self.send_400_response("a line of the head ends without a carriage return, or is folded")
                return
        super().handle_events()
        if self.conn.their_state is not h11.IDLE:
            self._stop_deadline()
        if self.conn.their_state is not h11.SEND_BODY:
            self._stop_draining()

    def on_response_complete(self) -> None:
        """Go on; the rest of a body that nobody wants is read for a while, else its sender would miss the answer."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._draining = self.loop.call_later(self._settings.head_timeout, self._too_slow)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, and close."""
        self._stop_deadline()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        body = error_body("openai", RequestError(msg), "")
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(self._settings.head_timeout, self._too_slow)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _stop_draining(self) -> None:
        if self._draining is not None:
            self._draining.cancel()
            self._draining = None

    def _too_slow(self) -> None:
        self._deadline = self._draining = None
        if not self.transport.is_closing():
            self.transport.close()

    def _abort(self) -> None:
        self.transport.abort()
