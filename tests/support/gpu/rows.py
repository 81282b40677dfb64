"""Cases of the operations on rows of activations."""

from __future__ import annotations

import numpy as np

from support.dequant import random_blocks
from support.gguf_write import BLOCKS, GGMLType
from support.gpu import EXACT, SUMS, Device, Outputs, Tolerance, case
from support.kernel_args import CONSTANTS

# Sines and cosines of the device's library, of angles that the CPU has too.
ANGLES = Tolerance(relative=1e-6)


@case(
    EXACT,
    [{"n": n, "dim": dim, "weight": w} for n, dim in ((1, 1), (3, 31), (2, 256), (5, 300), (1, 4096)) for w in (0, 1)],
    metal=SUMS,
)
def rms_norm(device: Device, rng: np.random.Generator, n: int, dim: int, weight: int) -> Outputs:
    x = device.put(rng.standard_normal((n, dim), np.float32))
    w = device.put(rng.standard_normal(dim, np.float32)) if weight else None
    y = device.room(n, dim)
    device.run("rms_norm", x=x, y=y, n_rows=n, dim=dim, eps=1e-6, **({"w": w} if w else {}))
    return {"y": device.get(y, n, dim)}


TABLES = ("F32", "F16", "BF16", "Q8_0", "MXFP4", "Q2_K", "Q4_K", "IQ2_XXS")


@case(EXACT, [{"kind": kind, "copies": copies} for kind in TABLES for copies in (1, 4)])
def embed(device: Device, rng: np.random.Generator, kind: str, copies: int) -> Outputs:
    n_vocab, dim, tokens = 7, 512, [3, 0, 6, 6, 1]
    type_ = GGMLType[kind]
    rows = random_blocks(rng, type_, n_vocab * dim // BLOCKS[type_][0]).reshape(-1)
    out = device.room(len(tokens), copies, dim)
    device.run(
        "embed",
        table=device.weight(rows, type_.value, n_vocab, dim),
        tokens=device.put(np.array(tokens, np.int32)),
        out=out,
        n=len(tokens),
        copies=copies,
    )
    return {"out": device.get(out, len(tokens), copies, dim)}


@case(
    ANGLES,
    [
        {"n": n, "heads": heads, "dim": dim, "n_rot": n_rot, "pos0": pos0, "sign": sign}
        for n, heads, dim, n_rot in ((1, 1, 64, 64), (3, 9, 96, 32), (5, 64, 512, 64), (2, 3, 16, 0))
        for pos0, sign in ((0, 1), (1_000_000, -1))
    ],
)
def rope(
    device: Device, rng: np.random.Generator, n: int, heads: int, dim: int, n_rot: int, pos0: int, sign: int
) -> Outputs:
    x = device.put(rng.standard_normal((n, heads, dim), np.float32))
    freqs = device.put((10000.0 ** -(np.arange(max(n_rot // 2, 1)) * 2 / max(n_rot, 1))).astype(np.float32))
    device.run("rope", x=x, freqs=freqs, n=n, heads=heads, dim=dim, n_rot=n_rot, pos0=pos0, sign=sign)
    return {"x": device.get(x, n, heads, dim)}


SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-38, 3e38, -3e38, 1e-45, 88.0, -104.0)


@case(EXACT, [{"count": count, "clamp": clamp} for count in (1, 257, 4096) for clamp in (10.0, 3e38)])
def swiglu(device: Device, rng: np.random.Generator, count: int, clamp: float) -> Outputs:
    values = rng.standard_normal((2, count), np.float32) * 8
    values[0, : len(SPECIAL)] = SPECIAL[:count]
    values[1, 20 : 20 + len(SPECIAL)] = SPECIAL[: max(0, min(len(SPECIAL), count - 20))]
    a, b = (device.put(v) for v in values)
    device.run("swiglu", a=a, b=b, count=count, clamp=clamp)
    return {"a": device.get(a, count)}


@case(EXACT, [{"n": n, "copies": copies, "dim": dim} for n, copies, dim in ((1, 1, 1), (3, 4, 300), (2, 4, 4096))])
def add_rows(device: Device, rng: np.random.Generator, n: int, copies: int, dim: int) -> Outputs:
    x = device.put(rng.standard_normal((n, copies, dim), np.float32))
    e = device.put(rng.standard_normal((n, dim), np.float32))
    device.run("add_rows", x=x, e=e, n=n, copies=copies, dim=dim)
    return {"x": device.get(x, n, copies, dim)}


@case(
    EXACT,
    [{"n": n, "dim": dim, "count": count} for n, dim in ((1, 31), (3, 256), (2, 1000)) for count in (1, 2, 8)],
    metal=SUMS,
)
def steer(device: Device, rng: np.random.Generator, n: int, dim: int, count: int) -> Outputs:
    y = device.put(rng.standard_normal((n, dim), np.float32))
    directions = rng.standard_normal((count, dim)).astype(np.float32)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    scales = rng.uniform(-2, 2, CONSTANTS["DS4_MAX_STEERING"]).astype(np.float32)
    device.run(
        "steer",
        y=y,
        directions=tuple(device.put(d) for d in directions),
        scales=tuple(scales.tolist()),
        n=n,
        dim=dim,
        count=count,
    )
    return {"y": device.get(y, n, dim)}


@case(
    EXACT,
    [
        {"n": n, "dim": dim, "pos0": pos0, "capacity": capacity, "row_type": row_type}
        for n, dim, pos0, capacity in ((1, 64, 5, 8), (3, 100, 6, 8), (11, 512, 1, 4))
        for row_type in (0, 1)
    ],
)
def store_rows(
    device: Device, rng: np.random.Generator, n: int, dim: int, pos0: int, capacity: int, row_type: int
) -> Outputs:
    values = rng.standard_normal((n, dim)) * 10.0 ** rng.integers(-9, 6, (n, dim))
    values[0, : len(SPECIAL)] = SPECIAL
    rows = device.put(np.full(capacity * dim * (4 >> row_type), 0x5A, np.uint8))
    x = device.put(values.astype(np.float32))
    device.run("store_rows", x=x, rows=rows, n=n, dim=dim, pos0=pos0, capacity=capacity, row_type=row_type)
    return {"rows": device.get(rows, capacity, dim * (4 >> row_type), dtype=np.uint8)}


@case(
    EXACT,
    [
        *(
            {"n": n, "dim": dim, "n_rot": n_rot, "mode": 1}
            for n, dim, n_rot in ((1, 512, 64), (7, 100, 32), (2, 64, 0))
        ),
        *({"n": n, "dim": dim, "n_rot": 64, "mode": 2} for n, dim in ((1, 128), (5, 64), (2, 2), (3, 512))),
        {"n": 2, "dim": 64, "n_rot": 0, "mode": 0},
    ],
)
def round_rows(device: Device, rng: np.random.Generator, n: int, dim: int, n_rot: int, mode: int) -> Outputs:
    values = rng.standard_normal((n, dim)) * 10.0 ** rng.integers(-9, 6, (n, 1))
    if n > 4:
        values[1] = 0.0
        values[2, 3] = np.inf
        values[3, 5] = np.nan
        values[4] = 2.0 ** rng.integers(-20, 20, dim)  # ties and powers of two
    x = device.put(values.astype(np.float32))
    device.run("round_rows", x=x, n_rows=n, dim=dim, n_rot=n_rot, mode=mode)
    return {"x": device.get(x, n, dim)}
