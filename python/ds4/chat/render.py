"""Prompt rendering: a conversation in, the exact text and tokens that DeepSeek V4 was trained on out.

The rules are those of the encoder published with the model (there is no Jinja template); its output is
reproduced byte for byte. The one thing added is a frame that holds: a prompt is a list of parts, text or
special token, so that what a user writes can never become a special token, and closing tags inside values
are escaped (see `escaping`). The renderer is versioned, since later models change fixed texts and tags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from . import protocol
from .escaping import escape_json_value, escape_name, escape_result, escape_value
from .jsontext import dumps, loads, replace_surrogates
from .messages import Message, ToolCall, check_messages, check_tools

MODES = ("chat", "thinking")
EFFORTS = ("high", "max")
EFFORT_MAX_CONTEXT = 393_216
"""Context length that the model card recommends at least for effort "max"."""


@dataclass(frozen=True, slots=True)
class Text:
    """A stretch of plain text: tokenized without recognising special tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class Special:
    """One special token, given by its content."""

    text: str


Part = Text | Special


class Encoder(Protocol):
    """What a prompt needs of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, recognising no special token."""

    def special(self, name: str) -> int:
        """Return the id of a special token, given its content."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt.

    Parameters
    ----------
    parts : tuple of Text and Special
        Two `Text` parts never stand side by side: the tokens at a boundary depend on both sides, so text is
        only ever cut at special tokens.
    """

    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The whole prompt as one string, as the published encoder writes it."""
        return "".join(part.text for part in self.parts)

    def key(self) -> bytes:
        """Return bytes that tell prompts apart: the text in UTF-8, with a byte 0xFF before each special token.

        That byte occurs in no UTF-8, so a text that only quotes a special token has another key. Of two prompts, one
        goes on where the other ends exactly if its key begins with the other's.
        """
        return b"".join(b"\xff" * isinstance(part, Special) + part.text.encode() for part in self.parts)

    def encode(self, tokenizer: Encoder) -> list[int]:
        """Return the token ids of the prompt.

        Raises
        ------
        ValueError
            The tokenizer lacks a special token that the prompt needs.
        """
        ids: list[int] = []
        for part in self.parts:
            if isinstance(part, Special):
                ids.append(tokenizer.special(part.text))
            else:
                ids.extend(tokenizer.encode(part.text))
        return ids


def render(
    messages: Sequence[Mapping[str, Any]],
    *,
    mode: str,
    tools: Sequence[Mapping[str, Any]] | None = None,
    effort: str | None = None,
    drop_thinking: bool = True,
    response_format: Any = None,
    blocks: Mapping[int, str] | None = None,
    renderer: str = "v4",
) -> Prompt:
    """Render a conversation, up to the point where the model writes next.

    Parameters
    ----------
    messages : sequence of mappings
        See `messages.check_messages` for the accepted forms.
    mode : {"chat", "thinking"}
        Whether the next turn begins with reasoning.
    tools : sequence of mappings, optional
        Tools in the form `{"type": "function", "function": {...}}`. Same as `tools` on the first message when
        that is a system message; otherwise an empty system message is put in front.
    effort : {None, "high", "max"}
        "max" asks for the longest reasoning (thinking mode only); "high" and None render nothing.
    drop_thinking : bool
        Leave out the reasoning of turns before the last user turn. Reasoning is kept everywhere as soon as
        any tools are declared, whatever this says.
    response_format : JSON value, optional
        Schema of the wanted reply; placed like `tools`.
    blocks : mapping of int to str, optional
        Index of an assistant message -> the text of its block of calls as the model once wrote it, with everything
        between content and end of turn. It stands in place of the rendered calls. Only for text that came from the
        model: special tokens in it become special tokens.
    renderer : str
        Version of the protocol, a key of `RENDERERS`.

    Raises
    ------
    ValueError
        A message, tool, mode, effort or renderer is not acceptable; the text names it.
    TypeError
        `messages` is not a list of mappings.
    """
    if renderer not in RENDERERS:
        raise ValueError(f"unknown renderer {renderer!r}; known: {', '.join(sorted(RENDERERS))}")
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}; known: {', '.join(MODES)}")
    if effort is not None and effort not in EFFORTS:
        raise ValueError(f"unknown effort {effort!r}; known: {', '.join(EFFORTS)} and None")
    checked = check_messages(messages)
    for i, block in (blocks or {}).items():
        if not checked[i].tool_calls:
            raise ValueError(f"blocks[{i}] is given, but messages[{i}] has no tool calls")
        checked[i] = replace(checked[i], block=block)
    checked = _place_extras(checked, check_tools(tools), response_format)
    return RENDERERS[renderer](checked, mode == "thinking", effort, drop_thinking)


def render_text(messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """Render a conversation to one string; takes the options of `render`.

    For training data and comparisons. Tokens of a live prompt come from `Prompt.encode`: in a joined string
    user text and special tokens can no longer be told apart.
    """
    return render(messages, **options).text


def mode_of_effort(effort: str | None) -> tuple[str, str | None]:
    """Map an API's effort name to the mode and effort to render with.

    "none" means no thinking, "max" the strongest; every level between (minimal, low, medium, high, xhigh)
    and no name at all mean plain thinking, since V4 knows no finer steps.

    Raises
    ------
    ValueError
        The name is unknown.
    """
    levels = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
    if effort is not None and effort not in levels:
        raise ValueError(f"unknown effort {effort!r}; known: {', '.join(levels)}")
    if effort == "none":
        return "chat", None
    return "thinking", "max" if effort == "max" else None


def render_tool_calls(calls: Sequence[ToolCall]) -> tuple[Part, ...]:
    """Render a block of tool calls with the blank line before it, as a model writes it."""
    out = _Builder()
    _tool_calls(out, calls)
    return out.parts()


# Version 4


@dataclass(slots=True)
class _Turn:
    """One message, or a run of user messages and tool results that the protocol shows as one user turn."""

    message: Message
    pieces: list[Message]
    task: str | None

    @property
    def role(self) -> str:
        return self.message.role

    @property
    def opens_reply(self) -> bool:
        return self.role in ("user", "developer")


class _Builder:
    """Collects parts; neighbouring texts are joined."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._text: list[str] = []

    def text(self, text: str) -> None:
        if text:
            self._text.append(replace_surrogates(text))

    def special(self, content: str) -> None:
        self._flush()
        self._parts.append(Special(content))

    def fixed(self, name: str) -> None:
        """Add one of the fixed texts, whose own mentions of special tokens are special tokens."""
        self.written(protocol.texts()[name])

    def written(self, text: str) -> None:
        """Add text in which the marks of reasoning and calls are special tokens."""
        for i, piece in enumerate(protocol.split_specials(text)):
            (self.special if i % 2 else self.text)(piece)

    def tag(self, name: str, *, closing: bool = False, attributes: str = "") -> None:
        self.text("</" if closing else "<")
        self.special(protocol.DSML)
        self.text(f"{name}{attributes}>")

    def parts(self) -> tuple[Part, ...]:
        self._flush()
        return tuple(self._parts)

    def _flush(self) -> None:
        if self._text:
            self._parts.append(Text("".join(self._text)))
            self._text.clear()


