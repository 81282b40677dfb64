"""The soak command in its short form: every kind of request, all answered, and memory that stays flat."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "soak_server.py"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_stays_flat():
    # Sessions, caches and the allocator settle in the first hundreds of requests: the long form asks for 10 %.
    command = [sys.executable, str(SCRIPT), "--requests", "240", "--slack", "0.2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 faults" in done.stdout
