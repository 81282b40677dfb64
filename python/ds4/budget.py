"""How much memory a model needs, how much this process can get, and how much of it a cache of experts may take."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .gguf import GGUFFile
from .gguf_experts import PARTS, RECORD_ALIGNMENT, WeightView, expert_part, standard_tensors

__all__ = [
    "ExpertPlan",
    "SessionNeed",
    "available_memory",
    "cache_beside",
    "cache_bytes",
    "expert_plan",
    "parse_size",
    "show_size",
    "takes_long_chunks",
]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_NO_LIMIT = 1 << 60
_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")

_PAGE = RECORD_ALIGNMENT  # what direct reads are aligned to
SPARE_SHARE = 16
"""An automatic budget leaves one part in so many of the available memory to everybody else."""


# Sizes


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


# What there is


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


# What streaming takes


@dataclass(frozen=True, slots=True)
class ExpertPlan:
    """What a model takes whose routed experts are streamed.

    Attributes
    ----------
    resident_bytes : int
        All other weights, which are always in memory.
    slot_bytes : int
        Memory of one expert in the cache: room for the largest one.
    n_experts : int
        Routed experts of all blocks.
    read_bytes : int
        The longest single read: an expert whose parts are side by side, else one of its parts.
    """

    resident_bytes: int
    slot_bytes: int
    n_experts: int
    read_bytes: int = 0

    @property
    def all_bytes(self) -> int:
        """A cache that holds every expert; a larger one is of no use."""
        return self.slot_bytes * self.n_experts


def expert_plan(paths: Iterable[str | os.PathLike[str]]) -> ExpertPlan:
    """Return what streaming takes, from the heads of the files of a model.

    Parameters
    ----------
    paths : iterable of path-like
        The file of the model, and that of its MTP block if there is one.

    Raises
    ------
    OSError, ModelFileError
        A file cannot be opened, or is damaged.
    """
    resident = slot = n_experts = longest = 0
    for path in paths:
        with GGUFFile(path) as file:
            blocks: dict[str, dict[str, WeightView]] = defaultdict(dict)
            for name, view in standard_tensors(file).items():
                found = expert_part(name)
                if found is None:
                    resident += view.n_bytes
                else:
                    blocks[found[0]][found[1]] = view
            for parts in blocks.values():
                views = [parts[part] for part in PARTS if part in parts]
                n_experts += views[0].n_matrices
                for expert in range(views[0].n_matrices):
                    lengths = _reads(views, expert)
                    slot, longest = max(slot, sum(lengths)), max(longest, *lengths)
    return ExpertPlan(resident, slot, n_experts, longest)


def _reads(views: list[WeightView], expert: int) -> list[int]:
    """Return the bytes of the reads of an expert: whole pages; close neighbours are read at once."""
    runs: list[list[int]] = []
    for view in views:
        begin = view.holder.offset + view.first + expert * view.stride
        end = begin + view.matrix_bytes
        if runs and 0 <= begin - runs[-1][1] < _PAGE:
            runs[-1][1] = end
        else:
            runs.append([begin, end])
    return [-(-(begin % _PAGE + end - begin) // _PAGE) * _PAGE for begin, end in runs]


def cache_bytes(plan: ExpertPlan, available: int | None, session_bytes: int) -> int:
    """Return how much memory a cache of experts may take: what is left, at most room for all of them.

    Parameters
    ----------
    plan : ExpertPlan
        The model.
    available : int or None
        Bytes that the process can get; None when nobody knows: a quarter of the experts then.
    session_bytes : int
        What its sessions take.

    Raises
    ------
    ValueError
        Not even one expert fits beside the rest; the text names what is needed.
    """
    if available is None:
        return max(plan.slot_bytes, plan.all_bytes // 4)
    room = available - available // SPARE_SHARE - plan.resident_bytes - session_bytes
    if room < plan.slot_bytes:
        # The least that leaves this share free.
        least = plan.resident_bytes + session_bytes + plan.slot_bytes
        raise ValueError(
            f"not enough memory to stream experts: {show_size(plan.resident_bytes)} of other weights, "
            f"{show_size(session_bytes)} for the context and a cache of at least {plan.slot_bytes} bytes make "
            f"{show_size(least)}, of {show_size(available)} that are available {show_size(available // SPARE_SHARE)} "
            "stay free"
        )
    return min(room // plan.slot_bytes, plan.n_experts) * plan.slot_bytes


# Sessions beside the cache


@dataclass(frozen=True, slots=True)
class SessionNeed:
    """What the sessions of a model take; a model that streams computes longer chunks where there is room for that.

    Attributes
    ----------
    short, long : int
        Bytes with chunks as usual, and with long ones.
    extra : int
        The difference for one session.
    """

    short: int
    long: int
    extra: int

    def beside(self, plan: ExpertPlan, cache: int) -> int:
        """Return the bytes beside a cache of that size."""
        return self.long if takes_long_chunks(plan.all_bytes, cache, self.extra) else self.short


def takes_long_chunks(all_bytes: int, cache: int, extra: int) -> bool:
    """Tell whether prompts are computed in long chunks: every chunk reads most of the experts that are not in memory.

    Parameters
    ----------
    all_bytes, cache : int
        A cache for all experts, and the one there is.
    extra : int
        Memory that long chunks take more in a session. It must be small beside the cache, which would be larger.
    """
    return cache < all_bytes and 4 * extra <= cache


def cache_beside(plan: ExpertPlan, available: int | None, need: SessionNeed) -> int:
    """Return what `cache_bytes` does, for sessions whose chunks depend on the cache.

    Raises
    ------
    ValueError
        As `cache_bytes`.
    """
    size = cache_bytes(plan, available, need.short)
    if not takes_long_chunks(plan.all_bytes, size, need.extra):
        return size
    try:
        smaller = cache_bytes(plan, available, need.long)
    except ValueError:
        smaller = 0
    if takes_long_chunks(plan.all_bytes, smaller, need.extra):
        return smaller
    # There is room for one or the other: the cache, so large that chunks stay short.
    return max(1, (4 * need.extra - 1) // plan.slot_bytes) * plan.slot_bytes
