"""Where a session spends its time: every part of every layer, in prefill and in decode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ._native import _session
from .errors import StateError

__all__ = ["PhaseProfile", "Profile"]

PhaseName = Literal["prefill", "decode"]
_PHASES: tuple[PhaseName, ...] = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class PhaseProfile:
    """Times of one phase. One part runs at any moment, so `seconds.sum()` is the time that the phase took.

    Attributes
    ----------
    tokens : int
        Tokens that were computed, in chunks that ended well.
    parts : tuple of str
        Names of the columns: "other" (copies of state, logits to the host, callbacks), "embedding", "hyper"
        (hyper-connections), "projections" (matrices of attention), "attention" (scores and sums), "compressor",
        "indexer", "router", "experts_gate_up", "experts_down", "shared" (the shared expert), "rows" (norms, rotation,
        rounding and storing of rows), "head", "expert_wait" (for reads of streamed experts).
    seconds : ndarray of float64, shape (n_layer + 2, n_parts)
        One row a layer, then the MTP block, then what belongs to no layer.
    entries : ndarray of int64, shape (n_layer + 2, n_parts)
        How often each part began.
    """

    tokens: int
    parts: tuple[str, ...]
    seconds: NDArray[np.float64]
    entries: NDArray[np.int64]

    @property
    def total(self) -> float:
        """Time of the phase, in seconds."""
        return float(self.seconds.sum())

    def plus(self, other: PhaseProfile) -> PhaseProfile:
        """Return both phases as one."""
        return PhaseProfile(
            self.tokens + other.tokens, self.parts, self.seconds + other.seconds, self.entries + other.entries
        )

    def by_part(self) -> dict[str, float]:
        """Return the seconds of each part, all layers together."""
        return dict(zip(self.parts, map(float, self.seconds.sum(axis=0)), strict=True))

    def by_layer(self) -> NDArray[np.float64]:
        """Return the seconds of each row of `seconds`, shape (n_layer + 2,)."""
        return np.asarray(self.seconds.sum(axis=1))

    def as_json(self) -> dict[str, Any]:
        """Return plain values; `layers` has one list of seconds a row of `seconds`."""
        return {
            "tokens": self.tokens,
            "seconds": self.total,
            "parts": self.by_part(),
            "layers": [[round(float(x), 9) for x in row] for row in self.seconds],
            "entries": [int(x) for x in self.entries.sum(axis=0)],
        }


class Profile:
    """Times in a session, from `Session.profile` to the end of its with block; they stay readable after it.

    Measured are `sync`, `eval` and what builds on them. A chunk of one token counts as decode, a longer one as prefill.
    Drafts of `mtp_logits` are not measured.
    """

    def __init__(self, native: Callable[[], _session.Session], closed: Callable[[], bool], n_layer: int) -> None:
        self._native, self._closed, self._n_layer = native, closed, n_layer
        self._parts = tuple(_session.part_names())
        self._kept: dict[PhaseName, PhaseProfile] | None = None
        native().profile_start()

    @property
    def running(self) -> bool:
        """Whether times are still taken."""
        return self._kept is None

    def phase(self, name: PhaseName) -> PhaseProfile:
        """Return the times of "prefill" or "decode" so far, a copy.

        Raises
        ------
        ValueError
            There is no such phase.
        StateError
            The session was closed before the with block ended.
        SessionBusyError
            A call is running in the session.
        """
        if name not in _PHASES:
            raise ValueError(f"phase must be 'prefill' or 'decode', not {name!r}")
        if self._kept is not None:
            if name not in self._kept:
                raise StateError("the session was closed before its times were read")
            return self._kept[name]
        n_rows = self._n_layer + 2
        ns = np.empty(n_rows * len(self._parts), dtype=np.uint64)
        entries = np.empty_like(ns)
        tokens = self._native().profile_into(_PHASES.index(name), ns, entries)
        seconds = ns.reshape(n_rows, -1).astype(np.float64) * 1e-9
        return PhaseProfile(tokens, self._parts, seconds, entries.reshape(n_rows, -1).astype(np.int64))

    @property
    def prefill(self) -> PhaseProfile:
        """Times of chunks of several tokens."""
        return self.phase("prefill")

    @property
    def decode(self) -> PhaseProfile:
        """Times of single tokens."""
        return self.phase("decode")

    def stop(self) -> None:
        """Take no more times; those taken stay readable. Stopping twice is fine."""
        if self._kept is not None:
            return
        if self._closed():
            self._kept = {}
            return
        kept = {name: self.phase(name) for name in _PHASES}
        self._native().profile_stop()
        self._kept = kept

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
