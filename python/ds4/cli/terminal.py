"""What the programs show: the answer on stdout, everything else on stderr.

On a terminal the reasoning is dimmed and shares stdout with the answer. When stdout is a pipe or a file only the
answer goes there and the reasoning goes to stderr, so that ``x=$(ds4 -p ...)`` captures the answer alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from ds4 import UnsupportedModelError, WeightDataError
from ds4.progress import Progress

from .control import visible
from .markdown import MarkdownStream

_SHOWN_DIFFERENCES = 20
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_TTY_PERIOD, _LOG_PERIOD = 0.1, 5.0
_NARROWEST_BAR, _WIDEST_BAR = 8, 30


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
    tell(f"ds4: {text}\n")


def tell(text: str) -> None:
    """Write text to stderr. When nobody can be told any more the work goes on all the same."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        _discard(sys.stderr)


def end_output() -> OSError | None:
    """Flush stdout; when that fails return why, and make sure that the flush at exit does not fail again."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _discard(sys.stdout)
        return error
    return None


def _discard(stream: TextIO) -> None:
    """Let a stream that cannot be written end nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def describe(error: BaseException) -> str:
    """Return an exception as the text of a message; a long list of differences is cut."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        return where + error.strerror
    if isinstance(error, MemoryError) and not str(error):
        return "memory is exhausted"
    lines = (str(error) or type(error).__name__).splitlines()
    if isinstance(error, WeightDataError):
        lines[-1] += " (ds4 --check names them)"
    if isinstance(error, UnsupportedModelError) and len(lines) > _SHOWN_DIFFERENCES:
        hidden = len(lines) - _SHOWN_DIFFERENCES
        lines = [*lines[:_SHOWN_DIFFERENCES], f"and {hidden} more; ds4 inspect lists all"]
    return "\n".join(lines)


class AnswerPrinter:
    """Prints the parts of a reply as they arrive.

    Parameters
    ----------
    watch : callable, optional
        Called with everything that was written to standard output.
    """

    def __init__(self, watch: Callable[[str], None] | None = None) -> None:
        self._stdout, self._watch = sys.stdout, watch
        self._together = self._stdout.isatty()
        self._dimmed = False
        self._last = {"reasoning": "", "content": ""}
        self._markdown = _markdown(self._stdout, self._send) if use_colour(self._stdout) else None

    def reasoning(self, text: str) -> None:
        """Print a piece of reasoning."""
        stream = self._stdout if self._together else sys.stderr
        self._last["reasoning"] = text or self._last["reasoning"]
        if not self._dimmed and use_colour(stream):
            self._aside(_DIM)
            self._dimmed = True
        self._aside(visible(text) if stream.isatty() else text)

    def content(self, text: str) -> None:
        """Print a piece of the answer."""
        self._end_reasoning("\n")
        self._last["content"] = text or self._last["content"]
        if self._markdown is not None:
            self._markdown.feed(text)
        else:
            self._send(visible(text) if self._together else text)

    def finish(self) -> None:
        """End the reply: attributes off, the line closed."""
        self._end_reasoning("")
        if self._markdown is not None:
            self._markdown.finish()
        if self._last["content"] and not self._last["content"].endswith("\n"):
            self._send("\n")
        self._last["content"] = ""

    def _end_reasoning(self, gap: str) -> None:
        if self._dimmed:
            self._aside(_PLAIN)
            self._dimmed = False
        if self._last["reasoning"]:
            self._aside(gap if self._last["reasoning"].endswith("\n") else "\n" + gap)
        self._last["reasoning"] = ""

    def _send(self, text: str) -> None:
        try:
            self._stdout.write(text)
            self._stdout.flush()
        except OSError as error:
            if error.errno is None:
                raise
            raise OSError(error.errno, os.strerror(error.errno), "standard output") from None
        if self._watch is not None:
            self._watch(text)

    def _aside(self, text: str) -> None:
        """Write to where the reasoning goes."""
        if self._together:
            self._send(text)
        else:
            tell(text)


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
        self._skipped = 0

    def skip(self, done: int) -> None:
        """Say that so many units were finished before the work began: they do not count for the rate."""
        self._skipped = done

    def __call__(self, done: int, total: int) -> None:
        """Report that `done` of `total` units are finished."""
        now = time.monotonic()
        if now < self._next or not total:
            return
        self._next = now + (_TTY_PERIOD if self._live else _LOG_PERIOD)
        rate = (done - self._skipped) / (now - self._begin)
        if self._unit == "bytes":
            amount, speed = f"{done / 1e9:.2f} of {total / 1e9:.2f} GB", f"{rate / 1e6:.1f} MB/s"
        else:
            amount, speed = f"{done} of {total} {self._unit}", f"{rate:.1f} {self._unit}/s"
        left = f", {_duration((total - done) / rate)} left" if rate > 0 else ""
        share = f"({100 * done // total} %)"
        head, tail = f"ds4: {self._what}", f"{amount} {share}, {speed}{left}"
        if self._live:
            tell(f"\r\x1b[K{_fitted(head, tail, done / total)}")
        else:
            tell(f"{head} {tail}\n")
        self._drawn = self._live

    def finish(self) -> None:
        """Take the redrawn line away."""
        if self._drawn:
            tell("\r\x1b[K")
            self._drawn = False


class ResumedProgress:
    """Progress of work that may go on where an earlier run stopped; what that finished does not count for the rate.

    The first call tells what was finished before; `before` is None until then.
    """

    def __init__(self, line: ProgressLine) -> None:
        self._line = line
        self.before: int | None = None

    def __call__(self, done: int, total: int, name: str) -> None:
        """Report that `done` of `total` units are finished."""
        if self.before is None:
            self.before = done
            self._line.skip(done)
        self._line(done, total)


@contextlib.contextmanager
def shown_progress(what: str, unit: str) -> Iterator[Progress]:
    """Give a function that shows the progress of a library call, whatever ends the call."""
    line = ProgressLine(what, unit)
    try:
        yield lambda done, total, item: line(done, total)
    finally:
        line.finish()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _fitted(head: str, tail: str, share: float) -> str:
    """Return a line that fits into the terminal, since one that wraps cannot be redrawn; with a bar if possible."""
    columns = terminal_columns(sys.stderr)
    room = min(columns - len(head) - len(tail) - 5, _WIDEST_BAR)
    if room >= _NARROWEST_BAR:
        full = int(room * min(max(share, 0.0), 1.0))
        return f"{head} [{'#' * full}{'.' * (room - full)}] {tail}"
    text = f"{head} {tail}"
    return text[: columns - 1] if columns > 1 else text


def terminal_columns(stream: TextIO) -> int:
    """Return the width of the terminal that a stream goes to; 0 when it is unknown."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0


def _markdown(stream: TextIO, send: Callable[[str], None]) -> MarkdownStream:
    """Return a renderer for the signs and the width that a terminal has."""
    try:
        "•│─".encode(stream.encoding)
        ascii_only = False
    except (LookupError, UnicodeError):
        ascii_only = True
    return MarkdownStream(send, ascii_only=ascii_only, width=terminal_columns(stream) or 80)
