"""The depth of reads: chosen from what is measured, remembered for a file system, and never believed blindly."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import ds4
import pytest
from ds4.read_depth import (
    ReadDepth,
    choose_depth,
    depth_file,
    disk_key,
    measure_depth,
    read_depths,
    remember_depth,
)

FOUND = ReadDepth(8, 2.5e9)


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return depth_file()


def test_the_smallest_depth_that_is_close_to_the_best() -> None:
    assert choose_depth({1: 1.0, 2: 2.0, 4: 3.9, 8: 4.0, 16: 3.95}) == ReadDepth(4, 3.9)
    assert choose_depth({16: 4.0, 8: 3.0, 1: 3.99}) == ReadDepth(1, 3.99)
    assert choose_depth({1: 5.0}) == ReadDepth(1, 5.0)


class Disk:
    """A disk with a clock: each read takes `latency` seconds, `lanes` of them at a time."""

    def __init__(self, latency: float, lanes: int) -> None:
        self.latency, self.lanes, self.now = latency, lanes, 0.0
        self.asked: list[tuple[int, int]] = []

    def measure(self, path: Any, n_bytes: int, count: int, *, reads: ds4.ReadOptions, seed: int) -> float:
        pieces = -(-n_bytes // reads.piece_bytes)
        self.asked.append((reads.depth, count))
        took = count * pieces * self.latency / min(self.lanes, reads.depth)
        self.now += took
        return n_bytes * count / took

    def depth(self, path: Path, n_bytes: int, monkeypatch: pytest.MonkeyPatch) -> int:
        monkeypatch.setattr("ds4.read_depth.measure_reads", self.measure)
        return measure_depth(path, n_bytes, clock=lambda: self.now).depth


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 31)
    return path


@pytest.mark.parametrize("lanes", [1, 4, 16, 64])
def test_as_many_as_the_disk_serves_at_a_time(large: Path, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(latency=100e-6, lanes=lanes)
    assert disk.depth(large, 7 << 20, monkeypatch) == lanes
    assert disk.now < 1
    # Every depth was kept busy: at least twice as many pieces as can be under way.
    assert all(count * 7 >= 2 * depth for depth, count in disk.asked)


def test_a_slow_disk_is_not_read_for_long(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(latency=10e-3, lanes=1)
    assert disk.depth(large, 7 << 20, monkeypatch) == 1
    assert disk.now < 1


@pytest.mark.parametrize("io", ["auto", "threads"])
def test_a_real_file(io: Any) -> None:
    path = ds4.Model.embedded_path()
    found = measure_depth(path, 120 << 10, reads=ds4.ReadOptions(io=io), seconds=0.05)
    assert found.depth in (1, 2, 4, 8, 16, 32, 64)
    assert found.speed > 0


def test_files_that_cannot_be_measured(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        measure_depth(tmp_path / "none", 4096)
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="empty"):
        measure_depth(tmp_path / "empty", 4096)
    (tmp_path / "short").write_bytes(bytes(100))
    assert measure_depth(tmp_path / "short", 4096, seconds=0.01).speed > 0


def test_keys(tmp_path: Path) -> None:
    """Files of one file system have one key, as long as reads are alike."""
    for name in "ab":
        (tmp_path / name).write_bytes(b"x")
    key = disk_key(tmp_path / "a", 7 << 20)
    assert key == disk_key(tmp_path / "b", 30 << 20) == disk_key(tmp_path / "a", 1 << 20)
    others = {
        disk_key("/proc/self/stat", 7 << 20),
        disk_key(tmp_path / "a", 100 << 10),
        disk_key(tmp_path / "a", 7 << 20, ds4.ReadOptions(io="threads")),
        disk_key(tmp_path / "a", 7 << 20, ds4.ReadOptions(cached=True)),
    }
    assert len(others | {key}) == 5
    with pytest.raises(FileNotFoundError):
        disk_key(tmp_path / "none", 4096)


def test_it_comes_back(memory: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_depths(memory)
    remember_depth(memory, "a", FOUND)
    remember_depth(memory, "b", ReadDepth(1, 1e8))
    remember_depth(memory, "a", ReadDepth(16, 3e9))
    assert read_depths(memory) == {"a": ReadDepth(16, 3e9), "b": ReadDepth(1, 1e8)}
    assert stat.S_IMODE(memory.stat().st_mode) == 0o600
    assert [p.name for p in memory.parent.iterdir()] == [memory.name]


def test_it_does_not_grow_for_ever(memory: Path) -> None:
    for i in range(70):
        remember_depth(memory, f"disk {i}", FOUND)
    known = read_depths(memory)
    assert len(known) == 64
    assert "disk 69" in known
    assert "disk 0" not in known


GOOD = {"depth": 8, "bytes_per_second": 1, "measured": 0}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 50_000,
        b" " * (1 << 16) + b"{}",
        b"[]",
        b"{}",
        b'{"format": "other"}',
        json.dumps({"format": "ds4-read-depth", "version": 2, "disks": {}}).encode(),
        json.dumps({"format": "ds4-read-depth", "version": 1}).encode(),
        *(
            json.dumps({"format": "ds4-read-depth", "version": 1, "disks": {"a": entry}}).encode()
            for entry in (
                None,
                {},
                {**GOOD, "depth": 0},
                {**GOOD, "depth": 1025},
                {**GOOD, "depth": 2.5},
                {**GOOD, "depth": True},
                {**GOOD, "bytes_per_second": 0},
                {**GOOD, "bytes_per_second": float("nan")},
                {**GOOD, "bytes_per_second": "fast"},
                {**GOOD, "measured": 10**400},
                {**GOOD, "measured": None},
            )
        ),
    ],
)
def test_a_damaged_file_is_told_and_written_anew(memory: Path, content: bytes) -> None:
    memory.parent.mkdir(parents=True)
    memory.write_bytes(content)
    with pytest.raises(ValueError, match=r"disks\.json: (damaged|version)"):
        read_depths(memory)
    remember_depth(memory, "a", FOUND)
    assert read_depths(memory) == {"a": FOUND}
