"""The CPU backend's primitives: rounding bit for bit, the choice of instruction set, equal variants."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray
from oracle import reference
from support import native

F = np.float32
VARIANTS = ("base", "avx2", "avx512")


@pytest.fixture(scope="module")
def ds4_kernels() -> ModuleType:
    return native.kernels_module()


def e4m3_codes() -> NDArray[np.float32]:
    codes = [m / 512 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7) for e in range(16) for m in range(8)]
    return np.array(codes[:127], F)  # the last code is NaN


def test_e4m3_rounds_to_nearest_even(ds4_kernels: ModuleType) -> None:
    """Every code, every midpoint between codes (ties) and its neighbours, and random values."""
    codes = e4m3_codes()
    middle = (codes[:-1] + codes[1:]) / 2
    even = np.where(np.arange(126) % 2 == 0, codes[:-1], codes[1:])
    np.testing.assert_array_equal(ds4_kernels.round_e4m3(codes), codes)
    np.testing.assert_array_equal(ds4_kernels.round_e4m3(middle), even)
    np.testing.assert_array_equal(ds4_kernels.round_e4m3(-middle), -even)
    np.testing.assert_array_equal(ds4_kernels.round_e4m3(np.nextafter(middle, F(0))), codes[:-1])
    np.testing.assert_array_equal(ds4_kernels.round_e4m3(np.nextafter(middle, F(999))), codes[1:])
    x = np.random.default_rng(0).uniform(-448, 448, 100_000).astype(F) ** 3 / 448**2
    np.testing.assert_array_equal(
        ds4_kernels.round_e4m3(x), reference.round_to_codes(x.astype(np.float64), codes.astype(np.float64)).astype(F)
    )


def test_e2m1_midpoints_round_to_the_even_code(ds4_kernels: ModuleType) -> None:
    midpoints = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], F)
    expected = np.array([0, 1, 1, 2, 2, 4, 4], F)
    np.testing.assert_array_equal(ds4_kernels.round_e2m1(midpoints), expected)
    np.testing.assert_array_equal(ds4_kernels.round_e2m1(-midpoints), -expected)


def test_scale_is_the_power_of_two_not_below(ds4_kernels: ModuleType) -> None:
    powers = np.exp2(np.arange(-120, 120)).astype(F)
    np.testing.assert_array_equal(ds4_kernels.power_of_two_at_least(powers), powers)
    np.testing.assert_array_equal(ds4_kernels.power_of_two_at_least(np.nextafter(powers, F(np.inf))), 2 * powers)
    np.testing.assert_array_equal(ds4_kernels.power_of_two_at_least(np.nextafter(powers, F(0))), powers)


@pytest.mark.parametrize("dim", [256, 512])
def test_fp8_rows_equal_the_reference(ds4_kernels: ModuleType, dim: int) -> None:
    """Random rows of many magnitudes, zero rows, values at the edges of a binade of the scale."""
    rng = np.random.default_rng(dim)
    rows = (rng.standard_normal((2000, dim)) * np.exp2(rng.uniform(-20, 12, (2000, 1)))).astype(F)
    rows[0] = 0
    rows[1] = 448
    rows[2] = np.nextafter(F(448), F(999))
    rows[3:20] = F(448) * np.exp2(np.arange(-8, 9)).astype(F)[:, None] * rng.uniform(-1, 1, (17, dim)).astype(F)
    ours = ds4_kernels.round_fp8(rows, 64)
    np.testing.assert_array_equal(ours, reference.fp8_rows(rows, 64))
    np.testing.assert_array_equal(ours[:, -64:], rows[:, -64:])


def test_fp4_rows_equal_the_reference(ds4_kernels: ModuleType) -> None:
    rng = np.random.default_rng(4)
    rows = (rng.standard_normal((3000, 128)) * np.exp2(rng.uniform(-20, 12, (3000, 1)))).astype(F)
    rows[0] = 0
    rows[1] = 1
    np.testing.assert_array_equal(ds4_kernels.round_fp4(rows), reference.fp4_rows(rows))


@pytest.mark.parametrize("n", [1, 2, 15, 16, 31, 32, 33, 64, 100, 511, 512, 4096])
def test_every_variant_gives_the_bits_of_the_base(ds4_kernels: ModuleType, n: int) -> None:
    rng = np.random.default_rng(n)
    w, x = rng.standard_normal(n).astype(F), rng.standard_normal((7, n)).astype(F)
    expected = ds4_kernels.dot_many("base", w, x)
    exact = x.astype(np.float64) @ w
    np.testing.assert_allclose(expected, exact, rtol=0, atol=1e-6 * np.sqrt(n) * 10)
    for isa in VARIANTS:
        if not ds4_kernels.can_run(isa):
            continue
        np.testing.assert_array_equal(ds4_kernels.dot_many(isa, w, x), expected)
        one_by_one = [ds4_kernels.dot(isa, w, row) for row in x]
        np.testing.assert_array_equal(np.array(one_by_one, F), expected)


@pytest.mark.parametrize("type_", ["f16", "bf16"])
def test_decoders_of_every_variant(ds4_kernels: ModuleType, type_: str) -> None:
    """All 65,536 bit patterns; NaN payloads need only stay NaN."""
    codes = np.arange(65536, dtype=np.uint16)
    expected = codes.view(np.float16).astype(F) if type_ == "f16" else (codes.astype(np.uint32) << 16).view(F)
    for isa in VARIANTS:
        if ds4_kernels.can_run(isa):
            np.testing.assert_array_equal(ds4_kernels.decode(isa, type_, codes.view(np.uint8), 65536), expected)


def test_q8_0_decoder_of_every_variant(ds4_kernels: ModuleType) -> None:
    rng = np.random.default_rng(8)
    blocks = rng.integers(0, 256, (500, 34), np.uint8)
    blocks[:, 1] &= 0xBF  # no NaN or infinity in the scale
    scale = blocks[:, :2].copy().view(np.float16).astype(F)
    expected = (scale * blocks[:, 2:].view(np.int8).astype(F)).ravel()
    for isa in VARIANTS:
        if ds4_kernels.can_run(isa):
            np.testing.assert_array_equal(ds4_kernels.decode(isa, "q8_0", blocks.ravel(), expected.size), expected)


FLAGS = {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "avx512vbmi"}
"""What the best level asks of an x86-64 processor."""


def test_instruction_set_needs_the_processor_and_the_system(ds4_kernels: ModuleType) -> None:
    """A flag without the register state enabled by the operating system must not be used."""
    level, ymm, zmm = ds4_kernels.best_level, 0x6, 0xE6
    assert level(zmm | 1, FLAGS) == 3
    assert level(ymm | 1, FLAGS) == 1
    assert level(0, FLAGS) == 0
    for missing, left in (("vnni", 2), ("vbmi", 2), ("f", 1), ("bw", 1), ("vl", 1), ("dq", 1)):
        assert level(zmm, FLAGS - {f"avx512{missing}"}) == left
    for missing in ("avx2", "fma", "f16c"):
        assert level(zmm, FLAGS - {missing}) == 0