def _place_extras(messages: list[Message], schemas: tuple[str, ...], response_format: Any) -> list[Message]:
    """Move tools and response format given beside the messages onto the leading system message."""
    for what, given, held in (
        ("tools", bool(schemas), [m.index for m in messages if m.schemas]),
        ("response_format", bool(response_format), [m.index for m in messages if m.response_format]),
    ):
        if given and held:
            raise ValueError(f"{what} given twice: as an argument and on messages[{held[0]}]")
    if not schemas and not response_format:
        return messages
    head = messages[0]
    rest = messages[1:]
    if head.role != "system":
        head, rest = Message("system", "", -1), messages
    try:
        shape = dumps(response_format) if response_format else head.response_format
    except ValueError as error:
        raise ValueError(f"response_format: {error}") from None
    return [replace(head, schemas=schemas or head.schemas, response_format=shape), *rest]


def _render_v4(messages: list[Message], thinking: bool, effort: str | None, drop_thinking: bool) -> Prompt:
    keep = not drop_thinking or any(m.schemas for m in messages)
    turns = _merge_turns(messages)
    if thinking and not keep:
        last = _last_user(turns)
        turns = [t for i, t in enumerate(turns) if t.role != "developer" or i >= last]
    last = _last_user(turns)

    out = _Builder()
    out.special(protocol.BOS)
    if thinking and effort == "max":
        out.fixed("EFFORT_MAX")
    for i, turn in enumerate(turns):
        before = turns[i - 1] if i else None
        after = turns[i + 1].role if i + 1 < len(turns) else None
        if turn.role == "assistant":
            answers_task = before is not None and before.task is not None
            _assistant(out, turn.message, reasons=thinking and not answers_task and (keep or i > last))
        else:
            _prompt_side(out, turn)
        if turn.opens_reply and after in (None, "assistant", "latest_reminder"):
            _reply_header(out, turn.task, thinking, thinks=thinking and (keep or i >= last))
    return Prompt(out.parts())


