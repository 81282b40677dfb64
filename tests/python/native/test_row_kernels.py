"""The CPU backend's row kernels: equal bits of every variant, equal bytes of the 8-bit rounding, exact values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support import native

kernels = native.kernels_module()

F = np.float32
Floats = NDArray[np.float32]
VARIANTS = [isa for isa in ("base", "avx2", "avx512") if kernels.can_run(isa)]
LENGTHS = [1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 511, 512, 4096]
EDGES = np.array([0, -0.0, 1e-45, -1e-45, 1e-39, 1.2e-38, -3e-38, 1, -1, 88, -88, 104, -104, 3e38, -3e38], F)
DAMAGE = np.array([np.inf, -np.inf, np.nan], F)


def same(name: str, *args: Any) -> Any:
    """The result of every variant, which must agree bit for bit; a NaN may be any NaN."""
    first = getattr(kernels, name)(VARIANTS[0], *args)
    for isa in VARIANTS[1:]:
        other = getattr(kernels, name)(isa, *args)
        for a, b in zip(first, other, strict=True) if isinstance(first, tuple) else [(first, other)]:
            equal = (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))
            assert equal.all(), f"{name}: {isa} differs from {VARIANTS[0]} at {np.argwhere(~equal)[:5].tolist()}"
    return first


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


def ulps(got: Floats, exact: NDArray[np.float64]) -> float:
    with np.errstate(invalid="ignore"):
        return float(np.max(np.abs(got - exact) / np.spacing(np.maximum(np.abs(exact), 1e-37).astype(F))))


# ---------------------------------------------------------------------------------------- rounding to 8 bits


def rows_to_round() -> Floats:
    """Blocks of 256 of all magnitudes, with zeros, ties, equal peaks of both signs, subnormals, infinities and NaN."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3000, 256)) * np.exp2(rng.uniform(-152, 126, (3000, 1)))
    rows = np.clip(x, -3.4e38, 3.4e38).astype(F)
    rows[:200] = np.round(rng.uniform(-127, 127, (200, 256)) * 2) / 2  # ties when the peak is 127
    rows[:100, 17] = 127
    rows[100:150, 200] = -rows[100:150].max(1)  # both signs reach the peak, in either order
    rows[150:200, 3] = -np.abs(rows[150:200]).max(1)
    rows[200:220] = 0
    rows[220:240] = -0.0
    rows[240] = EDGES[np.arange(256) % EDGES.size]
    rows[241:341] = rng.integers(0, 2**32, (100, 256), np.uint32).view(F)  # any bits
    for i, value in enumerate(DAMAGE):
        rows[350 + 3 * i, [0, 100, 255][i]] = value
    rows[360:400, 32:] = 0  # blocks of 32 without a value beside ones with
    return rows


@pytest.mark.parametrize("isa", VARIANTS)
def test_rounded_activations_are_the_bytes_of_the_definition(isa: str) -> None:
    rows = rows_to_round()
    assert kernels.q8_k_bytes(isa, rows) == kernels.q8_k_bytes("definition", rows)
    assert kernels.q8_a_bytes(isa, rows) == kernels.q8_a_bytes("definition", rows)
    for n in range(1, 40):  # the tail of a group of blocks
        few = rows.ravel()[123 * 256 :][: 32 * n]
        assert kernels.q8_a_bytes(isa, few) == kernels.q8_a_bytes("definition", few)


@pytest.mark.parametrize("isa", VARIANTS)
def test_the_smallest_peaks_count_as_zero_where_the_definition_says(isa: str) -> None:
    """Every peak around the smallest whose factor is finite."""
    for middle in (127 / np.finfo(F).max, 1 / np.finfo(F).max * 127, 2.0**-128 * 127, 2.0**-149):
        peaks = np.array([middle], F).view(np.int32) + np.arange(-100, 100)
        rows = np.zeros((200, 256), F)
        rows[:, ::32] = np.maximum(peaks, 0).astype(np.int32).view(F)[:, None]
        assert kernels.q8_k_bytes(isa, rows) == kernels.q8_k_bytes("definition", rows)
        assert kernels.q8_a_bytes(isa, rows) == kernels.q8_a_bytes("definition", rows)


# ------------------------------------------------------------------------------- norms, rotation, storage


