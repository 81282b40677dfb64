"""Reading of one block of tool calls, as it streams in.

A block in the trained spelling is *live*: its events are passed on at once, so that long arguments stream,
and damage inside it is repaired or skipped. Any other block is *tentative*: it might be text that only looks
like markup, so events are kept until a call has closed and its tool turns out to be declared, and at the
first thing out of place the text is given back untouched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from .escaping import partial_escape, unescape_value
from .events import Event, ToolCallArguments, ToolCallEnd, ToolCallStart
from .jsontext import dumps, string_body
from .protocol import DSML
from .tags import MAX_TAG, NO_TAG, WAIT, Tag, first_of, partial_tail, read_tag
from .toolset import ToolSet

MAX_NESTING = 16
"""Deepest nesting of parameters in parameters; deeper ones are read as text."""


class _Place(Enum):
    BETWEEN = auto()  # in the block, outside a call
    MEMBERS = auto()  # in a call or in a parameter that holds parameters
    UNKNOWN = auto()  # behind a parameter tag without `string`: text or nested parameters
    STRING = auto()
    JSON = auto()


@dataclass(slots=True)
class _Frame:
    """An object that is being written: the arguments, or a parameter that holds parameters."""

    name: str
    members: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Call:
    index: int
    name: str
    frames: list[_Frame]
    text: list[str] = field(default_factory=list)
    error: str | None = None


class ToolBlock:
    """Reads a block whose first tag has been found.

    Parameters
    ----------
    tools : ToolSet
    tag : Tag
        The tag that opened the block; an invoke tag opens a block without a tag of its own.
    before : str
        Separator in front of the tag, given back with the tag if the block turns out to be text.
    index : int
        Index of the first call.
    live : bool
    whole : bool
        For a tentative block: hold all events until the block has closed.
    """

    def __init__(self, tools: ToolSet, tag: Tag, before: str, index: int, *, live: bool, whole: bool = False) -> None:
        self.events: list[Event] = []
        self.notes: list[str] = []
        self.over = False
        self.closed = False
        self.n_complete = 0
        self._first_index = index
        self._n_opened = 0
        self._tools = tools
        self.live = live
        self._whole = whole
        self._buf = ""
        self._raw = [] if live else [before, tag.text]
        self._kept: list[Event] = []
        self._place = _Place.BETWEEN
        self._call: _Call | None = None
        self._key = ""
        self._value: list[str] = []
        self._in_json_string = self._json_escape = False
        self._closers: tuple[str, ...] = ()
        if tag.kind == "invoke":
            self._open_call(tag)

    @property
    def phase(self) -> str:
        """What the model is writing: "structure", "string", "json", or "json string" inside a string of JSON.

        What may be the beginning of a closing tag counts as structure from its second character on.
        """
        if self._place not in (_Place.STRING, _Place.JSON) or self._buf[:2] == "</":
            return "structure"
        if self._place is _Place.STRING:
            return "string"
        return "json string" if self._in_json_string else "json"

    @property
    def next_index(self) -> int:
        """Index of the next call; valid once `over`."""
        return self._first_index + (self._n_opened if self.live else self.n_complete)

    @property
    def raw(self) -> str:
        """Text that was read but (yet) belongs to no call that was passed on: all of it for a `whole` block."""
        return "".join(self._raw)

    @property
    def rest(self) -> str:
        """Text that was fed but not read."""
        return self._buf

    def feed(self, text: str) -> None:
        """Read on; see `events` and `over` afterwards."""
        self._buf += text
        while not self.over and self._step():
            pass

    def finish(self, why: str) -> None:
        """End the block where it stands, because the text ends or a limit is reached."""
        if self.over:
            return
        if self.live:
            self._close_call(f"the call is cut off: {why}")
            self._consume(len(self._buf))
            self.notes.append(f"a block of tool calls did not close: {why}")
        self.over = True

    # Steps. Each returns whether it got on; False means that more text is needed.

    def _step(self) -> bool:
        match self._place:
            case _Place.STRING | _Place.JSON:
                return self._step_value()
            case _Place.UNKNOWN:
                return self._step_unknown()
            case _:
                return self._step_tag()

    def _step_tag(self) -> bool:
        self._consume(len(self._buf) - len(self._buf.lstrip()))
        if not self._buf:
            return False
        tag = read_tag(self._buf) if self._buf[0] == "<" else NO_TAG
        if tag is WAIT:
            return False
        if isinstance(tag, Tag):
            self._take_tag(tag)
        else:
            self._odd("text between the tags was ignored")
            if not self.over:
                following = self._buf.find("<", 1)
                self._consume(following if following > 0 else len(self._buf))
        return True

    def _take_tag(self, tag: Tag) -> None:
        """Act on a tag outside a value."""
        call = self._call
        if tag.kind == "invoke" and not tag.closing:
            if call is not None:
                self._odd("a call did not close before the next one")
                if self.over:
                    return
                self._close_call("the call did not close before the next one")
            if not self.live and tag.name not in self._tools:
                self.over = True
                return
            self._consume(len(tag.text))
            self._open_call(tag)
        elif tag.kind == "block" and tag.closing:
            if call is not None:
                self._odd("a call did not close before its block")
                if self.over:
                    return
                self._close_call("the call did not close before its block")
            self._end_block(tag)
        elif call is not None and tag.kind == "parameter" and not tag.closing:
            self._consume(len(tag.text))
            self._open_parameter(call, tag)
        elif call is not None and tag.kind == "parameter" and len(call.frames) > 1:
            self._consume(len(tag.text))
            self._close_frame(call)
        elif call is not None and tag.kind == "invoke":
            if len(call.frames) > 1:
                self._odd("a call closed before a parameter that holds parameters")
                if self.over:
                    return
            error = "a parameter did not close before its call" if len(call.frames) > 1 else None
            self._consume(len(tag.text))
            self._close_call(error)
        else:
            self._odd(f"the tag {tag.text} was out of place and ignored")
            if not self.over:
                self._consume(len(tag.text))

    def _step_unknown(self) -> bool:
        """Tell nested parameters from text, behind a parameter tag that says neither string nor JSON."""
        ahead = self._buf[:MAX_TAG].lstrip()
        if not ahead and len(self._buf) < MAX_TAG:
            return False
        tag = read_tag(ahead) if ahead[:1] == "<" else NO_TAG
        if tag is WAIT and len(self._buf) < MAX_TAG:
            return False
        call = self._call
        assert call is not None
        nested = isinstance(tag, Tag) and tag.kind == "parameter" and not tag.closing
        if nested and len(call.frames) <= MAX_NESTING:
            self._arguments(call, "{")
            call.frames.append(_Frame(self._key))
            self._place = _Place.MEMBERS
        else:
            self._begin_string(call)
        return True

    def _step_value(self) -> bool:
        place, closer = first_of(self._buf, self._closers)
        if place >= 0:
            self._take_value(self._buf[:place])
            self._consume(place + len(closer))
            self._end_value()
            return True
        ready = partial_tail(self._buf, self._closers)
        if self._place is _Place.STRING:
            ready = min(ready, partial_escape(self._buf))
        self._take_value(self._buf[:ready])
        self._consume(ready)
        return False

    # Calls and values

    def _open_call(self, tag: Tag) -> None:
        assert tag.name is not None
        self._call = _Call(self._first_index + self._n_opened, tag.name, [_Frame("")])
        self._n_opened += 1
        self._place = _Place.MEMBERS
        self._emit(ToolCallStart(self._call.index, tag.name, tag.name in self._tools))

    def _close_call(self, error: str | None) -> None:
        call = self._call
        if call is None:
            return
        self._stop_arguments(call, error)
        self._call = None
        self._place = _Place.BETWEEN
        end = ToolCallEnd(call.index, call.name, "".join(call.text), call.frames[0].members, call.error)
        self._emit(end)
        if call.error is not None:
            if not self.live:
                self.over = True
            return
        self.n_complete += 1
        if not self.live and not self._whole:
            self._commit()

    def _stop_arguments(self, call: _Call, error: str | None) -> None:
        """Bring the JSON text of the arguments to its end; later pieces are dropped."""
        if call.error is not None:
            return
        if self._place is _Place.STRING:
            self._end_value()
        elif self._place is _Place.JSON:
            self._arguments(call, "null")
            call.frames[-1].members[self._key] = None
        elif self._place is _Place.UNKNOWN:
            self._arguments(call, '""')
            call.frames[-1].members[self._key] = ""
        while len(call.frames) > 1:
            self._close_frame(call)
        self._arguments(call, "}" if call.frames[0].members else "{}")
        call.error = error

    def _open_parameter(self, call: _Call, tag: Tag) -> None:
        assert tag.name is not None
        frame = call.frames[-1]
        if tag.name in frame.members and call.error is None:
            self._place = _Place.MEMBERS
            self._stop_arguments(call, f"the parameter {tag.name!r} is given twice")
            self.notes.append(f"a call of {call.name} gives the parameter {tag.name!r} twice")
        opening = "{" if frame is call.frames[0] and not frame.members else ""
        comma = ", " if frame.members else ""
        self._key = tag.name
        self._value = []
        if call.error is None:
            frame.members[tag.name] = None
        self._arguments(call, f"{opening}{comma}{dumps(tag.name)}: ")
        own = f"</{tag.marker}parameter>"
        self._closers = (own,) if tag.marker == DSML else (own, f"</{DSML}parameter>")
        if tag.string is None:
            self._place = _Place.UNKNOWN
        elif tag.string:
            self._begin_string(call)
        else:
            self._place = _Place.JSON
            self._in_json_string = self._json_escape = False

    def _begin_string(self, call: _Call) -> None:
        self._place = _Place.STRING
        self._arguments(call, '"')

    def _take_value(self, raw: str) -> None:
        if not raw:
            return
        if self._place is _Place.STRING and self._call is not None:
            raw = unescape_value(raw)
            self._arguments(self._call, string_body(raw))
        else:
            self._follow_json(raw)
        self._value.append(raw)

    def _follow_json(self, raw: str) -> None:
        for char in raw:
            if self._json_escape:
                self._json_escape = False
            elif char == '"':
                self._in_json_string = not self._in_json_string
            elif char == "\\":
                self._json_escape = self._in_json_string

    def _end_value(self) -> None:
        call = self._call
        assert call is not None
        value: Any = "".join(self._value)
        self._value = []
        if self._place is _Place.STRING:
            self._arguments(call, '"')
        else:
            path = [*(frame.name for frame in call.frames[1:]), self._key]
            text, value, note = self._tools.read_value(call.name, path, value)
            self._arguments(call, text)
            if note is not None:
                self.notes.append(note)
        if call.error is None:
            call.frames[-1].members[self._key] = value
        self._place = _Place.MEMBERS

    def _close_frame(self, call: _Call) -> None:
        inner = call.frames.pop()
        self._arguments(call, "}")
        if call.error is None:
            call.frames[-1].members[inner.name] = inner.members
        self._place = _Place.MEMBERS

    def _end_block(self, tag: Tag) -> None:
        self._consume(len(tag.text))
        if not self.live and self.n_complete == 0:
            self.over = True  # a block without calls is text
            return
        self._commit()
        self.over = self.closed = True

    # Events

    def _arguments(self, call: _Call, text: str) -> None:
        if call.error is None and text:
            call.text.append(text)
            self._emit(ToolCallArguments(call.index, text))

    def _emit(self, event: Event) -> None:
        (self.events if self.live else self._kept).append(event)

    def _commit(self) -> None:
        self.events += self._kept
        self._kept = []
        if not self._whole:
            self._raw = []

    def _consume(self, n: int) -> None:
        if not self.live:
            self._raw.append(self._buf[:n])
        self._buf = self._buf[n:]

    def _odd(self, note: str) -> None:
        """Meet something out of place: the end of a tentative block, a note in a live one."""
        if not self.live:
            self.over = True
        elif note not in self.notes:
            self.notes.append(note)
