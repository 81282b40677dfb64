"""Matrix products: every weight type, one token as in decode and many as in prefill, float32 and 8-bit activations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from records import TYPES, Bench

QUANTIZED = ("Q8_0", "MXFP4", "Q2_K", "Q4_K", "IQ2_XXS")
CASES = [f"{t}-float32" for t in TYPES] + [f"{t}-quantized" for t in QUANTIZED]
GATE_UP_AND_DOWN = 3  # the whole work of the operation in one call


@pytest.mark.parametrize("tokens", [1, 12, 128])
@pytest.mark.parametrize("case", CASES)
def bench_matmul(
    bench: Bench, rng: np.random.Generator, timed: Callable[..., None], small: bool, case: str, tokens: int
) -> None:
    """2048 x 4096, the gate of one expert of Flash."""
    kind, _, activations = case.partition("-")
    n_out, n_in = (48, 256) if small else (2048, 4096)
    w = bench.weight(rng, kind, n_out, n_in)
    x = bench.put(rng.standard_normal((tokens, n_in), np.float32))
    y = bench.room(tokens, n_out)
    run = bench.operation(
        "matmul", w=w, x=x, y=y, n=tokens, x_stride=n_in, y_stride=n_out, groups=1, quantized=activations == "quantized"
    )
    run()
    found = bench.get(y, tokens * n_out)
    assert np.isfinite(found).all() and found.any()
    timed(run, macs=n_out * n_in * tokens, n_bytes=n_out * w.row_stride)


@pytest.mark.parametrize("tokens", [1, 128])
@pytest.mark.parametrize("case", ["IQ2_XXS-Q2_K", "Q4_K-Q4_K", "MXFP4-MXFP4"])
def bench_experts(
    bench: Bench, rng: np.random.Generator, timed: Callable[..., None], small: bool, case: str, tokens: int
) -> None:
    """Routed experts of Flash's width with 8-bit activations, six of sixteen chosen."""
    n_embd, n_ff, n_expert, k = (256, 256, 8, 2) if small else (4096, 2048, 16, 6)
    first, _, last = case.partition("-")
    gate, up = (bench.weight(rng, first, n_ff, n_embd, n_expert) for _ in range(2))
    down = bench.weight(rng, last, n_embd, n_ff, n_expert)
    ids = np.array([rng.permutation(n_expert)[:k] for _ in range(tokens)], np.int32)
    y = bench.room(tokens, n_embd)
    run = bench.operation(
        "experts", gate=gate, up=up, down=down, x=bench.put(rng.standard_normal((tokens, n_embd), np.float32)),
        ids=bench.put(ids), weights=bench.put(np.full((tokens, k), 1 / k, np.float32)), y=y, n=tokens, k=k, quantized=1,
        clamp=7.0, work=GATE_UP_AND_DOWN,
    )  # fmt: skip
    run()
    found = bench.get(y, tokens * n_embd)
    assert np.isfinite(found).all() and found.any()
    used = len(np.unique(ids))
    n_bytes = used * (2 * n_ff * gate.row_stride + n_embd * down.row_stride)
    timed(run, macs=3 * n_ff * n_embd * k * tokens, n_bytes=n_bytes)
