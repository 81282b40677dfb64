"""What the programs show: the answer on stdout, everything else on stderr.

On a terminal the reasoning is dimmed and shares stdout with the answer. When stdout is a pipe or a file only the
answer goes there and the reasoning goes to stderr, so that ``x=$(ds4 -p ...)`` captures the answer alone.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

from ds4 import UnsupportedModelError

_SHOWN_DIFFERENCES = 20
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_TTY_PERIOD, _LOG_PERIOD = 0.1, 5.0


def use_colour(stream: TextIO) -> bool:
    """Whether to send attributes to a stream: it is a terminal, and NO_COLOR and TERM=dumb do not forbid it."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def prepare_streams() -> None:
    """Make sure that no text can fail to be printed or read, whatever the locale."""
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "replace"), (sys.stdin, "surrogateescape")):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors=errors)


def note(text: str) -> None:
    """Print one line about what is going on to stderr."""
    print(f"ds4: {text}", file=sys.stderr, flush=True)


def describe(error: BaseException) -> str:
    """Return an exception as the text of a message; a long list of differences is cut."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        return where + error.strerror
    if isinstance(error, MemoryError) and not str(error):
        return "memory is exhausted"
    lines = (str(error) or type(error).__name__).splitlines()
    if isinstance(error, UnsupportedModelError) and len(lines) > _SHOWN_DIFFERENCES:
        hidden = len(lines) - _SHOWN_DIFFERENCES
        lines = [*lines[:_SHOWN_DIFFERENCES], f"and {hidden} more; ds4 inspect lists all"]
    return "\n".join(lines)


class AnswerPrinter:
    """Prints the parts of a reply as they arrive."""

    def __init__(self) -> None:
        self._stdout, self._stderr = sys.stdout, sys.stderr
        self._together = self._stdout.isatty()
        self._dimmed: TextIO | None = None
        self._last = {"reasoning": "", "content": ""}

    def reasoning(self, text: str) -> None:
        """Print a piece of reasoning."""
        stream = self._stdout if self._together else self._stderr
        self._last["reasoning"] = text or self._last["reasoning"]
        if self._dimmed is None and use_colour(stream):
            stream.write(_DIM)
            self._dimmed = stream
        stream.write(text)
        stream.flush()

    def content(self, text: str) -> None:
        """Print a piece of the answer."""
        self._end_reasoning("\n")
        self._last["content"] = text or self._last["content"]
        self._stdout.write(text)
        self._stdout.flush()

    def finish(self) -> None:
        """End the reply: attributes off, the line closed."""
        self._end_reasoning("")
        if self._last["content"] and not self._last["content"].endswith("\n"):
            self._stdout.write("\n")
            self._stdout.flush()
        self._last["content"] = ""

    def _end_reasoning(self, gap: str) -> None:
        stream = self._stdout if self._together else self._stderr
        if self._dimmed is not None:
            self._dimmed.write(_PLAIN)
            self._dimmed = None
        if self._last["reasoning"]:
            stream.write(gap if self._last["reasoning"].endswith("\n") else "\n" + gap)
            stream.flush()
        self._last["reasoning"] = ""


class ProgressLine:
    """Progress of one piece of work on stderr: a line that is redrawn on a terminal, a line now and then elsewhere.

    Parameters
    ----------
    what : str
        Name of the work ("prefill").
    unit : str
        What is counted ("tokens").
    """

    def __init__(self, what: str, unit: str) -> None:
        self._what, self._unit = what, unit
        self._live = sys.stderr.isatty()
        self._begin = time.monotonic()
        self._next = self._begin + (0.3 if self._live else _LOG_PERIOD)
        self._drawn = False

    def __call__(self, done: int, total: int) -> None:
        """Report that `done` of `total` units are finished."""
        now = time.monotonic()
        if now < self._next or not total:
            return
        self._next = now + (_TTY_PERIOD if self._live else _LOG_PERIOD)
        rate = done / (now - self._begin)
        text = f"ds4: {self._what} {done} of {total} {self._unit} ({100 * done // total} %), {rate:.1f} {self._unit}/s"
        sys.stderr.write(f"\r\x1b[K{text}" if self._live else text + "\n")
        sys.stderr.flush()
        self._drawn = self._live

    def finish(self) -> None:
        """Take the redrawn line away."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False
