"""The conversation: through a pipe, and on a terminal."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from ds4.cli import editor

from .conftest import program

OPTIONS = ["--nothink", "-n", "4", "--temp", "0"]


def test_lines_of_a_pipe_are_messages(ds4: Any, model_path: Path) -> None:
    done = ds4("-m", model_path, *OPTIONS, stdin="hi\n\nand then\n")
    assert done.returncode == 0, done.stderr
    first, second = [line for line in done.stderr.splitlines() if "prefill" in line]
    assert "reused" not in first
    assert re.search(r"\(\d+ reused\)", second)
    assert "ds4>" not in done.stdout


def test_second_turn_extends_the_first(ds4: Any, model_path: Path) -> None:
    """The session keeps everything but the closing of the first reply; the answer is that of one whole prompt."""
    done = ds4("-m", model_path, *OPTIONS, stdin="hi\nand then\n")
    rates = re.findall(r"prefill (\d+) tokens(?: \((\d+) reused\))?", done.stderr)
    assert int(rates[1][1]) >= int(rates[0][0])
    answers = done.stdout.splitlines()
    whole = f"<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>{answers[0]}<｜end▁of▁sentence｜>"
    whole += "<｜User｜>and then<｜Assistant｜></think>"
    # The answer's own tokens need not be the canonical ones of its text; with the tiny vocabulary they may differ.
    if "�" not in answers[0]:
        rendered = ds4("-m", model_path, "-n", 4, "--temp", 0, "-p", whole)
        assert rendered.returncode == 0, rendered.stderr


def test_commands(ds4: Any, model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "message.txt"
    path.write_text("from a file")
    typed = [
        "/help",
        "/think",
        "/nothink",
        "/ctx 600",
        f"/read\t{path}",
        "/think-max",
        "/ctx nonsense",
        "/quit",
        "never",
    ]
    done = ds4("-m", model_path, *OPTIONS, stdin="\n".join(typed))
    assert done.returncode == 1  # /ctx nonsense
    for text in ("/read FILE", "mode think", "mode nothink", "context 600", "needs a context of at least 393216"):
        assert text in done.stderr
    assert "/ctx needs a number" in done.stderr
    assert done.stderr.count("prefill") == 1


def test_bytes_that_are_no_text(model_path: Path, environment: dict[str, str]) -> None:
    command = [*program(), "-m", str(model_path), *OPTIONS]
    done = subprocess.run(command, input=b"a\xff\nhi\n", capture_output=True, env=environment, timeout=120, check=False)
    assert done.returncode == 1
    assert b"not valid UTF-8" in done.stderr and done.stderr.count(b"prefill") == 1


@pytest.mark.parametrize(
    "line",
    ["/frobnicate", "/Think", "/ctx", "/read", "/read /nowhere/file", "/read ~nosuchuser/x", "/think now", "/quit now"],
)
def test_wrong_commands_are_errors_without_a_model_call(ds4: Any, model_path: Path, line: str) -> None:
    done = ds4("-m", model_path, *OPTIONS, stdin=line + "\n")
    assert done.returncode == 1
    assert "prefill" not in done.stderr
    assert done.stdout == ""


def test_full_context_is_told_and_the_conversation_goes_on(ds4: Any, model_path: Path) -> None:
    done = ds4(
        "-m", model_path, "--nothink", "--temp", 0, "-c", 16, "-n", 2, stdin="hi\n" + "more " * 20 + "\n/ctx 99\nok\n"
    )
    assert done.returncode == 1
    assert "room for 16" in done.stderr
    assert done.stderr.count("prefill") == 2


def test_quit_takes_no_argument(ds4: Any, model_path: Path) -> None:
    done = ds4("-m", model_path, *OPTIONS, stdin="/quit now\n/exit\n/help\n")
    assert "/quit takes no argument, found 'now'" in done.stderr
    assert "/read FILE" not in done.stderr


def test_two_slashes_send_one(ds4: Any, model_path: Path) -> None:
    """The prompt has the tokens of the text with one slash."""
    done = ds4("-m", model_path, *OPTIONS, stdin="//help\n")
    assert done.returncode == 0, done.stderr
    alone = ds4("-m", model_path, *OPTIONS, "-p", "/help")
    assert done.stdout == alone.stdout
    counts = [re.findall(r"prefill (\d+) tokens", run.stderr) for run in (done, alone)]
    assert counts[0] == counts[1] != []


def test_unknown_home_is_a_message_and_the_conversation_goes_on(ds4: Any, model_path: Path) -> None:
    done = ds4("-m", model_path, *OPTIONS, stdin="/read ~nosuchuser/x\nhi\n")
    assert done.returncode == 1
    assert "~nosuchuser/x: there is no such home directory" in done.stderr
    assert done.stderr.count("prefill") == 1


def test_terminal_conversation_and_history(terminal: Any, environment: dict[str, str]) -> None:
    t = terminal(*OPTIONS)
    t.wait_for("ds4>")
    t.type("hi\r")
    t.wait_for("t/s")
    t.wait_for("ds4>")
    t.type("/wrong\r")
    t.wait_for("unknown command /wrong")
    t.wait_for("ds4>")
    t.type("half a line")
    t.wait_for("half a line")
    t.type("\x03")
    t.wait_for("Ctrl-D or /quit leaves")
    t.type("/quit\r")
    assert t.child.wait(timeout=60) == 0
    history = (Path(environment["HOME"]) / ".ds4_history").read_text()
    assert "+hi" in history and "+/wrong" in history


def test_no_home_directory_means_no_history(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `Path.home` raises for a user without an entry of its own and without HOME."""

    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    assert editor.open_history().__class__.__name__ == "InMemoryHistory"
    assert capsys.readouterr().err == "ds4: no history: there is no home directory\n"


