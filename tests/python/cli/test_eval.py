"""``ds4 eval`` in a process of its own: through a pipe, and on terminals wide and narrow."""

from __future__ import annotations

import codecs
import errno
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.screen import Screen

from .conftest import program

SUM = {"kind": "integer", "bare": True, "max_tokens": 200}
SUMS = [
    {"id": "a", "question": "What is 34 + 45?", "answer": 79, **SUM},
    {"id": "b", "question": "What is 12 + 7?", "answer": 19, **SUM},
    {"id": "c", "question": "What is 50 + 20?", "answer": 71, **SUM},  # wrong on purpose
]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "my suite.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in SUMS))
    return path


def test_without_arguments_the_tiny_model_passes_its_suite(ds4: Any) -> None:
    done = ds4("eval")
    assert done.returncode == 0, done.stdout
    assert re.search(r"^passed (\d+) of \1 in ", done.stdout, re.MULTILINE)


def test_its_own_name(environment: dict[str, str]) -> None:
    script = Path(sys.executable).with_name("ds4-eval")
    if not script.exists():
        pytest.skip("the package is not installed with its scripts")
    done = subprocess.run(
        [script, "--list-cases"], capture_output=True, text=True, env=environment, timeout=60, check=True
    )
    assert "tiny/sum-01" in done.stdout


