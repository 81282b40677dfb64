"""Streaming that is interrupted in the middle of a call: by the file, by Ctrl-C. The session stays and goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest

TOKENS = np.random.default_rng(8).integers(0, 300, 480).astype(np.int32)
OPTIONS: dict[str, Any] = {"n_ctx": 512, "chunk": 10, "threads": 1}


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A copy of the model of the package."""
    return Path(shutil.copy(ds4.Model.embedded_path(), tmp_path / "used.gguf"))


@pytest.fixture(scope="module")
def expected() -> Any:
    with ds4.Model.open_embedded() as model, model.session(**OPTIONS) as session:
        return session.eval_logits(TOKENS)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 3)


def replace(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


@pytest.mark.parametrize("change", [cut, replace, Path.unlink])
@pytest.mark.parametrize("slots", [1, 10])
def test_a_file_that_changes_in_the_middle_of_a_call(
    used: Path, slots: int, change: Callable[[Path], None], expected: Any
) -> None:
    """The call ends with an error that names the place; with the file back two sessions go on, with the same bits."""
    before = used.stat()
    whole = used.read_bytes()
    with (
        ds4.Model.open(used, expert_cache=slots * 122880) as model,
        model.session(**OPTIONS) as session,
        model.session(**OPTIONS) as other,
    ):
        other.eval(TOKENS[:15])
        changed = False

        def progress(done: int, total: int) -> None:  # asked every 50 ms
            nonlocal changed
            if not changed:
                change(used)
            changed = True

        with pytest.raises(OSError, match=r"cannot read layer \d+, expert \d+ \(.*used.gguf\": the file was cut, wr"):
            session.sync(TOKENS.tolist(), progress=progress)
        assert session.pos < len(TOKENS)
        assert session.pos % 10 == 0
        with pytest.raises(OSError, match="cannot read layer"):
            other.eval(TOKENS[15:])
        assert other.pos == 15
        if change is not cut:
            return  # the file that was opened is gone
        used.write_bytes(whole)
        os.utime(used, ns=(before.st_atime_ns, before.st_mtime_ns))
        for back in (session, other):
            pos = back.pos
            np.testing.assert_array_equal(back.eval_logits(TOKENS[pos:]), expected[pos:])


INTERRUPTED = """
import sys
import numpy as np
import ds4
from ds4.experts import ReadOptions

options = {"n_ctx": 128, "chunk": 10, "threads": 1}
tokens = np.random.default_rng(8).integers(0, 300, 60).astype(np.int32)
with ds4.Model.open_embedded() as model, model.session(**options) as session:
    expected = session.eval_logits(tokens)
reads = ReadOptions(io=sys.argv[1], depth=1, piece_bytes=4096)
with ds4.Model.open(ds4.Model.embedded_path(), expert_cache=122880, reads=reads) as model:
    with model.session(**options) as session, model.session(**options) as other:
        other.eval(tokens[:20])
        try:
            print("running", flush=True)
            while True:
                session.reset()
                session.sync(tokens.tolist())
        except KeyboardInterrupt:
            pos = session.pos
            same = np.array_equal(session.eval_logits(tokens[pos:]), expected[pos:])
            same = same and np.array_equal(other.eval_logits(tokens[20:]), expected[20:])
            print("stopped", same, model.expert_stats().failed_reads, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of another kind")
@pytest.mark.parametrize("io", ["auto", "threads"])
def test_ctrl_c_while_experts_are_read(io: str) -> None:
    """A real SIGINT to a process that reads nearly all of its time: its sessions work afterwards, to the bit."""
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED, io], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout as out:
        assert out.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        assert out.readline() == "stopped True 0\n"
    assert process.returncode == 0