def test_history_that_goes_away_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    history = editor.open_history()
    history.store_string("one")
    assert "+one" in (home / ".ds4_history").read_text()
    home.rename(tmp_path / "gone")
    history.store_string("two")
    history.store_string("three")
    assert capsys.readouterr().err.count("no history: ") == 1


def test_ctrl_c_never_ends_a_conversation(terminal: Any) -> None:
    """At whatever moment it comes: at the prompt, before it, or while a command is carried out."""
    t = terminal(*OPTIONS)
    t.wait_for("ds4>")
    for i in range(12):
        t.type("/wrong\r")
        time.sleep(0.01 * i)
        os.write(t.master, b"\x03")
    time.sleep(1)
    t.type("/help\r")
    t.wait_for("/read FILE")
    t.type("/quit\r")
    assert t.child.wait(timeout=60) == 0


def test_ctrl_c_stops_the_answer_and_returns_to_the_prompt(terminal: Any) -> None:
    t = terminal("--nothink", "--temp", "0", "-n", "4000", "-c", "5000")
    t.wait_for("ds4>")
    t.type("hi\r")
    t.wait_for("hi")
    t.wait_for("�")  # the first token of this model's reply is half a character, and the echo is not
    os.write(t.master, b"\x03")
    t.wait_for("interrupted")
    t.wait_for("ds4>")
    t.type("/quit\r")
    assert t.child.wait(timeout=60) == 0


@pytest.mark.parametrize("phase", ["generation", "prefill"])
def test_sigint_ends_a_one_shot_with_130(
    model_path: Path, environment: dict[str, str], tmp_path: Path, phase: str
) -> None:
    """A real signal, sent when the first text or the first line about the prefill has come."""
    (tmp_path / "long.txt").write_text("one and two and three " * 2000)
    args = ["-p", "hi", "-n", "20000", "--nothink", "--temp", "0"]
    if phase == "prefill":
        args = ["--prompt-file", "long.txt"]
    child = subprocess.Popen(
        [*program(), "-m", str(model_path), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=tmp_path,
    )
    try:
        assert child.stdout is not None and child.stderr is not None
        pipe = child.stdout if phase == "generation" else child.stderr
        ready, _, _ = select.select([pipe], [], [], 120)
        assert ready
        child.send_signal(signal.SIGINT)
        _, message = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130, message
    assert b"interrupted" in message
    assert b"Traceback" not in message
