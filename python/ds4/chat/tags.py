"""Tags of the tool-call markup in a stream of text.

The model was trained on one spelling, `<｜DSML｜tool_calls>`. Others have been seen and are read too: the
first bar missing, doubled bars, no marker at all, `toolcalls` and the older `function_calls` for the block.

Everything here decides on the beginning of a text that may go on: an answer other than `WAIT` stays the same
however the text continues. That is what makes the result of a stream independent of how it was cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from .escaping import unescape_name
from .protocol import DSML

MAX_TAG = 4096
"""Longest tag in characters; a longer one is no tag."""

_MARKERS = (DSML, DSML[1:], DSML[0] + DSML + DSML[0], "")
_BLOCK_NAMES = ("tool_calls", "toolcalls", "function_calls")
_NAMES = (*_BLOCK_NAMES, "invoke", "parameter")
_HEADS = tuple(f"<{slash}{marker}{name}" for slash in ("", "/") for marker in _MARKERS for name in _NAMES)
_LONGEST_HEAD = max(map(len, _HEADS))
_HEAD_BEGINNINGS = frozenset(head[:n] for head in _HEADS for n in range(1, len(head) + 1))

_HEAD = re.compile(rf"<(/?)({'|'.join(map(re.escape, _MARKERS))})({'|'.join(_NAMES)})(?=[\s>])")
_ATTRIBUTE = re.compile(r'\s+(\w+)="([^"]*)"')
_REST = re.compile(r'(?:\s+\w+="[^"]*")*\s*>')
_REST_BEGINNING = re.compile(r'(?:\s+\w+="[^"]*")*(?:\s*|\s+\w+(?:=(?:"[^"]*)?)?)\Z')


class Answer(Enum):
    """What can be said about a text that is not, or not yet, a tag."""

    WAIT = "it may become a tag"
    NO_TAG = "it is no tag, whatever follows"


WAIT, NO_TAG = Answer.WAIT, Answer.NO_TAG


@dataclass(frozen=True, slots=True)
class Tag:
    """A whole tag.

    Parameters
    ----------
    kind : {"block", "invoke", "parameter"}
    closing : bool
    marker : str
        What stands before the name; `｜DSML｜` in the trained spelling.
    text : str
        The tag itself.
    name : str or None
        The attribute `name`, unescaped; None if there is none. Tags that need a name and have none are no
        tags.
    string : bool or None
        The attribute `string`; None if missing or neither "true" nor "false".
    """

    kind: str
    closing: bool
    marker: str
    text: str
    name: str | None = None
    string: bool | None = None


def read_tag(text: str, start: int = 0) -> Tag | Answer:
    """Read the tag that begins at `start`, where there is a `<`."""
    head = _HEAD.match(text, start)
    if head is None:
        return WAIT if text[start : start + _LONGEST_HEAD + 1] in _HEAD_BEGINNINGS else NO_TAG
    window = text[head.end() : start + MAX_TAG]
    end = _REST.match(window)
    if end is None:
        may_go_on = len(text) - start < MAX_TAG and _REST_BEGINNING.match(window)
        return WAIT if may_go_on else NO_TAG
    return _tag(head, text[start : head.end() + end.end()], end.group())


def first_of(text: str, literals: Sequence[str]) -> tuple[int, str]:
    """Return the place of the first literal in the text and the literal, or -1 and nothing."""
    found = [(i, literal) for literal in literals if (i := text.find(literal)) >= 0]
    return min(found, default=(-1, ""))


def partial_tail(text: str, literals: Sequence[str]) -> int:
    """Return where an unfinished literal may begin at the end of a text, or its length.

    Each literal begins with `<` and holds no other.
    """
    start = text.rfind("<")
    tail = text[start:]
    unfinished = start >= 0 and any(literal.startswith(tail) for literal in literals)
    return start if unfinished else len(text)


def _tag(head: re.Match[str], text: str, rest: str) -> Tag | Answer:
    slash, marker, word = head.groups()
    kind = "block" if word in _BLOCK_NAMES else word
    attributes: dict[str, str] = {}
    for key, value in _ATTRIBUTE.findall(rest):
        attributes.setdefault(key, value)
    if slash or kind == "block":
        return NO_TAG if attributes else Tag(kind, bool(slash), marker, text)
    if "name" not in attributes:
        return NO_TAG
    flag = {"true": True, "false": False}.get(attributes.get("string", "").lower())
    return Tag(kind, False, marker, text, unescape_name(attributes["name"]), flag)