def test_a_failed_case_is_exit_code_1(ds4: Any, suite: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = ds4("eval", "--suite", suite, "--json", report)
    assert done.returncode == 1
    assert "passed 2 of 3" in done.stdout
    assert "3/3 failed  my-suite/c: " in done.stdout and "(right: 71)" in done.stdout
    content = json.loads(report.read_text())
    assert (content["format"], content["suite"], content["passed"], content["total"]) == ("ds4-eval", "my-suite", 2, 3)
    assert [c["given"] for c in content["cases"]] == ["79", "19", "70"]
    assert content["cases"][0]["think_close"]["manner"] == "natural"
    assert content["settings"]["max_tokens"] == 16000 and content["gate"] is None


def test_json_to_standard_output_is_nothing_but_json(ds4: Any, suite: Path) -> None:
    done = ds4("eval", "--suite", suite, "--questions", 1, "--json", "-")
    assert done.returncode == 0
    assert json.loads(done.stdout)["passed"] == 1
    assert "passed 1 of 1" in done.stderr


def test_choosing_cases(ds4: Any, suite: Path) -> None:
    assert "passed 1 of 1" in ds4("eval", "--suite", suite, "--questions", 1).stdout
    done = ds4("eval", "--suite", suite, "--case-sequence", "2,1")
    assert done.returncode == 0
    assert re.findall(r"my-suite/(\w): ", done.stdout) == ["b", "a"]
    listed = ds4("eval", "--suite", suite, "--list-cases", "--case-sequence", "3,1")
    assert [line.split() for line in listed.stdout.splitlines()] == [
        ["3", "my-suite/c", "integer", "71"], ["1", "my-suite/a", "integer", "79"],
    ]  # fmt: skip
    assert "tiny model" not in listed.stderr


def test_modes_and_budgets(ds4: Any, suite: Path) -> None:
    done = ds4("eval", "--suite", suite, "--questions", 2, "--nothink", "--json", "-")
    cases = json.loads(done.stdout)["cases"]
    assert done.returncode == 0 and [c["think_close"] for c in cases] == [None, None]
    short = ds4(
        "eval", "--suite", suite, "--questions", 1, "-n", 30, "--soft-limit-reply-budget", 26,
        "--hard-limit-reply-budget", 26, "--json", "-",
    )  # fmt: skip
    closed = json.loads(short.stdout)["cases"][0]["think_close"]
    assert (closed["manner"], closed["index"], closed["remaining"]) == ("hard_forced", 4, 26)
    plain = ds4("eval", "--suite", suite, "--questions", 1, "-n", 30, "--hard-limit-reply-budget", 28,
                "--soft-limit-reply-budget", 28)  # fmt: skip
    assert "reasoning closed (hard forced)" in plain.stdout


def test_trace_regrade_and_retry(ds4: Any, suite: Path, tmp_path: Path) -> None:
    trace, second = tmp_path / "a trace", tmp_path / "second"
    done = ds4("eval", "--suite", suite, "-n", 40, "--trace", trace)
    assert done.returncode == 1 and not (tmp_path / "a trace.part").exists()
    again = ds4("eval", "--regrade-trace", trace)
    assert again.returncode == 0
    n = re.search(r"passed (\d) of 3; recorded \1", again.stdout)
    assert n and "->" not in again.stdout
    right = suite.with_name("right.jsonl")
    right.write_text(suite.read_text().replace("71", "70").replace('"id"', '"source": "other", "id"'))
    refused = ds4("eval", "--regrade-trace", trace, "--suite", right)
    assert refused.returncode == 1 and "that the suite does not have" in refused.stderr
    mended = suite.with_name("mended")
    mended.mkdir()
    (mended / suite.name).write_text(suite.read_text().replace("71", "70"))
    better = ds4("eval", "--regrade-trace", trace, "--suite", mended / suite.name, "--json", "-")
    changes = json.loads(better.stdout)["changed"]
    assert [(c["case"], c["before"]["state"], c["after"]["state"]) for c in changes] == [
        ("my-suite/c", "failed", "passed")
    ]
    # Of an interrupted run only what is missing is asked.
    cut = tmp_path / "cut"
    whole = trace.read_bytes()
    cut.write_bytes(whole[: whole.index(b"===== CASE 3/") + 200])
    retried = ds4("eval", "--suite", suite, "-n", 40, "--retry-incomplete", cut, "--trace", second)
    assert retried.returncode == 1 and "cut: the last record is cut off" in retried.stderr
    assert re.findall(r"\d/3 \w+ +my-suite/(\w): ", retried.stdout) == ["c"]
    assert "of 3" in retried.stdout and second.read_bytes().count(b"===== CASE") == 3


def test_gate(ds4: Any, suite: Path, tmp_path: Path) -> None:
    gate = tmp_path / "g"
    assert ds4("eval", "--suite", suite, "--write-gate", gate).returncode == 1  # a case fails
    held = ds4("eval", "--suite", suite, "--gate", gate)
    assert held.returncode == 0, held.stdout  # although a case fails, as recorded
    assert "gate: holds" in held.stdout
    content = json.loads(gate.read_text())
    content["cases"][1]["answer"] = "20"
    gate.write_text(json.dumps(content))
    broken = ds4("eval", "--suite", suite, "--gate", gate)
    assert broken.returncode == 1
    assert "gate: my-suite/b has another answer" in broken.stdout
    assert "along the recorded tokens 0 of" in broken.stdout
    other = ds4("eval", "--suite", suite, "--gate", gate, "--nothink")
    assert other.returncode == 1 and "was recorded with mode None" in other.stderr
    fewer = ds4("eval", "--suite", suite, "--gate", gate, "--questions", 1)
    assert fewer.returncode == 1 and "which is not among the cases" in fewer.stderr


def test_self_test(ds4: Any) -> None:
    done = ds4("eval", "--self-test-extractors")
    assert done.returncode == 0
    found = re.match(r"(\d+) of \1 checks", done.stdout)
    assert found and int(found[1]) > 80


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--suite", "nowhere"], 1, "nowhere is neither a file nor one of the suites general, tiny"),
        (["--suite", "/nowhere.jsonl"], 1, "No such file"),
        (["--case-sequence", "1,1"], 2, "names a case twice"),
        (["--case-sequence", "0"], 2, "is not a list of case numbers"),
        (["--case-sequence", "x"], 2, "is not a list of case numbers"),
        (["--case-sequence", "9999"], 2, "there is no case 9999; tiny has"),
        (["--questions", "0"], 2, "must be at least 1"),
        (["--think", "--nothink"], 2, "cannot be given together"),
        (["--gate", "a", "--write-gate", "b"], 2, "cannot be given together"),
        (["--write-gate", "b", "--temp", "1"], 2, "--temp must be 0"),
        (["--soft-limit-reply-budget", "5", "--hard-limit-reply-budget", "6"], 2, "must not be above the soft one"),
        (["-n", "10", "--soft-limit-reply-budget", "10"], 2, "leaves nothing to think"),
        (["--regrade-trace", "x", "--temp", "1"], 2, "--temp has no effect with --regrade-trace"),
        (["--regrade-trace", "/nowhere"], 1, "No such file"),
        (["--list-cases", "--plain"], 2, "--plain has no effect with --list-cases"),
        (["--self-test-extractors", "-n", "3"], 2, "--tokens has no effect with --self-test-extractors"),
        (["-c", "100"], 1, "need a context of"),
        (["-c", "1000", "--think-max"], 2, "--think-max needs a context of 393216"),
        (["--trace", "/nowhere/x"], 1, "No such file"),
        (["--json", "/nowhere/x"], 1, "No such file"),
        (["--gate", "/nowhere"], 1, "No such file"),
        (["--retry-incomplete", "/nowhere"], 1, "No such file"),
        (["--cpu", "--backend", "cuda"], 2, "contradict"),
        (["-n", "1000000"], 1, "more than 1000000"),
    ],
)
def test_bad_command_lines(ds4: Any, arguments: list[str], code: int, text: str) -> None:
    if arguments[0] == "-n" and len(arguments) == 2:
        arguments = [*arguments, "--suite", "general"]
    done = ds4("eval", *arguments)
    assert done.returncode == code, done.stderr
    assert text in done.stderr and done.stdout == ""


