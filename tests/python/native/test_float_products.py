"""Matrix products with float32 activations: the bits of the dot product, whatever the variant, tokens and threads."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support import dequant, native
from support.gguf_write import BLOCKS, GGMLType

kernels = native.kernels_module()

F = np.float32
VARIANTS = [isa for isa in ("base", "avx2", "avx512") if kernels.can_run(isa)]


def weights(type_: GGMLType, n_out: int, n_in: int) -> NDArray[np.uint8]:
    rng = np.random.default_rng(n_in)
    if type_ == GGMLType.F32:
        return rng.standard_normal((n_out, n_in)).astype(F).view(np.uint8)
    if type_ == GGMLType.F16:
        return rng.standard_normal((n_out, n_in)).astype(np.float16).view(np.uint8)
    if type_ == GGMLType.BF16:
        high = rng.standard_normal((n_out, n_in)).astype(F).view(np.uint32) >> 16
        return high.astype(np.uint16).view(np.uint8)
    return dequant.random_blocks(rng, type_, n_out * n_in // BLOCKS[type_][0]).reshape(n_out, -1)


def one_by_one(type_: GGMLType, raw: NDArray[np.uint8], x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Every product by the plain dot product of the base variant."""
    rows = [kernels.dequantize_row(type_, row, x.shape[1]) for row in raw]
    return np.array([kernels.dot_many("base", row, x) for row in rows], F).T


@pytest.mark.parametrize("isa", VARIANTS)
@pytest.mark.parametrize("type_", [GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0, GGMLType.Q4_K])
@pytest.mark.parametrize(("n_out", "n_in"), [(24, 2304), (25, 1024), (1, 256), (100, 512)])
def test_products_are_dot_products(isa: str, type_: GGMLType, n_out: int, n_in: int) -> None:
    raw = weights(type_, n_out, n_in)
    x = np.random.default_rng(n_out).standard_normal((101, n_in)).astype(F)
    wanted = one_by_one(type_, raw, x)
    for n in (1, 2, 3, 5, 6, 7, 23, 25, 48, 49, 101):
        for threads in (1, 3) if n in (1, 25, 101) else (1,):
            np.testing.assert_array_equal(kernels.matmul(isa, threads, type_, raw, n_out, x[:n]), wanted[:n])
    exact = x.astype(np.float64) @ np.array([kernels.dequantize_row(type_, row, n_in) for row in raw], np.float64).T
    np.testing.assert_allclose(wanted, exact, rtol=0, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("isa", VARIANTS)
@pytest.mark.parametrize("type_", [GGMLType.F32, GGMLType.F16, GGMLType.BF16])
@pytest.mark.parametrize("n_in", [1, 2, 31, 32, 33, 63, 100, 1023, 1025, 2050])
def test_rows_of_any_length(isa: str, type_: GGMLType, n_in: int) -> None:
    raw = weights(type_, 5, n_in)
    x = np.random.default_rng(n_in).standard_normal((8, n_in)).astype(F)
    wanted = one_by_one(type_, raw, x)
    for n in (1, 2, 8):
        np.testing.assert_array_equal(kernels.matmul(isa, 1, type_, raw, 5, x[:n]), wanted[:n])


@pytest.mark.parametrize("isa", VARIANTS)
@pytest.mark.parametrize("n", [1, 4, 60])
def test_groups_and_adding(isa: str, n: int) -> None:
    """Rows of group g read the columns of group g; the product is added to what is there."""
    raw = weights(GGMLType.F16, 4 * 31, 320)
    x = np.random.default_rng(1).standard_normal((n, 4 * 320)).astype(F)
    y = np.random.default_rng(2).standard_normal((n, 4 * 31)).astype(F)
    wanted = np.concatenate(
        [
            one_by_one(GGMLType.F16, raw[31 * g : 31 * (g + 1)], np.ascontiguousarray(x[:, 320 * g : 320 * (g + 1)]))
            for g in range(4)
        ],
        axis=1,
    )
    got = kernels.matmul(isa, 2, GGMLType.F16, raw, 4 * 31, x, 4)
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(kernels.matmul(isa, 2, GGMLType.F16, raw, 4 * 31, x, 4, y), y + wanted)


@pytest.mark.parametrize("isa", VARIANTS)
def test_rows_of_halves_without_decoding(isa: str) -> None:
    """Subnormal, infinite and NaN weights too, in rows without alignment."""
    for n in (1, 16, 33, 65, 4096):
        x = np.random.default_rng(n).standard_normal(n).astype(F)
        codes = np.random.default_rng(n + 1).integers(0, 65536, n, np.uint16)
        for bf16, type_ in ((False, GGMLType.F16), (True, GGMLType.BF16)):
            for some in (codes, codes & 0xBBFF if not bf16 else codes & 0xBFFF):
                got = kernels.dot_16(isa, bf16, some.view(np.uint8), x)
                if got is None:
                    assert isa == "base"
                    continue
                wanted = kernels.dot("base", kernels.dequantize_row(type_, some.view(np.uint8), n), x)
                assert got == wanted or (np.isnan(got) and np.isnan(wanted))
