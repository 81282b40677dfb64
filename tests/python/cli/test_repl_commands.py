"""Commands of a conversation that go back, save and set, through a pipe."""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .conftest import TIMEOUT, program

OPTIONS = ["--nothink", "-n", "4", "--temp", "0"]


def counts(stderr: str) -> list[tuple[int, int]]:
    """(tokens of the prompt, reused ones) of every answer."""
    found = re.findall(r"prefill (?:\d+ of )?(\d+) tokens(?: \((\d+) reused\))?", stderr)
    return [(int(n), int(kept or 0)) for n, kept in found]


def transcript(environment: dict[str, str], name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(environment["HOME"]) / ".ds4" / "chats" / f"{name}.json").read_text())
    return found


def texts(environment: dict[str, str], name: str) -> list[str]:
    return [turn["text"] for turn in transcript(environment, name)["turns"]]


def test_undo_is_as_if_it_had_not_been(ds4: Any, model_path: Path) -> None:
    with_undo = ds4("-m", model_path, *OPTIONS, stdin="one\nnever said\n/undo\ntwo\n")
    without = ds4("-m", model_path, *OPTIONS, stdin="one\ntwo\n")
    assert with_undo.returncode == 0, with_undo.stderr
    assert "taken back: never said" in with_undo.stderr
    answers = with_undo.stdout.splitlines()
    assert [answers[0], answers[-1]] == without.stdout.splitlines()
    undone, plain = counts(with_undo.stderr), counts(without.stderr)
    assert undone[0] == plain[0]
    assert undone[2] == plain[1]  # the session went back to where the first answer ended: as much is reused


def test_retry_computes_nothing_again(ds4: Any, model_path: Path) -> None:
    done = ds4("-m", model_path, *OPTIONS, stdin="one\ntwo\n/retry\n/nothink\n/think\n/retry\n")
    assert done.returncode == 0, done.stderr
    first, second, again, thinking = counts(done.stderr)
    assert again == (second[0], second[0])  # all of it was there
    assert "the temperature is 0" in done.stderr
    assert thinking[0] == second[0] and first[0] < thinking[1] < thinking[0]
    lines = done.stdout.splitlines()
    assert lines[1] == lines[2]


def test_retry_draws_anew(ds4: Any, model_path: Path) -> None:
    options = ["--nothink", "-n", "12", "--seed", "3"]
    done = ds4("-m", model_path, *options, stdin="one\n/retry\n/save x\n")
    assert done.returncode == 0, done.stderr
    assert "temperature is 0" not in done.stderr
    assert counts(done.stderr)[1] == (counts(done.stderr)[0][0],) * 2
    assert "1 turn," in done.stderr


def test_clear_begins_anew(ds4: Any, model_path: Path) -> None:
    done = ds4("-m", model_path, *OPTIONS, stdin="one\ntwo\n/clear\none\n/undo\n/undo\n")
    assert done.returncode == 1
    assert done.stderr.count("there is no message yet") == 1
    answers = counts(done.stderr)
    assert answers[2][0] == answers[0][0]
    lines = done.stdout.splitlines()
    assert lines[0] == lines[-1]


def test_system_text(ds4: Any, model_path: Path) -> None:
    done = ds4("-m", model_path, *OPTIONS, stdin="/system\n/system Be brief.\n/system\nhi\n/system -\n/clear\nhi\n")
    assert done.returncode == 0, done.stderr
    assert "there is no system text" in done.stderr and "system text: Be brief." in done.stderr
    alone = ds4("-m", model_path, *OPTIONS, "-sys", "Be brief.", "-p", "hi")
    without = ds4("-m", model_path, *OPTIONS, "-p", "hi")
    assert done.stdout == alone.stdout + without.stdout


def test_power_changes_nothing_but_time(ds4: Any, model_path: Path) -> None:
    done = ds4(
        "-m", model_path, *OPTIONS, "--power", 80, stdin="/power\n/power 60\none\n/power 0\n/power x\n/power ²\n"
    )
    plain = ds4("-m", model_path, *OPTIONS, stdin="one\n")
    assert done.returncode == 1
    assert "power 80 %" in done.stderr and "power 60 %" in done.stderr
    assert done.stderr.count("/power needs a number from 1 to 100") == 3
    assert done.stdout == plain.stdout


def test_stats(ds4: Any, model_path: Path) -> None:
    done = ds4("-m", model_path, *OPTIONS, "-c", 500, stdin="/stats\none\n/stats\n")
    assert done.returncode == 0, done.stderr
    assert "context: 0 of 500 positions, 0 turns" in done.stderr
    assert re.search(r"context: \d\d of 500 positions, 1 turn\n", done.stderr)
    assert "last answer: prefill" in done.stderr and " 4 written" in done.stderr


def test_the_memory_plan_comes_first(ds4: Any, model_path: Path) -> None:
    done = ds4("-m", model_path, *OPTIONS, "-c", 5000, stdin="one\n")
    assert re.match(r"(?s).*context of 5000 positions: [\d.]+ MiB, weights: [\d.]+ MiB.*prefill", done.stderr)


def test_the_limit_of_tokens_is_told_and_the_part_shown(ds4: Any, model_path: Path) -> None:
    done = ds4("-m", model_path, *OPTIONS, stdin="one\n")
    assert done.stdout.strip() and "generation 4 tokens" in done.stderr
    assert "stopped by the token limit (-n)" in done.stderr


