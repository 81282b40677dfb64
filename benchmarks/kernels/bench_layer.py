"""The other operations of a layer at Flash's sizes: attention, indexer, hyper-connections, router, rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from records import Bench

Timed = Callable[..., None]


@pytest.mark.parametrize("tokens", [1, 32])
@pytest.mark.parametrize("case", ["window", "chosen", "all128"])
def bench_attention(bench: Bench, rng: np.random.Generator, timed: Timed, small: bool, case: str, tokens: int) -> None:
    """64 heads of 512 over a full window, with 512 chosen rows or with every row of ratio 128 at 16k positions."""
    heads, dim, window, pos, top_k = (4, 64, 16, 200, 8) if small else (64, 512, 128, 16384, 512)
    ratio = {"window": 0, "chosen": 4, "all128": 128}[case]
    capacity = window - 1 + tokens
    n_rows = (pos + tokens) // ratio if ratio else 1
    rows = bench.put(rng.standard_normal((n_rows, dim), np.float32).astype(np.float16))
    fields = {}
    visible = window + (min(top_k, n_rows) if ratio == 4 else n_rows if ratio else 0)
    if ratio:
        fields["compressed_rows"] = rows
    if ratio == 4:
        k = min(top_k, pos // ratio)
        chosen = np.zeros((tokens, top_k), np.int32)
        for t in range(tokens):
            chosen[t, :k] = np.sort(rng.permutation(pos // ratio)[:k])
        fields |= {"selected": bench.put(chosen), "counts": bench.put(np.full(tokens, k, np.int32))}
    out = bench.room(tokens, heads, dim)
    run = bench.operation(
        "attention", q=bench.put(rng.standard_normal((tokens, heads, dim), np.float32)),
        window_rows=bench.put(rng.standard_normal((capacity, dim), np.float32).astype(np.float16)),
        sinks=bench.put(np.zeros(heads, np.float32)), out=out, n=tokens, heads=heads, dim=dim, window=window,
        capacity=capacity, ratio=ratio, top_k=top_k, pos0=pos, row_type=1, scale=dim**-0.5, **fields,
    )  # fmt: skip
    run()
    found = bench.get(out, tokens * heads * dim)
    assert np.isfinite(found).all() and found.any()
    timed(run, macs=2 * tokens * heads * dim * visible)


@pytest.mark.parametrize("tokens", [1, 32])
@pytest.mark.parametrize("case", ["1k", "16k"])
def bench_indexer(bench: Bench, rng: np.random.Generator, timed: Timed, small: bool, case: str, tokens: int) -> None:
    """64 heads of 128 over a row for every four positions."""
    heads, dim, top_k, pos = (4, 32, 8, 200) if small else (64, 128, 512, {"1k": 1024, "16k": 16384}[case])
    n_rows = (pos + tokens) // 4
    run = bench.operation(
        "indexer", q=bench.put(rng.standard_normal((tokens, heads, dim), np.float32)),
        weights=bench.put(rng.standard_normal((tokens, heads), np.float32)),
        rows=bench.put(rng.standard_normal((n_rows, dim), np.float32).astype(np.float16)),
        selected=bench.room(tokens, top_k), counts=bench.room(tokens), n=tokens, heads=heads, dim=dim, top_k=top_k,
        ratio=4, pos0=pos, row_type=1, scale=(dim * heads) ** -0.5,
    )  # fmt: skip
    timed(run, macs=tokens * heads * dim * n_rows if n_rows > top_k else 0)


@pytest.mark.parametrize("tokens", [1, 128])
@pytest.mark.parametrize("case", ["pre", "post"])
def bench_hyper(bench: Bench, rng: np.random.Generator, timed: Timed, small: bool, case: str, tokens: int) -> None:
    """Four streams of 4096."""
    n_hc, dim = 4, 64 if small else 4096
    streams = bench.put(rng.standard_normal((tokens, n_hc, dim), np.float32))
    post, comb = bench.room(tokens, n_hc), bench.room(tokens, n_hc, n_hc)
    if case == "pre":
        run = bench.operation(
            "hc_pre", mix=bench.put(rng.standard_normal((tokens, (2 + n_hc) * n_hc), np.float32)), streams=streams,
            scale=bench.put(np.ones(3, np.float32)), base=bench.put(np.zeros((2 + n_hc) * n_hc, np.float32)),
            x=bench.room(tokens, dim), post=post, comb=comb, n=tokens, n_hc=n_hc, dim=dim, iterations=20, norm_eps=1e-6,
            hc_eps=1e-6,
        )  # fmt: skip
    else:
        y = bench.put(rng.standard_normal((tokens, dim), np.float32))
        run = bench.operation("hc_post", y=y, post=post, comb=comb, streams=streams, n=tokens, n_hc=n_hc, dim=dim)
    timed(run, n_bytes=4 * tokens * dim * (n_hc + 1 if case == "pre" else 2 * n_hc + 1))


@pytest.mark.parametrize("tokens", [1, 128])
def bench_router(bench: Bench, rng: np.random.Generator, timed: Timed, tokens: int) -> None:
    """Six of 256 experts by score and bias."""
    run = bench.operation(
        "router", scores=bench.put(rng.standard_normal((tokens, 256), np.float32)),
        bias=bench.put(rng.standard_normal(256, np.float32)), ids=bench.room(tokens, 6), weights=bench.room(tokens, 6),
        n=tokens, n_expert=256, k=6, scale=1.5,
    )  # fmt: skip
    timed(run)


@pytest.mark.parametrize("tokens", [1, 128])
@pytest.mark.parametrize("case", ["rms_norm", "rope", "fp8", "swiglu"])
def bench_rows(bench: Bench, rng: np.random.Generator, timed: Timed, small: bool, case: str, tokens: int) -> None:
    """Element-wise work: norms and rotation of the query heads, rounding of cache rows, SwiGLU."""
    heads, dim = (4, 128) if small else (64, 512)
    n = tokens * heads
    x = bench.put(rng.standard_normal((n, dim), np.float32))
    if case == "rms_norm":
        run = bench.operation("rms_norm", x=x, y=x, n_rows=n, dim=dim, eps=1e-6)
    elif case == "rope":
        freqs = bench.put((10000.0 ** -np.linspace(0, 1, 32)).astype(np.float32))
        run = bench.operation("rope", x=x, freqs=freqs, n=tokens, heads=heads, dim=dim, n_rot=64, pos0=1000, sign=1.0)
    elif case == "fp8":
        run = bench.operation("round_rows", x=x, n_rows=n, dim=dim, n_rot=64, mode=1)
    else:
        up = bench.put(rng.standard_normal((n, dim), np.float32))
        run = bench.operation("swiglu", a=x, b=up, count=n * dim, clamp=7.0)
    timed(run, n_bytes=4 * n * dim)
