"""A conversation on a terminal: editing, several lines, completion, Ctrl-C, narrow and old terminals."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from ds4.cli.editor import CommandCompleter
from ds4.cli.lines import is_unfinished, without_quotes
from ds4.cli.repl import Repl
from ds4.cli.terminal import AnswerPrinter
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

OPTIONS = ["--nothink", "-n", "4", "--temp", "0"]
CTRL_C = b"\x03"


def texts(environment: dict[str, str], name: str) -> list[str]:
    path = Path(environment["HOME"]) / ".ds4" / "chats" / f"{name}.json"
    return [turn["text"] for turn in json.loads(path.read_text())["turns"]]


def answered(t: Any) -> None:
    t.wait_for("generation")
    t.wait_for("ds4>")


def test_messages_of_several_lines(terminal: Any, environment: dict[str, str]) -> None:
    """By a backslash, by Alt-Enter, by pasting, and between quotation marks."""
    t = terminal(*OPTIONS)
    t.wait_for("ds4>")
    t.type("one\\\rtwo\r")
    answered(t)
    t.type("three\x1b\rfour\r")
    answered(t)
    t.type("\x1b[200~five\nsix\x1b[201~\r")
    answered(t)
    t.type('"""\r/seven\r\reight\r"""\r')
    answered(t)
    t.type("/save x\r")
    t.wait_for("saved as")
    t.quit()
    assert texts(environment, "x") == ["one\ntwo", "three\nfour", "five\nsix", "/seven\n\neight"]
    history = (Path(environment["HOME"]) / ".ds4_history").read_text()
    assert "+three\n+four\n" in history


def test_lines_are_edited_and_recalled(terminal: Any, environment: dict[str, str]) -> None:
    t = terminal(*OPTIONS)
    t.wait_for("ds4>")
    t.type("wrld\x1b[D\x1b[D\x1b[Do\x01hello \r")  # three to the left, o, to the beginning
    answered(t)
    t.type("\x1b[A!\r")
    answered(t)
    t.type("/save x\r")
    t.wait_for("saved as")
    t.quit()
    assert texts(environment, "x") == ["hello world", "hello world!"]


def test_tab_completes_commands_files_and_names(
    terminal: Any, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my long notes.txt").write_text("from a file")
    monkeypatch.chdir(tmp_path)
    t = terminal(*OPTIONS)
    t.wait_for("ds4>")
    t.type("/rea\t")
    t.wait_for("/read")  # completions are looked up beside the editor
    t.type(" my l\t")
    t.wait_for("notes.txt")
    t.type("\r")
    answered(t)
    t.type("/save the chat\r")
    t.wait_for("saved as")
    t.wait_for("ds4>")
    t.type("/load the\t")
    t.wait_for("chat")
    t.type("\r")
    t.wait_for("loaded 'the chat'")
    t.wait_for("last message: from a file")
    t.quit()
    assert texts(environment, "the chat") == ["from a file"]


def test_completions(tmp_path: Path, model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ds4
    from ds4.cli.settings import Settings

    def chats() -> list[str]:
        return ["first one", "second"]

    monkeypatch.setenv("HOME", str(tmp_path))
    with ds4.Model.open(model_path) as model:
        repl = Repl(model, Settings(ctx=100))
        completer = CommandCompleter(repl.commands, chats)
        repl.close()

    def at(text: str) -> list[str]:
        return [c.text for c in completer.get_completions(Document(text), CompleteEvent())]

    assert at("/th") == ["/think", "/think-max"]
    assert "/quit" in at("/") and "/exit" in at("/")
    assert at("/load f") == ["first one"] and at("/save ") == ["first one", "second"]
    assert at("hello /th") == at("//th") == at("/think x") == at("/nosuch x") == at("/undo ") == at("/th\n/th") == []


def test_the_history_is_private(terminal: Any, environment: dict[str, str]) -> None:
    """Its file is readable for its owner only, also one that was not; a line after a space is not kept."""
    path = Path(environment["HOME"]) / ".ds4_history"
    path.write_text("\n# 2026-01-01\n+old\n")
    path.chmod(0o644)
    t = terminal(*OPTIONS)
    t.wait_for("ds4>")
    t.type(" secret\r")
    answered(t)
    os.write(t.master, b"no \xff text\r")
    t.wait_for("not valid UTF-8")
    t.type("kept\r")
    answered(t)
    t.quit()
    history = path.read_text()
    assert "+old" in history and "+kept" in history and "secret" not in history
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_twenty_columns(terminal: Any, tmp_path: Path, environment: dict[str, str]) -> None:
    """Lines that are redrawn fit; a long message and a long file go through."""
    (tmp_path / "long.txt").write_text("one and two and three " * 600)
    t = terminal("--nothink", "-n", "4", "--temp", "0", "-c", "20000", columns=20)
    seen = t.wait_for("ds4>")
    t.type("a message that is longer than the line\r")
    answered(t)
    t.type(f"/read {tmp_path}/long.txt\r")
    seen = t.wait_for("generation")
    for line in re.findall(r"\r\x1b\[K(ds4: prefill[^\r\n]*)", seen):
        assert len(line) < 20
    t.type("/help\r/save x\r")
    t.wait_for("saved as")
    t.quit()
    assert len(texts(environment, "x")) == 2


@pytest.mark.parametrize("term", ["dumb", "vt100", "nosuchterminal"])
def test_old_terminals(terminal: Any, environment: dict[str, str], term: str) -> None:
    t = terminal(*OPTIONS, TERM=term)
    t.wait_for("ds4>")
    t.type("hi\r")
    answered(t)
    t.type("/save x\r")
    t.wait_for("saved as")
    t.quit()
    assert texts(environment, "x") == ["hi"]


def test_a_locale_that_is_not_utf_8(terminal: Any, environment: dict[str, str]) -> None:
    """What is typed is taken as UTF-8 all the same; what cannot be shown is replaced."""
    t = terminal(*OPTIONS, LC_ALL="C", LANG="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    t.wait_for("ds4>")
    t.type("café\r")
    answered(t)
    t.type("/save cafés\r")
    t.wait_for("saved as")
    t.type("/list\r")
    t.wait_for("1 turn: caf")
    t.type("/load cafés\r")
    t.wait_for("loaded")
    t.quit()
    (path,) = (Path(environment["HOME"]) / ".ds4" / "chats").glob("*.json")
    assert path.name == "caf%C3%A9s.json"
    assert json.loads(path.read_bytes())["turns"][0]["text"] == "café"


def test_progress_is_seen_within_seconds(terminal: Any, tmp_path: Path) -> None:
    """A context of a million and a prompt of many thousand tokens: first the memory, then a bar that moves."""
    (tmp_path / "long.txt").write_text("one and two and three " * 3000)
    t = terminal("--nothink", "-n", "4", "-c", "1000000", "--temp", "0", "--force-memory", columns=120)
    t.wait_for("context of 1000000 positions: ")
    t.wait_for("ds4>")
    t.type(f"/read {tmp_path}/long.txt\r")
    t.wait_for("ds4: prefill [", timeout=10)
    t.wait_for(" %), ", timeout=10)
    t.wait_for("tokens/s", timeout=10)
    t.wait_for(" %), ", timeout=10)
    os.write(t.master, CTRL_C)
    t.wait_for("interrupted")
    t.wait_for("ds4>")
    t.quit()


@pytest.mark.parametrize("power", ["100", "1"])
def test_ctrl_c_during_the_prefill_takes_the_message_back(
    terminal: Any, tmp_path: Path, environment: dict[str, str], power: str
) -> None:
    """At a power of 1 it comes in the middle of a rest."""
    (tmp_path / "long.txt").write_text("one and two and three " * 3000)
    t = terminal("--nothink", "-n", "2", "--temp", "0", "-c", "100000", "--power", power)
    t.wait_for("ds4>")
    t.type(f"/read {tmp_path}/long.txt\r")
    t.wait_for("ds4: prefill")
    begin = time.monotonic()
    os.write(t.master, CTRL_C)
    t.wait_for("interrupted")
    assert time.monotonic() - begin < 10
    t.wait_for("ds4>")
    t.type("/power 100\r")
    t.wait_for("power 100 %")
    t.type("hi\r")
    answered(t)
    t.type("/save x\r")
    t.wait_for("saved as")
    t.quit()
    assert texts(environment, "x") == ["hi"]


def test_ctrl_c_again_and_again_during_answers(terminal: Any, environment: dict[str, str]) -> None:
    """At many moments of an answer, and several times: the prompt comes back and nothing is lost."""
    t = terminal("--nothink", "--temp", "0", "-n", "3000", "-c", "30000")
    t.wait_for("ds4>")
    for i in range(8):
        t.type(f"message {i}\r")
        t.wait_for(f"message {i}")
        time.sleep(0.013 * i)
        for _ in range(1 + i % 3):
            os.write(t.master, CTRL_C)
        t.wait_for("ds4>")
        t.type("/stats\r")
        t.wait_for("positions")
        t.wait_for("to go back to")
        t.wait_for("ds4>")
    t.type("/retry\r")
    time.sleep(0.2)
    os.write(t.master, CTRL_C)
    t.wait_for("ds4>")
    t.quit()


def test_ctrl_c_at_the_prompt_clears_what_is_typed(terminal: Any, environment: dict[str, str]) -> None:
    t = terminal(*OPTIONS)
    t.wait_for("ds4>")
    t.type('"""\rhalf a block\r')
    t.wait_for("half a block")
    os.write(t.master, CTRL_C)
    t.wait_for("Ctrl-D or /quit leaves")
    t.wait_for("ds4>")
    os.write(t.master, CTRL_C)
    t.wait_for("Ctrl-D or /quit leaves")
    t.wait_for("ds4>")
    t.type("hi\r")
    answered(t)
    t.type("/save x\r")
    t.wait_for("saved as")
    t.wait_for("ds4>")
    t.type("\x04")
    assert t.child.wait(timeout=60) == 0
    assert texts(environment, "x") == ["hi"]


