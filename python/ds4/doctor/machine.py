"""Processor, memory with its limits, and what ds4 keeps on the disk."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ds4
from ds4.budget import available_memory

VARIANTS = ("base", "avx2", "avx512", "avx512vnni", "dotprod", "i8mm")
_MOST_FILES = 100_000


def machine_facts(proc: Path = Path("/proc")) -> dict[str, Any]:
    """Return processor, system, versions, and the instruction sets that the kernels can use here."""
    return {
        "processor": _processor(proc),
        "machine": platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "version": ds4.__version__,
        "core_version": ds4.native_version(),
        "cpu_isa": ds4.cpu_isa(),
        "cpu_isas": _variants(),
        "processors": os.cpu_count() or 1,
        "usable_processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    }


def memory_facts(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> dict[str, int | None]:
    """Return total and available memory and the least limit of the control groups, in bytes; None if unknown."""
    try:
        total: int | None = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        total = None
    return {
        "total_bytes": total,
        "available_bytes": available_memory(proc, cgroup),
        "limit_bytes": _least_limit(proc, cgroup),
    }


def sizes_of(places: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Return what files and folders take on the disk; those that do not exist are left out."""
    out = {}
    for name, path in places.items():
        if path.exists():
            out[name] = {"path": str(path), "bytes": _size(path)}
    return out


def _variants() -> list[str]:
    found, before = [], ds4.cpu_isa()
    for name in VARIANTS:
        try:
            ds4.set_cpu_isa(name)
        except (ds4.BackendUnavailableError, ValueError):
            continue
        found.append(name)
    ds4.set_cpu_isa(before)
    return found


def _processor(proc: Path) -> str:
    try:
        text = (proc / "cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()


def _least_limit(proc: Path, cgroup: Path) -> int | None:
    """Return the least memory limit of the control groups of this process (versions 2 and 1)."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return None
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = cgroup, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroup / "memory", "memory.limit_in_bytes"
        else:
            continue
        here = root / path.lstrip("/")
        for folder in [here, *here.parents]:
            try:
                limit = int((folder / name).read_text())
                if limit < 1 << 60:
                    found.append(limit)
            except (OSError, ValueError):
                pass
            if folder == root:
                break
    return min(found, default=None)


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_blocks * 512
    total = n = 0
    for folder, _, names in os.walk(path):
        for name in names:
            n += 1
            if n > _MOST_FILES:
                return total
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except OSError:
                continue
    return total
