"""A conversation: one session, each turn extends it. A line beginning with a slash is a command, never a
message; two slashes send the rest as a message that begins with one.

On a terminal lines are edited by prompt_toolkit and kept in a history file; otherwise every line of standard input is
one message, and only the answers go to standard output.
"""

from __future__ import annotations

import contextlib
import time
from contextlib import nullcontext
from pathlib import Path
from shlex import split

from ds4 import DS4Error, Model, Session, StateError, Steering
from ds4.chat import CompletionParser, Content

from .chats import Chats, chats_directory
from .commands import Command, CommandError, Commands
from .control import visible
from .conversation import Conversation, Turn, fitting_mode
from .interrupts import ctrl_c_ignored, ctrl_c_stops
from .lines import LineReader
from .live import LiveLine, live_line
from .memory import show_size
from .oneshot import Listener, check_fits, make_sampler
from .opening import check_text, make_session, opened_model, read_text
from .options import MAX_CONTEXT
from .pace import FULL, Pace
from .reply import Reply, make_reply
from .settings import Settings
from .steering import chosen_steering
from .terminal import AnswerPrinter, describe, note, tell

_MORE_HELP = """\
//TEXT sends /TEXT as a message. A message of several lines stands between two lines of \"\"\"; on a terminal
Alt-Enter and a backslash at the end of a line begin a new line too. Tab completes commands, files and names.
Ctrl-C stops an answer, Ctrl-D leaves."""
_SHOWN_MESSAGE = 60


