"""Parsing of completions: what the model writes in, events out, piece by piece.

A completion is reasoning up to the first `</think>` (if the prompt opened it), then content, then perhaps a
block of tool calls. The parser takes the decoded text in any pieces; how it is cut makes no difference to
the joined events. Text that may turn out to be markup is held back, everything else is passed on at once.

Which calls are believed:

- Without declared tools nothing is parsed; markup is then content.
- A block in the trained spelling (`<｜DSML｜tool_calls>` behind a blank line or at the start of the content) is
  parsed as it arrives. Stray text and tags in it are ignored; a call that is cut off or gives a parameter
  twice ends with an error. The tool need not be declared (`ToolCallStart.declared` tells).
- Other spellings and places (see `tags`), an invoke without a block among them, count only if the call
closes, is
  well formed and names a declared tool; otherwise they stay text. They are held back until that is known.
- Markup in reasoning is not a call, for models quote it there. The one exception is a model that forgot to
close its
  reasoning: a block in the trained spelling that is well formed and closed, calls declared tools only and is
  the last thing before the model ends its turn (finish reason "stop") is taken as calls and closes the
  reasoning.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Any

from .events import Completion, Content, Event, Finish, Reasoning, ToolCallArguments, collect
from .protocol import DSML, END_THINK, THINK
from .render import MODES
from .tags import WAIT, Tag, partial_tail, read_tag
from .toolblock import ToolBlock
from .toolset import ToolSet

MAX_BLOCK = 1 << 20
"""Longest block of tool calls in characters, by default."""

_BLOCK = f"<{DSML}tool_calls>"
_GAP = "\n\n"
_SLICE = 4096  # pieces are read in slices of this size, which keeps the cost of a large piece linear


class CompletionParser:
    """Parses one completion.

    Parameters
    ----------
    mode : {"chat", "thinking"}
        The mode the prompt was rendered with: whether the completion begins inside the reasoning.
    tools : sequence of mappings, optional
        The tools shown to the model, as given to `render`.
    max_block : int
        Characters after which a block that has not closed is given up: an open call ends with an error, the
        rest of the text is dropped, and `should_stop` becomes true.

    Raises
    ------
    ValueError
        The mode is unknown or a tool is wrong.
    """

    def __init__(
        self, mode: str, tools: Sequence[Mapping[str, Any]] | None = None, *, max_block: int = MAX_BLOCK
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"unknown mode {mode!r}; known: {', '.join(MODES)}")
        if max_block < 1:
            raise ValueError(f"max_block is {max_block}; it must be at least 1")
        self._tools = ToolSet(tools)
        self._max_block = max_block
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._buf = ""
        self._events: list[Event] = []
        self._notes: list[str] = []
        self._reasoning = mode == "thinking"
        self._may_echo = self._reasoning  # the opening mark may be repeated at the very start
        self._block: ToolBlock | None = None
        self._fed = 0  # characters given to the block
        self._index = 0
        self._n_complete = 0
        self._blank = True  # no visible content yet
        self._after_block = False
        self._gap = ""  # white space behind a block, passed on only if text follows
        self._stopped = False
        self._overflow = False
        self._finished = False

    @property
    def should_stop(self) -> bool:
        """Whether generation should end: a block of calls has closed, or one has passed its limit."""
        return self._stopped

    @property
    def phase(self) -> str:
        """What is being written: "reasoning", "content", or in a block "structure", "string", "json", "json string".

        Structure and JSON are best sampled greedily, bodies of strings (of JSON, too) with the settings of the request.
        """
        if self._reasoning:
            return "reasoning"
        if self._block is not None:
            return self._block.phase
        opens = self._tools and self._buf.lstrip("\n").startswith(f"<{DSML}")  # held back: a tag that is not complete
        return "structure" if opens else "content"

    def feed(self, data: str | bytes) -> list[Event]:
        """Take a piece of the completion and return what became certain.

        Bytes may be cut inside a character; what is not UTF-8 becomes U+FFFD.

        Raises
        ------
        ValueError
            The parser is finished.
        """
        if self._finished:
            raise ValueError("the completion is finished; a new one needs a new parser")
        text = self._utf8.decode(data) if isinstance(data, bytes) else self._utf8.decode(b"", final=True) + data
        for start in range(0, len(text), _SLICE):
            self._buf += text[start : start + _SLICE]
            while self._step():
                pass
        return self._take()

    def finish(self, reason: str = "stop") -> list[Event]:
        """End the completion and return the last events; the very last is `Finish`.

        Parameters
        ----------
        reason : str
            Why generation ended: "stop" if the model ended its turn, "length" at a limit, or another word,
            which is passed on.

        Raises
        ------
        ValueError
            The parser is finished already.
        """
        events = self.feed(self._utf8.decode(b"", final=True))
        self._finished = True
        self._end(reason)
        if self._overflow:
            reason = "length"
        elif reason == "stop" and self._n_complete:
            reason = "tool_calls"
        self._events.append(Finish(reason, tuple(sorted(self._notes))))
        return events + self._take()

    # Steps: each uses up what is certain and returns whether it got on; False means that more text is needed.

    def _step(self) -> bool:
        if self._overflow:
            self._buf = ""
            return False
        if self._may_echo:
            if len(self._buf) < len(THINK) and THINK.startswith(self._buf):
                return False
            self._buf = self._buf.removeprefix(THINK)
            self._may_echo = False
        if self._block is None:
            return self._step_reasoning() if self._reasoning else self._step_content()
        if self._reasoning:
            return self._step_quoted_block(self._block)
        return self._step_block(self._block)

    def _step_reasoning(self) -> bool:
        end = self._buf.find(END_THINK)
        block = self._buf.find(_BLOCK) if self._tools else -1
        if block >= 0 and (end < 0 or block < end):
            separator = self._separator(block)
            self._pass_on(block - len(separator))
            self._drop(len(separator) + len(_BLOCK))
            tag = Tag("block", False, DSML, _BLOCK)
            self._block = ToolBlock(self._tools, tag, separator, self._index, live=False, whole=True)
            self._fed = 0
            return True
        if end >= 0:
            self._pass_on(end)
            self._drop(len(END_THINK))
            self._reasoning = False
            return True
        awaited = (END_THINK, _BLOCK) if self._tools else (END_THINK,)
        self._pass_on(self._before_separator(partial_tail(self._buf, awaited)))
        return False

    def _step_quoted_block(self, block: ToolBlock) -> bool:
        """Read a block inside the reasoning: a quotation, unless the turn ends with it."""
        end = self._buf.find(END_THINK)
        ready = end if end >= 0 else partial_tail(self._buf, (END_THINK,))
        ready = min(ready, self._max_block - self._fed)
        self._fed += ready
        text, self._buf = self._buf[:ready], self._buf[ready:]
        if not block.over:
            block.feed(text)
            text = block.rest if block.over else ""
        self._gap += text
        read_on = block.closed or not block.over
        if read_on and end < 0 and not self._gap.strip() and self._fed < self._max_block:
            return False
        self._end_quotation(block)
        return True

    def _end_quotation(self, block: ToolBlock) -> None:
        """Give a block inside the reasoning back to the reasoning."""
        self._say(block.raw)
        self._buf = (self._gap if block.over else block.rest) + self._buf
        self._gap = ""
        self._block = None

    def _step_content(self) -> bool:
        if not self._tools:
            self._pass_on(len(self._buf))
            return False
        start = self._buf.find("<")
        while start >= 0:
            tag = read_tag(self._buf, start)
            if tag is WAIT:
                self._pass_on(self._before_separator(start))
                return False
            if isinstance(tag, Tag) and self._take_tag(tag, start):
                return True
            start = self._buf.find("<", start + 1)
        self._pass_on(self._before_separator(len(self._buf)))
        return False

    def _take_tag(self, tag: Tag, start: int) -> bool:
        """Act on a tag in the content; returns False if it is plain text."""
        if tag.closing:
            if not tag.marker:
                return False
            self._pass_on(start)
            self._drop(len(tag.text))
            self._note(f"the tag {tag.text} was out of place and ignored")
            return True
        if tag.kind == "parameter" or (tag.kind == "invoke" and tag.name not in self._tools):
            return False
        separator = self._separator(start)
        at_start = self._blank and not self._buf[:start].strip()
        live = tag.text == _BLOCK and (bool(separator) or at_start)
        self._pass_on(start - len(separator))
        self._drop(len(separator) + len(tag.text))
        self._block = ToolBlock(self._tools, tag, separator, self._index, live=live)
        self._fed = 0
        return True

    def _step_block(self, block: ToolBlock) -> bool:
        ready = min(len(self._buf), self._max_block - self._fed)
        self._fed += ready
        block.feed(self._buf[:ready])
        self._drop(ready)
        if not block.over:
            if self._fed < self._max_block:
                self._take_events(block)
                return False
            block.finish(f"it is longer than {self._max_block} characters")
            self._overflow = self._stopped = block.live
        self._leave_block(block)
        return True

    def _leave_block(self, block: ToolBlock) -> None:
        self._take_events(block)
        self._block = None
        self._index = block.next_index
        self._n_complete += block.n_complete
        for note in block.notes:
            self._note(note)
        if not block.live and block.n_complete:
            self._note("calls in another spelling or place than the trained one were accepted")
        self._after_block = block.live or block.n_complete > 0
        self._stopped = self._stopped or block.closed
        if not block.closed:
            self._say(block.raw)
        self._buf = block.rest + self._buf

    def _end(self, reason: str) -> None:
        """Decide what is still held back."""
        block = self._block
        if block is not None and self._reasoning:
            if block.closed and reason == "stop":
                self._note("the reasoning did not close before the calls")
                self._reasoning = False
                self._leave_block(block)
                return
            self._end_quotation(block)
        elif block is not None:
            block.finish(f"generation ended ({reason})")
            self._leave_block(block)
        if not self._reasoning and self._tools:
            start = self._buf.rfind("<")
            if self._buf[start:].startswith((f"<{DSML}", f"</{DSML}")):
                self._buf = self._buf[: start - len(self._separator(start))]
                self._note("an unfinished tag at the end was ignored")
        self._pass_on(len(self._buf))

    # Text and events

    def _separator(self, place: int) -> str:
        return _GAP if self._buf[:place].endswith(_GAP) else ""

    def _before_separator(self, place: int) -> int:
        """Return the place before line ends that may belong to the separator of a block."""
        if not self._tools:
            return place
        text = self._buf[:place]
        return place - len(_GAP) if text.endswith(_GAP) else place - text.endswith("\n")

    def _pass_on(self, n: int) -> None:
        """Pass the first n characters on, as reasoning or content."""
        text = self._buf[:n]
        self._drop(n)
        self._say(text)

    def _say(self, text: str) -> None:
        if self._reasoning:
            self._add(Reasoning(text))
            return
        if self._after_block:
            self._gap += text
            if not self._gap.strip():
                return
            text, self._gap, self._after_block = self._gap, "", False
            self._note("there is text behind a block of tool calls")
        if text.strip():
            self._blank = False
        self._add(Content(text))

    def _take_events(self, block: ToolBlock) -> None:
        for event in block.events:
            self._add(event)
        block.events.clear()

    def _add(self, event: Event) -> None:
        """Add an event; pieces of one text are joined."""
        last = self._events[-1] if self._events else None
        match last, event:
            case (_, Reasoning("") | Content("")):
                return
            case (Reasoning(a), Reasoning(b)):
                self._events[-1] = Reasoning(a + b)
            case (Content(a), Content(b)):
                self._events[-1] = Content(a + b)
            case (ToolCallArguments(i, a), ToolCallArguments(j, b)) if i == j:
                self._events[-1] = ToolCallArguments(i, a + b)
            case _:
                self._events.append(event)

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _drop(self, n: int) -> None:
        self._buf = self._buf[n:]

    def _note(self, note: str) -> None:
        if note not in self._notes:
            self._notes.append(note)


def parse_completion(
    text: str | bytes, mode: str, tools: Sequence[Mapping[str, Any]] | None = None, *, reason: str = "stop"
) -> Completion:
    """Parse a whole completion; the same as feeding it piece by piece and collecting the events.

    Raises
    ------
    ValueError
        As `CompletionParser`.
    """
    parser = CompletionParser(mode, tools)
    return collect([*parser.feed(text), *parser.finish(reason)])
