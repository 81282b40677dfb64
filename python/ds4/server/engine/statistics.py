"""Counters and levels of the engine."""

from __future__ import annotations

from collections import Counter
from threading import Lock
from typing import Any


class Statistics:
    """What was done since the start; safe to use from several threads.

    `snapshot` returns numbers by name, and dictionaries of numbers by label:

    - requests_total {dialect}, finished_total {finish}, refused_total {code}: choices and requests
    - prompt_tokens_total, cached_tokens_total, computed_tokens_total, completion_tokens_total, reasoning_tokens_total
    - prefixes_total {source}: where prompts went on from: live, rewind, fork, store, cold
    - store_total {outcome}: loaded, damaged, saved_cold, saved_continued, saved_evict, saved_shutdown, not_saved
    - queue_seconds_total, prefill_seconds_total, decode_seconds_total
    - drafted_tokens_total, accepted_drafts_total: tokens that were guessed, and how many of them came true
    - replayed_turns_total, unknown_turns_total: turns with calls whose exact text was known or not
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._plain: Counter[str] = Counter()
        self._labelled: dict[str, Counter[str]] = {}

    def add(self, name: str, amount: float = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._plain[name] += amount  # type: ignore[assignment]

    def count(self, name: str, label: str, amount: int = 1) -> None:
        """Add to a counter that has a label."""
        with self._lock:
            self._labelled.setdefault(name, Counter())[label] += amount

    def snapshot(self) -> dict[str, Any]:
        """Return all numbers, a copy."""
        with self._lock:
            return {**self._plain, **{name: dict(counter) for name, counter in self._labelled.items()}}
