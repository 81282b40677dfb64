"""Cases of the indexer: the same rows and margins as on the CPU, whose order of sums it has."""

from __future__ import annotations

import numpy as np

from support.gpu import Array, Device, Outputs, case

F = np.float32


def _choose(
    device: Device, q: Array, weights: Array, rows: Array, top_k: int, pos0: int, ratio: int = 4, scale: float = 0.125
) -> Outputs:
    n, heads, dim = q.shape
    selected, counts = device.put(np.full((n, top_k), -1, np.int32)), device.put(np.full(n, -1, np.int32))
    device.reset_margins()
    device.run(
        "indexer", q=device.put(q), weights=device.put(weights), rows=device.put(rows), selected=selected,
        counts=counts, n=n, heads=heads, dim=dim, top_k=top_k, ratio=ratio, pos0=pos0,
        row_type=int(rows.dtype == np.float16), scale=scale,
    )  # fmt: skip
    return {
        "selected": device.get(selected, n, top_k, dtype=np.int32),
        "counts": device.get(counts, n, dtype=np.int32),
        "margin": np.array([device.margins()[0]], F),
    }


def _random(
    rng: np.random.Generator, n: int, heads: int, dim: int, n_rows: int, f16: int
) -> tuple[Array, Array, Array]:
    rows = rng.standard_normal((n_rows, dim)).astype(np.float16 if f16 else F)
    return rng.standard_normal((n, heads, dim)).astype(F), rng.standard_normal((n, heads)).astype(F), rows


@case(
    shapes=[
        {"heads": h, "dim": d, "top": top, "pos0": pos0, "n": n, "f16": f}
        for h, d, top, pos0, n in (
            (64, 128, 8, 100, 3), (16, 128, 16, 60, 9), (8, 32, 4, 0, 40), (80, 40, 5, 60, 2), (1, 128, 24, 250, 5),
            (64, 128, 512, 2200, 1),
        )
        for f in (0, 1)
    ]
)  # fmt: skip
def indexer(
    device: Device, rng: np.random.Generator, heads: int, dim: int, top: int, pos0: int, n: int, f16: int
) -> Outputs:
    return _choose(device, *_random(rng, n, heads, dim, (pos0 + n) // 4, f16), top_k=top, pos0=pos0)


@case(shapes=[{"rows": rows} for rows in (8192, 8193, 8300, 20001)])
def indexer_many_rows(device: Device, rng: np.random.Generator, rows: int) -> Outputs:
    """More rows than a block holds: chosen in stretches first; the last stretch may be shorter than the choice."""
    return _choose(device, *_random(rng, 1, 4, 16, rows, 1), top_k=100, pos0=rows * 4 - 4)


@case(shapes=[{"rows": rows, "top": top} for rows, top in ((300, 24), (300, 1), (2500, 40), (9000, 600))])
def indexer_ties(device: Device, rng: np.random.Generator, rows: int, top: int) -> Outputs:
    """Few different scores, many of them cut to 0: the lower row wins."""
    q, keys = (np.sign(rng.standard_normal(shape)).astype(F) for shape in ((2, 2, 8), (rows, 8)))
    return _choose(device, q, np.ones((2, 2), F), keys, top_k=top, pos0=rows * 4 - 4)


@case()
def indexer_same_rows(device: Device, rng: np.random.Generator) -> Outputs:
    """All rows are equal: the first ones."""
    q, weights, rows = _random(rng, 3, 8, 32, 50, 1)
    rows[:] = rows[0]
    return _choose(device, q, weights, rows, top_k=7, pos0=195)


@case()
def indexer_extremes(device: Device, rng: np.random.Generator) -> Outputs:
    """NaN comes behind everything, zero has no sign, infinities have an order."""
    q, weights, rows = _random(rng, 4, 4, 16, 60, 0)
    rows[3], rows[20, 2], rows[30, 5] = np.nan, np.inf, -np.inf
    weights[1] = 0
    weights[2] = [0.0, -0.0, 0.0, -0.0]
    weights[3] = np.nan
    return _choose(device, q, weights, rows, top_k=9, pos0=236)


@case(shapes=[{"top": top, "n": n} for top, n in ((4, 1), (4, 5), (31, 2), (32, 9), (33, 1))])
def indexer_edges(device: Device, rng: np.random.Generator, top: int, n: int) -> Outputs:
    """A cached prefix and a chunk behind it that meet around multiples of 4, of 128 and where the choice begins."""
    out: Outputs = {}
    for pos0 in sorted({0} | {at + by for at in (128, 4 * top, 4 * top + 4) for by in (-5, -4, -1, 0, 1, 4)}):
        inputs = _random(rng, n, 2, 16, max(1, (pos0 + n) // 4), 1)
        out |= {f"{name} at {pos0}": value for name, value in _choose(device, *inputs, top_k=top, pos0=pos0).items()}
    return out