def test_outputs_replace_no_inputs(ds4: Any, suite: Path, tmp_path: Path) -> None:
    assert ds4("eval", "--suite", suite, "--trace", suite).returncode == 2
    trace = tmp_path / "t"
    trace.write_text("x")
    done = ds4("eval", "--suite", suite, "--retry-incomplete", trace, "--trace", trace)
    assert done.returncode == 2 and trace.read_text() == "x"


def test_bad_suites(ds4: Any, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(SUMS[0]) + "\n" + json.dumps({"id": "x", "kind": "integer", "question": "?"}) + "\n")
    done = ds4("eval", "--suite", path)
    assert done.returncode == 1
    assert f"{path}:2: answer: this field is missing" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_a_full_disk_is_told(ds4: Any, suite: Path, tmp_path: Path) -> None:
    (tmp_path / "x.part").symlink_to("/dev/full")
    done = ds4("eval", "--suite", suite, "--trace", tmp_path / "x")
    assert done.returncode == 1
    assert f"{tmp_path}/x.part: No space left on device" in done.stderr
    assert not (tmp_path / "x").exists()


def test_ctrl_c_reports_what_is_there(suite: Path, environment: dict[str, str], tmp_path: Path) -> None:
    endless = tmp_path / "endless.jsonl"
    long = {"id": "z", "kind": "exact", "question": "hi", "answer": "x", "mode": "thinking"}
    endless.write_text(
        json.dumps(SUMS[0]) + "\n" + "".join(json.dumps({**long, "id": f"z{i}"}) + "\n" for i in range(500))
    )
    command = [*program(), "eval", "--suite", str(endless), "--plain", "--trace", str(tmp_path / "t")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        assert "passed" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err and "interrupted" in err
    assert re.search(r"^passed \d+ of 501", out, re.MULTILINE) and "skipped" in out
    assert (tmp_path / "t").exists()


# Terminals


class Terminal:
    """The program on a terminal of a given size."""

    def __init__(self, arguments: list[Any], environment: dict[str, str], columns: int, rows: int, term: str) -> None:
        pid, self.fd = pty.fork()
        if pid == 0:  # pragma: no cover
            size = struct.pack("HHHH", rows, columns, 0, 0)
            fcntl.ioctl(1, termios.TIOCSWINSZ, size)
            command = [*program(), "eval", *map(str, arguments)]
            os.execve(command[0], command, {**environment, "TERM": term})
        self.pid = pid
        self.seen = ""
        self.screen = Screen(columns, rows)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def read_until(self, *texts: str, seconds: float = 60) -> None:
        """Read until all of these are on the screen."""
        end = time.monotonic() + seconds
        while not all(text in self.screen.text for text in texts):
            left = end - time.monotonic()
            alive = left > 0 and self._read(left)
            assert alive, f"{texts} did not come; on the screen:\n{self.screen.text}"

    def watch(self, seconds: float) -> None:
        """Read for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self._read(left):
            pass

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self.fd], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError as error:
            assert error.errno == errno.EIO
            return False
        text = self._utf8.decode(data)
        self.seen += text
        self.screen.feed(text)
        return bool(data)

    def send(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(columns, rows)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def end(self, seconds: float = 60) -> int:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._read(1):
            pass
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self.fd)


@pytest.fixture
def terminal(environment: dict[str, str]) -> Iterator[Callable[..., Terminal]]:
    opened = []

    def start(*arguments: Any, columns: int = 100, rows: int = 30, term: str = "xterm") -> Terminal:
        opened.append(Terminal(list(arguments), environment, columns, rows, term))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_live_view(terminal: Callable[..., Terminal], suite: Path) -> None:
    screen = terminal("--suite", suite, "--pause-ms", 60_000)
    # All of what is looked at: a repaint may come in several reads.
    counted = "1/3  passed 1  failed 0"
    screen.read_until("my-suite/a  passed  given 79, correct 79", "34+45", "34 + 45 = 79", "+ a  ", counted, "q stop")
    lines = screen.screen.lines
    assert lines[0].startswith("+ a  ") and lines[0][30] == "│" and lines[1].startswith("  b")
    assert [line[31:] for line in lines[2:4]] == ["34+45", "4+5+0=09"]  # the reasoning
    assert counted in lines[-1]
    screen.send("q")
    assert screen.end() == 1


def test_the_live_view_ends_with_the_run(terminal: Callable[..., Terminal], suite: Path) -> None:
    screen = terminal("--suite", suite, "--pause-ms", 0)
    assert screen.end() == 1
    assert "\x1b[?1049h" in screen.seen
    report = screen.seen.rpartition("\x1b[?1049l")[2]  # back on the usual screen
    assert "passed 2 of 3" in report and "my-suite/c" in report


def test_the_live_view_in_another_locale(environment: dict[str, str], suite: Path) -> None:
    plain = {**environment, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    screen = Terminal(["--suite", suite, "--pause-ms", 60_000], plain, 100, 30, "xterm")
    try:
        screen.read_until("given 79", "34 + 45 = 79")
        screen.send("q")
        assert screen.end() == 1
        assert "Traceback" not in screen.seen and "passed 1 of 3" in screen.seen
    finally:
        screen.close()


def test_keys_of_the_live_view(terminal: Callable[..., Terminal], suite: Path) -> None:
    screen = terminal("--suite", suite, "--pause-ms", 60_000)
    screen.read_until("given 79")  # the first case is done and stays on show
    screen.send("\x1b[B\x1b[B")
    screen.read_until("my-suite/c  pending", "What is 50 + 20?")  # what it will be asked
    screen.send("\r")  # run it
    screen.read_until("my-suite/c  failed  given 70, correct 71")
    screen.send("p")
    screen.read_until("PAUSED")
    screen.send("\x1b[A")
    screen.read_until("my-suite/b  pending", "12 + 7")
    screen.send("p")
    screen.send("q")
    assert screen.end() == 1
    report = screen.seen.rpartition("\x1b[?1049l")[2]
    assert "passed 1 of 3" in report
    rows = re.findall(r"(passed|failed|skipped|stopped)  .*my-suite/(\w)", report)
    assert rows == [("passed", "a"), ("skipped", "b"), ("failed", "c")]


def test_pausing_holds_a_running_case(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({**SUMS[0], "question": "Explain in detail how to install ds4."}) + "\n")
    screen = terminal("--suite", path, "-n", 5000, "--pause-ms", 60_000)
    screen.read_until("q stop")
    screen.send("p")
    screen.read_until("PAUSED")
    screen.watch(0.5)  # the rest of that frame
    before = screen.screen.text
    screen.watch(1.5)
    assert screen.screen.text == before  # the clock stands, too
    screen.send("p")
    screen.read_until("failed  given")
    screen.send("q")
    assert screen.end() == 1


def test_ctrl_c_in_the_live_view_stops_and_reports(terminal: Callable[..., Terminal], suite: Path) -> None:
    screen = terminal("--suite", suite, "--pause-ms", 60_000)
    screen.read_until("given 79")
    screen.send("\x03")
    assert screen.end() == 1
    assert "passed 1 of 3" in screen.seen


def test_the_live_view_survives_being_made_small(terminal: Callable[..., Terminal], suite: Path) -> None:
    screen = terminal("--suite", suite, "--pause-ms", 60_000)
    screen.read_until("given 79")
    for columns, rows in ((20, 24), (5, 2), (1, 1), (200, 60)):
        screen.resize(columns, rows)
        os.kill(screen.pid, signal.SIGWINCH)
        screen.watch(0.3)
    screen.send("q")
    assert screen.end() == 1
    assert "Traceback" not in screen.seen and "passed 1 of 3" in screen.seen


SMALL = [(20, 24, "xterm"), (100, 5, "xterm"), (100, 30, "dumb"), (1, 1, "xterm")]


@pytest.mark.parametrize(("columns", "rows", "term"), SMALL)
def test_small_and_dumb_terminals_get_plain_lines(
    terminal: Callable[..., Terminal], suite: Path, columns: int, rows: int, term: str
) -> None:
    screen = terminal("--suite", suite, columns=columns, rows=rows, term=term)
    assert screen.end() == 1
    assert "\x1b[" not in screen.seen
    lines = screen.seen.replace("\r\n", "\n").split("\n")[1:]  # behind the note about the model
    if columns == 20:
        assert max(map(len, lines)) <= 20
        assert "1/3 passed a" in lines and "passed 2 of 3" in lines and " not 71" in lines
    elif columns > 20:
        assert "passed 2 of 3" in screen.seen


def test_plain_on_a_terminal(terminal: Callable[..., Terminal], suite: Path) -> None:
    screen = terminal("--suite", suite, "--plain")
    assert screen.end() == 1
    assert "\x1b[" not in screen.seen and "3/3 failed" in screen.seen
