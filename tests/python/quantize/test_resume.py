"""Writes that are stopped: nothing under the final name; what is finished is kept, and the next run goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ds4.imatrix import Imatrix
from ds4.quantize import Policy, plan_quantization, quantize

RECIPE = ("--recipe", "q4")


def _command(*args: Any) -> list[str]:
    return [sys.executable, "-m", "ds4.cli.main", *map(str, args)]


# The program, with a pause before each tensor: these models are written faster than a signal arrives.
_SLOW = """
import sys, time
import ds4.quantize.writing as writing
from ds4.cli.main import main
payload = writing.payload
def slow(*args, **options):
    time.sleep(0.03)
    yield from payload(*args, **options)
writing.payload = slow
sys.exit(main(sys.argv[1:]))
"""


def _stop_midway(arguments: list[str], out: Path, number: signal.Signals) -> str:
    """Start a command, send a signal when some tensors are finished; returns what it said."""
    journal = out.with_name(out.name + ".part.journal")
    command = [sys.executable, "-c", _SLOW, *arguments]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while child.poll() is None and not (journal.exists() and len(journal.read_text().splitlines()) > 5):
        assert time.monotonic() < end
        time.sleep(0.001)
    child.send_signal(number)
    said = child.communicate()[1]
    assert child.returncode != 0, "it was faster than the signal"
    return said


@pytest.fixture
def slow_source(flash_bf16: Path, tmp_path: Path) -> Path:
    """A source of its own: its identity belongs to the test."""
    return Path(shutil.copy(flash_bf16, tmp_path / "source.gguf"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_goes_on_and_gives_the_same_file(slow_source: Path, tmp_path: Path, number: Any) -> None:
    whole, out = tmp_path / "whole.gguf", tmp_path / "out.gguf"
    subprocess.run(_command("quantize", slow_source, whole, *RECIPE), check=True, capture_output=True)
    command = _command("quantize", slow_source, out, *RECIPE)
    said = _stop_midway(command[3:], out, number)
    part = tmp_path / "out.gguf.part"
    assert not out.exists() and part.exists()
    if number is signal.SIGINT:
        assert f"what is finished is kept in {part}" in said and "Traceback" not in said
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "continuing after" in done.stderr and str(part) in done.stderr
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.gguf", "source.gguf", "whole.gguf"]


def test_a_stopped_conversion_goes_on(flash_checkpoint: Path, tmp_path: Path) -> None:
    """Two files: the first is finished when the second is stopped."""
    recipe = ("--recipe", "q4", "--name", "x")
    whole, out = tmp_path / "whole.gguf", tmp_path / "out.gguf"
    mtp = tmp_path / "mtp.gguf"
    subprocess.run(
        _command("convert", flash_checkpoint, whole, *recipe, "--mtp-out", tmp_path / "whole-mtp.gguf"),
        check=True,
        capture_output=True,
    )
    command = _command("convert", flash_checkpoint, out, *recipe, "--mtp-out", mtp)
    _stop_midway(command[3:], mtp, signal.SIGKILL)
    assert not out.exists() and not mtp.exists()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "continuing after 150 of 150 tensors" in done.stderr
    assert out.read_bytes() == whole.read_bytes()
    assert mtp.read_bytes() == (tmp_path / "whole-mtp.gguf").read_bytes()


@pytest.mark.parametrize("change", ["source", "imatrix", "recipe", "none"])
def test_other_work_does_not_go_on(slow_source: Path, imatrix: Imatrix, tmp_path: Path, change: str) -> None:
    out = tmp_path / "out.gguf"

    def attempt(recipe: str, data: Imatrix, stop: bool) -> list[str]:
        told: list[str] = []

        def progress(done: int, total: int, name: str) -> None:
            if stop and name.startswith("blk.1.ffn_norm"):
                raise KeyboardInterrupt

        with plan_quantization(slow_source, out, recipe=recipe, imatrix=data) as plan:
            quantize(plan, force=True, progress=progress, tell=told.append)
        return told

    with pytest.raises(KeyboardInterrupt):
        attempt("q4", imatrix, stop=True)
    assert (tmp_path / "out.gguf.part").exists()
    data, recipe = imatrix, "q4"
    if change == "source":
        os.utime(slow_source, ns=(1, 1))
    elif change == "imatrix":
        entries = dict(imatrix.entries)
        first = next(iter(entries))
        changed = entries[first].sums.copy()
        changed[0, 0] *= 2
        entries[first] = type(entries[first])(changed, entries[first].counts)
        data = Imatrix(entries, datasets=imatrix.datasets, n_chunks=imatrix.n_chunks)
    elif change == "recipe":
        recipe = "mxfp4"
    told = attempt(recipe, data, stop=False)
    assert len(told) == 2 and "out.gguf.part is left" in told[0]
    assert ("continuing after" if change == "none" else "is of other work") in told[1]


def test_a_data_error_keeps_nothing(slow_source: Path, tmp_path: Path) -> None:
    with plan_quantization(slow_source, tmp_path / "out.gguf", recipe="q8_0") as plan:

        def progress(done: int, total: int, name: str) -> None:
            if name.startswith("blk.2."):
                raise RuntimeError("a bug of the caller")

        with pytest.raises(RuntimeError):
            quantize(plan, progress=progress)
    assert [p.name for p in tmp_path.iterdir()] == ["source.gguf"]


# A disk that fills up, a directory that is not writable


@pytest.mark.parametrize("face", ["convert", "quantize"])
def test_full_disk_is_a_message_and_the_next_run_goes_on(
    flash_checkpoint: Path, slow_source: Path, tmp_path: Path, face: str
) -> None:
    """RLIMIT_FSIZE stands in for a disk that fills up while writing."""
    out = tmp_path / "out.gguf"
    limit = 20 << 20
    arguments = [face, str(flash_checkpoint if face == "convert" else slow_source), str(out), "--recipe", "bf16"]
    script = (
        "import resource, signal, sys\n"
        "import ds4.quantize.plan as p\n"
        "p.check_runs = lambda *a, **k: None\n"  # its sparse file would meet the limit first
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "from ds4.cli.main import main\n"
        f"sys.exit(main({arguments!r}))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    part = tmp_path / "out.gguf.part"
    assert f"kept in {part}" in done.stderr and str(out) in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr and not out.exists() and part.exists()
    done = subprocess.run(_command(*arguments), capture_output=True, text=True)
    assert done.returncode == 0 and "continuing after" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.gguf", "source.gguf"]


def test_a_small_file_system(slow_source: Path, tmp_path: Path) -> None:
    """A real disk that is too small: told before anything is written."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not permitted here")
    try:
        done = subprocess.run(
            _command("quantize", slow_source, disk / "out.gguf", *RECIPE), capture_output=True, text=True
        )
        assert done.returncode == 1
        assert "bytes are needed but" in done.stderr and str(disk) in done.stderr
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_directory_that_is_not_writable(slow_source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    command = _command("quantize", slow_source, folder / "out.gguf", *RECIPE)
    if os.geteuid() == 0:  # root may write everywhere, unless it gives that up
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("root writes everywhere")
        command = [setpriv, "--bounding-set=-dac_override", "--inh-caps=-dac_override", *command]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 1
        assert "not writable" in done.stderr and str(folder) in done.stderr
        assert list(folder.iterdir()) == []
    finally:
        folder.chmod(0o755)


def test_a_file_that_exists_is_kept_without_force(slow_source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_text("precious")
    with plan_quantization(slow_source, out, recipe="q8_0") as plan:
        with pytest.raises(FileExistsError, match="--force"):
            quantize(plan)
        assert out.read_text() == "precious"
        quantize(plan, force=True)
    assert out.stat().st_size > 1 << 20


def test_two_processes_do_not_write_one_file(
    slow_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.gguf"
    inside: list[Callable[[], None]] = []

    def progress(done: int, total: int, name: str) -> None:
        if inside:
            inside.pop()()

    def other() -> None:
        refused = pytest.raises(OSError, match="another process is writing")
        with plan_quantization(slow_source, out, policy=Policy("q8_0")) as second, refused:
            quantize(second)

    inside.append(other)
    with plan_quantization(slow_source, out, policy=Policy("q8_0")) as plan:
        quantize(plan, progress=progress)
    assert not inside and out.exists()
