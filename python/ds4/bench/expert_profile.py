"""Which experts a model selects, and how well caches of several sizes and policies would do on that.

Policies: "lru" gives up what was selected longest ago, "lfu" what was selected least often since the start, "ours" is
what the engine does (`HeatScales`: two averages of the selections, the least worth goes), and "belady" knows the
future: it gives up what will be selected again last, and no policy misses less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4.plotting import new_figure, save_figure

POLICIES = ("lru", "lfu", "ours", "belady")
BUDGETS = (0.1, 0.25, 0.5)
"""Parts of all experts that caches hold."""


@dataclass(frozen=True, slots=True)
class HeatScales:
    """How the engine tells what an expert is worth: two averages of the selections of a token of its layer.

    Attributes
    ----------
    near, far : float
        Half-lives of the averages, in tokens of the layer.
    near_share : float
        Share of the near one in the worth, 0..1.
    """

    near: float = 4.0
    far: float = 128.0
    near_share: float = 0.7


SCALES = HeatScales()
"""Those of the engine."""


@dataclass(frozen=True, slots=True)
class Selections:
    """What the routers of a model selected.

    Attributes
    ----------
    blocks : ndarray of int, shape (n_rows,)
        Block of each row; rows stand in the order of the computation.
    ids : ndarray of int, shape (n_rows, n_used)
        The experts of a token there.
    n_experts : tuple of int
        Experts of each block.
    lost : int
        Rows that were not recorded.
    """

    blocks: NDArray[np.int64]
    ids: NDArray[np.int64]
    n_experts: tuple[int, ...]
    lost: int = 0

    def counts(self) -> NDArray[np.int64]:
        """Return how often every expert was selected, shape (n_blocks, most experts of a block)."""
        out = np.zeros((len(self.n_experts), max(self.n_experts)), np.int64)
        np.add.at(out, (self.blocks[:, None], self.ids), 1)
        return out

    def keys(self) -> NDArray[np.int64]:
        """Return the experts of each row as numbers over all blocks, shape (n_rows, n_used)."""
        first = np.concatenate([[0], np.cumsum(self.n_experts)])
        return np.asarray(first[self.blocks][:, None] + self.ids, np.int64)


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a cache would have done.

    Attributes
    ----------
    policy : str
        One of `POLICIES`.
    slots : int
        Experts that it holds.
    asked, hits : int
        Experts that were needed, and those of them that it held.
    """

    policy: str
    slots: int
    asked: int
    hits: int

    @property
    def hit_rate(self) -> float:
        """Hits of a needed expert."""
        return self.hits / self.asked if self.asked else 0.0


