"""The slash commands of a conversation: their names, arguments and help."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Completion = Literal["file", "chat"]


class CommandError(ValueError):
    """A slash command is unknown or used wrongly."""


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command.

    Attributes
    ----------
    word : str
        "/read".
    argument : str
        Its argument as the help shows it: "" for none, "[N]" for one that may be left away, else "FILE".
    text : str
        What it does.
    run : callable
        Takes the argument, "" when there is none; returns a message to send, or None.
    completes : {"file", "chat"} or None
        What its argument names.
    also : tuple of str
        Other words for it.
    """

    word: str
    argument: str
    text: str
    run: Callable[[str], str | None]
    completes: Completion | None = None
    also: tuple[str, ...] = ()


class Commands:
    """All commands, by their words.

    Parameters
    ----------
    commands : iterable of Command
        In the order of the help.
    """

    def __init__(self, commands: Iterable[Command]) -> None:
        self._list = tuple(commands)
        self.by_word: Mapping[str, Command] = {w: c for c in self._list for w in (c.word, *c.also)}

    def run(self, line: str) -> str | None:
        """Carry out a line; returns a message to send, or None.

        Raises
        ------
        CommandError
            There is no such command, or it is used wrongly.
        """
        word, *others = line.split(maxsplit=1)
        rest = others[0].strip() if others else ""
        command = self.by_word.get(word)
        if command is None:
            raise CommandError(f"unknown command {word}; /help lists the commands")
        if rest and not command.argument:
            raise CommandError(f"{word} takes no argument, found {rest!r}")
        if not rest and command.argument and not command.argument.startswith("["):
            raise CommandError(f"{word} needs its argument: {command.word} {command.argument} -- {command.text}")
        return command.run(rest)

    def help(self) -> str:
        """Return the list of all commands."""
        heads = [" ".join(filter(None, (" or ".join((c.word, *c.also)), c.argument))) for c in self._list]
        width = max(map(len, heads)) + 2
        return "\n".join(f"{head:{width}}{c.text}" for head, c in zip(heads, self._list, strict=True))
