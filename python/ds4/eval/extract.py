"""Finding the answer in what a model wrote.

Everything here works on the text after the reasoning. Texts are first brought to plain forms, character by character:
full-width letters, digits and signs, the digits of other scripts, and the dashes that stand for a minus.

The place of the answer is behind the last word "answer" that a colon follows, with or without bold marks in between,
else behind the first "answer" at all; letters of any script around it make it another word.
"""

from __future__ import annotations

import re
import unicodedata

LETTER_BYTES = 96
"""How far behind the place of the answer a letter is looked for, in UTF-8 bytes."""

INTEGER_BYTES = 160
"""The same for an integer."""

MAX_LINE = 255
"""Greater line numbers in an answer are ignored."""

_MINUS = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
_PLAIN = {ord(c): "-" for c in _MINUS} | {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F) if code != 0xFF0D}

_WORD = re.compile(r"(?<![^\W\d_])answer(?![^\W\d_])", re.IGNORECASE)
_COLON = re.compile(r"[ \t*_]*:[*_]*")

# Whitespace, markup, quotes, and TeX's \boxed{\text{ before the first letter of an answer.
_LEAD = re.compile(r"(?:[\s*_`\"'“‘(\[{$]|\\(?:boxed|text|textbf|mathrm|mathbf)\b|(?:option|choice)\b)*", re.IGNORECASE)

# Digits in groups of three, or of any number; a fraction counts only to tell that this is no integer.
_SEPARATOR = r"[,'_\u00a0\u2009\u202f]|\{,\}|\\,"
_NUMBER = re.compile(
    rf"(?P<grouped>[0-9]{{1,3}}(?P<sep>{_SEPARATOR})[0-9]{{3}}(?:(?P=sep)[0-9]{{3}})*(?![0-9])(?!(?P=sep)[0-9])"
    r"|[0-9]{1,3}(?:\.[0-9]{3}){2,}(?![0-9]))"
    r"|(?P<plain>[0-9]+)(?:\.(?P<fraction>[0-9]+))?"
)
# What stands before a minus that subtracts: right before it anything, with a space between a number, a bracket or the
# name of a variable. Behind anything else it is a sign.
_OPERAND = re.compile(r"[\w)\]}%]\Z|(?:[0-9)\]}%]|(?<![^\W_])[^\W\d_])[ \t]+\Z")

_LINE_NUMBER = re.compile(r"(?:(?<![^\W_])|(?<=[Ll])|(?<=[Ll]ine))([0-9]+)(?:\s*(?:-|to|\.\.+)\s*[Ll]?([0-9]+))?")


def plain(text: str) -> str:
    """Return a text of the same length with full-width forms, digits of other scripts and minus signs as ASCII."""
    text = text.translate(_PLAIN)
    if text.isascii():
        return text
    return "".join(c if c.isascii() or not c.isdecimal() else str(unicodedata.decimal(c)) for c in text)


def place(text: str) -> int | None:
    """Return where the answer begins in a plain text, or None when it never says "answer"."""
    words = list(_WORD.finditer(text))
    for word in reversed(words):
        colon = _COLON.match(text, word.end())
        if colon:
            return colon.end()
    return words[0].end() if words else None


def _window(text: str, start: int, n_bytes: int) -> int:
    """Return the end of the first `n_bytes` bytes of UTF-8 behind `start`, in whole characters."""
    piece = text[start : start + n_bytes].encode("utf-8", "replace")[:n_bytes]
    return start + len(piece.decode("utf-8", "ignore"))


