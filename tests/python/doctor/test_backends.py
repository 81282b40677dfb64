"""What a system lacks for a GPU, told from made-up files of a system (L109), and the step that changes it."""

from __future__ import annotations

import os
from pathlib import Path

import ds4
import pytest
from ds4.doctor import backend_facts, gpu_findings

GIB = 1 << 30
NEEDED = 82 * GIB

pytestmark = pytest.mark.skipif(os.uname().sysname != "Linux", reason="files of Linux")


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def amd(root: Path, *, gtt: int = 128 * GIB, total: int = 128 * GIB, rocm: str = "7.0.1") -> None:
    """An AMD machine with shared memory that lacks nothing."""
    write(root, {
        "sys/bus/pci/devices/0000:01:00.0/vendor": "0x1002\n",
        "sys/bus/pci/devices/0000:01:00.0/class": "0x030000\n",
        "sys/module/amdgpu/refcnt": "1\n",
        "sys/class/drm/card0/device/vendor": "0x1002\n",
        "sys/class/drm/card0/device/mem_info_vram_total": f"{GIB // 2}\n",
        "sys/class/drm/card0/device/mem_info_gtt_total": f"{gtt}\n",
        "proc/meminfo": f"MemTotal:       {total // 1024} kB\n",
        "dev/kfd": "", "dev/dri/renderD128": "",
        "opt/rocm/lib/libamdhip64.so.7": "", "opt/rocm/.info/version": rocm,
    })  # fmt: skip


def hip(root: Path) -> list[tuple[str, str]]:
    return [(f.text, f.step) for f in gpu_findings("hip", NEEDED, root)]


def test_an_amd_machine_that_lacks_nothing(tmp_path: Path) -> None:
    amd(tmp_path)
    assert hip(tmp_path) == []


def test_no_amd_gpu(tmp_path: Path) -> None:
    ((text, step),) = hip(tmp_path)
    assert text == "there is no AMD GPU in this machine" and not step
    write(tmp_path, {"sys/bus/pci/devices/a/vendor": "0x1002", "sys/bus/pci/devices/a/class": "0x060000"})  # a bridge
    assert [text for text, _ in hip(tmp_path)] == ["there is no AMD GPU in this machine"]


def test_the_amd_driver_is_not_loaded(tmp_path: Path) -> None:
    amd(tmp_path)
    (tmp_path / "sys/module/amdgpu/refcnt").unlink()
    (tmp_path / "sys/module/amdgpu").rmdir()
    ((text, step),) = hip(tmp_path)
    assert "driver is not loaded" in text and step == "sudo modprobe amdgpu"


def test_no_kfd(tmp_path: Path) -> None:
    amd(tmp_path)
    (tmp_path / "dev/kfd").unlink()
    ((text, step),) = hip(tmp_path)
    assert "/dev/kfd is missing" in text and "CONFIG_HSA_AMD" in step and "--device /dev/kfd" in step


def test_a_device_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    amd(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: "renderD128" not in str(path))
    ((text, step),) = hip(tmp_path)
    assert text == "/dev/dri/renderD128 may not be opened by this user" and "usermod -aG render,video" in step


def test_a_wrong_rocm(tmp_path: Path) -> None:
    amd(tmp_path, rocm="5.2.3-66")
    assert hip(tmp_path) == [("ROCm 5.2 is installed", "install ROCm 6.4 or later")]
    (tmp_path / "opt/rocm/lib/libamdhip64.so.7").unlink()
    ((text, step),) = hip(tmp_path)
    assert "libamdhip64.so" in text and step == "install ROCm 6.4 or later"


def test_too_little_shared_memory(tmp_path: Path) -> None:
    """The exact setting, and only where it would help."""
    amd(tmp_path, gtt=62 * GIB)
    ((text, step),) = hip(tmp_path)
    assert "may use 62.5 GiB" in text and "needs 82.0 GiB" in text and "128.0 GiB" in text
    assert f"ttm.pages_limit={NEEDED // 4096} ttm.page_pool_size={NEEDED // 4096}" in step
    amd(tmp_path, gtt=30 * GIB, total=64 * GIB)
    assert hip(tmp_path) == []


def nvidia(root: Path, version: str = "580.95.05") -> None:
    write(root, {
        "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
        "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
        "proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Wed\nGCC version:\n",
        "dev/nvidiactl": "",
    })  # fmt: skip


def test_nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> list[tuple[str, str]]:
        return [(f.text, f.step) for f in gpu_findings("cuda", NEEDED, tmp_path)]

    assert found() == [("there is no NVIDIA GPU in this machine", "")]
    nvidia(tmp_path)
    assert found() == []
    nvidia(tmp_path, "470.223.02")
    ((text, step),) = found()
    assert "version 470, CUDA 12 needs 525" in text and "install driver 525 or later" in step
    write(tmp_path, {
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release\n"
    })  # fmt: skip
    assert found() == []
    (tmp_path / "dev/nvidiactl").unlink()
    ((text, step),) = found()
    assert "/dev/nvidiactl is missing" in text and step == "start the container with --gpus all"
    (tmp_path / "proc/driver/nvidia/version").unlink()
    ((text, step),) = found()
    assert "its driver is not loaded" in text and "nvidia-smi" in step
    nvidia(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "may not be opened" in found()[0][0]


def test_metal_is_not_here(tmp_path: Path) -> None:
    assert [f.text for f in gpu_findings("metal", NEEDED, tmp_path)] == ["Metal exists on macOS only"]


def test_back_ends_are_tried(tmp_path: Path) -> None:
    """What the engine says is told in its words, whatever it can load."""
    facts = {b.name: b for b in backend_facts(ds4.Model.embedded_path(), NEEDED)}
    assert list(facts) == ["cpu", "cuda", "hip", "metal"] and facts["cpu"].works and facts["cpu"].findings == ()
    for name in ("cuda", "hip", "metal"):
        try:
            ds4.Model.open(ds4.Model.embedded_path(), backend=name).close()
        except ds4.DS4Error as error:
            assert not facts[name].works and facts[name].reason and str(error).endswith(facts[name].reason)
        else:
            assert facts[name].works and not facts[name].reason
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF")
    assert not any(b.works for b in backend_facts(damaged, NEEDED))
    assert [b.works for b in backend_facts(None, NEEDED)] == [True, False, False, False]
