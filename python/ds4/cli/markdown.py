"""Markdown for a terminal, piece by piece as it arrives.

What has been shown is never drawn again, so it works in any terminal, over slow lines and while scrolling. A piece is
held back only until it is known what it is: the first characters of a line, and a span like ``**bold**`` until it
closes. A span that does not close in its line, or is long, is shown as it was written: no text is ever lost.

Known are headings, fenced code, bold, italic, code spans, bullets, quotes and rules. Everything else stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .control import visible

_BOLD, _ITALIC, _UNDERLINE, _DIM = "1", "3", "4", "2"
_CODE = "36"
_PLAIN = "\x1b[0m"
_LONGEST_SPAN = 240
_LONGEST_START = 80

# The start of a line while it may still become one of these.
_UNDECIDED = re.compile(r" {0,3}(#{0,6} *|`{1,2}|~{1,2}|[-*_][-*_ ]*|>[> ]*)|\s*([-*+] *)?")
_HEADING = re.compile(r" {0,3}(#{1,6}) +")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})([^\n]*)")
_BULLET = re.compile(r"(\s*)[-*+] +(?=\S)")
_QUOTE = re.compile(r" {0,3}((?:> ?)+)")
_RULE = re.compile(r" {0,3}([-*_])(?: *\1){2,} *")


class MarkdownStream:
    """Turns markdown into text with attributes.

    Parameters
    ----------
    send : callable
        Takes what is to be shown.
    ascii_only : bool
        Use no signs outside of ASCII: the terminal may lack them.
    width : int
        Columns of the terminal, for rules.
    """

    def __init__(self, send: Callable[[str], None], *, ascii_only: bool = False, width: int = 80) -> None:
        self._send = send
        self._bullet, self._bar, self._line = ("*", "|", "-") if ascii_only else ("•", "│", "─")
        self._width = max(1, min(width - 1, 60))
        self._held = ""
        self._at_start = True  # of a line
        self._fence = ""  # the signs that opened the code block we are in
        self._style: list[str] = []  # attributes of the rest of the line
        self._before = " "  # the last character shown

    def feed(self, text: str) -> None:
        """Take the next piece of the text."""
        self._held += text
        out: list[str] = []
        while self._held:
            taken = self._start(out) if self._at_start else self._inside(out)
            if not taken:
                break
        if out:
            self._send("".join(out))

    def finish(self) -> None:
        """Show what is held back, attributes off."""
        out: list[str] = []
        while self._held:
            if self._at_start:
                self._start(out, ended=True)
            else:
                self._inside(out, ended=True)
        if self._style or self._fence:
            out.append(_PLAIN)
        self._style, self._fence, self._at_start, self._before = [], "", True, " "
        if out:
            self._send("".join(out))

    # The start of a line

    def _start(self, out: list[str], *, ended: bool = False) -> bool:
        """Decide what a line is and show its marks; false when more text is needed."""
        line, newline, _ = self._held.partition("\n")
        ended = ended or bool(newline)
        if self._fence:
            sign = self._fence[0]
            closing = not line.strip(" " + sign)  # it may still become so, when it is short
            if not ended and closing and len(line) < _LONGEST_START:
                return False
            self._at_start = False
            if ended and closing and line.count(sign) >= len(self._fence):
                self._fence, self._style = "", []
                out.append(_PLAIN + self._attribute(_DIM, line))
                self._held = self._held[len(line) :]
            return True
        undecided = _UNDECIDED.fullmatch(line) or _FENCE.match(line)
        if not ended and undecided and len(line) < _LONGEST_START:
            return False
        self._start_known(out, line, ended=ended)
        return True

    def _start_known(self, out: list[str], line: str, *, ended: bool) -> None:
        """Show the marks of a line whose kind is known."""
        self._at_start = False
        whole = line if ended and len(line) < _LONGEST_START else ""
        if (found := _FENCE.fullmatch(whole)) and "`" not in found[2]:
            out.append(self._attribute(_DIM, line) + "\x1b[" + _CODE + "m")
            self._fence, self._style = found[1], [_CODE]
            self._held = self._held[len(line) :]
        elif _RULE.fullmatch(whole):
            out.append(self._attribute(_DIM, self._line * self._width))
            self._held = self._held[len(line) :]
        elif found := _HEADING.match(line):
            self._held = self._held[found.end() :]
            self._style = [_BOLD, _UNDERLINE] if len(found[1]) == 1 else [_BOLD]
            out.append(self._codes())
        elif found := _QUOTE.match(line):
            self._held = self._held[found.end() :]
            out.append(self._attribute(_DIM, f"{self._bar} " * found[1].count(">")))
        elif found := _BULLET.match(line):
            self._held = self._held[found.end() :]
            out.append(f"{found[1]}{self._bullet} ")
        self._before = " "

    # Inside of a line

    def _inside(self, out: list[str], *, ended: bool = False) -> bool:
        """Show what can be shown of the present line; false when more text is needed."""
        end = self._held.find("\n")
        if end == 0:
            self._held = self._held[1:]
            if not self._fence and self._style:
                out.append(_PLAIN)
                self._style = []
            out.append("\n")
            self._at_start, self._before = True, " "
            return True
        line = self._held if end < 0 else self._held[:end]
        self._at_start = False
        if self._fence:
            out.append(visible(line))
            self._held = self._held[len(line) :]
            return True
        return self._spans(out, line, ended=ended or end >= 0)

    def _spans(self, out: list[str], line: str, *, ended: bool) -> bool:
        """Show a part of a line, up to and with its first span."""
        mark = re.search(r"[`*\\]", line)
        if mark is None:
            self._show(out, line, len(line))
            return True
        if mark.start():
            self._show(out, line[: mark.start()], mark.start())
            return True
        run = re.match(r"`+|\*+|\\.?", line)
        assert run is not None
        sign = run[0]
        if len(sign) == len(line) and not ended:  # more of the same, or what it marks, may follow
            return False
        if sign[0] == "\\":
            escaped = len(sign) > 1 and sign[1] in "*`_#\\"
            self._show(out, sign[1:] if escaped else sign, len(sign))
            return True
        span = self._span(line, sign, ended=ended)
        if span is not None:
            text, codes, n = span
            out.append(self._attribute(codes, visible(text)))
            self._held, self._before = self._held[n:], text[-1]
            return True
        if not ended and len(line) <= _LONGEST_SPAN and self._may_open(line, sign):
            return False
        self._show(out, sign, len(sign))
        return True

    def _may_open(self, line: str, sign: str) -> bool:
        """Whether a run of signs can begin a span, by what stands around it."""
        if sign[0] == "`":
            return True
        after = line[len(sign)] if len(line) > len(sign) else " "
        return len(sign) <= 3 and not after.isspace() and not self._before.isalnum()

    def _span(self, line: str, sign: str, *, ended: bool) -> tuple[str, str, int] | None:
        """Return the text of the span that begins a line, its attributes and its length with the signs."""
        if not self._may_open(line, sign):
            return None
        kind, n = re.escape(sign[0]), len(sign)
        for close in re.finditer(rf"{kind}+", line[n:]):
            text, last = line[n : n + close.start()], n + close.end()
            if last > _LONGEST_SPAN or (last == len(line) and not ended):  # more of the same signs may follow
                return None
            if len(close[0]) != n or not text:
                continue
            if sign[0] == "`":
                return text.strip(" ") or text, _CODE, last
            if not text[-1].isspace():
                # Signs of other spans inside stay as they are written.
                return text, ";".join([_BOLD] * (n >= 2) + [_ITALIC] * (n != 2)), last
        return None

    def _show(self, out: list[str], text: str, n: int) -> None:
        if text:
            out.append(visible(text))
            self._before = text[-1]
        self._held = self._held[n:]

    def _codes(self) -> str:
        return f"\x1b[{';'.join(self._style)}m" if self._style else ""

    def _attribute(self, codes: str, text: str) -> str:
        """Give a text attributes of its own; those of the line go on behind it."""
        return f"\x1b[{codes}m{text}{_PLAIN}{self._codes()}"
