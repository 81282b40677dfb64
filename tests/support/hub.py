"""A stand-in for the hub: an HTTP server that tells what it has, and another one that sends the bytes by ranges."""

from __future__ import annotations

import hashlib
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Stored:
    """A file, and what goes wrong with it.

    `cuts` are numbers of bytes after which the connections that send it break, one for each; `claimed` is a size that
    the hub tells in place of the true one.
    """

    content: bytes
    sha256: str | None = None
    plain_etag: bool = False
    ranges: bool = True
    token: str | None = None
    gated: bool = False
    claimed: int | None = None
    cuts: list[int] = field(default_factory=list)
    stumbles: list[int] = field(default_factory=list)

    @property
    def etag(self) -> str:
        digest = hashlib.sha256(self.content).hexdigest()
        return digest[:40] if self.plain_etag else self.sha256 or digest


class Hub:
    """Serves files "owner/name/file" as long as the context lasts.

    Attributes
    ----------
    url : str
        For HF_ENDPOINT.
    files : dict
        "owner/name/file" -> Stored.
    asked : list
        (host, method, path, Range, Authorization) of every request.
    """

    def __init__(self) -> None:
        self.files: dict[str, Stored] = {}
        self.asked: list[tuple[str, str, str, str | None, str | None]] = []
        self._servers = [self._server("hub"), self._server("store")]
        self.url, _ = (f"http://127.0.0.1:{s.server_address[1]}" for s in self._servers)
        # Another host name: what the hub is told must not be told to the store.
        self.store_url = f"http://localhost:{self._servers[1].server_address[1]}"
        self._threads = [
            threading.Thread(target=s.serve_forever, kwargs={"poll_interval": 0.02}) for s in self._servers
        ]

    def ranges(self) -> list[str | None]:
        """Return what was asked of the store."""
        return [r for host, method, _, r, _ in self.asked if host == "store" and method == "GET"]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for thread in self._threads:
            thread.join()

    def _server(self, host: str) -> ThreadingHTTPServer:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                hub._answer(self, host)

            def do_GET(self) -> None:
                hub._answer(self, host)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        return server

    def _answer(self, request: BaseHTTPRequestHandler, host: str) -> None:
        headers = request.headers
        self.asked.append((host, request.command, request.path, headers["Range"], headers["Authorization"]))
        if host == "store":
            self._send_content(request, self.files[request.path[1:]])
            return
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", request.path)
        repository, revision, name = found.groups() if found else ("", "", "")
        stored = self.files.get(f"{repository}/{name}")
        authorized = stored is None or stored.token is None or headers["Authorization"] == f"Bearer {stored.token}"
        if not any(key.startswith(f"{repository}/") for key in self.files):
            _refuse(request, 401, "RepoNotFound")
        elif revision not in ("main", COMMIT):
            _refuse(request, 404, "RevisionNotFound")
        elif stored is None:
            _refuse(request, 404, "EntryNotFound")
        elif not authorized and stored.gated:
            _refuse(request, 403 if headers["Authorization"] else 401, "GatedRepo")
        elif not authorized:
            _refuse(request, 401, "RepoNotFound")
        else:
            request.send_response(302)
            request.send_header("Location", f"{self.store_url}/{repository}/{name}")
            request.send_header("X-Repo-Commit", COMMIT)
            request.send_header("X-Linked-Etag", f'"{stored.etag}"')
            request.send_header("X-Linked-Size", str(stored.claimed or len(stored.content)))
            request.send_header("Content-Length", "0")
            request.end_headers()

    def _send_content(self, request: BaseHTTPRequestHandler, stored: Stored) -> None:
        if stored.stumbles:
            _refuse(request, stored.stumbles.pop(0), "")
            return
        total, begin, end = len(stored.content), 0, len(stored.content)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers["Range"] or "")
        if asked and stored.ranges:
            begin, end = int(asked[1]), min(int(asked[2]) + 1, total)
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {begin}-{end - 1}/{total}")
        else:
            request.send_response(200)
        request.send_header("Content-Length", str(end - begin))
        request.end_headers()
        content = memoryview(stored.content)[begin:end]
        if stored.cuts:
            content = content[: stored.cuts.pop(0)]
            request.close_connection = True
        try:
            request.wfile.write(content)
        except OSError:
            request.close_connection = True


def _refuse(request: BaseHTTPRequestHandler, status: int, code: str) -> None:
    request.send_response(status)
    if code:
        request.send_header("X-Error-Code", code)
    request.send_header("Content-Length", "0")
    request.end_headers()
