"""Keeping values inside their frame.

The protocol frames values with tags and the published encoder escapes nothing, so a value that holds its own
closing tag would break the frame. Here only that one string (the sentinel) is escaped, which leaves every
other text byte-identical to the published encoder; special-token literals need no escape because user text
is never tokenized as special tokens.

Escaping is exactly reversible. In a string value the `<` of the closing tag becomes `&lt;`, and a text that
already looks like an escaped tag gets one more `amp;`:

    </｜DSML｜parameter>          ->  &lt;/｜DSML｜parameter>
    &lt;/｜DSML｜parameter>       ->  &amp;lt;/｜DSML｜parameter>
    &amp;lt;/｜DSML｜parameter>   ->  &amp;amp;lt;/｜DSML｜parameter>

Attributes do the same with the quotation mark. All other entities are left as they are, so a model that means
`&lt;` keeps it.
"""

from __future__ import annotations

import re

from .protocol import PARAMETER_CLOSE, TOOL_RESULT_CLOSE

MAX_AMP = 64
"""Longest run of `amp;` that counts as an escape of an escape; bounds what a stream must hold back."""

_TAIL = re.escape(PARAMETER_CLOSE[1:])
_VALUE = re.compile(rf"(?:<|&((?:amp;){{0,{MAX_AMP - 1}}})lt;){_TAIL}")
_ESCAPED_VALUE = re.compile(rf"&((?:amp;){{0,{MAX_AMP}}})lt;{_TAIL}")
_NAME = re.compile(rf'"|&((?:amp;){{0,{MAX_AMP - 1}}})quot;')
_ESCAPED_NAME = re.compile(rf"&((?:amp;){{0,{MAX_AMP}}})quot;")


def _prefixes(literal: str) -> str:
    return "|".join(re.escape(literal[:n]) for n in range(1, len(literal)))


# What may still grow into an escaped sentinel: `&`, any `amp;`, then a beginning of `amp;` or of the rest.
_PARTIAL_VALUE = re.compile(
    rf"&(?:amp;){{0,{MAX_AMP}}}(?:{_prefixes('amp;')}|{_prefixes('lt;' + PARAMETER_CLOSE[1:])})?\Z"
)


def escape_value(text: str) -> str:
    """Escape a string value for a parameter."""
    return _VALUE.sub(lambda m: "&lt;" + PARAMETER_CLOSE[1:] if m[0][0] == "<" else "&amp;" + m[0][1:], text)


def unescape_value(text: str) -> str:
    """Undo `escape_value`."""
    return _ESCAPED_VALUE.sub(lambda m: "&" + m[0][5:] if m[1] else "<" + PARAMETER_CLOSE[1:], text)


def partial_escape(text: str) -> int:
    """Return where an escaped sentinel that has not ended yet may start, or `len(text)`."""
    match = _PARTIAL_VALUE.search(text)
    return match.start() if match else len(text)


def escape_json_value(text: str) -> str:
    r"""Escape the closing tag inside JSON text, where `<` can only stand in a string: it becomes `\u003c`."""
    return text.replace(PARAMETER_CLOSE, "\\u003c" + PARAMETER_CLOSE[1:])


def escape_name(text: str) -> str:
    """Escape a name for an attribute."""
    return _NAME.sub(lambda m: "&quot;" if m[0] == '"' else "&amp;" + m[0][1:], text)


def unescape_name(text: str) -> str:
    """Undo `escape_name`."""
    return _ESCAPED_NAME.sub(lambda m: "&" + m[0][5:] if m[1] else '"', text)


def escape_result(text: str) -> str:
    """Escape the closing tag of a tool result. Results are read by the model only, so this is one-way."""
    return text.replace(TOOL_RESULT_CLOSE, "&lt;" + TOOL_RESULT_CLOSE[1:])
