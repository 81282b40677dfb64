"""The speed of an answer while it is written, in the last row of the terminal.

The rows above it become the scrolling region, so the text flows as ever, is never drawn again and goes into the
terminal's history. Nothing is shown while the text may stand at the very end of a row: some terminals forget there,
when the cursor comes back, that the next sign belongs to the next row. All sequences are those that terminfo knows of
the terminal; where one is missing nothing is shown. The region is given back when the answer ends, when the program is
stopped (Ctrl-Z) or ended from outside, and when the window changes its size, which ends the display for this answer.
"""

from __future__ import annotations

import contextlib
import curses
import os
import re
import signal
import sys
import time
import unicodedata
from collections import deque
from collections.abc import Callable
from types import FrameType

_PERIOD, _WINDOW = 0.25, 2.0
_FEWEST_ROWS, _FEWEST_COLUMNS = 6, 20
_ATTRIBUTES = re.compile(r"\x1b\[[0-9;]*m")
_JOINERS = "\u200d\ufe0f"
_SIGNALS = (signal.SIGTSTP, signal.SIGTERM, signal.SIGHUP)


class Column:
    """Where the cursor stands in its row after some text, and how far that may be wrong.

    Parameters
    ----------
    columns : int
        Width of the terminal. At that column the next sign goes to the next row.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._at = self._doubt = 0

    @property
    def inside(self) -> bool:
        """Whether the cursor is certainly not at the end of a row."""
        if not self._doubt:
            return self._at < self._columns
        return self._doubt < self._at < self._columns - self._doubt

    def feed(self, text: str) -> None:
        """Take text that was written, with attributes."""
        from prompt_toolkit.utils import get_cwidth  # loaded already where lines are edited

        for char in _ATTRIBUTES.sub("", text):
            if char in "\r\n":
                self._at = self._doubt = 0
            elif char == "\t":
                self._at = min(self._at // 8 * 8 + 8, self._columns - 1)
            elif char in _JOINERS:
                self._doubt += 2  # two pictures may become one
            elif width := get_cwidth(char):
                self._put(width, unicodedata.east_asian_width(char) == "A")

    def _put(self, width: int, ambiguous: bool) -> None:
        if self._at + width > self._columns:
            self._doubt += 2 * (self._at < self._columns)  # a wide sign does not fit: terminals differ
            self._at = 0
        self._at += width
        self._doubt += ambiguous


class LiveLine:
    """A line about an answer in the making. It shows nothing where it cannot.

    Parameters
    ----------
    fd : int
        The terminal that the answer goes to. What is written to it elsewhere is flushed and told by `wrote`.
    clock : callable
        Returns seconds.
    """

    def __init__(self, fd: int = 1, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._fd, self._clock = fd, clock
        self._codes = _codes(fd)
        self._size: os.terminal_size | None = None  # while the region is set
        self._marks: deque[tuple[float, int]] = deque()
        self._next = 0.0
        self._column = Column(0)
        self._handlers: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    @property
    def active(self) -> bool:
        """Whether the last row belongs to the line."""
        return self._size is not None

    def begin(self) -> None:
        """Take the last row; the cursor is at the start of a line."""
        now = self._clock()
        self._marks.clear()
        self._marks.append((now, 0))
        self._next = now + _PERIOD  # a single token tells no speed
        if self._size is None and self._enter():
            with contextlib.suppress(ValueError):  # not in the main thread: then nobody cares for signals
                for number in _SIGNALS:
                    self._handlers[number] = signal.signal(number, self._stopped)

    def wrote(self, text: str) -> None:
        """Learn what was written to the terminal since `begin`."""
        if self.active:
            self._column.feed(text)

    def show(self, n_tokens: int, used: int, n_ctx: int) -> None:
        """Show that many tokens of an answer, and positions of the context in use, if it is time to."""
        if not self.active:
            return
        now = self._clock()
        if now < self._next or not self._column.inside:
            return
        self._next = now + _PERIOD
        self._marks.append((now, n_tokens))
        while len(self._marks) > 2 and now - self._marks[1][0] >= _WINDOW:
            self._marks.popleft()
        begin, before = self._marks[0]
        rate = (n_tokens - before) / (now - begin) if now > begin else 0.0
        self._draw(f"{rate:.1f} t/s, {n_tokens} tokens, context {used}/{n_ctx}")

    def end(self) -> None:
        """Give the row back."""
        self._leave()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _enter(self) -> bool:
        size = _size(self._fd)
        if self._codes is None or size is None or size.lines < _FEWEST_ROWS or size.columns < _FEWEST_COLUMNS:
            return False
        # A line feed and one up: if the cursor was in the last row, the text moves up and it no longer is.
        put = f"\n{self._codes.up}{self._codes.save}{self._codes.region(0, size.lines - 2)}{self._codes.restore}"
        if not self._write(put):
            return False
        self._size = size
        self._column = Column(size.columns)
        return True

    def _leave(self) -> None:
        if self._size is None or self._codes is None:
            return
        self._size = None
        now = _size(self._fd)
        if now is None:
            return
        last = f"{self._codes.move(now.lines - 1, 0)}{self._codes.clear}"
        self._write(f"{self._codes.save}{self._codes.region(0, now.lines - 1)}{last}{self._codes.restore}")

    def _draw(self, text: str) -> None:
        assert self._codes is not None and self._size is not None
        if _size(self._fd) != self._size:
            self._leave()
            return
        shown = text[: self._size.columns - 1]
        codes = self._codes
        row = codes.move(self._size.lines - 1, 0)
        self._write(f"{codes.save}{row}{codes.dim}{shown}{codes.plain}{codes.clear}{codes.restore}")

    def _stopped(self, number: int, frame: FrameType | None) -> None:
        """Give the row back before the program stops or ends, and take it again when it goes on."""
        self._leave()
        previous = self._handlers.get(number)
        signal.signal(number, signal.SIG_DFL if previous is None else previous)
        os.kill(os.getpid(), number)
        if number == signal.SIGTSTP and self._handlers:  # going on
            signal.signal(number, self._stopped)
            column = self._column
            self._enter()
            self._column = column

    def _write(self, text: str) -> bool:
        """Write past all buffers: a signal may come in the middle of another write."""
        try:
            os.write(self._fd, text.encode("ascii"))
        except OSError:
            self._size = None
            return False
        return True


class _Codes:
    """The sequences of a terminal, as terminfo has them."""

    def __init__(self, coloured: bool) -> None:
        self._region, self._move = _needed("csr"), _needed("cup")
        self.save, self.restore, self.up = _text(_needed("sc")), _text(_needed("rc")), _text(_needed("cuu1"))
        self.clear = _text(_needed("el"))
        dim, plain = curses.tigetstr("dim"), curses.tigetstr("sgr0")
        both = dim is not None and plain is not None and coloured
        self.dim, self.plain = (_text(dim), _text(plain)) if both else ("", "")

    def region(self, first: int, last: int) -> str:
        """Let only these rows scroll; the cursor moves."""
        return _text(curses.tparm(self._region, first, last))

    def move(self, row: int, column: int) -> str:
        """Put the cursor somewhere."""
        return _text(curses.tparm(self._move, row, column))


def _needed(name: str) -> bytes:
    found = curses.tigetstr(name)
    if not found:
        raise LookupError(name)
    return found


def _text(sequence: bytes | None) -> str:
    """Return a sequence without the pauses that old terminals need."""
    return (sequence or b"").split(b"$<")[0].decode("ascii")


def _codes(fd: int) -> _Codes | None:
    """Return the sequences of a terminal, or None if it lacks one or is none."""
    if not os.isatty(fd) or os.environ.get("TERM", "dumb") == "dumb":
        return None
    try:
        curses.setupterm(fd=fd)
        return _Codes(coloured=not os.environ.get("NO_COLOR"))
    except (curses.error, LookupError, UnicodeError):
        return None


def _size(fd: int) -> os.terminal_size | None:
    try:
        return os.get_terminal_size(fd)
    except OSError:
        return None


def live_line() -> LiveLine | None:
    """Return a line for standard output, if that is a terminal."""
    try:
        fd = sys.stdout.fileno()
    except (OSError, ValueError):
        return None
    return LiveLine(fd) if os.isatty(fd) else None