@pytest.mark.parametrize("n", LENGTHS)
def test_norm(n: int) -> None:
    x, w = normal(n, n), normal(n + 1, n)
    inverse = 1 / np.sqrt((x.astype(np.float64) ** 2).mean() + 1e-6)
    np.testing.assert_allclose(same("rms_row", x, w, 1e-6), x * inverse * w, rtol=1e-6)
    np.testing.assert_allclose(same("rms_row", x, None, 1e-6), x * inverse, rtol=1e-6)
    assert np.isnan(same("rms_row", np.append(x, F(np.nan)), None, 1e-6)).all()


@pytest.mark.parametrize(("dim", "n_rot"), [(2, 2), (8, 6), (16, 16), (64, 20), (512, 64), (70, 34)])
def test_rotation(dim: int, n_rot: int) -> None:
    """Pairs of the last n_rot values turn by their angle; the opposite sign turns back."""
    x, angle = normal(dim, 5, dim), normal(n_rot, n_rot // 2).astype(np.float64) * 1e3
    cosine, sine = np.repeat(np.cos(angle), 2).astype(F), np.repeat(np.sin(angle), 2).astype(F)
    sine[::2] *= -1
    turned = same("rope", x, n_rot, cosine, sine, 1.0)
    pairs = x[:, dim - n_rot :].reshape(5, -1, 2)
    wanted = np.exp(1j * angle) * (pairs[..., 0] + 1j * pairs[..., 1])
    np.testing.assert_allclose(turned[:, dim - n_rot :: 2], wanted.real, atol=1e-6)
    np.testing.assert_allclose(turned[:, dim - n_rot + 1 :: 2], wanted.imag, atol=1e-6)
    np.testing.assert_array_equal(turned[:, : dim - n_rot], x[:, : dim - n_rot])
    np.testing.assert_allclose(same("rope", turned, n_rot, cosine, sine, -1.0), x, atol=1e-6)


@pytest.mark.parametrize("n", LENGTHS)
def test_sum_of_rows(n: int) -> None:
    x, y = normal(n, n), normal(n + 1, n)
    np.testing.assert_array_equal(same("add", y, x), y + x)
    np.testing.assert_array_equal(same("subtract", y, x, 0.3), y - F(0.3) * x)


@pytest.mark.parametrize("isa", VARIANTS)
def test_halves_are_rounded_to_even(isa: str) -> None:
    """Every half, the midpoints between them with their neighbours, subnormals, overflow, infinity, NaN, any bits."""
    halves = np.arange(0, 0x7C00, dtype=np.uint16).view(np.float16).astype(F)
    middle = ((halves[:-1].astype(np.float64) + halves[1:]) / 2).astype(F)
    ends = np.array([65519.996, 65520, 1e38, np.inf, 1e-45, 1e-40], F)
    some = np.random.default_rng(3).integers(0, 2**32, 100_000, np.uint32).view(F)
    x = np.concatenate([halves, middle, np.nextafter(middle, F(0)), np.nextafter(middle, F(9e9)), ends])
    x = np.concatenate([x, -x, some])
    with np.errstate(all="ignore"):
        wanted = x.astype(np.float16)
    number = ~np.isnan(x)
    for n in (1, 3, 8, 17, x.size):
        got = kernels.to_f16(isa, x[-n:])
        np.testing.assert_array_equal(got[number[-n:]], wanted.view(np.uint16)[-n:][number[-n:]])
        assert np.isnan(got.view(np.float16)[~number[-n:]]).all()


# --------------------------------------------------------------------------------------- activation functions


@pytest.mark.parametrize("n", LENGTHS)
def test_swiglu(n: int) -> None:
    g, u = normal(n, n) * 6, normal(n + 1, n) * 6
    a, b = np.minimum(g, 7).astype(np.float64), np.clip(u, -7, 7)
    np.testing.assert_allclose(same("swiglu", g, u, 0.75, 7.0), 0.75 * a / (1 + np.exp(-a)) * b, rtol=1e-6)


def test_swiglu_of_edges_and_damage() -> None:
    g, u = (v.ravel().astype(F) for v in np.meshgrid(np.concatenate([EDGES, DAMAGE]), np.concatenate([EDGES, DAMAGE])))
    got = same("swiglu", g, u, 1.0, 10.0)
    a, b = np.minimum(g, 10).astype(np.float64), np.clip(u, -10, 10).astype(np.float64)
    with np.errstate(all="ignore"):
        wanted = a / (1 + np.exp(-a)) * b
    finite = np.isfinite(wanted)
    np.testing.assert_allclose(got[finite], wanted[finite], rtol=1e-6, atol=1e-30)
    assert np.isnan(got[np.isnan(g) | np.isnan(u)]).all()


def test_router_scores() -> None:
    x = np.concatenate([np.linspace(-87, 87, 20001), normal(1, 20000) * 3, EDGES, [19.9999, 20, 20.0001]]).astype(F)
    exact = np.sqrt(np.logaddexp(0, x.astype(np.float64)))
    got = same("router_scores", x)
    assert ulps(got[x > -87], exact[x > -87]) <= 2
    assert (got[x <= -87.5] <= 1.3e-19).all()
    assert same("router_scores", np.array([np.inf, -np.inf], F)).tolist() == [np.inf, 0]
    assert np.isnan(same("router_scores", np.array([1, np.nan], F))).tolist() == [False, True]
    for n in LENGTHS:
        np.testing.assert_array_equal(same("router_scores", x[:n]), got[:n])


@pytest.mark.parametrize("n", [1, 5, 16, 31, 512])
@pytest.mark.parametrize("entries", [1, 4, 8, 128])
def test_pooling_of_a_group(n: int, entries: int) -> None:
    k, s = normal(n, entries, n), normal(n + 1, entries, n) * 8
    weight = np.exp(s.astype(np.float64) - s.max(0))
    np.testing.assert_allclose(same("pool", k, s), (weight * k).sum(0) / weight.sum(0), atol=2e-6)
    s[0, 0] = np.nan
    assert np.isnan(same("pool", k, s)).tolist() == [True] + [False] * (n - 1)


# --------------------------------------------------------------------------------------- hyper-connections


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("h", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("iterations", [1, 2, 20])
def test_coefficients_of_the_streams(h: int, iterations: int) -> None:
    """Gates by sigmoid; the matrix by softmax, then columns and rows in turn, columns first and last."""
    mix, base, scale = normal(h, (2 + h) * h) * 3, normal(h + 1, (2 + h) * h), np.array([0.5, 0.7, 2.0], F)
    pre, post, comb = same("hc_coefficients", mix, 0.8, scale, base, h, iterations, 1e-6)
    m, b = mix.astype(np.float64) * np.float64(F(0.8)), base.astype(np.float64)
    np.testing.assert_allclose(pre, sigmoid(m[:h] * 0.5 + b[:h]) + 1e-6, rtol=2e-6)
    np.testing.assert_allclose(post, 2 * sigmoid(m[h : 2 * h] * np.float64(scale[1]) + b[h : 2 * h]), rtol=2e-6)
    c = np.exp((m[2 * h :] * 2 + b[2 * h :]).reshape(h, h))
    c = c / c.sum(1, keepdims=True) + 1e-6
    c /= c.sum(0) + 1e-6
    for _ in range(iterations - 1):
        c /= c.sum(1, keepdims=True) + 1e-6
        c /= c.sum(0) + 1e-6
    np.testing.assert_allclose(comb, c, rtol=1e-5)
    gate = same("hc_gates", mix[:h], 0.8, 0.5, base[:h], 1e-6)
    np.testing.assert_array_equal(gate, pre)


@pytest.mark.parametrize("h", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("n", [1, 4, 5, 16, 33, 256, 4096])
def test_mixing_of_the_streams(h: int, n: int) -> None:
    streams, y, weight, comb = normal(n, h, n), normal(n + 1, n), normal(h, h), normal(h + 9, h, h)
    np.testing.assert_allclose(same("hc_gather", streams, weight), weight @ streams, atol=1e-5)
    wanted = weight[:, None] * y + comb.T @ streams
    np.testing.assert_allclose(same("hc_scatter", streams, y, weight, comb), wanted, atol=1e-5)
    streams[h - 1, n - 1] = np.nan  # damage in one column stays there
    assert np.isnan(same("hc_gather", streams, weight)).sum() == 1
    assert np.isnan(same("hc_scatter", streams, y, weight, comb)).sum() == h
