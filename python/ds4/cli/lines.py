"""Where the lines of a conversation come from: an edited prompt on a terminal, else plain standard input."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .terminal import note

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

_PROMPT = "ds4> "
_HISTORY_FILE = ".ds4_history"
_HISTORY_ENTRIES = 512


class LineReader:
    """Reads one line after the other.

    Attributes
    ----------
    interactive : bool
        Whether a person types them.
    """

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._prompt: PromptSession[str] | None = _prompt_session() if self.interactive else None

    def read(self) -> str | None:
        """Return the next line, or None at the end. Ctrl-C at the prompt drops the line being typed."""
        if self._prompt is None:
            line = sys.stdin.readline()
            return line.rstrip("\r\n") if line else None
        while True:
            try:
                return self._prompt.prompt(_PROMPT)
            except KeyboardInterrupt:
                note("Ctrl-D or /quit leaves")
            except EOFError:
                return None


def _prompt_session() -> PromptSession[str]:
    # Imported here: a one-shot run has no use for it and starts faster without.
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory

    class _FileHistory(FileHistory):
        """A history whose file may become unwritable at any time: told once, and no reason to end."""

        writable = True

        def store_string(self, string: str) -> None:
            try:
                if self.writable:
                    super().store_string(string)
            except OSError as error:
                self.writable = False
                note(f"no history: {path}: {error.strerror}")

    history: History = InMemoryHistory()
    path = history_path()
    if path is None:
        note("no history: there is no home directory")
        return PromptSession(history=history)
    try:
        _trim(path)
        with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab"):
            history = _FileHistory(str(path))
    except OSError as error:
        note(f"no history: {path}: {error.strerror}")
    return PromptSession(history=history)


def history_path() -> Path | None:
    """Return where the typed lines are kept; None for a user without a home directory."""
    try:
        return Path.home() / _HISTORY_FILE
    except RuntimeError:
        return None


def _trim(path: Path) -> None:
    """Keep the newest entries of a history file; an entry is a comment line and lines beginning with +."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    starts = [i for i, line in enumerate(lines) if line.startswith(b"#")]
    if len(starts) > _HISTORY_ENTRIES:
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_bytes(b"".join(lines[starts[-_HISTORY_ENTRIES] :]))
        temporary.chmod(0o600)
        temporary.replace(path)