def simulate(selections: Selections, policy: str, slots: int, *, scales: HeatScales = SCALES) -> Simulated:
    """Run a cache over selections. The experts of a row are needed at the same time, so none of them can go.

    Parameters
    ----------
    selections : Selections
        What is needed.
    policy : str
        One of `POLICIES`.
    slots : int
        Experts that the cache holds, at least those of a row.
    scales : HeatScales
        Of "ours".

    Raises
    ------
    ValueError
        The policy is unknown, or the cache holds less than a row.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, not {policy!r}")
    keys = selections.keys()
    if slots < keys.shape[1]:
        raise ValueError(f"a cache of {slots} experts does not hold the {keys.shape[1]} of one token")
    n_keys = sum(selections.n_experts)
    where = np.full(n_keys, -1, np.int64)
    holds = np.full(slots, -1, np.int64)
    score = np.full(slots, -np.inf)  # the least goes; empty slots first
    heat = _Heat(selections.n_experts, scales)
    block_of_slot = np.zeros(slots, np.int64)
    value = np.full(n_keys, -np.inf)  # of a key, by the policy
    future = _next_rows(keys) if policy == "belady" else None
    hits = 0
    for row, (block, wanted) in enumerate(zip(selections.blocks.tolist(), keys, strict=True)):
        if policy == "lru":
            value[wanted] = row
        elif policy == "lfu":
            value[wanted] = np.where(np.isneginf(value[wanted]), 1, value[wanted] + 1)
        elif policy == "ours":
            heat.selected(block, wanted)
        else:
            assert future is not None
            value[wanted] = -future[row]
        places = where[wanted]
        there = places >= 0
        hits += int(there.sum())
        score[places[there]] = np.inf  # in use
        missing = wanted[~there]
        if len(missing):
            now = np.where(np.isfinite(score), heat.worth(block_of_slot, holds), score) if policy == "ours" else score
            if len(missing) == 1:
                victims = [int(np.argmin(now))]
            else:
                victims = np.argpartition(now, len(missing) - 1)[: len(missing)].tolist()
            old = holds[victims]
            where[old[old >= 0]] = -1
            holds[victims] = missing
            block_of_slot[victims] = block
            where[missing] = victims
        score[where[wanted]] = 0 if policy == "ours" else value[wanted]
    return Simulated(policy, slots, int(keys.size), hits)


class _Heat:
    """The rule of the engine, token by token."""

    def __init__(self, n_experts: Sequence[int], scales: HeatScales) -> None:
        self._kept = np.exp2(-1 / np.array([scales.near, scales.far]))
        self._weights = np.array([scales.near_share, 1 - scales.near_share]) * (1 - self._kept)
        self._sums = np.zeros((sum(n_experts), 2))
        self._blocks = np.concatenate([[0], np.cumsum(n_experts)])
        self._scales = np.ones((len(n_experts), 2))  # what a weight of the sums is worth now

    def selected(self, block: int, keys: NDArray[np.int64]) -> None:
        self._scales[block] *= self._kept
        if self._scales[block].min() < 2.0**-500:
            self._sums[self._blocks[block] : self._blocks[block + 1]] *= self._scales[block]
            self._scales[block] = 1
        self._sums[keys] += 1 / self._scales[block]

    def worth(self, blocks: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the selections to be expected of the next token."""
        now = self._scales * self._weights
        near: NDArray[np.float64] = now[blocks, 0] * self._sums[keys, 0] + now[blocks, 1] * self._sums[keys, 1]
        return near


def _next_rows(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return for every selection the row in which the same expert is selected next, infinity when it never is."""
    out = np.full(keys.shape, np.inf)
    later: dict[int, int] = {}
    for row in range(len(keys) - 1, -1, -1):
        for i, key in enumerate(keys[row].tolist()):
            out[row, i] = later.get(key, np.inf)
        for key in keys[row].tolist():
            later[key] = row
    return out


def compare_policies(
    selections: Selections, budgets: Sequence[float] = BUDGETS, *, scales: HeatScales = SCALES
) -> list[Simulated]:
    """Run all policies with caches that hold these parts of all experts, at least those of a token."""
    total, least = sum(selections.n_experts), selections.ids.shape[1]
    sizes = [max(least, round(part * total)) for part in budgets]
    return [simulate(selections, policy, slots, scales=scales) for slots in sizes for policy in POLICIES]


def profile_facts(selections: Selections, found: Sequence[Simulated]) -> dict[str, Any]:
    """Return selections and simulations as an object for machines."""
    counts = selections.counts()
    return {
        "format": "ds4-expert-profile",
        "n_rows": len(selections.blocks),
        "lost_rows": selections.lost,
        "n_used": int(selections.ids.shape[1]),
        "n_experts": list(selections.n_experts),
        "counts": [counts[i, :n].tolist() for i, n in enumerate(selections.n_experts)],
        "caches": [
            {"policy": s.policy, "slots": s.slots, "part": s.slots / sum(selections.n_experts), "asked": s.asked,
             "hits": s.hits, "hit_rate": s.hit_rate}
            for s in found
        ],
    }  # fmt: skip


def plot_selections(selections: Selections, path: Path, *, title: str = "") -> None:
    """Draw a heat map: a row a block, its experts by how often they were selected, the most selected first.

    Raises
    ------
    ValueError, PlotUnavailableError, OSError
        As `ds4.plotting.check_plot`.
    """
    counts = selections.counts()
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure = new_figure(11, 2 + 0.14 * len(counts))
    left, right = figure.subplots(1, 2, sharey=True)
    for ax, values, name in ((left, share, "expert"), (right, -np.sort(-share, axis=1), "rank")):
        image = ax.imshow(100 * values, aspect="auto", interpolation="nearest", cmap="magma")
        ax.set_xlabel(name)
    left.set_ylabel("block")
    figure.colorbar(image, ax=[left, right], label="% of the block's selections")
    if title:
        figure.suptitle(title, fontsize=11)
    save_figure(figure, path)
