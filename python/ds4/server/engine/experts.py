"""Numbers of the expert cache of a model whose experts are streamed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4 import ExpertStats, Model

_COUNTERS = {
    "expert_asked_total": "asked",
    "expert_hits_total": "hits",
    "expert_late_total": "late",
    "expert_misses_total": "misses",
    "expert_prefetched_total": "prefetched",
    "expert_guessed_total": "guessed",
    "expert_guessed_right_total": "guessed_right",
    "expert_evicted_total": "evicted",
    "expert_read_bytes_total": "read_bytes",
}


def expert_numbers(model: Model) -> dict[str, Any]:
    """Return counters and levels of the cache by name; nothing for a model that does not stream.

    Those of blocks are dictionaries by the number of the block; the MTP block is the last. Bytes read over
    `expert_reading_seconds_total`, the time in which there were reads, is the speed of the disk.
    """
    if not model.streams:
        return {}
    stats = model.expert_stats()
    cached = [int(np.count_nonzero(part > 1)) for part in _maps(model, stats)]
    blocks = list(enumerate(stats.blocks))
    out: dict[str, Any] = {
        name: {str(i): getattr(block, field) for i, block in blocks} for name, field in _COUNTERS.items()
    }
    return out | {
        "expert_wait_seconds_total": {str(i): block.wait_ns * 1e-9 for i, block in blocks},
        "experts_cached": {str(i): n for i, n in enumerate(cached)},
        "expert_slots": stats.n_slots,
        "expert_slot_bytes": stats.slot_bytes,
        "expert_reading_seconds_total": stats.busy_ns * 1e-9,
        "expert_file_bytes_total": stats.read_bytes,
        "expert_failed_reads_total": stats.failed_reads,
    }


def expert_map(model: Model) -> dict[str, Any] | None:
    """Return where every expert is; None for a model that does not stream.

    Returns
    -------
    dict
        "slots" and "slot_bytes" of the cache; "blocks": of every block "experts", "cached" (how many of them are in
        memory) and "map", a digit for each expert as `Model.expert_map` has it.
    """
    if not model.streams:
        return None
    stats = model.expert_stats()
    blocks = [
        {
            "block": i,
            "experts": len(part),
            "cached": int(np.count_nonzero(part > 1)),
            "map": (part + ord("0")).tobytes().decode(),
        }
        for i, part in enumerate(_maps(model, stats))
    ]
    return {"slots": stats.n_slots, "slot_bytes": stats.slot_bytes, "blocks": blocks}


def _maps(model: Model, stats: ExpertStats) -> list[NDArray[np.uint8]]:
    """Return the map of every block."""
    return np.split(model.expert_map(), np.cumsum([block.n_experts for block in stats.blocks])[:-1])
