"""benchmarks/expert_streaming.py and small_memory.py: they run, and refuse what would harm the machine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ds4
import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="not in a checkout")


def script(name: str, *args: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, FOLDER / name, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("work", [["--tokens", 3], ["--prefill", 40]])
def test_variants_side_by_side(work: list[Any]) -> None:
    path = ds4.Model.embedded_path()
    size = ["--warm", 1, "--repeat", 1, "--rounds", 2, "--threads", 1]
    done = script("expert_streaming.py", path, "--slots", 0, "25%", "all", *work, *size, "--together")
    assert done.returncode == 0, done.stderr
    assert "48 experts of 120.0 KiB" in done.stdout
    last = done.stdout.splitlines()[-3:]
    for line, name in zip(last, ("mapped file", "12 slots", "48 slots"), strict=True):
        assert re.search(rf"{name} ?: median [\d.]+ tokens/s, [\d.]+ \([\d.]+ to [\d.]+\) of the first", line), line
    assert ("computation allow" in last[1]) == ("--prefill" in work)


@pytest.mark.skipif(sys.platform != "linux", reason="takes memory as Linux counts it")
@pytest.mark.parametrize(
    ("limit", "text"),
    [("1GiB", "too little for the other programs"), ("900TiB", "are available"), ("x", "is not a size")],
)
def test_limits_that_are_refused(limit: str, text: str) -> None:
    done = script("small_memory.py", limit, "true")
    assert done.returncode != 0
    assert text in done.stderr
    assert script("small_memory.py").returncode == 2