def run(settings: Settings) -> int:
    """Hold the conversation; returns 1 when a turn of a non-interactive run failed."""
    with opened_model(settings) as model:
        repl = Repl(model, settings)
        try:
            reader = LineReader(repl.commands, repl.saved_names)
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
        self._interactive = False
        self._live: LiveLine | None = None
        plan = model.memory_plan(self._n_ctx, mtp=settings.draft is not None)
        note(
            f"context of {self._n_ctx} positions: {show_size(plan.total_session_bytes)}, "
            f"weights: {show_size(plan.weights_bytes)}"
        )
        self._steering, self._steering_scale = chosen_steering(model, settings), 1.0
        self._session: Session = make_session(model, settings, self._n_ctx)
        self._session.set_steering(self._steering)
        mode, warning = fitting_mode(settings.mode, self._n_ctx)
        if warning:
            note(f"warning: {warning}")
        self._chat = Conversation(model.tokenizer, system=settings.system or None, mode=mode)
        self._pace = Pace(settings.power)
        self._chats = Chats(chats_directory())
        self._name: str | None = None  # of the saved conversation that this one is
        self._last: Reply | None = None
        self._written = self._computed = 0
        self.commands = Commands([
            Command("/help", "", "this text", self._help),
            Command("/think", "", "reason before answering", lambda rest: self._set_mode("think")),
            Command("/think-max", "", "reason at length (needs a context of 393216 or more)",
                    lambda rest: self._set_mode("think-max")),
            Command("/nothink", "", "answer at once", lambda rest: self._set_mode("nothink")),
            Command("/system", "[TEXT]", "set the system text, - for none; alone: show it", self._system),
            Command("/ctx", "N", "go on in a context of N positions; the next message computes everything again",
                    self._set_context),
            Command("/power", "[N]", "work N percent of the time and rest between; alone: show it", self._set_power),
            Command("/steer", "[F]", "multiply the scales of the directions by F, 0: none; alone: show", self._steer),
            Command("/read", "FILE", "send the content of a file as the next message", self._read, "file"),
            Command("/undo", "", "take back the last message and its answer", self._undo),
            Command("/retry", "", "answer the last message again", self._retry),
            Command("/clear", "", "begin a new conversation", self._clear),
            Command("/save", "[NAME]", "save the conversation", self._save, "chat"),
            Command("/load", "NAME", "go on with a saved conversation, in place of this one", self._load, "chat"),
            Command("/delete", "NAME", "delete a saved conversation; the name in full", self._delete, "chat"),
            Command("/list", "", "what is saved", self._list),
            Command("/stats", "", "context, speeds and settings", self._stats),
            Command("/quit", "", "leave", lambda rest: None, also=("/exit",)),
        ])  # fmt: skip

    def close(self) -> None:
        """Free the session."""
        self._session.close()

    def saved_names(self) -> list[str]:
        """Return the names of the saved conversations."""
        return self._chats.names()

    def loop(self, reader: LineReader) -> int:
        """Read lines until the end; returns the exit code.

        Raises
        ------
        KeyboardInterrupt
            Ctrl-C in a run without a terminal.
        """
        failed = False
        if reader.interactive:
            note("/help lists the commands, Ctrl-D leaves")
        self._interactive = reader.interactive
        self._live = live_line() if reader.interactive else None
        while True:
            try:
                line = reader.read()
                if line is None or line.strip() in ("/quit", "/exit"):
                    break
                self._handle(line)
            except KeyboardInterrupt:
                if not reader.interactive:
                    raise
                note("interrupted")
            except (DS4Error, OSError, ValueError, MemoryError) as error:
                failed = True
                note(describe(error))
        return 1 if failed and not reader.interactive else 0

    def _handle(self, line: str) -> None:
        if line.startswith("//"):
            message: str | None = line[1:]
        else:
            message = self.commands.run(line) if line.startswith("/") else line
        if message is not None and message.strip():
            self._turn(message)

    def _turn(self, message: str, *, instead: Turn | None = None) -> None:
        """Send a message; `instead` comes back if nothing comes of it."""
        check_text(message, "message")
        ids = self._chat.add(message)
        listener = Listener(quiet=False, live=self._live, n_ctx=self._n_ctx)
        reply = None
        try:
            check_fits(len(ids), self._n_ctx)
            with ctrl_c_stops(self._session) as stop:
                reply = make_reply(
                    self._session,
                    ids,
                    listener,
                    thinking=self._chat.thinking,
                    sampler=self._sampler,
                    max_tokens=self._settings.tokens,
                    draft=self._settings.draft,
                    pace=self._pace,
                    stop=stop,
                )
        finally:
            if reply is None or (reply.finish == "interrupted" and not reply.tokens):
                self._chat.drop_last()
                if instead is not None:
                    self._chat.turns.append(instead)
            else:
                self._chat.set_reply(reply.tokens)
            listener.finish()
        with contextlib.suppress(StateError):  # no memory for a place to go back to costs time later, nothing else
            self._session.checkpoint()
        self._last = reply
        self._written += len(reply.tokens)
        self._computed += reply.n_computed
        note(reply.summary())
        if reply.finish == "interrupted" and not self._interactive:
            raise KeyboardInterrupt

    # Commands: each returns a message to send, or None.

    def _help(self, rest: str) -> None:
        tell(f"{self.commands.help()}\n{_MORE_HELP}\n")

    def _set_mode(self, mode: str) -> None:
        self._chat.mode, warning = fitting_mode(mode, self._n_ctx)
        note(f"warning: {warning}" if warning else f"mode {self._chat.mode}")

    def _system(self, rest: str) -> None:
        if not rest:
            note("there is no system text" if self._chat.system is None else f"system text: {self._chat.system}")
            return
        check_text(rest, "system text")
        self._chat.system = None if rest == "-" else rest
        again = "; the next message computes everything again" if self._chat.turns else ""
        note(("no system text" if rest == "-" else "the system text is set") + again)

    def _set_context(self, rest: str) -> None:
        n_ctx = _number(rest, "/ctx", MAX_CONTEXT)
        n_held = len(self._chat.tokens()) if self._chat.turns else 0
        if n_held >= n_ctx:
            raise CommandError(f"the conversation has {n_held} tokens; /ctx {n_held + 1} is the least")
        session = make_session(self._model, self._settings, n_ctx)
        session.set_steering(self._scaled(self._steering_scale))
        self._session.close()
        self._session, self._n_ctx = session, n_ctx
        self._chat.mode, warning = fitting_mode(self._chat.mode, n_ctx)
        note(f"warning: {warning}" if warning else f"context {n_ctx}")

    def _scaled(self, factor: float) -> list[Steering]:
        return [one.times(factor) for one in self._steering]

    def _steer(self, rest: str) -> None:
        if not self._steering:
            raise CommandError("there are no directions; begin with --dir-steering-file FILE")
        if rest:
            try:
                factor = float(rest)
            except ValueError:
                raise CommandError("/steer needs a number") from None
            self._session.set_steering(self._scaled(factor))
            self._steering_scale = factor
        for file, one in zip(self._settings.dir_steering_file, self._scaled(self._steering_scale), strict=True):
            note(f"steering by {file}: FFN {one.ffn:g}, attention {one.attn:g}")
        n = self._session.pos - self._session.steered_prefix
        if n:
            note(f"{_amount(n, 'position')} of the conversation were computed with other scales, and stay")

    def _set_power(self, rest: str) -> None:
        if rest:
            self._pace.power = _number(rest, "/power", FULL)
        note(f"power {self._pace.power} %")

    def _read(self, rest: str) -> str:
        text = read_text(_path(rest))
        if not text.strip():
            raise CommandError(f"{rest} is empty")
        return text

    def _undo(self, rest: str) -> None:
        turn = self._pop()
        note(f"taken back: {_short(turn.text)}")

    def _retry(self, rest: str) -> None:
        turn = self._pop()
        if self._sampler.temperature == 0:
            note("the temperature is 0: the answer can only differ if the mode or the system text does")
        self._turn(turn.text, instead=turn)

    def _pop(self) -> Turn:
        if not self._chat.turns:
            raise CommandError("there is no message yet")
        return self._chat.drop_last()

    def _clear(self, rest: str) -> None:
        self._chat.turns.clear()
        self._name = None
        note("a new conversation")

    def _save(self, rest: str) -> None:
        name = rest or self._name
        if name is None:
            raise CommandError("/save needs a name")
        for notice in self._chats.save(name, self._chat, self._session):
            note(notice)
        self._name = name
        note(f"saved as {name!r}: {_amount(len(self._chat.turns), 'turn')}, {len(self._chat.tokens())} tokens")

    def _load(self, rest: str) -> None:
        loaded = self._chats.load(rest, self._session)
        self._chat, self._name = loaded.chat, rest
        self._chat.mode, warning = fitting_mode(self._chat.mode, self._n_ctx)
        for notice in [*loaded.notices, *([f"warning: {warning}"] if warning else [])]:
            note(notice)
        note(f"loaded {rest!r}: {_amount(len(loaded.chat.turns), 'turn')}, {loaded.n_tokens} tokens")
        if self._interactive:
            self._show(loaded.chat.turns[-1])

    def _delete(self, rest: str) -> None:
        for notice in self._chats.delete(rest, self._model):
            note(notice)
        if self._name == rest:
            self._name = None  # what is on the screen goes on, unsaved
        note(f"deleted {rest!r}")

    def _show(self, turn: Turn) -> None:
        """Show where a conversation stood."""
        note(f"last message: {_short(turn.text)}")
        printer = AnswerPrinter()
        parser = CompletionParser("thinking" if turn.thinking else "chat")
        for event in [*parser.feed(self._model.tokenizer.decode(turn.reply)), *parser.finish("stop")]:
            if isinstance(event, Content):
                printer.content(event.text)
        printer.finish()

    def _list(self, rest: str) -> None:
        found = self._chats.summaries(self._model.fingerprint)
        if not found:
            note("nothing is saved yet; /save NAME saves this conversation")
        for chat in found:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(chat.saved))
            what = f"{_amount(chat.n_turns, 'turn')}: {_short(chat.first)}"
            other = "" if chat.same_model else " (another model)"
            tell(f"{chat.name}  {when}  {chat.problem or what + other}\n")

    def _stats(self, rest: str) -> None:
        n = len(self._chat.tokens()) if self._chat.turns else 0
        lines = [
            f"context: {n} of {self._n_ctx} positions, {_amount(len(self._chat.turns), 'turn')}",
            f"mode {self._chat.mode}, temperature {self._sampler.temperature:g}, seed {self._sampler.seed}, "
            f"power {self._pace.power} %",
            f"since the start: {self._computed} tokens of prompts computed, {self._written} written",
            f"memory of the session: {show_size(self._session.n_bytes)}, "
            f"{_amount(len(self._session.checkpoints), 'place')} to go back to",
        ]
        if self._last is not None:
            lines.append(f"last answer: {self._last.summary()}")
        tell("\n".join(lines) + "\n")


def _number(text: str, word: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= most):
        raise CommandError(f"{word} needs a number from 1 to {most}")
    return int(text)


def _path(text: str) -> Path:
    """Return the file that a text names: as it stands, or in quotes or with backslashes, as terminals paste names."""
    try:
        path = Path(text).expanduser()
        if not path.exists():
            words = split(text)
            if len(words) == 1 and words[0] != text and Path(words[0]).expanduser().exists():
                return Path(words[0]).expanduser()
    except RuntimeError:
        raise CommandError(f"{text}: there is no such home directory") from None
    except ValueError:  # an open quotation mark
        pass
    return path


def _short(text: str) -> str:
    """Return the beginning of a text in one line."""
    line = " ".join(visible(text).split())
    return line if len(line) <= _SHOWN_MESSAGE else line[: _SHOWN_MESSAGE - 3] + "..."


def _amount(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