def test_saved_in_one_process_and_loaded_in_another(ds4: Any, model_path: Path, environment: dict[str, str]) -> None:
    whole = ds4("-m", model_path, *OPTIONS, stdin="one\ntwo\nthree\n")
    first = ds4("-m", model_path, *OPTIONS, stdin="one\ntwo\n/save my chat\n")
    assert first.returncode == 0, first.stderr
    assert re.search(r"saved as 'my chat': 2 turns, \d+ tokens", first.stderr)
    second = ds4("-m", model_path, *OPTIONS, stdin="/list\n/load my chat\nthree\n/save\n")
    assert second.returncode == 0, second.stderr
    assert re.search(r"my chat  \d{4}-\d\d-\d\d \d\d:\d\d  2 turns: one\n", second.stderr)
    assert second.stdout == whole.stdout.splitlines()[-1] + "\n"
    assert counts(second.stderr)[0] == counts(whole.stderr)[2]  # nothing of the first two turns was computed
    assert texts(environment, "my chat") == ["one", "two", "three"]


def test_a_lost_state_is_told_and_computed(ds4: Any, model_path: Path, environment: dict[str, str]) -> None:
    whole = ds4("-m", model_path, *OPTIONS, stdin="one\ntwo\n")
    ds4("-m", model_path, *OPTIONS, stdin="one\n/save x\n")
    for path in (Path(environment["HOME"]) / ".ds4" / "chats" / "states").rglob("*"):
        if path.is_file():
            path.write_bytes(b"junk")
    done = ds4("-m", model_path, *OPTIONS, stdin="/load x\ntwo\n")
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+ tokens will be computed with the next message", done.stderr)
    assert counts(done.stderr)[0][1] == 0
    assert done.stdout == whole.stdout.splitlines()[-1] + "\n"


@pytest.mark.parametrize(
    "line", ["/save", "/save x", "/load nothing", "/load", "/undo", "/retry", "/system x\x00\udcff"]
)
def test_wrong_at_the_beginning(model_path: Path, environment: dict[str, str], line: str) -> None:
    command = [*program(), "-m", str(model_path), *OPTIONS]
    text = line.encode("utf-8", "surrogateescape") + b"\nhi\n"
    done = subprocess.run(command, input=text, capture_output=True, env=environment, timeout=TIMEOUT, check=False)
    assert done.returncode == 1, done.stderr
    assert b"Traceback" not in done.stderr and done.stderr.count(b"prefill") == 1


@pytest.mark.parametrize("limit", [1000, 3000])
def test_a_full_disk_during_save(model_path: Path, environment: dict[str, str], limit: int) -> None:
    """No file may grow beyond a limit: the transcript does not fit (1000), or only its state does not (3000)."""
    done = subprocess.run(
        [*program(), "-m", str(model_path), *OPTIONS],
        input=f"{'words ' * 250}\n/save full\nand\n",
        capture_output=True,
        text=True,
        env=environment,
        timeout=TIMEOUT,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert len(counts(done.stderr)) == 2  # the conversation goes on
    left = [p.name for p in (Path(environment["HOME"]) / ".ds4" / "chats").iterdir() if p.is_file()]
    if limit == 1000:
        assert done.returncode == 1
        assert "full.json: File too large" in done.stderr and left == []
    else:
        assert done.returncode == 0, done.stderr
        assert "the state of the session was not stored" in done.stderr and left == ["full.json"]


def test_names_of_files_with_spaces(ds4: Any, model_path: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    path = tmp_path / "my notes é.txt"
    path.write_text("from a file")
    escaped = str(path).replace(" ", r"\ ")
    typed = f"/read {path}\n/read '{path}'\n/read {escaped}\n/read 'open\n/save x\n"
    done = ds4("-m", model_path, *OPTIONS, stdin=typed)
    assert done.returncode == 1
    assert "'open: No such file" in done.stderr
    assert texts(environment, "x") == ["from a file"] * 3


def test_a_block_is_one_message(ds4: Any, model_path: Path, environment: dict[str, str]) -> None:
    done = ds4("-m", model_path, *OPTIONS, stdin='"""\nline 1\n\n  line 2\n"""\n"""\n/help\n"""\n/save x\n"""\nopen\n')
    assert done.returncode == 1
    assert texts(environment, "x") == ["line 1\n\n  line 2", "/help"]
    assert "does not end with it" in done.stderr and len(counts(done.stderr)) == 2


def test_ctrl_c_ends_a_run_without_a_terminal(model_path: Path, environment: dict[str, str]) -> None:
    child = subprocess.Popen(
        [*program(), "-m", str(model_path), "--nothink", "--temp", "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(b"one\ntwo\n")
        child.stdin.flush()
        child.stdout.read(1)
        child.send_signal(signal.SIGINT)
        _, message = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130, message
    assert message.count(b"prefill") == 1 and b"Traceback" not in message


def test_a_saved_conversation_is_deleted(ds4: Any, model_path: Path, environment: dict[str, str]) -> None:
    """By its name in full; the conversation at hand goes on, and has no name any more."""
    lines = "one\n/save my chat\n/delete\n/delete my\n/delete my chat\n/list\ntwo\n/save\n/save again\n"
    done = ds4("-m", model_path, *OPTIONS, stdin=lines)
    assert done.returncode == 1  # three of the lines were wrong
    for text in ("/delete needs its argument", "nothing is saved under 'my'", "deleted 'my chat'",
                 "nothing is saved yet", "/save needs a name", "saved as 'again': 2 turns"):  # fmt: skip
        assert text in done.stderr, text
    chats = Path(environment["HOME"]) / ".ds4" / "chats"
    assert [path.name for path in chats.glob("*.json")] == ["again.json"]
