"""The line editor of a terminal: history in a file, completion, and messages of several lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from .commands import Commands
from .lines import is_unfinished
from .terminal import note

_HISTORY_FILE = ".ds4_history"
_HISTORY_ENTRIES = 512


def prompt_session(commands: Commands, chats: Callable[[], list[str]]) -> PromptSession[str]:
    """Return an editor for messages and commands.

    Parameters
    ----------
    commands : Commands
        What can be completed.
    chats : callable
        Returns the names of saved conversations.
    """
    return PromptSession(
        history=open_history(),
        completer=CommandCompleter(commands, chats),
        complete_while_typing=False,
        key_bindings=_keys(),
        enable_open_in_editor=True,  # Ctrl-X Ctrl-E
        tempfile_suffix=".md",
    )


class CommandCompleter(Completer):
    """Completes commands, and what their arguments name.

    Parameters
    ----------
    commands : Commands
    chats : callable
        Returns the names of saved conversations.
    """

    def __init__(self, commands: Commands, chats: Callable[[], list[str]]) -> None:
        self._commands, self._chats = commands, chats
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Return what may stand at the cursor."""
        text = document.text_before_cursor
        if not text.startswith("/") or text.startswith("//") or "\n" in text:
            return
        word, space, rest = text.partition(" ")
        if not space:
            for name, command in self._commands.by_word.items():
                if name.startswith(word):
                    yield Completion(name, -len(word), display_meta=command.text)
            return
        found = self._commands.by_word.get(word)
        rest = rest.lstrip()
        if found is None or found.completes is None:
            return
        if found.completes == "file":
            yield from self._paths.get_completions(Document(rest, len(rest)), complete_event)
            return
        try:
            names = self._chats()
        except OSError:
            return
        for name in names:
            if name.startswith(rest):
                yield Completion(name, -len(rest))


def _keys() -> KeyBindings:
    keys = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)

    @keys.add("escape", "enter", filter=typing)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("enter", filter=typing & Condition(lambda: is_unfinished(get_app().current_buffer.text)))
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        buffer.cursor_position = len(buffer.text)
        if buffer.text.endswith("\\"):
            buffer.delete_before_cursor()
        buffer.insert_text("\n")

    return keys


class _History(FileHistory):
    """A history whose file may become unwritable at any time: told once, and no reason to end.

    A line that begins with a space is not kept, as in shells.
    """

    writable = True

    def store_string(self, string: str) -> None:
        """Append to the file."""
        try:
            string.encode()
        except UnicodeEncodeError:
            return  # bytes that are no text
        try:
            if self.writable and not string.startswith(" "):
                super().store_string(string)
        except OSError as error:
            self.writable = False
            note(f"no history: {os.fsdecode(self.filename)}: {error.strerror}")


def open_history() -> History:
    """Return the history of the user; one that is forgotten when its file cannot be used."""
    path = history_path()
    if path is None:
        note("no history: there is no home directory")
        return InMemoryHistory()
    try:
        trim_history(path)
        with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as f:
            if os.fstat(f.fileno()).st_mode & 0o077:
                os.fchmod(f.fileno(), 0o600)  # what one types is nobody else's
        return _History(str(path))
    except OSError as error:
        note(f"no history: {path}: {error.strerror}")
        return InMemoryHistory()


def history_path() -> Path | None:
    """Return where the typed lines are kept; None for a user without a home directory."""
    try:
        return Path.home() / _HISTORY_FILE
    except RuntimeError:
        return None


def trim_history(path: Path) -> None:
    """Keep the newest entries of a history file; an entry is a comment line and lines beginning with +."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    starts = [i for i, line in enumerate(lines) if line.startswith(b"#")]
    if len(starts) > _HISTORY_ENTRIES:
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as f:
            f.write(b"".join(lines[starts[-_HISTORY_ENTRIES] :]))
        temporary.replace(path)
