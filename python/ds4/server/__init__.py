"""The HTTP server: four dialects in front, one engine with live sessions behind.

`create_app` makes an ASGI application of an engine, `serve` runs one in a process of its own. Needs the extra
`ds4[server]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import Application, Settings, create_app
    from .api.serve import OpenServerError, serve

_PLACES = {
    "Application": "ds4.server.api",
    "Settings": "ds4.server.api",
    "create_app": "ds4.server.api",
    "OpenServerError": "ds4.server.api.serve",
    "serve": "ds4.server.api.serve",
}

__all__ = ["Application", "OpenServerError", "Settings", "create_app", "serve"]


def __getattr__(name: str) -> Any:
    """Load the names of the network side when they are asked for: the engine side needs none of it."""
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(place), name)
