"""A model's expert cache: what it did, what it holds, what it goes by; and the disk beneath it."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from ._native import _model
from .experts import ExpertRecorder, ExpertStats, ReadOptions, stats_of
from .gguf import encode_path
from .model_options import check_range

__all__ = ["ModelExperts", "measure_reads"]


class ModelExperts:
    """The part of `ds4.Model` that is about routed experts which are read when they are needed."""

    @abstractmethod
    def _open(self) -> _model.Model:
        """Return the native model, or raise StateError when it is closed."""

    @property
    def streams(self) -> bool:
        """Whether routed experts are read when they are needed (`expert_cache` of `open`)."""
        return self._open().streams()

    def expert_stats(self) -> ExpertStats:
        """Return the figures of the expert cache.

        Raises
        ------
        StateError
            The model was opened without one.
        """
        return stats_of(self._open())

    def expert_map(self) -> NDArray[np.uint8]:
        """Return the place of every expert: 0 in the file, 1 being read, 2 in memory, 3 in use.

        Returns
        -------
        ndarray of uint8, shape (n_experts,)
            Of all blocks in order, `ExpertBlock.n_experts` each.

        Raises
        ------
        StateError
            The model was opened without an expert cache.
        """
        native = self._open()
        out = np.zeros(native.expert_stats()["n_experts"], np.uint8)
        native.expert_map(out)
        return out

    def expert_heat(self) -> NDArray[np.float32]:
        """Return how often every expert was selected lately, in the order of `expert_map`: what the cache goes by.

        Returns
        -------
        ndarray of float32, shape (n_experts,)
            Selections; one is worth half after some tokens of its layer.

        Raises
        ------
        StateError
            The model was opened without an expert cache.
        """
        native = self._open()
        out = np.zeros(native.expert_stats()["n_experts"], np.float32)
        native.expert_heat(out)
        return out

    def set_expert_heat(self, values: NDArray[np.float32]) -> None:
        """Replace what `expert_heat` returns, by that of an earlier run.

        Raises
        ------
        ValueError
            There is not one value for every expert.
        StateError
            The model was opened without an expert cache.
        """
        self._open().expert_set_heat(np.ascontiguousarray(values, np.float32))

    @contextmanager
    def record_experts(self, most_rows: int = 4_000_000) -> Iterator[ExpertRecorder]:
        """Record what the routers of all sessions select while the context lasts.

        Parameters
        ----------
        most_rows : int
            Rows that are kept, one for every token of a block; later ones are counted only.

        Yields
        ------
        ExpertRecorder
            Its `read` returns what was recorded, also after the end of the context, until another one begins.

        Raises
        ------
        StateError
            The model was opened without an expert cache.
        """
        check_range("most_rows", most_rows, 1 << 32)
        native = self._open()
        native.expert_trace_start(most_rows)
        try:
            yield ExpertRecorder(native)
        finally:
            native.expert_trace_stop()

    def preload_experts(self, n: int | None = None, *, progress: Callable[[int, int], object] | None = None) -> None:
        """Read experts that were selected most often (`expert_heat`) into the cache, until `n` places are filled.

        Parameters
        ----------
        n : int, optional
            All places when not given.
        progress : callable, optional
            Called with (done, total), in experts. What it raises ends the call and is passed on; what was read stays.

        Raises
        ------
        OSError
            An expert cannot be read.
        StateError
            The model was opened without an expert cache.
        """
        native = self._open()
        if n == 0:
            return
        native.expert_preload(0 if n is None else n, progress)


def measure_reads(
    path: str | os.PathLike[str], n_bytes: int, count: int, *, reads: ReadOptions | None = None, seed: int = 0
) -> float:
    """Return what the disk of a file gives: bytes a second of `count` reads of `n_bytes` from random places.

    Raises
    ------
    OSError
        A read failed.
    ValueError
        The file is shorter than one read, or an option is out of range.
    BackendUnavailableError
        io_uring was asked for and the system has none.
    """
    check_range("n_bytes", n_bytes, (1 << 63) - 1)
    check_range("count", count, (1 << 32) - 1)
    return _model.measure_reads(
        encode_path(path), os.fsdecode(path), *(reads or ReadOptions()).numbers(), n_bytes, count, seed
    )
