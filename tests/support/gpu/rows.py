"""Cases of the operations on rows of activations."""

from __future__ import annotations

import numpy as np

from support.gpu import Device, Outputs, Tolerance, case

# A sum of squares in another order: a few units in the last place.
SUMS = Tolerance(relative=1e-6)


@case(
    SUMS,
    [{"n": n, "dim": dim, "weight": w} for n, dim in ((1, 1), (3, 31), (2, 256), (5, 300), (1, 4096)) for w in (0, 1)],
)
def rms_norm(device: Device, rng: np.random.Generator, n: int, dim: int, weight: int) -> Outputs:
    x = device.put(rng.standard_normal((n, dim), np.float32))
    w = device.put(rng.standard_normal(dim, np.float32)) if weight else None
    y = device.room(n, dim)
    device.run("rms_norm", x=x, y=y, n_rows=n, dim=dim, eps=1e-6, **({"w": w} if w else {}))
    return {"y": device.get(y, n, dim)}
