"""What a measurement should say about the machine it was made on: processor, clock, temperature, memory, load."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import ds4

_CPU = Path("/sys/devices/system/cpu")
_ZONES = Path("/sys/class/thermal")


def machine_facts() -> dict[str, Any]:
    """Return plain values: processor, clock, memory, system, load; what the machine does not tell is absent."""
    facts: dict[str, Any] = {"machine": _processor(), "processors": _processors(), "system": platform.platform()}
    memory = _memory()
    if memory is not None:
        facts["memory_bytes"] = memory
    governor = _text(_CPU / "cpu0" / "cpufreq" / "scaling_governor")
    if governor:
        facts["clock_rule"] = governor
    mhz, celsius = clock_mhz(), temperature()
    if mhz is not None:
        facts["clock_mhz"] = round(mhz)
    if celsius is not None:
        facts["temperature_c"] = round(celsius, 1)
    facts["load"] = round(os.getloadavg()[0], 2)
    return facts


def build_facts() -> dict[str, Any]:
    """Return the version, the CPU variant, and the commit when the package runs from a checkout of its sources."""
    facts: dict[str, Any] = {"version": ds4.__version__, "cpu_isa": ds4.cpu_isa()}
    commit = _commit(Path(ds4.__file__).parents[2])
    return facts if commit is None else {**facts, "commit": commit}


def peak_rss() -> int:
    """Return the most memory that this process has had so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def clock_mhz() -> float | None:
    """Return the clock of the processors in MHz, their median; None where the machine does not tell."""
    found = [_number(_text(p)) for p in sorted(_CPU.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))]
    khz = [f for f in found if f]
    if khz:
        return statistics.median(khz) / 1e3
    lines = [x for x in _text(Path("/proc/cpuinfo")).splitlines() if x.startswith("cpu MHz")]
    mhz = [m for m in (_number(x.partition(":")[2]) for x in lines) if m]
    return statistics.median(mhz) if mhz else None


def temperature() -> float | None:
    """Return the highest temperature that the machine tells, in degrees Celsius; None where it tells none."""
    found = [_number(_text(p)) for p in sorted(_ZONES.glob("thermal_zone*/temp"))]
    degrees = [t / 1e3 for t in found if t is not None and 0 < t < 200_000]
    return max(degrees, default=None)


def _processor() -> str:
    for line in _text(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def _commit(root: Path) -> str | None:
    """Return the commit of a checkout, with "-dirty" when files were changed."""
    if not ((root / ".git").exists() and (root / "src" / "ds4core").is_dir()):
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
