"""JSON text as the chat protocol writes and reads it.

Writing follows Python's `json.dumps(ensure_ascii=False)`, which the published encoder uses: `, ` and `: `
between items, keys in the order given, non-ASCII characters as they are. Reading is strict: NaN, infinities
and numbers that overflow a double are refused, integers stay exact, and nesting is limited, so a hostile
text can neither exhaust the stack nor change meaning.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

MAX_DEPTH = 128
"""Deepest nesting of arrays and objects that is read or written."""

_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")


def loads(text: str) -> Any:
    """Read one JSON value.

    Raises
    ------
    ValueError
        The text is not JSON, holds NaN, Infinity or a number beyond the range of a double, has an integer of
        more digits than Python converts, or is nested deeper than `MAX_DEPTH`.
    """
    _check_depth(text)
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)


def dumps(value: Any) -> str:
    """Write a value as JSON text.

    A value that holds a lone surrogate cannot become UTF-8, so it is written in ASCII with escapes.

    Raises
    ------
    ValueError
        The value holds NaN or an infinity, something that JSON has no form for, or is nested too deeply.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        if _SURROGATE.search(text):
            text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    except RecursionError:
        raise ValueError(f"the value is nested deeper than {MAX_DEPTH} levels") from None
    except TypeError as error:
        raise ValueError(f"the value cannot be written as JSON: {error}") from None
    _check_depth(text)
    return text


def string_body(text: str) -> str:
    """Return the characters of a JSON string for `text`, without the quotes.

    Every character is escaped by itself, so the bodies of two pieces joined are the body of the joined
    pieces.
    """
    return json.dumps(text, ensure_ascii=False)[1:-1]


def replace_surrogates(text: str) -> str:
    """Make a text encodable as UTF-8: pairs of surrogates are joined, lone ones become U+FFFD."""
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _TOKENS.finditer(text):
        mark = match.group()
        if mark in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError(f"the JSON text is nested deeper than {MAX_DEPTH} levels")
        elif mark in "]}":
            depth -= 1


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits} is beyond the range of a double")
    return value
