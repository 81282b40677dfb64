"""String parameters: their characters as they are, up to the closing tag.

The closing tag holds an added token, which never belongs to text. So a value may be any text, and one regular
expression reads it together with the `</` behind it: whatever is not followed by the added token was text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ds4.chat.escaping import escape_value

from .schema import Schema

CLOSE = r"<\/"
"""What follows a value, as a regular expression."""

ANY = rf"/(?s:.*){CLOSE}/"
"""Any text."""


def parameter_forms(schema: Schema, part: Any, depth: int = 0) -> tuple[list[str], list[Any]]:
    """Tell how the values of a schema are written as a parameter.

    Returns
    -------
    raw : list of str
        Regular expressions (of llguidance) for the raw characters of a string and the `</` behind it; none if no value
        is a string, or if the schema says more about its strings than can be said in this form.
    json : list
        Schemas of the values that are written as JSON, because they are no strings or because there is no raw form.
    """
    resolved = schema.resolve(part)
    if resolved is True or resolved == {}:
        return [ANY], [part]
    if not isinstance(resolved, dict) or set(resolved) & {"allOf", "not", "if", "$ref", "contentEncoding"}:
        return [], [part]
    branches = [key for key in ("anyOf", "oneOf") if key in resolved]
    if branches:
        alone = set(resolved) - {"$defs", "definitions"} == set(branches)
        # Whether the branches of `oneOf` exclude each other is llguidance's to say.
        if branches != ["anyOf"] or not alone or depth >= 8:
            return [], [part]
        return _branches(schema, resolved["anyOf"], depth)
    kinds = resolved.get("type")
    kinds = {kinds} if isinstance(kinds, str) else None if kinds is None else set(kinds)
    if kinds is not None and "string" not in kinds:
        return [], [part]
    raw = _raw_string(resolved)
    if raw is None:
        return [], [part]
    if kinds == {"string"}:
        return [raw], []
    if "enum" not in resolved and "const" not in resolved:
        return [raw], [part]
    values = resolved["enum"] if "enum" in resolved else [resolved["const"]]
    others = [value for value in values if not isinstance(value, str)]
    return [raw], [{**resolved, "enum": others}] if others else []


def _branches(schema: Schema, parts: list[Any], depth: int) -> tuple[list[str], list[Any]]:
    raw: list[str] = []
    json: list[Any] = []
    for branch in parts:
        some, others = parameter_forms(schema, branch, depth + 1)
        raw += some
        json += others
    return raw, json


def _raw_string(schema: dict[str, Any]) -> str | None:
    """Return an expression for the strings of a schema that admits some; None if there is none in this form."""
    if "const" in schema or "enum" in schema:
        return _alternatives(schema)
    parts = []
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if least or most is not None:
        parts.append(rf"/(?s:.{{{int(least)},{'' if most is None else int(most)}}}){CLOSE}/")
    if "pattern" in schema:
        pattern = _whole(schema["pattern"])
        if pattern is None:
            return None
        parts.append(f"/{pattern}{CLOSE}/")
    if "format" in schema:
        return None
    return " & ".join(parts) if parts else ANY


def literal(text: str) -> str:
    """Return a regular expression for a text."""
    return "".join(c if c.isalnum() and c.isascii() else f"\\u{{{ord(c):x}}}" for c in text)


def _alternatives(schema: dict[str, Any]) -> str | None:
    if set(schema) - {"const", "enum", "type"}:
        return None
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    if "const" in schema and schema["const"] not in values:
        return None
    values = [schema["const"]] if "const" in schema else values
    texts = [escape_value(value) for value in values if isinstance(value, str)]
    return rf"/(?:{'|'.join(map(literal, texts))}){CLOSE}/" if texts else None


# Patterns. They are searched for, so what has no anchor may stand anywhere. Inside an expression for a whole value an
# anchor has no place: those at the ends are taken away, anything else is left to llguidance, as JSON.

_CLASS_OR_ESCAPE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


def _whole(pattern: Any) -> str | None:
    """Return an expression that matches the whole texts in which a pattern is found."""
    if not isinstance(pattern, str) or len(pattern) > 4096:
        return None
    from llguidance import regex_to_lark

    found = []
    for part in _top_level(pattern):
        start, end = part.startswith("^"), part.endswith("$") and not _is_escaped(part)
        body = part[1 if start else 0 : len(part) - 1 if end else len(part)]
        bare = _CLASS_OR_ESCAPE.sub("", body)
        if "^" in bare or "$" in bare or "(?" in bare.replace("(?:", "") or re.search(r"\\[^dDwWsSnrt\W]", body):
            return None
        any_text = "(?s:.*)"
        found.append(f"{'' if start else any_text}(?:{regex_to_lark(body, 'dw')}){'' if end else any_text}")
    return f"(?:{'|'.join(found)})"


def _top_level(pattern: str) -> Iterator[str]:
    """Cut a pattern at the bars that stand outside groups and classes."""
    depth, start, i = 0, 0, 0
    while i < len(pattern):
        skip = _CLASS_OR_ESCAPE.match(pattern, i)
        if skip:
            i = skip.end()
            continue
        char = pattern[i]
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            yield pattern[start:i]
            start = i + 1
        i += 1
    yield pattern[start:]


def _is_escaped(text: str) -> bool:
    """Tell whether the last character stands behind an odd number of backslashes."""
    body = text[:-1]
    return (len(body) - len(body.rstrip("\\"))) % 2 == 1
