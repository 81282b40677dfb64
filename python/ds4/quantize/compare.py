"""How far quantized tensors are from their source."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4 import gguf
from ds4.errors import listed_faults
from ds4.progress import Progress

from .encode import Chunk, chunks, encode
from .importance import Importance
from .plan import Plan, PlanError, TensorPlan
from .prefetch import ahead
from .sources import GGUFSource, SourceTensor


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a tensor: matrix (expert), row and, for a single value, column."""

    matrix: int
    row: int
    column: int | None = None


@dataclass(frozen=True, slots=True)
class TensorError:
    """The difference between a tensor and its source.

    Attributes
    ----------
    name : str
        The tensor.
    source_type, type : str
        How source and tensor are stored.
    n_values : int
        Values compared.
    rmse : float
        Root of the mean squared difference.
    relative_rmse : float
        The same, divided by the root mean square of the source.
    weighted_rmse : float or None
        Root of the mean of squared differences weighted by importance; None without measured importance.
    relative_weighted_rmse : float or None
        The same, divided by the source's root of weighted mean squares: about the relative error of the product with
        real inputs.
    max_error : float
        Largest absolute difference, at `max_place`.
    worst_row_rmse : float
        The `rmse` of the worst row, at `worst_row`.
    """

    name: str
    source_type: str
    type: str
    n_values: int
    rmse: float
    relative_rmse: float
    weighted_rmse: float | None
    relative_weighted_rmse: float | None
    max_error: float
    max_place: Place
    worst_row_rmse: float
    worst_row: Place


@dataclass(slots=True)
class _Sums:
    """What the figures of one tensor are computed from, in float64."""

    n: int = 0
    error: float = 0.0
    power: float = 0.0
    weight: float = 0.0
    weighted_error: float = 0.0
    weighted_power: float = 0.0
    max_error: float = -1.0
    max_place: Place = field(default_factory=lambda: Place(0, 0, 0))
    worst: float = -1.0
    worst_row: Place = field(default_factory=lambda: Place(0, 0))

    def add(self, chunk: Chunk, decoded: NDArray[np.float32], weights: NDArray[np.float32] | None) -> None:
        source = chunk.values.astype(np.float64)
        difference = decoded.astype(np.float64) - source  # both are finite: see `_pairs`
        squares = difference * difference
        rows = squares.mean(axis=1)
        self.n += source.size
        self.error += float(squares.sum())
        self.power += float((source * source).sum())
        if weights is not None:
            w = weights.astype(np.float64)
            self.weight += float(w.sum()) * len(source)
            self.weighted_error += float((squares @ w).sum())
            self.weighted_power += float(((source * source) @ w).sum())
        worst = int(rows.argmax())
        if rows[worst] > self.worst:
            self.worst, self.worst_row = float(rows[worst]), Place(chunk.matrix, chunk.first + worst)
        row, column = np.unravel_index(int(np.abs(difference).argmax()), difference.shape)
        largest = float(abs(difference[row, column]))
        if largest > self.max_error:
            self.max_error = largest
            self.max_place = Place(chunk.matrix, chunk.first + int(row), int(column))

    def result(self, name: str, source_type: str, kind: str) -> TensorError:
        return TensorError(
            name=name,
            source_type=source_type,
            type=kind,
            n_values=self.n,
            rmse=math.sqrt(self.error / self.n),
            relative_rmse=_ratio(self.error, self.power),
            weighted_rmse=math.sqrt(self.weighted_error / self.weight) if self.weight else None,
            relative_weighted_rmse=_ratio(self.weighted_error, self.weighted_power) if self.weight else None,
            max_error=self.max_error,
            max_place=self.max_place,
            worst_row_rmse=math.sqrt(self.worst),
            worst_row=self.worst_row,
        )


