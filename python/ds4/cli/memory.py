"""Whether a model and its sessions fit into the memory that this process can get.

A model that does not fit is refused before its weights are read: reading weights that do not fit starves the whole
machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ds4 import Model
from ds4.budget import (
    SPARE_SHARE,
    ExpertPlan,
    SessionNeed,
    available_memory,
    cache_beside,
    cache_bytes,
    expert_plan,
    parse_size,
    show_size,
)

__all__ = [
    "MemoryRefusedError",
    "available_beside",
    "available_memory",
    "choose_cache",
    "divide_memory",
    "parse_size",
    "require_memory",
    "show_size",
]


class MemoryRefusedError(ValueError):
    """The model with its session does not fit into memory."""


def available_beside(models: Sequence[Model], simulated: int | None) -> int | None:
    """Return the memory that open models and their sessions may take together; None when nobody knows.

    What a model that streams has taken already is part of it.
    """
    if simulated is not None:
        return simulated
    found = available_memory()
    if found is None:
        return None
    for model in models:
        if model.streams:
            stats = model.expert_stats()
            found += stats.resident_bytes + stats.slot_bytes * stats.n_slots
    return found


def require_memory(
    weights_bytes: int,
    session_bytes: int,
    available: int | None,
    *,
    n_ctx: int,
    force: bool,
    paths: Sequence[Path] = (),
) -> None:
    """Refuse a model that does not fit.

    Parameters
    ----------
    paths : sequence of Path
        The files of the model, if its experts could be streamed and are not.

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
    help_ = f"{advice} fit, --force-memory runs anyway (very slowly, from the disk)"
    if paths:
        plan = expert_plan(paths)
        try:
            room = cache_bytes(plan, available, session_bytes)
        except ValueError:
            least = plan.resident_bytes + session_bytes + plan.slot_bytes
            help_ = f"streaming its experts (--expert-cache) would take at least {show_size(least)}; {help_}"
        else:
            help_ = (
                f"--expert-cache auto runs it with {show_size(room)} for routed experts, the others are read from the "
                f"disk when they are needed; {help_}"
            )
    raise MemoryRefusedError(
        f"not enough memory: {show_size(weights_bytes)} of weights and {show_size(session_bytes)} for a context of "
        f"{n_ctx} make {show_size(needed)}, but {show_size(available)} are available; {help_}"
    )


def choose_cache(
    plan: ExpertPlan,
    path: Path,
    asked: int | str,
    available: int | None,
    need: SessionNeed,
    *,
    n_ctx: int,
    force: bool,
) -> tuple[int, list[str]]:
    """Return the bytes of an expert cache, and lines about what it and the rest take.

    Parameters
    ----------
    plan : ExpertPlan
        The model.
    path : Path
        Its file, for the text.
    asked : int or "auto"
        Bytes, or as much as is left.
    available : int or None
        Bytes that the process can get, if known.
    need : SessionNeed
        What sessions take.
    n_ctx : int
        Their context, for the text.
    force : bool
        Take what was asked for though it does not fit.

    Raises
    ------
    MemoryRefusedError
        The smallest possible cache does not fit, or what was asked for is less than that.
    """
    if not plan.n_experts:
        raise MemoryRefusedError(f"{path}: there are no routed experts to stream")
    smallest = plan.slot_bytes
    if asked != "auto" and int(asked) < smallest:
        raise MemoryRefusedError(
            f"--expert-cache is {show_size(int(asked))}, the smallest possible one is {smallest} bytes "
            f"({show_size(smallest)}): one expert"
        )
    lines = []
    if asked != "auto" and force:
        size = min(int(asked), plan.all_bytes)
    else:
        try:
            most = cache_beside(plan, available, need)
        except ValueError as error:
            raise MemoryRefusedError(f"{error}; a smaller context (-c) or model file would fit") from None
        size = most if asked == "auto" else min(int(asked), plan.all_bytes)
        if size > most and available is not None:
            lines.append(
                f"warning: an expert cache of {show_size(size)} does not fit into the {show_size(available)} that are "
                f"available; {show_size(most)} are used (--force-memory insists)"
            )
            size = most
    slots = size // smallest
    session_bytes = need.beside(plan, slots * smallest)
    lines.append(
        f"streaming: {show_size(plan.resident_bytes)} of weights in memory, {show_size(slots * smallest)} for "
        f"{slots} of {plan.n_experts} experts ({100 * slots / plan.n_experts:.0f} %, {show_size(smallest)} each), "
        f"{show_size(session_bytes)} for a context of {n_ctx}: "
        f"{show_size(plan.resident_bytes + slots * smallest + session_bytes)}"
        + (f" of {show_size(available)}" if available is not None else "")
    )
    return size, lines


def divide_memory(available: int, needs: tuple[int, int]) -> tuple[int, int]:
    """Divide memory between two models: half of it each, and what one does not need is the other's.

    Parameters
    ----------
    available : int
        Bytes for both.
    needs : tuple of int
        What each takes at most.
    """
    # An automatic budget leaves a part of its memory free.
    first, second = (n + n // (SPARE_SHARE - 1) + 1 for n in needs)
    half = available // 2
    if first < half:
        return first, available - first
    if second < half:
        return available - second, second
    return half, available - half
