"""Cases of attention over window and compressed rows."""

from __future__ import annotations

import numpy as np

from support.gpu import Array, Device, Outputs, Tolerance, case

F = np.float32

# Products of 512 dims and sums over hundreds of keys in other orders, and fused: some units in the last place.
SUMS = Tolerance(relative=3e-6)


def attend(
    device: Device, q: Array, window_rows: Array, sinks: Array, *, window: int, pos0: int, ratio: int = 0,
    compressed: Array | None = None, selected: Array | None = None, counts: Array | None = None,
    scale: float | None = None,
) -> Array:  # fmt: skip
    """Run attention; q [n][heads][dim], window_rows the ring."""
    n, heads, dim = q.shape
    out = device.room(n, heads, dim)
    refs = {"compressed_rows": compressed, "selected": selected, "counts": counts}
    device.run(
        "attention", q=device.put(q), window_rows=device.put(window_rows), sinks=device.put(sinks), out=out, n=n,
        heads=heads, dim=dim, window=window, capacity=len(window_rows), ratio=ratio,
        top_k=0 if selected is None else selected.shape[1], pos0=pos0, row_type=int(window_rows.dtype == np.float16),
        scale=scale or dim**-0.5, **{name: device.put(value) for name, value in refs.items() if value is not None},
    )  # fmt: skip
    return device.get(out, n, heads, dim)


def choices(rng: np.random.Generator, n: int, pos0: int, ratio: int, top_k: int) -> tuple[Array, Array]:
    """Random rows in ascending order for each token, as many as an indexer gives."""
    selected, counts = np.full((n, top_k), -1, np.int32), np.zeros(n, np.int32)
    for t in range(n):
        visible = (pos0 + t + 1) // ratio
        counts[t] = min(visible, top_k)
        selected[t, : counts[t]] = np.sort(rng.choice(visible, counts[t], replace=False))
    return selected, counts


@case(
    SUMS,
    [
        {"heads": h, "dim": d, "window": w, "ratio": r, "top": top, "pos0": pos0, "n": n, "f16": f}
        for h, d, w, r, top, pos0, n in (
            (4, 128, 128, 0, 0, 0, 5),  # no compressed rows
            (8, 256, 128, 4, 16, 200, 3),
            (9, 64, 16, 4, 0, 37, 20),  # a group of one head; all visible rows
            (64, 512, 128, 4, 64, 1000, 1),
            (16, 512, 128, 128, 0, 900, 2),
            (3, 16, 8, 4, 4, 0, 40),
            (8, 32, 128, 4, 0, 2000, 1),  # many pieces, joined by a second kernel
        )
        for f in (0, 1)
    ],
)
def attention(
    device: Device,
    rng: np.random.Generator,
    heads: int,
    dim: int,
    window: int,
    ratio: int,
    top: int,
    pos0: int,
    n: int,
    f16: int,
) -> Outputs:
    kind, capacity = np.float16 if f16 else F, window + n + 3
    q, sinks = rng.standard_normal((n, heads, dim)).astype(F) * 2, rng.standard_normal(heads).astype(F)
    ring = rng.standard_normal((capacity, dim)).astype(kind)
    more: dict[str, Array] = {}
    if ratio:
        more["compressed"] = rng.standard_normal((max(1, (pos0 + n) // ratio), dim)).astype(kind)
    if top:
        more["selected"], more["counts"] = choices(rng, n, pos0, ratio, top)
    return {"out": attend(device, q, ring, sinks, window=window, ratio=ratio, pos0=pos0, **more)}


@case(SUMS, [{"keys": keys} for keys in (1, 3, 4, 5, 63, 64, 65, 127, 128, 129, 192, 193)])
def attention_pieces(device: Device, rng: np.random.Generator, keys: int) -> Outputs:
    """Numbers of keys around the sizes of pieces and of groups."""
    q, ring = rng.standard_normal((1, 10, 32)).astype(F), rng.standard_normal((256, 32)).astype(F)
    return {"out": attend(device, q, ring, rng.standard_normal(10).astype(F), window=256, pos0=keys - 1)}


@case(SUMS)
def attention_extremes(device: Device, rng: np.random.Generator) -> Outputs:
    """Large logits, sinks that take everything or nothing, keys of -infinity, and damage that stays with its head."""
    q, ring = rng.standard_normal((2, 8, 32)).astype(F), rng.standard_normal((100, 32)).astype(F)
    sinks = np.array([0, 100, -100, -np.inf, np.inf, 0, 0, np.nan], F)
    q[:, 0] *= 300
    q[:, 5] = 0
    q[:, 6, 3] = np.nan
    return {"out": attend(device, q, ring, sinks, window=100, pos0=98)}
