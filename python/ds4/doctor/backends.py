"""Which back ends work here, and what is missing for the others.

Whether a back end works is asked of the engine: it opens the small model with it. What the system says about a device
(driver, permissions, memory that it may use) is looked up beside, so that the answer can name the next step.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ds4
from ds4.budget import show_size

BACKENDS = ("cpu", "cuda", "hip", "metal")
_AMD, _NVIDIA = "0x1002", "0x10de"
_LEAST_NVIDIA_DRIVER = 525  # the first one for CUDA 12
_LEAST_ROCM = (6, 4)
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is missing or wrong, and the exact step that changes it ("" when there is none)."""

    text: str
    step: str = ""


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """A back end: whether it opened a model, else why not, in the words of the engine."""

    name: str
    works: bool
    reason: str = ""
    findings: tuple[Finding, ...] = ()


def backend_facts(model: Path | None, needed_bytes: int) -> list[BackendFacts]:
    """Try every back end.

    Parameters
    ----------
    model : Path or None
        A small model to open; without one only the CPU's kernels are known to load.
    needed_bytes : int
        Memory that a model with its session should get on a device, for advice.
    """
    out = []
    for name in BACKENDS:
        works, reason = True, ""
        if model is None:
            works, reason = name == "cpu", "" if name == "cpu" else "there is no model to try it with"
        else:
            try:
                ds4.Model.open(model, backend=name).close()
            except (ds4.DS4Error, OSError, ValueError, MemoryError) as error:
                works = False
                reason = str(error).removeprefix(f"{model}: ").removeprefix(f"backend '{name}': ")
        findings = () if name == "cpu" else tuple(gpu_findings(name, needed_bytes))
        out.append(BackendFacts(name, works, reason, findings))
    return out


def gpu_findings(name: str, needed_bytes: int, root: Path = Path("/")) -> list[Finding]:
    """Return what the system lacks for the GPU of a back end ("cuda", "hip" or "metal"); nothing means it is ready.

    Parameters
    ----------
    needed_bytes : int
        Memory that the device should be able to use.
    root : Path
        Where the system's files are.
    """
    if name == "metal":
        return [] if platform.system() == "Darwin" else [Finding("Metal exists on macOS only")]
    if platform.system() != "Linux":
        return [Finding(f"{name} is supported on Linux only")]
    return list(_amd(root, needed_bytes) if name == "hip" else _nvidia(root))


def _nvidia(root: Path) -> Iterator[Finding]:
    version = _text(root / "proc/driver/nvidia/version")
    if not version and not _has_display(root, _NVIDIA):
        yield Finding("there is no NVIDIA GPU in this machine")
        return
    if not version:
        yield Finding(
            "an NVIDIA GPU is there, its driver is not loaded",
            "install the driver of your distribution (package nvidia-driver) and start again; nvidia-smi then lists it",
        )
        return
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\d+)\.", version)
    if found and int(found[1]) < _LEAST_NVIDIA_DRIVER:
        yield Finding(
            f"the NVIDIA driver is version {found[1]}, CUDA 12 needs {_LEAST_NVIDIA_DRIVER} or later",
            f"install driver {_LEAST_NVIDIA_DRIVER} or later and start again",
        )
    device = root / "dev/nvidiactl"
    if not device.exists():
        yield Finding(
            "the driver is loaded, but /dev/nvidiactl is missing: this looks like a container without the GPU",
            "start the container with --gpus all",
        )
    elif not os.access(device, os.R_OK | os.W_OK):
        yield Finding("/dev/nvidiactl may not be opened by this user", "sudo chmod a+rw /dev/nvidia*")


def _amd(root: Path, needed_bytes: int) -> Iterator[Finding]:
    loaded = (root / "sys/module/amdgpu").exists()
    if not loaded and not _has_display(root, _AMD):
        yield Finding("there is no AMD GPU in this machine")
        return
    if not loaded:
        yield Finding("an AMD GPU is there, its driver is not loaded", "sudo modprobe amdgpu")
        return
    kfd = root / "dev/kfd"
    if not kfd.exists():
        yield Finding(
            "the amdgpu driver is loaded, but /dev/kfd is missing: this kernel computes nothing on it, or this is a "
            "container without the GPU",
            "use a kernel with CONFIG_HSA_AMD; start a container with --device /dev/kfd --device /dev/dri",
        )
    for path in [kfd, *sorted((root / "dev/dri").glob("renderD*"))]:
        if path.exists() and not os.access(path, os.R_OK | os.W_OK):
            yield Finding(
                f"/{path.relative_to(root)} may not be opened by this user",
                "sudo usermod -aG render,video $USER, then log out and in",
            )
            break
    yield from _rocm(root)
    yield from _shared_memory(root, needed_bytes)


def _rocm(root: Path) -> Iterator[Finding]:
    """Look for the run-time library and its version."""
    step = f"install ROCm {'.'.join(map(str, _LEAST_ROCM))} or later"
    places = ["opt/rocm/lib", "opt/rocm/lib64", "usr/lib", "usr/lib64", "usr/lib/x86_64-linux-gnu"]
    if not any(list((root / place).glob("libamdhip64.so*")) for place in places):
        yield Finding("the run-time library of HIP (libamdhip64.so) is not installed", step)
        return
    found = re.match(r"(\d+)\.(\d+)", _text(root / "opt/rocm/.info/version"))
    if found and (int(found[1]), int(found[2])) < _LEAST_ROCM:
        yield Finding(f"ROCm {found[0]} is installed", step)


def _shared_memory(root: Path, needed_bytes: int) -> Iterator[Finding]:
    """Compare what the GPU may use of the main memory with what a model needs."""
    most, total = 0, _meminfo_total(root)
    for device in sorted((root / "sys/class/drm").glob("card*/device")):
        if _text(device / "vendor") == _AMD:
            usable = _number(device / "mem_info_vram_total") + _number(device / "mem_info_gtt_total")
            most = max(most, usable)
    if not 0 < most < needed_bytes or total < needed_bytes:
        return  # unknown, enough, or no setting would help
    pages = -(-needed_bytes // _PAGE)
    yield Finding(
        f"the GPU may use {show_size(most)} of memory, the smallest published model needs {show_size(needed_bytes)}, "
        f"and the machine has {show_size(total)}",
        f"add ttm.pages_limit={pages} ttm.page_pool_size={pages} to the kernel's command line (GRUB_CMDLINE_LINUX in "
        "/etc/default/grub, then sudo update-grub) and start again",
    )


def _has_display(root: Path, vendor: str) -> bool:
    devices = (root / "sys/bus/pci/devices").glob("*")
    return any(_text(d / "vendor") == vendor and _text(d / "class").startswith(("0x03", "0x12")) for d in devices)


def _meminfo_total(root: Path) -> int:
    found = re.search(r"^MemTotal:\s+(\d+) kB$", _text(root / "proc/meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0
