"""Which importance each matrix of a plan is quantized with, known and told before anything is written.

Q2_K, Q4_K and IQ2_XXS search for the scales of least weighted error. The weights of a matrix are the mean squares of
its inputs, from an importance file. Where there are none (no file, no entry, an expert that no token reached) Q2_K
and Q4_K are searched without weights, and IQ2_XXS, which needs some, takes the sums of squares of the matrix's own
columns.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ds4 import gguf
from ds4.gguf_writer import KV
from ds4.imatrix import Imatrix, ImatrixError

from .layers import format_layers
from .recipes import is_mtp

WEIGHTED_TYPES = ("Q2_K", "Q4_K", "IQ2_XXS")
"""Types that importance makes better."""
NEEDS_WEIGHTS = ("IQ2_XXS",)
"""Types that cannot be made without."""

MAX_WEIGHT = 2.0**64
"""Importance that the encoders take, at most."""

_HASH_PIECE = 1 << 22


@dataclass(frozen=True, slots=True)
class WantedTensor:
    """A tensor that importance would make better: name, type, row length, number of matrices."""

    name: str
    type: str
    n_columns: int
    n_matrices: int


@dataclass(frozen=True, slots=True)
class Importance:
    """The importance of a plan.

    Attributes
    ----------
    imatrix : Imatrix or None
        The file, if there is one.
    digest : str
        SHA-256 of the file; "" without one.
    missing, unobserved : mapping of str to tuple of int
        Matrices (experts) without an entry, and with one that no token reached, by tensor.
    weighted : frozenset of str
        Tensors of which at least one matrix has weights from the file.
    """

    imatrix: Imatrix | None = None
    digest: str = ""
    missing: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    unobserved: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    weighted: frozenset[str] = frozenset()

    def vector(self, name: str, n_columns: int, n_matrices: int, matrix: int) -> NDArray[np.float32] | None:
        """Return the measured importance of one matrix, or None where there is none."""
        if self.imatrix is None or matrix in self.missing.get(name, ()) or matrix in self.unobserved.get(name, ()):
            return None
        return self.imatrix.lookup(name, n_columns, n_matrices, matrix)

    def records(self, names: Iterable[str]) -> list[KV]:
        """Return the records of a file with these tensors that say where its importance came from."""
        if self.imatrix is None or self.weighted.isdisjoint(names):
            return []
        return [
            KV("quantize.imatrix.file", "string", self.imatrix.source),
            KV("quantize.imatrix.dataset", "string", self.imatrix.dataset),
            KV("quantize.imatrix.entries_count", "u64", self.imatrix.n_entries),
            KV("quantize.imatrix.chunks_count", "u64", self.imatrix.n_chunks),
        ]


def read_imatrix(source: str | os.PathLike[str] | Imatrix | None) -> tuple[Imatrix | None, str]:
    """Return importance data and the digest of its content. How a .dat is divided is seen when a tensor looks it up."""
    if source is None:
        return None, ""
    if isinstance(source, Imatrix):
        return source, _content_digest(source)
    data = Imatrix.read(source)
    digest = hashlib.sha256()
    with open(source, "rb") as f:
        while piece := f.read(_HASH_PIECE):
            digest.update(piece)
    return data, digest.hexdigest()


def plan_importance(
    wanted: Iterable[WantedTensor], imatrix: Imatrix | None, digest: str, *, n_layer: int, strict: bool
) -> tuple[Importance, list[str]]:
    """Compare a plan with importance data.

    Returns
    -------
    (Importance, list of str)
        And the notes for the user: every tensor and expert that falls back, and to what.

    Raises
    ------
    ImatrixError
        The data is of another model: an entry has another size, or no tensor has an entry. With `strict` also when
        a matrix outside of the MTP block (which importance files do not cover) lacks data.
    """
    tensors = list(wanted)
    if imatrix is None:
        return Importance(), _notes_without(tensors)
    gaps = imatrix.gaps((t.name, t.n_columns, t.n_matrices) for t in tensors)
    lack = {t.name: len(gaps.missing.get(t.name, ())) + len(gaps.unobserved.get(t.name, ())) for t in tensors}
    weighted = frozenset(t.name for t in tensors if lack[t.name] < t.n_matrices)
    source = imatrix.source or None
    if tensors and not weighted:
        held = ", ".join(list(imatrix.entries)[:3])
        raise ImatrixError(
            f"it has no data for any of the {len(tensors)} tensors to be quantized by importance, the first "
            f"{tensors[0].name}; it holds {held}, ...: is it of another model?",
            path=source,
        )
    importance = Importance(imatrix, digest, gaps.missing, gaps.unobserved, weighted)
    notes = _notes_of_gaps(tensors, gaps.missing, gaps.unobserved)
    notes += [note for t in tensors if (note := _check_weights(t, importance))]
    if strict and any(n and not is_mtp(name, n_layer) for name, n in lack.items()):
        raise ImatrixError("there is not data for everything:\n  " + "\n  ".join(notes), path=source)
    if not tensors:
        notes.append("no tensor is quantized by importance; the imatrix has no effect")
    return importance, notes


def fallback_of(kind: str) -> str:
    """Return in words what a type does for a matrix without measured importance."""
    if kind in NEEDS_WEIGHTS:
        return f"{kind} by the sums of squares of its own columns"
    return f"{kind} without weights"


def _notes_without(tensors: list[WantedTensor]) -> list[str]:
    kinds = sorted({t.type for t in tensors})
    if not kinds:
        return []
    return ["no imatrix is given: " + "; ".join(fallback_of(kind) for kind in kinds)]


def _notes_of_gaps(
    tensors: list[WantedTensor], missing: Mapping[str, tuple[int, ...]], unobserved: Mapping[str, tuple[int, ...]]
) -> list[str]:
    out = []
    for t in tensors:
        for part, why in ((missing, "no entry in the imatrix"), (unobserved, "never observed")):
            experts = part.get(t.name)
            if not experts:
                continue
            which = ""
            if t.n_matrices > 1:
                which = " of all experts" if len(experts) == t.n_matrices else f" of experts {format_layers(experts)}"
            out.append(f"{t.name}{which}: {why}; {fallback_of(t.type)}")
    return out


def _check_weights(t: WantedTensor, importance: Importance) -> str | None:
    """Refuse weights beyond all use, and tell of blocks whose inputs were always zero: the encoder takes ones there."""
    found = []
    for matrix in range(t.n_matrices):
        weights = importance.vector(t.name, t.n_columns, t.n_matrices, matrix)
        if weights is not None and not weights.max() <= MAX_WEIGHT:
            source = importance.imatrix.source if importance.imatrix else ""
            where = f"matrix {matrix}, column {int(weights.argmax())}"
            raise ImatrixError(
                f"{where}: a mean square of {weights.max()} is more than {MAX_WEIGHT:g}",
                path=source or None,
                entry=t.name,
            )
        if weights is not None and gguf.unweighted_blocks(weights):
            found.append(matrix)
    if not found:
        return None
    which = f", experts {format_layers(found)}" if t.n_matrices > 1 else ""
    return f"{t.name}{which}: importance is 0 for whole blocks of columns; weights of 1 there"


def _content_digest(imatrix: Imatrix) -> str:
    digest = hashlib.sha256()
    for name, entry in imatrix.entries.items():
        digest.update(f"{name} {entry.sums.shape} {entry.sums.dtype}".encode())
        digest.update(np.ascontiguousarray(entry.sums).tobytes())
        digest.update(np.ascontiguousarray(entry.counts).tobytes())
    return digest.hexdigest()
