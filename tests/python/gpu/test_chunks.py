"""A token's result on a GPU back end does not depend on the tokens that are computed with it: the bits are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from support import gpu
from support.gpu.attention import attend, choices

if TYPE_CHECKING:
    from support.gpu import Array

F = np.float32


@pytest.fixture(params=gpu.HOSTS)
def device(request: pytest.FixtureRequest) -> gpu.Device:
    return gpu.Device(gpu.host_library(request.param))


@pytest.mark.parametrize("kind", [np.float16, F])
@pytest.mark.parametrize(
    ("heads", "dim", "ratio", "top"), [(9, 32, 4, 40), (4, 64, 128, 0), (3, 16, 0, 0), (2, 16, 4, 0)]
)
def test_attention(device: gpu.Device, kind: type, heads: int, dim: int, ratio: int, top: int) -> None:
    """One block for a whole token (many tokens), or one for each piece of its keys (few): both forms."""
    rng = np.random.default_rng(5)
    n, pos0, window = 12, 700, 128
    capacity, sinks = window + n, rng.standard_normal(heads).astype(F)
    q = rng.standard_normal((n, heads, dim)).astype(F)
    ring = rng.standard_normal((capacity, dim)).astype(kind)
    more: dict[str, Array] = {}
    if ratio:
        more["compressed"] = rng.standard_normal(((pos0 + n) // ratio, dim)).astype(kind)
    if top:
        more["selected"], more["counts"] = choices(rng, n, pos0, ratio, top)

    def part(begin: int, end: int) -> Array:
        own = {k: v[begin:end] if k in ("selected", "counts") else v for k, v in more.items()}
        return attend(device, q[begin:end], ring, sinks, window=window, ratio=ratio, pos0=pos0 + begin, **own)

    whole = part(0, n)
    for size in (1, 5):
        pieces = np.concatenate([part(b, min(b + size, n)) for b in range(0, n, size)])
        np.testing.assert_array_equal(pieces.view(np.uint32), whole.view(np.uint32))


@pytest.mark.parametrize("kind", [np.float16, F])
def test_attention_in_one_block_and_in_many(device: gpu.Device, kind: type) -> None:
    """With many tokens a block goes through all pieces of one; alone the same token is split."""
    rng = np.random.default_rng(6)
    n, dim, window = 256, 16, 128
    ring, sinks = rng.standard_normal((window + n, dim)).astype(kind), rng.standard_normal(1).astype(F)
    q = rng.standard_normal((n, 1, dim)).astype(F)
    many = attend(device, q, ring, sinks, window=window, pos0=300)
    for t in (0, 1, 130, n - 1):
        alone = attend(device, q[t : t + 1], ring, sinks, window=window, pos0=300 + t)
        np.testing.assert_array_equal(many[t].view(np.uint32), alone[0].view(np.uint32))
