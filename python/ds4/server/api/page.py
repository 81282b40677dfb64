"""The chat page: the files of `ds4/server/page`, served as they are.

The page talks to this server and to nobody else, and its policy says so.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.routing import Route

from ..contract import RequestError

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def page_routes() -> list[Route]:
    """Return the routes of the page."""
    return [Route("/", _index, methods=["GET"]), Route("/page/{name}", _file, methods=["GET"])]


def _directory() -> Traversable:
    return files("ds4.server") / "page"


async def _index(request: HTTPRequest) -> Response:
    return _send("index.html")


async def _file(request: HTTPRequest) -> Response:
    return _send(request.path_params["name"])


def _send(name: str) -> Response:
    suffix = name.rpartition(".")[2]
    known = {entry.name: entry for entry in _directory().iterdir()} if _directory().is_dir() else {}
    if suffix not in _TYPES or name not in known:
        raise RequestError(f"there is no file {name!r} of the page", status=404, code="not_found")
    return Response(known[name].read_bytes(), media_type=_TYPES[suffix], headers=_HEADERS)
