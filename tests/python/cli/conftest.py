"""Running the real program in a process of its own, on the tiny models."""

from __future__ import annotations

import os
import subprocess
import sys
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
