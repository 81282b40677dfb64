"""The file of selections: what it holds comes back, whatever is wrong with it is told, and nobody else reads it."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import ds4
import numpy as np
import pytest
from ds4.hotness import hotness_file, read_hotness, write_hotness

OWNER, OTHER = bytes(range(16)), bytes(16)
VALUES = np.linspace(0, 9, 48, dtype=np.float32)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return hotness_file(OWNER)


def test_it_comes_back(path: Path, tmp_path: Path) -> None:
    assert path == tmp_path / f"cache/ds4/experts/{OWNER.hex()}.heat"
    with pytest.raises(FileNotFoundError):
        read_hotness(path, OWNER, 48)
    write_hotness(path, OWNER, VALUES)
    np.testing.assert_array_equal(read_hotness(path, OWNER, 48), VALUES)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_where_it_is_without_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert hotness_file(OWNER).parent == tmp_path / ".cache/ds4/experts"


def test_another_model_and_another_version(path: Path) -> None:
    write_hotness(path, OWNER, VALUES)
    for owner, n in ((OTHER, 48), (OWNER, 47), (OWNER, 49)):
        with pytest.raises(ValueError, match="of another model"):
            read_hotness(path, owner, n)
    data = bytearray(path.read_bytes())
    data[8] = 2
    path.write_bytes(data)
    with pytest.raises(ValueError, match="version 2; this release reads 1"):
        read_hotness(path, OWNER, 48)


def test_every_damaged_byte_and_every_cut_is_noticed(path: Path) -> None:
    write_hotness(path, OWNER, VALUES)
    good = path.read_bytes()
    for i in range(len(good)):
        bad = bytearray(good)
        bad[i] ^= 0x40
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=str(path)):
            read_hotness(path, OWNER, 48)
        path.write_bytes(good[:i])
        with pytest.raises(ValueError, match=str(path)):
            read_hotness(path, OWNER, 48)
    path.write_bytes(good + b"x")
    with pytest.raises(ValueError, match="damaged"):
        read_hotness(path, OWNER, 48)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_values_that_are_no_counts(path: Path, value: float) -> None:
    values = VALUES.copy()
    values[7] = value
    write_hotness(path, OWNER, values)
    with pytest.raises(ValueError, match="no count"):
        read_hotness(path, OWNER, 48)


def test_writers_side_by_side_leave_a_whole_file(path: Path) -> None:
    write_hotness(path, OWNER, VALUES)
    workers = [threading.Thread(target=write_hotness, args=(path, OWNER, VALUES + i)) for i in range(8)]
    for worker in workers:
        worker.start()
    for _ in range(50):
        read_hotness(path, OWNER, 48)
    for worker in workers:
        worker.join()
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_failed_write_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_hotness(path, OWNER, VALUES)

    def fails(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(OSError, match="No space"):
        write_hotness(path, OWNER, VALUES + 1)
    np.testing.assert_array_equal(read_hotness(path, OWNER, 48), VALUES)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_preloading_by_heat() -> None:
    """The experts of most selections are read, and are hits when they are asked for."""
    with ds4.Model.open(ds4.Model.embedded_path(), expert_cache="1MiB") as model:
        heat = np.zeros(48, np.float32)
        chosen = [3, 17, 40, 41]
        heat[chosen] = [5, 6, 7, 8]
        model.set_expert_heat(heat)
        np.testing.assert_allclose(model.expert_heat(), heat, rtol=1e-6)
        model.preload_experts(0)
        assert not model.expert_map().any()
        model.preload_experts(4)
        assert list(np.nonzero(model.expert_map())[0]) == chosen
        seen: list[tuple[int, int]] = []
        model.preload_experts(progress=lambda done, total: seen.append((done, total)))
        assert (model.expert_map() == 2).sum() == model.expert_stats().n_slots == 8
        assert all(total == 4 for _, total in seen)
        with pytest.raises(ValueError, match="48 experts"):
            model.set_expert_heat(heat[:47])
    with ds4.Model.open_embedded() as model, pytest.raises(ds4.StateError, match="without an expert cache"):
        model.expert_heat()