def compare(
    plan: Plan,
    names: Sequence[str],
    *,
    file: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> list[TensorError]:
    """Measure how far tensors are from the source of a plan.

    Parameters
    ----------
    plan : Plan
        The source, and the types and importance to try.
    names : sequence of str
        Names of tensors, or beginnings of names. Tables of expert ids are left out.
    file : path-like or sequence of path-like, optional
        A GGUF file (or several) whose tensors are compared; without it they are encoded as planned, and nothing is
        written.
    threads : int, optional
        Threads that encode; one per core unless given.
    progress : Progress, optional
        Called with values done, values in all, and the tensor.

    Raises
    ------
    PlanError
        A name fits no tensor, or the file lacks one or holds it in another shape.
    OSError, ModelFileError, UnsupportedModelError, CheckpointError
        A file cannot be read or is damaged, or a value is not finite; the message says where.
    """
    chosen = compared_tensors(plan, names)
    n_threads = threads or len(os.sched_getaffinity(0))
    total = sum(math.prod(t.source.ne) for t in chosen)
    done = 0
    out = []
    files = [] if file is None else [file] if isinstance(file, str | os.PathLike) else list(file)
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(contextlib.closing(GGUFSource(f))) for f in files]
        stored = _counterparts(chosen, others) if others else None
        for t in chosen:
            sums = _Sums()
            counterpart = None if stored is None else stored[t.name]
            with contextlib.closing(_pairs(t, counterpart, plan.importance, n_threads)) as pairs:
                for chunk, decoded in pairs:
                    weights = plan.importance.vector(t.name, t.source.ne[0], t.source.n_matrices, chunk.matrix)
                    sums.add(chunk, decoded, weights)
                    done += chunk.values.size
                    if progress is not None:
                        progress(done, total, t.name)
            out.append(sums.result(t.name, t.source.stored, t.type if counterpart is None else counterpart.stored))
    return out


def compared_tensors(plan: Plan, names: Sequence[str]) -> list[TensorPlan]:
    """Return the tensors that names and beginnings of names stand for.

    Raises
    ------
    PlanError
        A name fits no tensor, or there are only tables of expert ids.
    """
    for name in names:
        if not any(t.name.startswith(name) for t in plan.tensors):
            raise PlanError(f"no tensor of {plan.source.path} has a name that begins with {name!r}")
    out = [t for t in plan.tensors if t.type != "I32" and any(t.name.startswith(name) for name in names)]
    if not out:
        raise PlanError("only tables of expert ids are named; they are copied, there is nothing to compare")
    return out


def _counterparts(chosen: Sequence[TensorPlan], others: Sequence[GGUFSource]) -> dict[str, SourceTensor]:
    found = {t.name: t for other in others for t in other.tensors}
    faults = []
    for t in chosen:
        if t.name not in found:
            faults.append(f"{t.name} is missing")
        elif found[t.name].ne != t.source.ne:
            faults.append(f"{t.name} has the dimensions {list(found[t.name].ne)}, the source {list(t.source.ne)}")
    if faults:
        where = " and ".join(str(other.path) for other in others)
        raise PlanError(f"{where} does not hold the tensors of the source:{listed_faults(faults, 10)}")
    return {t.name: found[t.name] for t in chosen}


def _pairs(
    plan: TensorPlan, stored: SourceTensor | None, importance: Importance, threads: int
) -> Generator[tuple[Chunk, NDArray[Any]], None, None]:
    """Yield rows of the source, and what the tensor has in their place."""
    used = importance if stored is None and plan.by_importance else Importance()
    kind = plan.type if stored is None and plan.how == "encode" else "F32"
    for chunk in ahead(chunks(plan.source, kind, used)):
        _check_finite(plan.source, chunk, chunk.values)
        if stored is not None:
            decoded = stored.rows(chunk.matrix, chunk.first, len(chunk.values))
            _check_finite(stored, chunk, decoded)
            yield chunk, decoded
        elif plan.how == "copy":
            yield chunk, chunk.values
        else:
            raw = encode(plan.source, plan.type, chunk, threads=threads)
            yield chunk, gguf.dequantize(plan.type, raw, chunk.values.size).reshape(chunk.values.shape)


def _check_finite(tensor: SourceTensor, chunk: Chunk, values: NDArray[Any]) -> None:
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0]
        problem = f"{values[row, column]} cannot be compared"
        raise tensor.fault(chunk.matrix, f"row {chunk.first + row}, column {column}: {problem}")


def _ratio(error: float, power: float) -> float:
    """Root of error / power; 0 for no error, infinity for an error about nothing."""
    if error == 0:
        return 0.0
    return math.sqrt(error / power) if power else math.inf
