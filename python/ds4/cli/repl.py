"""A conversation: one session, each turn extends it. A line beginning with a slash is a command, never a
message; two slashes send the rest as a message that begins with one.

On a terminal lines are edited by prompt_toolkit and kept in a history file; otherwise every line of standard input is
one message, and only the answers go to standard output.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from ds4 import DS4Error, Model, Session

from .conversation import Conversation, fitting_mode
from .interrupts import ctrl_c_ignored, ctrl_c_raises
from .lines import LineReader
from .oneshot import Listener, check_fits, make_sampler
from .opening import check_text, make_session, opened_model, read_text
from .options import MAX_CONTEXT
from .reply import make_reply
from .settings import Settings
from .terminal import describe, note, tell

_HELP = """\
/help            this text
/think           reason before answering
/think-max       reason at length (needs a context of 393216 or more)
/nothink         answer at once
/ctx N           go on in a context of N positions; the conversation is computed again with the next message
/read FILE       send the content of a file as the next message
/quit or /exit   leave (Ctrl-D does the same)
//TEXT           send /TEXT as a message
Ctrl-C stops an answer."""


class CommandError(ValueError):
    """A slash command is unknown or used wrongly."""


def run(settings: Settings) -> int:
    """Hold the conversation; returns 1 when a turn of a non-interactive run failed."""
    with opened_model(settings) as model:
        repl = Repl(model, settings)
        try:
            reader = LineReader()
            with ctrl_c_ignored() if reader.interactive else nullcontext():
                return repl.loop(reader)
        finally:
            repl.close()


class Repl:
    """The state of a conversation: the session, the transcript and the switches.

    Parameters
    ----------
    model : Model
        The model.
    settings : Settings
        The options.
    """

    def __init__(self, model: Model, settings: Settings) -> None:
        self._model = model
        self._settings = settings
        self._sampler = make_sampler(settings)
        self._n_ctx = settings.ctx
        self._session: Session = make_session(model, settings, self._n_ctx)
        mode, warning = fitting_mode(settings.mode, self._n_ctx)
        if warning:
            note(f"warning: {warning}")
        self._chat = Conversation(model.tokenizer, system=settings.system or None, mode=mode)
        self._commands: dict[str, Callable[[str], str | None]] = {
            "/help": self._help,
            "/think": lambda rest: self._set_mode("think", rest),
            "/think-max": lambda rest: self._set_mode("think-max", rest),
            "/nothink": lambda rest: self._set_mode("nothink", rest),
            "/ctx": self._set_context,
            "/read": self._read,
            "/quit": lambda rest: _no_argument("/quit", rest),
            "/exit": lambda rest: _no_argument("/exit", rest),
        }

    def close(self) -> None:
        """Free the session."""
        self._session.close()

    def loop(self, reader: LineReader) -> int:
        """Read lines until the end; returns the exit code."""
        failed = False
        if reader.interactive:
            note("/help lists the commands, Ctrl-D leaves")
        while True:
            try:
                line = reader.read()
                if line is None or line.strip() in ("/quit", "/exit"):
                    break
                self._handle(line)
            except KeyboardInterrupt:
                # Not from the reply itself, which ends in order: at its very edge, or in a script between two lines.
                if not reader.interactive:
                    raise
                note("interrupted")
            except (DS4Error, OSError, ValueError) as error:
                failed = True
                note(describe(error))
        return 1 if failed and not reader.interactive else 0

    def _handle(self, line: str) -> None:
        if line.startswith("//"):
            message: str | None = line[1:]
        else:
            message = self._command(line) if line.startswith("/") else line
        if message is not None and message.strip():
            self._turn(message)

    def _turn(self, message: str) -> None:
        check_text(message, "message")
        ids = self._chat.add(message)
        listener = Listener(quiet=False)
        reply = None
        try:
            check_fits(len(ids), self._n_ctx)
            with ctrl_c_raises():
                reply = make_reply(
                    self._session,
                    ids,
                    listener,
                    thinking=self._chat.thinking,
                    sampler=self._sampler,
                    max_tokens=self._settings.tokens,
                    draft=self._settings.draft,
                )
        finally:
            listener.finish()
            if reply is None or (reply.finish == "interrupted" and not reply.tokens):
                self._chat.drop_last()
            else:
                self._chat.set_reply(reply.tokens)
        note(reply.summary())

    # Commands: each returns a message to send, or None.

    def _command(self, line: str) -> str | None:
        word, *others = line.split(maxsplit=1)
        action = self._commands.get(word)
        if action is None:
            raise CommandError(f"unknown command {word}; /help lists the commands")
        return action(others[0].strip() if others else "")

    def _help(self, rest: str) -> None:
        _no_argument("/help", rest)
        tell(_HELP + "\n")

    def _set_mode(self, mode: str, rest: str) -> None:
        _no_argument(f"/{mode}", rest)
        self._chat.mode, warning = fitting_mode(mode, self._n_ctx)
        note(f"warning: {warning}" if warning else f"mode {self._chat.mode}")

    def _set_context(self, rest: str) -> None:
        if not rest.isdecimal() or not 1 <= int(rest) <= MAX_CONTEXT:
            raise CommandError(f"/ctx needs a number from 1 to {MAX_CONTEXT}")
        n_ctx = int(rest)
        n_held = len(self._chat.tokens()) if self._chat.turns else 0
        if n_held >= n_ctx:
            raise CommandError(f"the conversation has {n_held} tokens; /ctx {n_held + 1} is the least")
        session = make_session(self._model, self._settings, n_ctx)
        self._session.close()
        self._session, self._n_ctx = session, n_ctx
        self._chat.mode, warning = fitting_mode(self._chat.mode, n_ctx)
        note(f"warning: {warning}" if warning else f"context {n_ctx}")

    def _read(self, rest: str) -> str:
        if not rest:
            raise CommandError("/read needs the name of a file")
        try:
            path = Path(rest).expanduser()
        except RuntimeError:
            raise CommandError(f"{rest}: there is no such home directory") from None
        text = read_text(path)
        if not text.strip():
            raise CommandError(f"{rest} is empty")
        return text


def _no_argument(word: str, rest: str) -> None:
    if rest:
        raise CommandError(f"{word} takes no argument, found {rest!r}")
