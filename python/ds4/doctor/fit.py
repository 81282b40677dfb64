"""Whether a model goes into the memory: as a whole, with its experts streamed, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ds4.budget import ExpertPlan, cache_bytes


@dataclass(frozen=True, slots=True)
class Fit:
    """How a model runs in some memory.

    Attributes
    ----------
    how : {"resident", "streamed", "no", "unknown"}
        As a whole, with --expert-cache, or not; "unknown" when nobody knows how much memory there is.
    weights_bytes, session_bytes : int
        What it takes.
    cache_bytes : int
        Memory for streamed experts.
    share : float
        Share of the experts that are in memory, 0 to 1: about the least share of hits, as experts are not used evenly.
    least_bytes : int
        Memory with which it just runs.
    """

    how: Literal["resident", "streamed", "no", "unknown"]
    weights_bytes: int
    session_bytes: int
    cache_bytes: int
    share: float
    least_bytes: int


def fit_of(weights_bytes: int, session_bytes: int, experts: ExpertPlan | None, available: int | None) -> Fit:
    """Return how a model runs in the memory that is available, by the arithmetic of the program."""
    least = least_bytes(weights_bytes, session_bytes, experts)
    if available is None:
        return Fit("unknown", weights_bytes, session_bytes, 0, 0.0, least)
    if weights_bytes + session_bytes <= available:
        return Fit("resident", weights_bytes, session_bytes, 0, 1.0, least)
    if experts is not None and experts.n_experts:
        try:
            room = cache_bytes(experts, available, session_bytes)
        except ValueError:
            pass
        else:
            return Fit("streamed", weights_bytes, session_bytes, room, room / experts.all_bytes, least)
    return Fit("no", weights_bytes, session_bytes, 0, 0.0, least)


def least_bytes(weights_bytes: int, session_bytes: int, experts: ExpertPlan | None) -> int:
    """Return the memory with which a model just runs, its experts streamed if it has some."""
    if experts is None or not experts.n_experts:
        return weights_bytes + session_bytes
    needed = experts.resident_bytes + session_bytes + experts.slot_bytes
    return -(-needed * 16 // 15)  # an automatic budget leaves a sixteenth to everybody else
