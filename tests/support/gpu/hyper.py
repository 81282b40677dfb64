"""Cases of the hyper-connections."""

from __future__ import annotations

import numpy as np

from support.gpu import EXACT, SUMS, Device, Outputs, case

F = np.float32

SHAPES = [
    {"n": n, "streams": h, "dim": dim}
    for n, h, dim in ((1, 4, 64), (3, 4, 200), (2, 4, 4096), (5, 4, 31), (2, 3, 40), (2, 8, 64), (1, 1, 33))
]


@case(EXACT, SHAPES, metal=SUMS)
def hc_pre(device: Device, rng: np.random.Generator, n: int, streams: int, dim: int) -> Outputs:
    h, width = streams, (2 + streams) * streams
    mix = device.put(rng.standard_normal((n, width)).astype(F) * 5)
    x = device.put(rng.standard_normal((n, h, dim)).astype(F))
    scale, base = device.put(rng.standard_normal(3).astype(F)), device.put(rng.standard_normal(width).astype(F))
    out, post, comb = device.room(n, dim), device.room(n, h), device.room(n, h, h)
    device.run(
        "hc_pre", mix=mix, streams=x, scale=scale, base=base, x=out, post=post, comb=comb, n=n, n_hc=h, dim=dim,
        iterations=20, norm_eps=1e-6, hc_eps=1e-6,
    )  # fmt: skip
    return {"x": device.get(out, n, dim), "post": device.get(post, n, h), "comb": device.get(comb, n, h, h)}


@case(shapes=SHAPES)
def hc_post(device: Device, rng: np.random.Generator, n: int, streams: int, dim: int) -> Outputs:
    h = streams
    y, post = device.put(rng.standard_normal((n, dim)).astype(F)), device.put(rng.uniform(0, 2, (n, h)).astype(F))
    comb, x = device.put(rng.random((n, h, h), F)), device.put(rng.standard_normal((n, h, dim)).astype(F))
    device.run("hc_post", y=y, post=post, comb=comb, streams=x, n=n, n_hc=h, dim=dim)
    return {"streams": device.get(x, n, h, dim)}


@case(EXACT, SHAPES, metal=SUMS)
def hc_head(device: Device, rng: np.random.Generator, n: int, streams: int, dim: int) -> Outputs:
    h = streams
    mix, x = (
        device.put(rng.standard_normal((n, h)).astype(F) * 5),
        device.put(rng.standard_normal((n, h, dim)).astype(F)),
    )
    scale, base = device.put(rng.standard_normal(1).astype(F)), device.put(rng.standard_normal(h).astype(F))
    out = device.room(n, dim)
    device.run(
        "hc_head", mix=mix, streams=x, scale=scale, base=base, x=out, n=n, n_hc=h, dim=dim, norm_eps=1e-6, hc_eps=1e-6
    )
    return {"x": device.get(out, n, dim)}
