"""The speed in the last row of a terminal: an emulator shows what becomes of the text around it."""

from __future__ import annotations

import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ds4.cli.live import Column, LiveLine

from .conftest import _take_terminal

pyte = pytest.importorskip("pyte")

COLUMNS, ROWS = 40, 12


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Emulated:
    """A pseudo terminal with an emulator behind it."""

    def __init__(self, columns: int = COLUMNS, rows: int = ROWS) -> None:
        self.master, self.slave = pty.openpty()
        termios.tcsetwinsize(self.slave, (rows, columns))
        self.screen = pyte.HistoryScreen(columns, rows, history=100_000)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""

    def put(self, text: str) -> None:
        os.write(self.slave, text.encode())
        self.take()

    def take(self) -> None:
        while select.select([self.master], [], [], 0)[0]:
            data = os.read(self.master, 65536)
            self.raw += data
            self._stream.feed(data)

    @property
    def text(self) -> list[str]:
        """All lines: those that were scrolled away, and the screen."""
        gone = ["".join(row[x].data for x in range(self.screen.columns)).rstrip() for row in self.screen.history.top]
        return [*gone, *(line.rstrip() for line in self.screen.display)]

    def close(self) -> None:
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("TERM", "xterm")
    opened: list[Emulated] = []

    def call(*size: int) -> Emulated:
        opened.append(Emulated(*size))
        return opened[-1]

    yield call
    for one in opened:
        one.close()


def without_end(lines: list[str]) -> list[str]:
    lines = list(lines)
    while lines and not lines[-1]:
        lines.pop()
    return lines


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("", True), ("a" * 9, True), ("a" * 10, False), ("a" * 11, True), ("a" * 10 + "\n", True), ("日" * 5, False),
        ("日" * 4 + "e\u0301", True), ("\x1b[1;36m" + "a" * 9 + "\x1b[0m", True), ("\t\t", True), ("→" * 4, False),
        ("→", False), ("→a", True), ("aaa🙂\u200d🙂", True), ("a" * 9 + "日", False),
    ],
)  # fmt: skip
def test_where_the_cursor_is(text: str, inside: bool) -> None:
    """In doubt it is not shown: signs whose width terminals disagree on, wide ones that do not fit."""
    column = Column(10)
    column.feed(text)
    assert column.inside == inside


@pytest.mark.parametrize("seed", range(4))
def test_the_text_is_never_damaged(emulated: Any, seed: int) -> None:
    """Streams of any pieces, with lines that just fill the width, wide signs, marks and attributes, from any row on."""
    rng = random.Random(seed)
    plain, live = emulated(), emulated()
    before = "".join(f"line {i}\n" for i in range(rng.randrange(20)))
    pieces = [
        "word ",
        "x",
        "\n",
        "日本",
        "é",
        "e\u0301",
        "\x1b[1m",
        "\x1b[0m",
        "a" * COLUMNS,
        "b" * (COLUMNS - 1),
        "\t",
        "🙂 ",
    ]
    stream = [rng.choice(pieces) for _ in range(250)]
    clock = Clock()
    line = LiveLine(live.slave, clock=clock)
    for one in (plain, live):
        one.put(before)
    line.begin()
    assert line.active
    shown = 0
    for n, piece in enumerate(stream):
        plain.put(piece)
        live.put(piece)
        line.wrote(piece)
        clock.now += 0.26
        line.show(n, n + 100, 1000)
        live.take()
        shown += f"{n} tokens, context {n + 100}/1000" in live.screen.display[-1]
    for one in (plain, live):
        one.put("\x1b[0m\n")
    line.end()
    assert shown > 50
    for one in (plain, live):
        one.put("ready\n")
    assert without_end(live.text) == without_end(plain.text)
    assert live.screen.margins is None or live.screen.margins == (0, ROWS - 1)
    assert not line.active


def test_what_it_shows(emulated: Any) -> None:
    """The speed of the last two seconds, not of the whole answer; drawn four times a second at most."""
    terminal, clock = emulated(), Clock()
    line = LiveLine(terminal.slave, clock=clock)
    line.show(1, 1, 10)  # not begun: nothing
    terminal.take()
    assert terminal.screen.display == [" " * COLUMNS] * ROWS
    line.begin()
    for n in range(1, 41):
        clock.now += 0.1
        line.show(n, n, 100)
    for n in range(41, 45):
        clock.now += 1.0
        line.show(n, n, 100)
    terminal.take()
    assert terminal.screen.display[-1].rstrip() == "1.0 t/s, 44 tokens, context 44/100"
    clock.now += 0.1
    line.show(45, 45, 100)
    terminal.take()
    assert "44 tokens" in terminal.screen.display[-1]
    line.end()
    line.end()
    terminal.take()
    assert not terminal.screen.display[-1].strip()


