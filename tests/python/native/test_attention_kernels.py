"""The inner kernels of attention and indexer: equal bits on every instruction set, the exponential's error."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from support import native

F = np.float32
VARIANTS = ("base", "avx2", "avx512")


@pytest.fixture(scope="module")
def ds4_kernels() -> ModuleType:
    return native.kernels_module()


def variants(kernels: ModuleType) -> list[str]:
    return [isa for isa in VARIANTS if kernels.can_run(isa)]


def test_exp_is_within_one_ulp_where_normal(ds4_kernels: ModuleType) -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(-87.3, 88.7, 200_000), rng.standard_normal(100_000) * 0.3]).astype(F)
    exact = np.exp(x.astype(np.float64))
    error = np.abs(ds4_kernels.exp_row("base", x) - exact) / np.spacing(exact.astype(F))
    assert error.max() < 1


def test_exp_at_the_ends(ds4_kernels: ModuleType) -> None:
    """0 below the smallest normal number, infinity above the largest, NaN stays; exactly 1 at 0."""
    tiny, big = F(np.log(2.0) * -126), F(88.7228)
    x = np.array([0, -0.0, tiny + F(1e-5), tiny - F(1e-5), -104, -1e30, -np.inf, big, 88.7229, 1e30, np.inf, np.nan], F)
    y = ds4_kernels.exp_row("base", x)
    np.testing.assert_array_equal(y[[0, 1]], 1)
    assert np.finfo(F).tiny <= y[2] < 1.2e-38
    np.testing.assert_array_equal(y[3:7], 0)
    assert 3.4e38 < y[7] < np.inf
    np.testing.assert_array_equal(y[8:11], np.inf)
    assert np.isnan(y[11])


def test_exp_has_the_same_bits_everywhere(ds4_kernels: ModuleType) -> None:
    """Every 997th float32 pattern on every variant; a value's bits do not depend on its place in the row."""
    x = np.arange(0, 2**32, 997, dtype=np.uint32).view(F)
    expected = ds4_kernels.exp_row("base", x)
    for isa in variants(ds4_kernels):
        np.testing.assert_array_equal(ds4_kernels.exp_row(isa, x).view(np.uint32), expected.view(np.uint32))
        for n in (1, 15, 16, 17, 33):
            np.testing.assert_array_equal(ds4_kernels.exp_row(isa, x[3 : 3 + n]), expected[3 : 3 + n])
