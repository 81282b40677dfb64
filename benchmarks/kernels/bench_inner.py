"""Inner kernels called one by one: decoders, dot products, rounding of activations to 8 bits.

Each call copies its arguments in and out, which is part of the time: compare variants, not with other figures.
"""

from __future__ import annotations

from collections.abc import Callable

import ds4_kernels
import numpy as np
import pytest
from records import TYPES, random_weights

Timed = Callable[..., None]
N = 1 << 16


@pytest.mark.parametrize("case", ["f16", "bf16", "q8_0"])
def bench_decode(isa: str, rng: np.random.Generator, timed: Timed, case: str) -> None:
    """Weights to float32, in the variants of the inner kernels."""
    if not ds4_kernels.can_run(isa):
        pytest.skip(f"the inner kernels have no variant {isa}")
    data, _, _ = random_weights(rng, case.upper(), 1, N)
    assert np.isfinite(ds4_kernels.decode(isa, case, data, N)).all()
    timed(lambda: ds4_kernels.decode(isa, case, data, N), n_bytes=data.size)


@pytest.mark.parametrize("case", [k for k in TYPES if k not in ("F16", "BF16")])
def bench_decode_row(rng: np.random.Generator, timed: Timed, case: str) -> None:
    """Weights to float32, the definition of each type."""
    data, type_id, _ = random_weights(rng, case, 1, N)
    timed(lambda: ds4_kernels.dequantize_row(type_id, data, N), n_bytes=data.size)


def bench_dot_many(isa: str, rng: np.random.Generator, timed: Timed) -> None:
    """One float32 row with 64 tokens."""
    if not ds4_kernels.can_run(isa):
        pytest.skip(f"the inner kernels have no variant {isa}")
    w, x = rng.standard_normal(4096, np.float32), rng.standard_normal((64, 4096), np.float32)
    timed(lambda: ds4_kernels.dot_many(isa, w, x), macs=64 * 4096)


@pytest.mark.parametrize("case", ["q8_k", "q8_a"])
def bench_quantize_activations(rng: np.random.Generator, timed: Timed, case: str) -> None:
    """Activations to 8 bits, the definition of each format."""
    x = rng.standard_normal(N, np.float32)
    function = ds4_kernels.quantize_q8_k if case == "q8_k" else ds4_kernels.quantize_q8_a
    timed(lambda: function(x), n_bytes=4 * N)