@pytest.mark.parametrize(("term", "columns", "rows"), [("dumb", 80, 24), ("xterm", 19, 24), ("xterm", 80, 5)])
def test_where_it_is_not_shown(
    emulated: Any, monkeypatch: pytest.MonkeyPatch, term: str, columns: int, rows: int
) -> None:
    monkeypatch.setenv("TERM", term)
    terminal = emulated(columns, rows)
    line = LiveLine(terminal.slave)
    line.begin()
    line.show(1, 1, 10)
    line.end()
    assert not line.active and not select.select([terminal.master], [], [], 0)[0]


@pytest.mark.parametrize(("term", "shown"), [("xterm", True), ("vt100", True), ("nosuchterminal", False)])
def test_terminals_that_lack_something(emulated: Any, term: str, shown: bool) -> None:
    """Terminfo is read once in a process, so each has its own."""
    terminal = emulated()
    code = "from ds4.cli.live import LiveLine; line = LiveLine(1); line.begin(); print(line.active); line.end()"
    subprocess.run([sys.executable, "-c", code], stdout=terminal.slave, env={**os.environ, "TERM": term}, check=True)
    terminal.take()
    assert str(shown) in "".join(terminal.text)


def test_no_terminal(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as f:
        line = LiveLine(f.fileno())
        line.begin()
        line.end()
    assert (tmp_path / "file").read_bytes() == b""


def test_a_narrow_terminal(emulated: Any) -> None:
    terminal, clock = emulated(20, 8), Clock()
    line = LiveLine(terminal.slave, clock=clock)
    line.begin()
    clock.now = 1.0
    line.show(1000, 123_456, 1_000_000)
    terminal.take()
    assert terminal.screen.display[-1] == "1000.0 t/s, 1000 to "
    line.end()


def test_another_size_ends_it(emulated: Any) -> None:
    terminal, clock = emulated(), Clock()
    line = LiveLine(terminal.slave, clock=clock)
    line.begin()
    termios.tcsetwinsize(terminal.slave, (ROWS + 5, COLUMNS))
    terminal.screen.resize(ROWS + 5, COLUMNS)
    clock.now = 1.0
    line.show(1, 1, 10)
    terminal.take()
    assert not line.active and not any("t/s" in row for row in terminal.screen.display)
    line.end()


CHILD = """
import sys, time
from ds4.cli.live import Column, LiveLine
line = LiveLine(1)
line.begin()
print("begun", flush=True)
for n in range(600):
    time.sleep(0.05)
    line.show(n, n, 1000)
line.end()
"""


def test_stopping_and_ending_give_the_row_back(emulated: Any) -> None:
    terminal = emulated()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=terminal.slave, stdout=terminal.slave, stderr=terminal.slave,
        env={**os.environ, "TERM": "xterm"}, start_new_session=True, preexec_fn=_take_terminal,
    )  # fmt: skip

    def wait(condition: Any) -> None:
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, terminal.text
            time.sleep(0.01)
            terminal.take()

    whole = f"\x1b[1;{ROWS}r".encode()  # the region is the screen

    def shown() -> bool:
        return "t/s" in terminal.screen.display[-1]

    try:
        wait(shown)
        assert terminal.screen.margins == (0, ROWS - 2)
        terminal.raw = b""
        child.send_signal(signal.SIGTSTP)
        wait(lambda: whole in terminal.raw)
        child.send_signal(signal.SIGCONT)  # nobody's child, it may not have been stopped
        wait(shown)
        assert terminal.raw.index(whole) < terminal.raw.index(b"t/s")
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=60) == -signal.SIGTERM
        terminal.take()
        assert not shown() and terminal.screen.margins in (None, (0, ROWS - 1))
    finally:
        child.kill()
        child.wait()


def test_in_a_conversation(terminal: Any) -> None:
    """The speed is there while an answer is written, and gone after it."""
    # A plain answer (random text may leave the end of the row in doubt), slowed down to seconds on any machine.
    t = terminal("-m", "tiny", "-n", "100", "-c", "4000", "--temp", "0", "--power", "1", columns=COLUMNS)
    termios.tcsetwinsize(t.master, (ROWS, COLUMNS))
    screen = pyte.HistoryScreen(COLUMNS, ROWS, history=100_000)
    stream = pyte.Stream(screen)
    before = t.wait_for("ds4>")
    t.type("What is 347 + 285?\r")
    seen = t.wait_for("generation") + "generation" + t.wait_for("ds4>")
    stream.feed(before + "ds4>" + seen)
    assert " tokens, context " in seen and re.search(r"\d t/s, \d+ tokens, context \d+/4000", seen)
    assert not any("/4000" in row for row in screen.display)
    t.quit()


def test_nothing_of_it_in_a_pipe(ds4: Any, model_path: Path) -> None:
    done = ds4("-m", model_path, "--nothink", "-n", "40", "--temp", "0", stdin="hello\n")
    assert done.returncode == 0 and "\x1b" not in done.stdout + done.stderr and "context 4" not in done.stdout
