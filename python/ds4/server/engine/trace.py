"""Writing down everything that happens to requests, for whoever wants to know why."""

from __future__ import annotations

import json
import os
import time
from array import array
from dataclasses import asdict
from threading import Lock
from typing import Any

from ...tokenizer import Tokenizer
from ..contract import Request
from .pool import common_prefix
from .prompts import Prepared

AROUND = 8
"""Tokens shown before and behind the first difference."""


class Trace:
    """A file of records, one JSON object a line. It holds private text and is readable for its owner only.

    Every record has `event`, `time` (seconds since 1970) and `id` (of the request):

    - request: all its fields
    - prompt: text, tokens, notes, and how many turns with calls were replayed exactly
    - place: where the prompt goes on from (source, why, kept, common), and the tokens around the first difference
    - text: a piece of the answer as the model writes it, with the choice
    - done: finish, calls with their ids, usage, timings, notes

    Parameters
    ----------
    path : path-like
        Lines are added to a file that exists.

    Raises
    ------
    OSError
        The file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w", encoding="utf-8")
        self._lock = Lock()

    def write(self, event: str, request: Request, **members: Any) -> None:
        """Write a record."""
        record = {"event": event, "time": round(time.time(), 6), "id": request.id, **members}
        # ASCII, so that a lone surrogate of a client cannot stop the line.
        line = json.dumps(record, default=str) + "\n"
        with self._lock:
            if not self._file.closed:
                self._file.write(line)
                self._file.flush()

    def request(self, request: Request) -> None:
        """Write a request down."""
        self.write("request", request, fields=asdict(request))

    def prompt(self, prepared: Prepared) -> None:
        """Write a prompt down."""
        self.write(
            "prompt",
            prepared.request,
            text=prepared.text,
            n_tokens=len(prepared.tokens),
            n_replayed=prepared.n_replayed,
            n_unknown=prepared.n_unknown,
            notes=prepared.notes,
        )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()


def difference(tokenizer: Tokenizer, prompt: array[int], held: array[int]) -> dict[str, Any]:
    """Describe the first difference of a prompt from what a session holds: a window of both, as ids and text."""
    at = common_prefix(prompt, held)
    if at == min(len(prompt), len(held)):
        return {"at": at}

    def window(tokens: array[int]) -> list[tuple[int, str]]:
        return [(t, tokenizer.piece(t)) for t in tokens[max(0, at - AROUND) : at + 1 + AROUND]]

    return {"at": at, "first": max(0, at - AROUND), "prompt": window(prompt), "session": window(held)}
