"""Importance statistics that a session gathers: what `ds4.imatrix` makes importance files of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from .errors import StateError

if TYPE_CHECKING:
    from ._native import _session

__all__ = ["Importance", "LayerImportance"]


@dataclass(frozen=True, slots=True)
class LayerImportance:
    """Statistics of the routed experts of one layer.

    Attributes
    ----------
    sum_in : ndarray of float64, shape (n_expert, n_embd)
        Sums of squares of each expert's input, the normalised input of the layer: for gate and up.
    sum_mid : ndarray of float64, shape (n_expert, n_ff)
        Sums of squares of the input of each expert's down projection: the SwiGLU row times the routing weight.
    counts : ndarray of int64, shape (n_expert,)
        Number of tokens that each expert was chosen for.
    """

    sum_in: NDArray[np.float64]
    sum_mid: NDArray[np.float64]
    counts: NDArray[np.int64]


class Importance:
    """Statistics in a session, from `Session.collect_importance` to the end of its with block.

    Counted is every token that `sync` and `eval` compute, in token order: chunk size and threads do not change a bit.
    Positions that `sync` keeps add nothing, and neither do drafts and snapshots. A call that was stopped has counted
    its last chunk in the layers that it reached.

    Attributes
    ----------
    n_layer : int
        Layers of the model.
    mtp : bool
        Whether the MTP block is gathered too, as layer `n_layer`.
    """

    def __init__(
        self, native: Callable[[], _session.Session], closed: Callable[[], bool], shape: tuple[int, int, int, int],
        mtp: bool,
    ) -> None:  # fmt: skip
        self._native, self._closed = native, closed
        self.n_layer, self._n_expert, self._n_embd, self._n_ff = shape
        self.mtp = mtp
        self._running = True
        native().importance_start()

    def layer(self, index: int) -> LayerImportance:
        """Return what was gathered so far, a copy.

        Parameters
        ----------
        index : int
            0..n_layer - 1; n_layer is the MTP block of a session made with `mtp=True`.

        Raises
        ------
        IndexError
            There is no such layer.
        StateError
            The with block has ended.
        SessionBusyError, ClosedError
            A call is running in the session; the session is closed.
        """
        if not self._running:
            raise StateError("the collection has ended: read the statistics inside its with block")
        n = self.n_layer + self.mtp
        if not 0 <= index < n:
            raise IndexError(f"layer {index} is not in 0..{n - 1}")
        sum_in = np.empty(self._n_expert * self._n_embd, dtype=np.float64)
        sum_mid = np.empty(self._n_expert * self._n_ff, dtype=np.float64)
        counts = np.empty(self._n_expert, dtype=np.uint64)
        self._native().importance_into(index, sum_in, sum_mid, counts)
        return LayerImportance(
            sum_in.reshape(self._n_expert, -1), sum_mid.reshape(self._n_expert, -1), counts.astype(np.int64)
        )

    @property
    def running(self) -> bool:
        """Whether statistics are still gathered."""
        return self._running

    def stop(self) -> None:
        """Gather no more, and free the statistics. Stopping twice is fine."""
        if self._running and not self._closed():
            self._native().importance_stop()
        self._running = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
