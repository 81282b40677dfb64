"""What a terminal shows after a program's output: the few control sequences that full-screen programs here use."""

from __future__ import annotations

import re
import unicodedata

_SEQUENCE = re.compile(
    r"\x1b\[([?>]?[0-9;]*)([A-Za-z~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>78A-Z]"
)


class Screen:
    """A grid of characters with a cursor.

    Parameters
    ----------
    columns, rows : int
    """

    def __init__(self, columns: int, rows: int) -> None:
        self._columns, self._rows = columns, rows
        self._held = ""
        self._clear()

    def _clear(self) -> None:
        self._cells = [[" "] * self._columns for _ in range(self._rows)]
        self._x = self._y = 0

    def resize(self, columns: int, rows: int) -> None:
        """Take a new size; the program is expected to draw everything again."""
        self._columns, self._rows = columns, rows
        self._clear()

    @property
    def lines(self) -> list[str]:
        """The rows without the spaces at their ends."""
        return ["".join(row).rstrip() for row in self._cells]

    @property
    def text(self) -> str:
        """All rows."""
        return "\n".join(self.lines)

    def feed(self, text: str) -> None:
        """Take output; a sequence may be cut anywhere."""
        text = self._held + text
        self._held = ""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = _SEQUENCE.match(text, at)
                if found is None:
                    if len(text) - at < 32:
                        self._held = text[at:]
                        return
                    at += 1
                    continue
                if found[2]:
                    self._control(found[1], found[2])
                at = found.end()
                continue
            self._put(text[at])
            at += 1

    def _put(self, char: str) -> None:
        if char == "\r":
            self._x = 0
        elif char == "\b":
            self._x = max(self._x - 1, 0)
        elif char == "\n":
            if self._y + 1 < self._rows:
                self._y += 1
            else:
                self._cells = [*self._cells[1:], [" "] * self._columns]
        elif char >= " ":
            if self._x < self._columns:
                self._cells[self._y][self._x] = char
            self._x += 2 if unicodedata.east_asian_width(char) in "WF" else 1

    def _control(self, parameters: str, final: str) -> None:
        if parameters.startswith(("?", ">")):
            if parameters == "?1049" and final in "hl":
                self._clear()
            return
        numbers = [int(p) if p else 0 for p in parameters.split(";")]
        n = max(numbers[0], 1)
        if final == "A":
            self._y = max(self._y - n, 0)
        elif final == "B":
            self._y = min(self._y + n, self._rows - 1)
        elif final == "C":
            self._x = min(self._x + n, self._columns - 1)
        elif final == "D":
            self._x = max(min(self._x, self._columns - 1) - n, 0)
        elif final == "H":
            self._y = min(n, self._rows) - 1
            self._x = min(max(numbers[1] if len(numbers) > 1 else 1, 1), self._columns) - 1
        elif final == "K":
            for x in range(self._x, self._columns):
                self._cells[self._y][x] = " "
        elif final == "J":
            rest = range(self._y, self._rows) if numbers[0] == 0 else range(self._rows)
            for y in rest:
                begin = self._x if numbers[0] == 0 and y == self._y else 0
                self._cells[y][begin:] = [" "] * (self._columns - begin)
