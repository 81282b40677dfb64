"""The micro-benchmarks of kernels run: every one once, at small sizes, in every variant of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import native

FOLDER = Path(__file__).parents[3] / "benchmarks" / "kernels"


@pytest.mark.skipif(not FOLDER.is_dir(), reason="not in a checkout")
def test_every_benchmark_runs(tmp_path: Path) -> None:
    pytest.importorskip("pytest_benchmark")
    module = native.kernels_module()
    assert module.__file__ is not None
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER)]
    done = subprocess.run(
        [*command, "--small", "--benchmark-disable", "--threads", "2"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(module.__file__).parent), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    found = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0 and found and int(found[1]) >= 60, done.stdout + done.stderr


def test_operations_check_their_records() -> None:
    module = native.kernels_module()
    queue = module.Queue(1)
    with pytest.raises(ValueError, match="no operation sort"):
        queue.run("sort", b"")
    with pytest.raises(ValueError, match=r"swiglu takes \d+ bytes of arguments, got 3"):
        queue.run("swiglu", b"abc")