def _merge_turns(messages: list[Message]) -> list[_Turn]:
    """Merge runs of user messages and results into turns, results in the order of the calls they answer.

    A result whose id is unknown sorts like the answer to the first call. A turn's task is that of its last
    user message; after a task only results may join the turn.
    """
    turns: list[_Turn] = []
    order: dict[str, int] = {}
    for message in messages:
        if message.tool_calls:
            order = {call.id: i for i, call in enumerate(message.tool_calls) if call.id}
        turn = turns[-1] if turns else None
        if message.role not in ("user", "tool"):
            turns.append(_Turn(message, [], message.task))
        elif turn is None or turn.role != "user" or (message.role == "user" and turn.task is not None):
            turns.append(_Turn(replace(message, role="user"), [message], message.task))
        else:
            turn.pieces.append(message)
            turn.task = turn.task or message.task
            _sort_results(turn.pieces, order)
    return turns


def _sort_results(pieces: list[Message], order: Mapping[str, int]) -> None:
    places = [i for i, piece in enumerate(pieces) if piece.role == "tool"]
    results = sorted((pieces[i] for i in places), key=lambda piece: order.get(piece.tool_call_id or "", 0))
    for place, result in zip(places, results, strict=True):
        pieces[place] = result


def _last_user(turns: Sequence[_Turn]) -> int:
    return max((i for i, turn in enumerate(turns) if turn.opens_reply), default=-1)


def _prompt_side(out: _Builder, turn: _Turn) -> None:
    """Render a turn that is not the assistant's."""
    message = turn.message
    if turn.role == "user":
        out.special(protocol.USER)
        for i, piece in enumerate(turn.pieces):
            out.text("\n\n" if i else "")
            if piece.role == "tool":
                body = escape_result(piece.content)
                out.text(f"{protocol.TOOL_RESULT_OPEN}{body}{protocol.TOOL_RESULT_CLOSE}")
            else:
                out.text(piece.content)
        return
    if turn.role == "developer":
        out.special(protocol.USER)
    elif turn.role == "latest_reminder":
        out.special(protocol.LATEST_REMINDER)
    out.text(message.content)
    if message.schemas:
        out.text("\n\n")
        out.fixed("TOOLS_HEAD")
        out.text("\n".join(message.schemas))
        out.fixed("TOOLS_TAIL")
    if message.response_format:
        out.text("\n\n")
        out.fixed("RESPONSE_FORMAT")
        out.text(message.response_format)


def _reply_header(out: _Builder, task: str | None, thinking: bool, thinks: bool) -> None:
    """Render what stands between a user turn and the reply to it."""
    if task is None or task == "action":
        out.special(protocol.ASSISTANT)
        # An action task shows the mode, not the history rule: so the published encoder does it.
        opens = thinking if task else thinks
        out.special(protocol.THINK if opens else protocol.END_THINK)
    if task is not None:
        out.special(protocol.TASKS[task])


def _assistant(out: _Builder, message: Message, reasons: bool) -> None:
    if reasons:
        out.text(message.reasoning)
        out.special(protocol.END_THINK)
    out.text(message.content)
    if message.block is not None:
        out.written(message.block)
    elif message.tool_calls:
        _tool_calls(out, message.tool_calls)
    if not message.wo_eos:
        out.special(protocol.EOS)


def _tool_calls(out: _Builder, calls: Sequence[ToolCall]) -> None:
    out.text("\n\n")
    out.tag("tool_calls")
    for call in calls:
        out.text("\n")
        out.tag("invoke", attributes=f' name="{escape_name(call.name)}"')
        out.text("\n")
        for i, (key, value) in enumerate(_arguments(call.arguments).items()):
            is_string = isinstance(value, str)
            flag = "true" if is_string else "false"
            out.text("\n" if i else "")
            out.tag("parameter", attributes=f' name="{escape_name(key)}" string="{flag}"')
            out.text(escape_value(value) if is_string else escape_json_value(dumps(value)))
            out.tag("parameter", closing=True)
        out.text("\n")
        out.tag("invoke", closing=True)
    out.text("\n")
    out.tag("tool_calls", closing=True)


def _arguments(text: str) -> dict[str, Any]:
    """Read an arguments text; what is no JSON object becomes one parameter with the raw text."""
    try:
        value = loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": text}


Renderer = Callable[[list[Message], bool, str | None, bool], Prompt]

RENDERERS: dict[str, Renderer] = {"v4": _render_v4}
"""Known protocol versions."""
