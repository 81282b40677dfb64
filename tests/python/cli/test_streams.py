"""Standard streams that are closed or cannot be written."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .conftest import TIMEOUT, program


@pytest.fixture
def shell(environment: dict[str, str], model_path: Path) -> Any:
    """Run ds4 from a shell, which can close streams; MODEL stands for the tiny model."""

    def run(arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = f"{shlex.join(program())} {arguments.replace('MODEL', shlex.quote(str(model_path)))}"
        done = subprocess.run(
            ["sh", "-c", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={k: v for k, v in environment.items() if k != "PYTHONUNBUFFERED"} | more,
            timeout=TIMEOUT,
            check=False,
        )
        assert "Traceback" not in done.stderr and "Exception" not in done.stderr, done.stderr
        return done

    return run


PROMPT = "-m MODEL -p hi -n 6 --temp 0 --nothink"


@pytest.mark.parametrize(
    "arguments",
    [PROMPT, "-h", "--version", "inspect MODEL", "tokens -m MODEL hi"],
)
def test_closed_output(shell: Any, arguments: str) -> None:
    whole = shell(arguments)
    done = shell(f"{arguments} >&-")
    assert done.returncode == whole.returncode == 0, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == len(whole.stderr.splitlines())


@pytest.mark.parametrize("redirection", ["<&-", "2>&-", "<&- 2>&-", "2>/dev/full"])
def test_answer_survives(shell: Any, redirection: str) -> None:
    """Nothing but the answer is on standard output, and all of it."""
    whole = shell(PROMPT)
    done = shell(f"{PROMPT} {redirection}")
    assert done.returncode == 0
    assert done.stdout == whole.stdout != ""
    thinking = PROMPT.replace(" --nothink", "")
    done = shell(f"{thinking} {redirection}")
    assert (done.returncode, done.stdout) == (0, "")


def test_conversation_without_input(shell: Any) -> None:
    assert shell("-m MODEL <&-").returncode == 0
    assert shell("-m MODEL <&- >&- 2>&-").returncode == 0


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_errors_keep_their_code(shell: Any, redirection: str) -> None:
    for arguments, code in (("--bogus", 2), ("-m /nowhere -p x", 1)):
        done = shell(f"{arguments} {redirection}")
        assert (done.returncode, done.stdout) == (code, "")


@pytest.mark.parametrize("arguments", [PROMPT, "inspect MODEL", "-h"])
def test_full_output_is_an_error(shell: Any, arguments: str) -> None:
    done = shell(f"{arguments} >/dev/full")
    assert done.returncode == 1
    assert "standard output: No space left on device" in done.stderr


def test_full_output_of_an_unbuffered_python(shell: Any) -> None:
    done = shell(f"{PROMPT} >/dev/full", PYTHONUNBUFFERED="1")
    assert done.returncode == 1
    assert "standard output: No space left on device" in done.stderr