def letter(text: str, n_choices: int) -> str | None:
    """Return the letter of the choice that a text picks, or None.

    The first stand-alone capital letter of the choices in the first bytes behind the place of the answer; a small one
    counts when it is the whole answer or is marked as an item, as in ``b)``. Without one, the last stand-alone
    capital in the text.
    """
    text = plain(text)
    last = chr(ord("A") + n_choices - 1)
    capital = re.compile(rf"(?<![^\W_])[A-{last}](?![^\W_])(?!['’][^\W\d_])")
    at = place(text)
    if at is not None:
        first = _LEAD.match(text, at)
        begin = first.end() if first else at
        small = re.compile(rf"[a-{last.lower()}](?=[\s*_`}}$\"'”’]*(?:[)\].:]|$|\n))").match(text, begin)
        if small and begin < _window(text, at, LETTER_BYTES):
            return small[0].upper()
        for found in capital.finditer(text, at):
            if found.start() < _window(text, at, LETTER_BYTES):
                return found[0]
            break
    every = capital.findall(text)
    return every[-1] if every else None


def integer(text: str) -> str | None:
    """Return the integer that a text gives, as digits without leading zeros and with a sign if it is negative.

    The first number in the first bytes behind the place of the answer, else the last of the text. Separators of
    thousands are left out. A number with a fraction comes back with it, so that it equals no integer.
    """
    text = plain(text)
    at = place(text)
    if at is not None:
        end = _window(text, at, INTEGER_BYTES)
        found = _NUMBER.search(text, at)
        if found and found.start() < end:
            return _number(text, found, at)
    numbers = list(_NUMBER.finditer(text))
    return _number(text, numbers[-1], 0) if numbers else None


def _number(text: str, found: re.Match[str], begin: int) -> str:
    digits = re.sub(r"[^0-9]", "", found["grouped"] or found["plain"]).lstrip("0") or "0"
    fraction = (found["fraction"] or "").rstrip("0")
    if fraction:
        return _sign(text, found.start(), begin) + f"{digits}.{fraction}"
    return (_sign(text, found.start(), begin) if digits != "0" else "") + digits


def _sign(text: str, at: int, begin: int) -> str:
    """Tell whether the minus before a number is its sign: it is when nothing stands before it to subtract from."""
    if at == begin or text[at - 1] != "-":
        return ""
    before = text[max(begin, at - 9) : at - 1]
    return "" if _OPERAND.search(before) else "-"


def lines(text: str) -> tuple[int, ...] | None:
    """Return the line numbers that a text gives, in order, or None.

    They stand between the place of the answer and the end of that line (of the next one that is not empty, when
    nothing but markup is left of it), apart or as ranges, separated by anything. Without a word "answer" there are
    none; zero stands for "no line".
    """
    text = plain(text)
    at = place(text)
    if at is None:
        return None
    found: set[int] = set()
    for one in _LINE_NUMBER.finditer(_answer_line(text, at)):
        first = _line_number(one[1])
        last = _line_number(one[2]) if one[2] else first
        if first is None or last is None:
            continue
        found.update(range(min(first, last), max(first, last) + 1))
    return tuple(sorted(found)) if found else None


def _line_number(digits: str) -> int | None:
    digits = digits.lstrip("0") or "0"
    number = int(digits) if len(digits) <= 3 else MAX_LINE + 1
    return number if number <= MAX_LINE else None


def _answer_line(text: str, at: int) -> str:
    """Return the rest of the line at `at`, or the first line behind it that says something."""
    for line in text[at:].splitlines():
        if line.strip(" \t*_`#:"):
            return line
    return ""


def phrase(text: str) -> str | None:
    """Return the words that a text gives as its answer: those of its line behind the place of the answer.

    Without a word "answer" the whole text is meant. Quotes, bold marks and the full stop around it are left out.
    """
    at = place(plain(text))
    given = text if at is None else _answer_line(text, at)
    return bare(given) or None


def bare(text: str) -> str:
    """Return a text without markup and quotes around it, with single spaces, in composed characters."""
    text = " ".join(unicodedata.normalize("NFKC", text).split())
    while True:
        shorter = text.strip(" *_`\"'“”‘’$").removeprefix("\\boxed{")
        if shorter != text and text.startswith("\\boxed{"):
            shorter = shorter.removesuffix("}")
        if shorter.endswith(".") and not shorter.endswith("..."):
            shorter = shorter[:-1]
        if shorter == text:
            return text
        text = shorter
