"""Cases of the compressor."""

from __future__ import annotations

import numpy as np

from support.gpu import Device, Outputs, Tolerance, case
from support.kernel_args import CONSTANTS

F = np.float32

# The whole way has the CPU's order and its exponential. On a device sines and cosines may be some units in the last
# place off, which a rotated value shows as such; on the host executor they are the CPU's.
BITS = Tolerance()

ROUND = {name: CONSTANTS[f"DS4_ROUND_{name}"] for name in ("NONE", "FP8", "FP4")}
KINDS = [  # ratio, dim, rotated dims, rounding
    (4, 512, 64, "FP8"), (4, 128, 64, "FP4"), (128, 128, 64, "FP8"), (4, 64, 16, "NONE"), (4, 96, 32, "NONE"),
    (4, 1024, 64, "FP8"), (4, 32, 8, "FP4"),
]  # fmt: skip


def _feed(
    device: Device, rng: np.random.Generator, ratio: int, dim: int, n_rot: int, mode: str, f16: int, chunks: list[int],
    pos0: int = 0,
) -> Outputs:  # fmt: skip
    """Feed chunks of tokens from pos0 on, with rings as a session has them."""
    width, ring = (2 * dim, 2 * ratio) if ratio == 4 else (dim, ratio)
    n_rows, kind = (pos0 + sum(chunks)) // ratio + 1, np.float16 if f16 else F
    state_k = device.put(rng.standard_normal((ring, width)).astype(F))
    state_s = device.put(rng.standard_normal((ring, width)).astype(F))
    ape, norm = (
        device.put(rng.standard_normal((ratio, width)).astype(F)),
        device.put(rng.standard_normal(dim).astype(F)),
    )
    freqs = device.put((10000.0 ** -(np.arange(n_rot // 2) / (n_rot / 2))).astype(F))
    rows = device.put(np.zeros((n_rows, dim), kind))
    for n in chunks:
        k, s = (rng.standard_normal((n, width)).astype(F) * 2 for _ in range(2))
        device.run(
            "compress", k=device.put(k), s=device.put(s), ape=ape, norm=norm, freqs=freqs, state_k=state_k,
            state_s=state_s, rows=rows, n=n, dim=dim, width=width, ratio=ratio, ring=ring, pos0=pos0, n_rot=n_rot,
            round=ROUND[mode], row_type=f16, eps=1e-6,
        )  # fmt: skip
        pos0 += n
    return {
        "rows": device.get(rows, n_rows, dim, dtype=kind),
        "k": device.get(state_k, ring, width),
        "s": device.get(state_s, ring, width),
    }


@case(BITS, [{"ratio": r, "dim": d, "rot": rot, "mode": m, "f16": f} for r, d, rot, m in KINDS for f in (0, 1)])
def compress(device: Device, rng: np.random.Generator, ratio: int, dim: int, rot: int, mode: str, f16: int) -> Outputs:
    """Groups that close within a chunk, across chunks, and with a chunk's first and last token."""
    chunks = [1, ratio - 1, ratio, ratio + 1, 2 * ratio + 1, 1, ratio - 3]
    return _feed(device, rng, ratio, dim, rot, mode, f16, chunks)


@case(BITS, [{"pos0": pos0, "n": n} for pos0 in (0, 3, 4, 5, 126, 127, 128) for n in (1, 3, 4, 5)])
def compress_edges(device: Device, rng: np.random.Generator, pos0: int, n: int) -> Outputs:
    """A single chunk behind what a cache holds already."""
    narrow = _feed(device, rng, 128, 64, 16, "FP8", 1, [n], pos0)
    wide = _feed(device, rng, 4, 64, 16, "FP4", 1, [n], pos0)
    return {f"{name}{ratio}": value for ratio, part in ((128, narrow), (4, wide)) for name, value in part.items()}


@case(BITS)
def compress_far(device: Device, rng: np.random.Generator) -> Outputs:
    """Large angles."""
    return _feed(device, rng, 4, 128, 64, "NONE", 0, [8], 100_000)


@case(BITS, [{"mode": mode} for mode in ("FP8", "FP4")])
def compress_extremes(device: Device, rng: np.random.Generator, mode: str) -> Outputs:
    """Values out of range: a NaN is its own damage, an infinity that of its block."""
    dim, n, n_rot = 128, 12, 64
    k = rng.standard_normal((n, 2 * dim)).astype(F) * np.exp(rng.uniform(-30, 30, (n, 2 * dim))).astype(F)
    s = rng.standard_normal((n, 2 * dim)).astype(F) * 40
    k[5, 130], s[9, 140], k[9, 200] = np.nan, np.inf, np.inf
    rows = device.put(np.zeros((3, dim), F))
    ring = [device.room(8, 2 * dim) for _ in range(2)]
    device.run(
        "compress", k=device.put(k), s=device.put(s), ape=device.room(4, 2 * dim), norm=device.put(np.ones(dim, F)),
        freqs=device.put(np.zeros(n_rot // 2, F)), state_k=ring[0], state_s=ring[1], rows=rows, n=n, dim=dim,
        width=2 * dim, ratio=4, ring=8, pos0=0, n_rot=n_rot, round=ROUND[mode], row_type=0, eps=1e-6,
    )  # fmt: skip
    out = device.get(rows, 3, dim)
    return {"rows": np.where(np.isnan(out), F(np.inf), out), "nan": np.isnan(out)}
