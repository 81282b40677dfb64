"""How many tokens every expert saw."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .data import Imatrix

_EXPERTS = re.compile(r"(blk\.\d+|mtp\.\d+)\.ffn_(?:gate|up|down)_exps\.weight")


@dataclass(frozen=True, slots=True)
class LayerCoverage:
    """The experts of one layer.

    Attributes
    ----------
    name : str
        "blk.3", or "mtp.0" for the MTP block.
    counts : ndarray of int64, shape (n_expert,)
        Tokens that each expert saw; the least of gate, up and down, should they differ. Of data that holds means
        without counts: 1 for an expert that was observed, else 0.
    """

    name: str
    counts: NDArray[np.int64]

    @property
    def never(self) -> list[int]:
        """Experts that saw no token."""
        return [int(e) for e in np.flatnonzero(self.counts == 0)]

    def facts(self) -> dict[str, Any]:
        """Return the layer for a report, as JSON values."""
        return {
            "name": self.name,
            "experts": len(self.counts),
            "min": int(self.counts.min()),
            "median": float(np.median(self.counts)),
            "max": int(self.counts.max()),
            "never": self.never,
            "counts": self.counts.tolist(),
        }


@dataclass(frozen=True, slots=True)
class Coverage:
    """The experts of a model.

    Attributes
    ----------
    layers : tuple of LayerCoverage
        In file order.
    counted : bool
        Whether counts are numbers of tokens.
    undivided : tuple of str
        Entries of a .dat whose number of experts is not known, so nothing can be said about them.
    other : tuple of str
        Entries that are no stacks of experts.
    """

    layers: tuple[LayerCoverage, ...]
    counted: bool
    undivided: tuple[str, ...]
    other: tuple[str, ...]

    @property
    def n_never(self) -> int:
        """Experts without data, over all layers."""
        return sum(len(layer.never) for layer in self.layers)

    @property
    def n_experts(self) -> int:
        """Experts over all layers."""
        return sum(len(layer.counts) for layer in self.layers)


def coverage(imatrix: Imatrix) -> Coverage:
    """Return how many tokens every expert saw."""
    counts: dict[str, NDArray[np.float64]] = {}
    undivided, other = [], []
    for name, entry in imatrix.entries.items():
        found = _EXPERTS.fullmatch(name)
        if found is None:
            other.append(name)
        elif not entry.divided:
            undivided.append(name)
        else:
            before = counts.get(found[1])
            same = before is not None and before.shape == entry.counts.shape
            counts[found[1]] = np.minimum(before, entry.counts) if before is not None and same else entry.counts
    layers = []
    for name, values in counts.items():
        tokens = np.ceil(values) if imatrix.counted else values > 0
        layers.append(LayerCoverage(name, tokens.astype(np.int64)))
    return Coverage(tuple(layers), imatrix.counted, tuple(undivided), tuple(other))
