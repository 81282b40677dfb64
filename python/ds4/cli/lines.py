"""Where the lines of a conversation come from: an edited prompt on a terminal, else plain standard input.

A message of several lines is written between two lines of three quotation marks. On a terminal a backslash at the end
of a line, Alt-Enter and pasting make one too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from .commands import Commands
from .terminal import note

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

_PROMPT, _CONTINUED = "ds4> ", "...> "
_QUOTES = '"""'


class LineReader:
    """Reads one message or command after the other.

    Parameters
    ----------
    commands : Commands
        What can be completed.
    chats : callable
        Returns the names of saved conversations.

    Attributes
    ----------
    interactive : bool
        Whether a person types them.
    """

    def __init__(self, commands: Commands, chats: Callable[[], list[str]]) -> None:
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._prompt: PromptSession[str] | None = None
        if self.interactive:
            # Imported here: a one-shot run has no use for it and starts faster without.
            from .editor import prompt_session

            self._prompt = prompt_session(commands, chats)

    def read(self) -> str | None:
        """Return the next line or block, or None at the end. Ctrl-C at the prompt drops what is being typed."""
        if self._prompt is None:
            text = self._read_plain()
            return None if text is None else as_utf8(text)
        while True:
            try:
                return without_quotes(as_utf8(self._prompt.prompt(_PROMPT, prompt_continuation=_CONTINUED)))
            except KeyboardInterrupt:
                note("Ctrl-D or /quit leaves")
            except EOFError:
                return None

    def _read_plain(self) -> str | None:
        line = sys.stdin.readline()
        if not line:
            return None
        text = line.rstrip("\r\n")
        if text.strip() != _QUOTES:
            return text
        block: list[str] = []
        while line := sys.stdin.readline():
            if line.strip() == _QUOTES:
                return as_message("".join(block).rstrip("\r\n"))
            block.append(line)
        raise ValueError(f"a message that begins with {_QUOTES} does not end with it")


def is_unfinished(text: str) -> bool:
    """Whether a text that is typed goes on in another line."""
    if text.startswith(_QUOTES):
        return not (text.rstrip().endswith(_QUOTES) and len(text.rstrip()) >= 2 * len(_QUOTES))
    return text.endswith("\\")


def without_quotes(text: str) -> str:
    """Return the message of a typed text: what stands between the quotation marks if there are any."""
    if not text.startswith(_QUOTES) or is_unfinished(text):
        return text
    return as_message(text.rstrip()[len(_QUOTES) : -len(_QUOTES)].strip("\n"))


def as_message(text: str) -> str:
    """Write a text so that it is no command."""
    return "/" + text if text.startswith("/") else text


def as_utf8(text: str) -> str:
    """Read bytes as UTF-8 that were no text in the encoding of the locale, which may be ASCII."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(sys.stdin.encoding, "surrogateescape").decode("utf-8", "surrogateescape")
    return text
