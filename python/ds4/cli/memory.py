"""How much memory a model and its session need, and how much this process can get.

A model that does not fit is refused before it is mapped: reading weights that do not fit starves the whole machine.
"""

from __future__ import annotations

import re
from pathlib import Path

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_NO_LIMIT = 1 << 60
_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


class MemoryRefusedError(ValueError):
    """The model with its session does not fit into memory."""


def parse_size(text: str) -> int:
    """Read a size: bytes, or a number with k, M, G, T (powers of 1000) or Ki, Mi, Gi, Ti, an optional B after it.

    Raises
    ------
    ValueError
        The text is no size.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", text, re.IGNORECASE)
    unit = found[2].lower() if found else "?"
    if not found or unit not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write bytes or a form like 24GiB")
    return int(float(found[1]) * _UNITS[unit])


def show_size(n_bytes: int) -> str:
    """Return a size as text, with the unit that fits: "81.2 GiB"."""
    value = float(n_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{n_bytes} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def available_memory(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int | None:
    """Return the bytes that this process can get: free or reclaimable memory, within the limit of its cgroups.

    None when the system does not tell.
    """
    found = []
    try:
        match = re.search(r"^MemAvailable:\s+(\d+) kB$", (proc / "meminfo").read_text(), re.MULTILINE)
        if match:
            found.append(int(match[1]) * 1024)
    except OSError:
        pass
    found += _cgroup_rooms(proc, cgroup)
    return min(found) if found else None


def _cgroup_rooms(proc: Path, cgroup: Path) -> list[int]:
    """Return what is left of every memory limit above this process (cgroup versions 2 and 1)."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    rooms = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit_name, used_name, cache_key = cgroup, "memory.max", "memory.current", "file"
        elif "memory" in controllers.split(","):
            root, limit_name, used_name = cgroup / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache_key = "total_cache"
        else:
            continue
        here = root / path.lstrip("/")
        for folder in [here, *here.parents]:
            limit = _number(folder / limit_name)
            used = _number(folder / used_name)
            if limit is not None and used is not None and limit < _NO_LIMIT:
                # Cached file pages can be given back, so they count as free.
                rooms.append(max(0, limit - used + _stat(folder / "memory.stat", cache_key)))
            if folder == root:
                break
    return rooms


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _stat(path: Path, key: str) -> int:
    try:
        match = re.search(rf"^{key} (\d+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) if match else 0


def require_memory(weights_bytes: int, session_bytes: int, available: int | None, *, n_ctx: int, force: bool) -> None:
    """Refuse a model that does not fit.

    Raises
    ------
    MemoryRefusedError
        More is needed than available and `force` is not set; the text has the estimate and what would help.
    """
    needed = weights_bytes + session_bytes
    if force or available is None or needed <= available:
        return
    advice = "a smaller model file would"
    if weights_bytes < available:
        advice = "a smaller context (-c) or model file would"
    raise MemoryRefusedError(
        f"not enough memory: {show_size(weights_bytes)} of weights and {show_size(session_bytes)} for a context of "
        f"{n_ctx} make {show_size(needed)}, but {show_size(available)} are available; {advice} fit, "
        "--force-memory runs anyway (very slowly, from the disk)"
    )
