"""The command for a real device (tests/gpu/run), with the host executor as the device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support import gpu

COMMAND = Path(__file__).resolve().parents[2] / "gpu" / "run"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False, env=environment)


def test_cases_run_on_the_library_that_is_named() -> None:
    done = run(str(gpu.host_library("hip_host")), "-q", "-s", "-k", "rms_norm or swiglu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    done = run(str(tmp_path / "nothing.so"))
    assert done.returncode == 2 and f"no {tmp_path}/nothing.so" in done.stderr
    done = run()
    assert done.returncode == 2 and "usage: tests/gpu/run cuda|hip|metal" in done.stderr
