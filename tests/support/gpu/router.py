"""Cases of the router: the same experts and the same bits of their weights as on the CPU."""

from __future__ import annotations

import numpy as np

from support.gpu import Array, Device, Outputs, case

F = np.float32


def _route(device: Device, scores: Array, k: int, **given: Array) -> Outputs:
    n, n_expert = scores.shape
    ids, weights = device.put(np.full((n, k), -1, np.int32)), device.room(n, k)
    refs = {name: device.put(value) for name, value in given.items()}
    device.reset_margins()
    device.run(
        "router", scores=device.put(scores), ids=ids, weights=weights, n=n, n_expert=n_expert, k=k, scale=1.5, **refs
    )
    margin = np.array([device.margins()[1]], F)
    return {"ids": device.get(ids, n, k, dtype=np.int32), "weights": device.get(weights, n, k), "margin": margin}


@case(
    shapes=[
        {"n": n, "experts": experts, "k": k}
        for n, experts, k in (
            (1, 256, 6),
            (9, 384, 6),
            (5, 16, 6),
            (4, 8, 2),
            (2, 8, 8),
            (3, 33, 1),
            (1, 1, 1),
            (70, 40, 32),
        )
    ]
)
def router(device: Device, rng: np.random.Generator, n: int, experts: int, k: int) -> Outputs:
    scores = rng.standard_normal((n, experts)).astype(F) * 3
    return _route(device, scores, k, bias=rng.standard_normal(experts).astype(F) * F(0.1))


@case()
def router_no_bias(device: Device, rng: np.random.Generator) -> Outputs:
    return _route(device, rng.standard_normal((3, 40)).astype(F), 6)


@case(shapes=[{"levels": levels} for levels in (1, 2, 5)])
def router_ties(device: Device, rng: np.random.Generator, levels: int) -> Outputs:
    """Many equal scores: the lower expert wins."""
    return _route(device, rng.integers(0, levels, (6, 70)).astype(F), 6, bias=np.zeros(70, F))


@case()
def router_extremes(device: Device, rng: np.random.Generator) -> Outputs:
    """NaN counts as the largest and spreads; infinities; a dead router gives no infinity."""
    scores = rng.standard_normal((6, 24)).astype(F)
    scores[0, [3, 20]] = np.nan
    scores[1, 5], scores[2, 7] = np.inf, -np.inf
    scores[3] = -200.0
    scores[4] = -np.inf
    scores[5] = rng.uniform(80, 90, 24)
    return _route(device, scores, 6, bias=rng.standard_normal(24).astype(F))


@case(shapes=[{"n": n} for n in (1, 7)])
def router_table(device: Device, rng: np.random.Generator, n: int) -> Outputs:
    """Experts by token id; nothing is chosen, so there is no margin."""
    table, tokens = rng.integers(0, 16, (50, 6)).astype(np.int32), rng.integers(0, 50, n).astype(np.int32)
    return _route(device, rng.standard_normal((n, 16)).astype(F), 6, table=table, tokens=tokens)
