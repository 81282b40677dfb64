"""What a grammar over bytes cannot say, or only at a price: a second look at the text as it is written.

- The closing tag of a parameter, spelled out as plain text inside a value. The grammar ends a value at the *added*
  token in the tag, but whoever reads the text afterwards cannot see the difference.
- The same parameter twice, where a tool accepts parameters of any name.
- Arrays in arrays in arrays, deeper than strict readers go.
- Numbers beyond the range of a double (`1e999`), which strict readers refuse, and numbers without end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ds4.chat.protocol import PARAMETER_CLOSE

if TYPE_CHECKING:
    from .compile import Vocabulary

Kind = Literal["json", "calls"]

MAX_DIGITS = 100
"""Most digits of a number in front of its exponent, which itself has two at most: the value stays below 1e200."""

MAX_NESTING = 100
"""Deepest nesting of arrays and objects, as long as the schema leaves another choice."""

_SENTINEL = PARAMETER_CLOSE.encode()
_TAG = re.compile(rb'(?:parameter name="([^"]*)" string="(true|false)"|invoke(?: name="[^"]*")?|parameter|tool_calls)>')
_NAME = b'parameter name="%s"'

_LONG_EXPONENT = re.compile(rb"^[0-9.]*[eE][+-]?[0-9]{3}")
_SIGNED = re.compile(rb"^[+-][0-9]{3}")
_LONG_NUMBER = re.compile(rb"^[0-9.eE+-]*[0-9]{4}")

Ids = NDArray[np.int64]


class GuardTables:
    """The tokens that matter here, by what they begin with; made when first needed."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._made: tuple[list[Ids], list[Ids], dict[str, Ids]] | None = None

    def made(self) -> tuple[list[Ids], list[Ids], dict[str, Ids]]:
        """Return the tokens that complete the sentinel when k bytes of it stand, those with k or more leading digits,
        and others by name."""
        if self._made is None:
            v = self._vocabulary
            within = v.matching(re.compile(re.escape(_SENTINEL)))
            completing = [within, *(v.beginning_with(_SENTINEL[k:]) for k in range(1, len(_SENTINEL)))]
            digits = [v.matching(re.compile(rb"^[0-9]{%d}" % k)) for k in range(4)]
            parts = {
                "point": v.matching(re.compile(rb"^\.")),
                "exponent": v.matching(_LONG_EXPONENT),
                "opening": v.matching(re.compile(rb"[\[{]")),
                "zero": v.matching(re.compile(rb"^0")),
                "signed": v.matching(_SIGNED),
                "long": v.matching(_LONG_NUMBER),
            }
            self._made = completing, digits, parts
        return self._made

    def beginning_with(self, text: bytes) -> Ids:
        """Return the tokens that begin with a text."""
        return self._vocabulary.beginning_with(text)


class Guard:
    """Follows one completion and names the tokens that must not come next.

    Parameters
    ----------
    tables : GuardTables
    kind : {"json", "calls"}
        The completion is one JSON text, or a block of tool calls.
    """

    def __init__(self, tables: GuardTables, kind: Kind) -> None:
        self._tables = tables
        self._place: Literal["between", "tag", "string", "json"] = "json" if kind == "json" else "between"
        self._calls = kind == "calls"
        self._tag = b""
        self._tail = b""  # what a sentinel could have begun with
        self._names: set[bytes] = set()
        self._quoted = False
        self._escaped = False
        self._number = b""
        self._depth = 0

    def text(self, data: bytes) -> None:
        """Take the bytes of a token of text."""
        if self._place == "tag":
            self._tag += data
            tag = _TAG.match(self._tag)
            if tag is None:
                return
            data = self._tag[tag.end() :]
            self._enter(tag)
        if self._place in ("string", "json") and self._calls:
            self._tail = (self._tail + data)[-len(_SENTINEL) :]
        if self._place == "json":
            self._read_json(data)

    def special(self) -> None:
        """Take the protocol's added token, which stands in tags only."""
        self._place, self._tag, self._tail, self._number = "tag", b"", b"", b""

    def forbidden(self) -> list[Ids]:
        """Return the tokens that would break the frame."""
        found: list[Ids] = []
        if self._place == "tag":
            for name in self._names:
                literal = _NAME % name
                if literal.startswith(self._tag):
                    found.append(self._tables.beginning_with(literal[len(self._tag) :]))
        elif self._tail:
            completing = self._tables.made()[0]
            found.append(completing[0])
            found += [completing[k] for k in range(1, len(_SENTINEL)) if self._tail.endswith(_SENTINEL[:k])]
        return found

    def too_long(self) -> list[Ids]:
        """Return the tokens that would make a number too long or the nesting too deep.

        A number that cannot end without them (`0.000...` where 0 is excluded) may have them: see `zeros`.
        """
        number = self._number
        if self._depth >= MAX_NESTING and not self._quoted:
            return [self._tables.made()[2]["opening"]]
        if not number:
            return []
        _, digits, parts = self._tables.made()
        mantissa, mark, exponent = number.lower().partition(b"e")
        if mark:
            n = len(exponent.lstrip(b"+-"))
            return [digits[max(3 - n, 1)], *([] if exponent else [parts["signed"]])]
        found = [parts["exponent"], parts["long"]]
        if len(mantissa) - mantissa.count(b".") - mantissa.count(b"-") >= MAX_DIGITS:
            found += [digits[1], parts["point"]]
        return found

    def zeros(self) -> Ids:
        """Return the tokens that begin with a zero: the digits that may bring a number no nearer to its end."""
        return self._tables.made()[2]["zero"]

    def _enter(self, tag: re.Match[bytes]) -> None:
        name, string = tag.groups()
        self._tag = b""
        if name is not None:
            self._names.add(name)
            self._place = "string" if string == b"true" else "json"
            self._quoted = self._escaped = False
            self._depth = 0
        else:
            self._place = "between"
            if tag.group().startswith(b"invoke"):
                self._names.clear()

    def _read_json(self, data: bytes) -> None:
        for byte in data:
            char = bytes((byte,))
            if self._quoted:
                if self._escaped:
                    self._escaped = False
                elif char == b"\\":
                    self._escaped = True
                elif char == b'"':
                    self._quoted = False
            elif char == b'"':
                self._quoted, self._number = True, b""
            elif char in b"0123456789" or (char in b"+-.eE" and (self._number or char == b"-")):
                self._number += char
            else:
                self._number = b""
                self._depth += (char in b"[{") - (char in b"]}")
