"""The operation that steers: equal to float32 in the order of the kernels, with any instruction set and threads."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from numpy.typing import NDArray
from support import native

kernels = native.kernels_module()

F = np.float32
Floats = NDArray[np.float32]
MOST = 8


def dot(a: Floats, b: Floats) -> np.float32:
    """32 partial sums, then halves added: i += i + 16, + 8, + 4, + 2, + 1; what is left of the row comes behind."""
    whole = len(a) // 32 * 32
    sums = np.zeros(32, F)
    for i in range(0, whole, 32):
        sums += a[i : i + 32] * b[i : i + 32]
    for half in (16, 8, 4, 2, 1):
        sums[:half] += sums[half : 2 * half]
    total = sums[0]
    for i in range(whole, len(a)):
        total += a[i] * b[i]
    return total


def reference(y: Floats, directions: list[Floats], scales: list[float]) -> Floats:
    out = y.copy()
    for t, row in enumerate(y):
        factors = [F(s) * dot(d, row) for d, s in zip(directions, scales, strict=True)]
        for d, factor in zip(directions, factors, strict=True):
            out[t] -= factor * d
    return out


def run(queue: object, y: Floats, directions: list[Floats], scales: list[float]) -> Floats:
    place = queue.upload(y.view(np.uint8).reshape(-1))  # type: ignore[attr-defined]
    refs = [queue.upload(d.view(np.uint8)) for d in directions]  # type: ignore[attr-defined]
    record = struct.pack("<QQ", place, 0)
    record += b"".join(struct.pack("<QQ", r, 0) for r in refs) + bytes(16 * (MOST - len(refs)))
    record += struct.pack(f"<{MOST}f", *scales, *[0.0] * (MOST - len(scales)))
    record += struct.pack("<III4x", len(y), y.shape[1], len(refs))
    queue.run("steer", record)  # type: ignore[attr-defined]
    return np.asarray(queue.download(place, y.nbytes)).view(F).reshape(y.shape)  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [1, 2, MOST])
@pytest.mark.parametrize("dim", [1, 31, 32, 100, 256, 4096])
def test_against_float32_in_its_order(dim: int, count: int) -> None:
    rng = np.random.default_rng(dim)
    y = (rng.standard_normal((5, dim)) * 3).astype(F)
    directions = [d / np.linalg.norm(d) for d in rng.standard_normal((count, dim)).astype(F)]
    scales = [float(s) for s in rng.uniform(-2, 2, count).astype(F)]
    expected = reference(y, directions, scales)
    for isa in ("base", "avx2", "avx512"):
        if not kernels.can_run(isa):
            continue
        try:
            kernels.limit_isa(isa)
            for threads in (1, 3):
                got = run(kernels.Queue(threads), y, directions, scales)
                np.testing.assert_array_equal(got, expected, err_msg=f"{isa}, {threads} threads")
        finally:
            kernels.limit_isa("auto")
    exact = y - sum(
        s * (y.astype(np.float64) @ d.astype(np.float64))[:, None] * d for d, s in zip(directions, scales, strict=True)
    )
    np.testing.assert_allclose(expected, exact, atol=2e-6 * count * np.abs(y).max() * max(1, dim / 256))


def test_numbers_that_are_none_stay_in_their_row() -> None:
    y = np.ones((3, 64), F)
    y[1, 5] = np.nan
    d = np.full(64, 0.125, F)
    got = run(kernels.Queue(1), y, [d], [1.0])
    assert np.isnan(got[1]).all()
    assert np.isfinite(got[[0, 2]]).all()
