"""Numbers of the expert cache of a model whose experts are streamed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ds4 import Model

_COUNTERS = {
    "expert_asked_total": "asked",
    "expert_hits_total": "hits",
    "expert_late_total": "late",
    "expert_misses_total": "misses",
    "expert_prefetched_total": "prefetched",
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
    bounds = np.cumsum([block.n_experts for block in stats.blocks])[:-1]
    cached = [int(np.count_nonzero(part > 1)) for part in np.split(model.expert_map(), bounds)]
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
