"""Memory, models in it, the disk and the extras."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from ds4.budget import ExpertPlan
from ds4.doctor import extras, fit_of, machine_facts, measure_disk, memory_facts, sizes_of
from ds4.doctor.disk import PIECE

GIB = 1 << 30
EXPERTS = ExpertPlan(resident_bytes=8 * GIB, slot_bytes=GIB // 128, n_experts=10_000)  # 78 GiB of experts
WEIGHTS = 8 * GIB + EXPERTS.all_bytes


def test_how_a_model_fits() -> None:
    assert fit_of(WEIGHTS, GIB, EXPERTS, 128 * GIB).how == "resident"
    assert fit_of(WEIGHTS, GIB, EXPERTS, WEIGHTS + GIB).how == "resident"
    assert fit_of(WEIGHTS, GIB, EXPERTS, WEIGHTS + GIB - 1).how == "streamed"
    half = fit_of(WEIGHTS, GIB, EXPERTS, 51 * GIB)
    assert half.how == "streamed" and half.share == pytest.approx((51 * 15 / 16 - 9) / 78.125, abs=1e-3)
    least = half.least_bytes
    assert fit_of(WEIGHTS, GIB, EXPERTS, least).how == "streamed"
    assert fit_of(WEIGHTS, GIB, EXPERTS, least - GIB // 64).how == "no"
    assert fit_of(WEIGHTS, GIB, None, 51 * GIB).how == "no"
    assert fit_of(WEIGHTS, GIB, EXPERTS, None).how == "unknown"


def test_limits_of_control_groups(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/a/b\n")
    (proc / "meminfo").write_text("MemAvailable:   8388608 kB\n")
    (cgroup / "a" / "b").mkdir(parents=True)
    assert memory_facts(proc, cgroup)["limit_bytes"] is None
    (cgroup / "a" / "b" / "memory.max").write_text("max\n")
    (cgroup / "a" / "memory.max").write_text(f"{3 * GIB}\n")
    (cgroup / "a" / "memory.current").write_text(f"{GIB}\n")
    facts = memory_facts(proc, cgroup)
    assert facts["limit_bytes"] == 3 * GIB and facts["available_bytes"] == 2 * GIB
    assert memory_facts(tmp_path / "none", cgroup)["limit_bytes"] is None
    (proc / "self" / "cgroup").write_text("4:cpu,memory:/c\n")
    (cgroup / "memory" / "c").mkdir(parents=True)
    (cgroup / "memory" / "c" / "memory.limit_in_bytes").write_text(f"{GIB}\n")
    assert memory_facts(proc, cgroup)["limit_bytes"] == GIB


def test_the_processor(tmp_path: Path) -> None:
    facts = machine_facts()
    assert facts["cpu_isa"] in facts["cpu_isas"] and facts["version"] == facts["core_version"]
    assert machine_facts(tmp_path)["processor"]
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: A Processor\n")
    assert machine_facts(tmp_path)["processor"] == "A Processor"


@pytest.mark.parametrize("size", [1000, PIECE, 3 * PIECE + 5])
def test_the_disk_is_read(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a model"
    path.write_bytes(bytes(size))
    facts = measure_disk(path)
    assert not facts.problem and facts.read_bytes == (size if size < PIECE else size // PIECE * PIECE)
    assert facts.bytes_per_second > 0 and facts.free_bytes > 0 and facts.path == str(path)


def test_the_measurement_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as f:
        f.truncate(64 * PIECE)
    assert measure_disk(path, most_bytes=8 * PIECE).read_bytes <= 16 * PIECE
    assert measure_disk(path, most_seconds=-1.0).read_bytes == 0


def test_a_folder_is_measured_with_a_file_that_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = measure_disk(tmp_path / "not" / "there")
    assert facts.path == str(tmp_path) and facts.read_bytes > 0 and list(tmp_path.iterdir()) == []

    class Full:
        f_bavail, f_frsize = 10, 4096

    with monkeypatch.context() as m:
        m.setattr(os, "statvfs", lambda path: Full)
        assert "no room" in measure_disk(tmp_path).problem

    def refuse(*args: object) -> int:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    assert measure_disk(tmp_path).problem == os.strerror(errno.EACCES)


def test_sizes(tmp_path: Path) -> None:
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "e" / "f").write_bytes(os.urandom(100_000))
    (tmp_path / "d" / "link").symlink_to(tmp_path / "gone")
    found = sizes_of({"d": tmp_path / "d", "f": tmp_path / "d" / "e" / "f", "none": tmp_path / "none"})
    assert set(found) == {"d", "f"}
    assert found["d"]["bytes"] >= found["f"]["bytes"] > 0


def test_extras() -> None:
    found = extras()
    assert set(found) >= {"download", "plot", "server"} and "test" not in found
    assert "huggingface_hub" in found["download"]
    assert extras("no-such-package-of-anyone") == {}
