"""What a completion is made of, as events in the order of the text, and the result they add up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the visible answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call has named its tool.

    Parameters
    ----------
    index : int
        Place of the call among the calls of this completion, from 0.
    name : str
    declared : bool
        Whether the request declared a tool of this name.
    """

    index: int
    name: str
    declared: bool


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of the JSON text of a call's arguments; the pieces joined are `ToolCallEnd.arguments`."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call is over.

    Parameters
    ----------
    index, name
        As in its `ToolCallStart`.
    arguments : str
        Always the JSON text of an object.
    value : dict
        The arguments read.
    error : str or None
        Why the call must not be carried out: it was cut off or names a parameter twice. Arguments are then
        those read so far.
    """

    index: int
    name: str
    arguments: str
    value: dict[str, Any]
    error: str | None = None

    @property
    def complete(self) -> bool:
        """Whether the call may be carried out."""
        return self.error is None


@dataclass(frozen=True, slots=True)
class Finish:
    """The completion is over; the last event.

    Parameters
    ----------
    reason : str
        The reason given to `CompletionParser.finish`, but "tool_calls" if that was "stop" and there is a
        complete call, and "length" if a block of calls passed its limit.
    notes : tuple of str
        What was repaired or ignored, for a log; sorted.
    """

    reason: str
    notes: tuple[str, ...] = ()


Event = Reasoning | Content | ToolCallStart | ToolCallArguments | ToolCallEnd | Finish


@dataclass(slots=True)
class Completion:
    """A completion as a whole.

    Parameters
    ----------
    reasoning, content : str
    tool_calls : list of ToolCallEnd
        In the order of the text, incomplete ones included.
    finish : Finish or None
        None until the end.
    """

    reasoning: str = ""
    content: str = ""
    tool_calls: list[ToolCallEnd] = field(default_factory=list)
    finish: Finish | None = None


def collect(events: Iterable[Event]) -> Completion:
    """Add events up to a completion; how the text was cut into events makes no difference."""
    completion = Completion()
    reasoning, content = [], []
    for event in events:
        match event:
            case Reasoning(text):
                reasoning.append(text)
            case Content(text):
                content.append(text)
            case ToolCallEnd():
                completion.tool_calls.append(event)
            case Finish():
                completion.finish = event
    completion.reasoning, completion.content = "".join(reasoning), "".join(content)
    return completion