@pytest.mark.parametrize(
    ("text", "unfinished"),
    [("", False), ("a", False), ("a\\", True), ('"""', True), ('"""a', True), ('"""a\n"""', False), ('"""a""" ', False),
     ('a"""', False), ('""""', True)],
)  # fmt: skip
def test_unfinished_texts(text: str, unfinished: bool) -> None:
    assert is_unfinished(text) == unfinished


@pytest.mark.parametrize(
    ("text", "message"),
    [("a", "a"), ('"""\na\n\nb\n"""', "a\n\nb"), ('"""a"""', "a"), ('"""/help"""', "//help"), ("/help", "/help")],
)
def test_messages_between_quotation_marks(text: str, message: str) -> None:
    assert without_quotes(text) == message


class FakeTerminal:
    """A stream that says it is a terminal."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.encoding = encoding
        self.text = ""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError("none")

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(
    ("environment", "encoding", "expected"),
    [
        ({"TERM": "xterm"}, "utf-8", "\x1b[2mso^[[2J\x1b[0m\n\n• \x1b[1mbold\x1b[0m\n"),
        ({"TERM": "xterm"}, "latin-1", "\x1b[2mso^[[2J\x1b[0m\n\n* \x1b[1mbold\x1b[0m\n"),
        ({"TERM": "xterm", "NO_COLOR": "1"}, "utf-8", "so^[[2J\n\n- **bold**\n"),
        ({"TERM": "dumb"}, "utf-8", "so^[[2J\n\n- **bold**\n"),
    ],
)
def test_answers_on_terminals(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], encoding: str, expected: str
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = FakeTerminal(encoding)
    monkeypatch.setattr("sys.stdout", stream)
    printer = AnswerPrinter()
    printer.reasoning("so\x1b[2J")
    for piece in ("- **bo", "ld**"):
        printer.content(piece)
    printer.finish()
    assert stream.text == expected
