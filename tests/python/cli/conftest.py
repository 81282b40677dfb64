"""Running the real program in a process of its own, on the tiny models."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TIMEOUT = 120


def program() -> list[str]:
    """The installed script, or the module where the package is not installed as one."""
    script = Path(sys.executable).with_name("ds4")
    return [str(script)] if script.exists() else [sys.executable, "-m", "ds4.cli.main"]


@pytest.fixture(scope="session")
def model_path(tiny_gguf: Callable[..., Path]) -> Path:
    """The tiny Flash-like model, random weights, BF16, without its MTP block."""
    return tiny_gguf("flash", part="main", recipe="bf16")


@pytest.fixture(scope="session")
def mtp_path(tiny_gguf: Callable[..., Path]) -> Path:
    """The MTP block of the same model in a file of its own."""
    return tiny_gguf("flash", part="mtp", recipe="bf16")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment whose home is empty, without colours."""
    home = tmp_path / "home"
    home.mkdir()
    return {**os.environ, "HOME": str(home), "NO_COLOR": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def ds4(environment: dict[str, str]) -> Run:
    """Run ``ds4`` with arguments; a traceback fails the test whatever else happens."""

    def run(*args: Any, stdin: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*program(), *map(str, args)],
            input=stdin,
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=environment,
            cwd=cwd,
            timeout=TIMEOUT,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


class Terminal:
    """The program on a pseudo terminal."""

    def __init__(self, args: list[str], environment: dict[str, str], columns: int = 80, **more: str) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, columns))
        self.child = subprocess.Popen(
            [*program(), *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, "TERM": "xterm"} | more,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self.text = ""

    def wait_for(self, words: str, timeout: float = 60.0) -> str:
        """Read until words come, and return what stood before them; the next search begins behind them."""
        end = time.monotonic() + timeout
        while words not in self.text:
            left = end - time.monotonic()
            assert left > 0, f"{words!r} did not come: {self.text[-2000:]!r}"
            ready, _, _ = select.select([self.master], [], [], left)
            if ready:
                try:
                    data = os.read(self.master, 65536)
                except OSError:
                    data = b""
                assert data, f"the program ended: {self.text[-2000:]!r}"
                if b"\x1b[6n" in data:
                    os.write(self.master, b"\x1b[1;1R")  # the cursor's place, which line editors ask for
                self.text += data.decode("utf-8", "replace")
        before, _, self.text = self.text.partition(words)
        return before

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def quit(self) -> None:
        """Leave, and expect that all was well."""
        self.type("/quit\r")
        assert self.child.wait(timeout=60) == 0

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        os.close(self.master)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal(model_path: Path, environment: dict[str, str]) -> Any:
    opened: list[Terminal] = []

    def open_terminal(*args: str, columns: int = 80, **more: str) -> Terminal:
        opened.append(Terminal(["-m", str(model_path), *args], environment, columns, **more))
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close()
