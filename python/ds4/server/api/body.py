"""The body of a request: read within limits, then made into the type that a dialect declares.

Nothing is parsed before its size and its nesting are known to be harmless, and every refusal names the place in the
body.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeVar

import msgspec
import numpy as np

from ..contract import RequestError
from .errors import server_error
from .settings import Settings

T = TypeVar("T")

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MAX_DEPTH = 256
"""Deepest nesting of arrays and objects in a body."""


class Disconnected(Exception):  # noqa: N818 - nobody is told of it
    """The client left before its request was complete."""


class BodyReader:
    """Reads bodies, and knows how much all of them take.

    Parameters
    ----------
    settings : Settings
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._held = 0

    async def read(self, headers: Iterable[tuple[bytes, bytes]], receive: Receive) -> bytes:
        """Return the whole body.

        Raises
        ------
        RequestError
            It is too large (413), too slow (408), encoded (415), or there is no room for it now (503).
        Disconnected
            The client left.
        """
        limit = self._settings.max_body
        declared = _checked_headers(headers)
        if declared is not None and declared > limit:
            raise _too_large(declared, limit)
        chunks: list[bytes] = []
        size = 0
        loop = asyncio.get_running_loop()
        end = loop.time() + self._settings.body_total_timeout
        try:
            while True:
                wait = min(self._settings.body_timeout, end - loop.time())
                try:
                    async with asyncio.timeout(wait):
                        message = await receive()
                except TimeoutError:
                    raise RequestError(
                        f"the body of the request did not arrive in time; {size} bytes were read", status=408
                    ) from None
                if message["type"] == "http.disconnect":
                    raise Disconnected
                chunk = message.get("body", b"")
                size += len(chunk)
                self._held += len(chunk)
                if size > limit:
                    raise _too_large(None, limit)
                if self._held > self._settings.max_bodies:
                    raise server_error("too many large requests at one time; try again", status=503)
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
        finally:
            self._held -= size


def _checked_headers(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Return the declared length of the body, if any."""
    length: int | None = None
    for name, value in headers:
        if name == b"content-length" and value.isdigit() and len(value) < 20:
            length = int(value)
        elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            encoding = value.decode("latin-1")
            raise RequestError(f"a body with Content-Encoding {encoding} is not supported; send it plain", status=415)
    return length


def _too_large(size: int | None, limit: int) -> RequestError:
    what = "the body of the request" if size is None else f"the body of the request has {size} bytes and"
    return RequestError(
        f"{what} is larger than the limit of {limit} bytes" if size is None else f"{what} may have {limit}",
        status=413,
        code="request_too_large",
    )


def decode(data: bytes, kind: type[T]) -> T:
    """Read a JSON body into a type; unknown fields are ignored.

    A `\\ud800` without its other half is no character: it becomes U+FFFD, because clients that cut texts by UTF-16
    units send it and mean no harm.

    Raises
    ------
    RequestError
        It is not JSON, nested too deeply, or a field has a wrong value; `param` names the field.
    """
    check_depth(data)
    try:
        return msgspec.json.decode(mend_surrogates(data), type=kind)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not valid JSON: {_plain(str(error))}", code="invalid_json") from None
    except RecursionError:  # brackets inside a text that is no JSON: the check reads them another way
        raise RequestError("the body is not valid JSON", code="invalid_json") from None


def check_depth(data: bytes) -> None:
    """Refuse a JSON text that is nested deeper than `MAX_DEPTH`, without parsing it.

    Raises
    ------
    RequestError
    """
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    # Without escaped characters every quotation mark begins or ends a string, so each second piece lies outside.
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = b"".join(plain.split(b'"')[::2]).translate(_STEPS, _OTHERS)
    if not structure:
        return
    depth = np.cumsum(np.frombuffer(structure, dtype=np.int8), dtype=np.int64)
    if int(depth.max()) > MAX_DEPTH:
        raise RequestError(f"the body is nested deeper than {MAX_DEPTH} levels", code="invalid_json")


_STEPS = bytes.maketrans(b"[{]}", bytes([1, 1, 255, 255]))
_OTHERS = bytes(c for c in range(256) if c not in b"[{]}")

_ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def mend_surrogates(data: bytes) -> bytes:
    """Replace the escapes of lone surrogates by that of U+FFFD."""
    if b"\\ud" not in data and b"\\uD" not in data:
        return data
    return _ESCAPES.sub(lambda m: b"\\ufffd" if m[1] else m[0], data)


_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$")


def _wrong_field(text: str) -> RequestError:
    found = _AT.match(text)
    assert found is not None
    what, path = found["what"], (found["path"] or "").removeprefix(".")
    missing = _MISSING.match(what)
    if missing:
        path = f"{path}.{missing['name']}" if path else missing["name"]
        return RequestError(f"{path} is missing", param=path, code="missing_required_parameter")
    where = path or "the body"
    return RequestError(f"{where}: {_plain(what)}", param=path or None, code="invalid_value")


def _plain(text: str) -> str:
    """Begin a message of the JSON library like a sentence's second half."""
    text = text.replace("`", "")
    return text[:1].lower() + text[1:] if text[:4] != "JSON" else text.removeprefix("JSON is malformed: ")
