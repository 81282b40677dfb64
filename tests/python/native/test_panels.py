"""Panels: products of 16 weight rows with blocks of tokens, every variant against the scalar definition bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from support import dequant, native
from support.gguf_write import BLOCKS, GGMLType

kernels = native.kernels_module()

F = np.float32
VARIANTS = kernels.panel_names()
TYPES = ["Q8_0", "MXFP4", "Q2_K", "Q4_K", "IQ2_XXS"]
TOKENS = [*range(1, 14), 25]
EXTREME = np.array([0x7BFF, 0xFBFF, 0x0001, 0x8001, 0x03FF, 0x0400, 0x0000, 0x8000, 0x3C00], np.uint16)
"""Halves: the largest of both signs, the least subnormals, the largest one, the least normal, zeros, one."""

every = pytest.mark.parametrize("variant", VARIANTS)
each_type = pytest.mark.parametrize("name", TYPES)


def same_bits(a, b):
    """Equal bit for bit, with any NaN equal to any other."""
    a, b = np.ascontiguousarray(a, F), np.ascontiguousarray(b, F)
    return a.shape == b.shape and bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())


def widths(name):
    return [32, 96, 256, 288, 512, 2048] if BLOCKS[GGMLType[name]][0] == 32 else [256, 512, 2048]


def random_weights(name, n_out, n_in, seed):
    """Rows [n_out, bytes] of random blocks with scales of ordinary size."""
    type_ = GGMLType[name]
    block, n_bytes = BLOCKS[type_]
    rng = np.random.default_rng(seed)
    raw = dequant.random_blocks(rng, type_, n_out * n_in // block)
    if name == "MXFP4":
        raw[:, 0] = rng.integers(118, 134, len(raw))
    return raw.reshape(n_out, n_in // block * n_bytes)


def random_tokens(n, n_in, seed):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, n_in)) * 10.0 ** rng.uniform(-2, 2, (n, n_in))).astype(F)


def assert_defined(variant, name, weights, x, **options):
    """The variant's product has the bits of vec_dot, also of each token alone; returns it."""
    type_ = GGMLType[name]
    got = kernels.panel_matmul(variant, type_, weights, len(weights), x, **options)
    wanted = kernels.vec_dot_matmul(type_, weights, len(weights), x)
    assert same_bits(got, wanted)
    if kernels.panel_takes_one(variant, type_):
        for t in range(min(len(x), 13)):
            assert same_bits(
                kernels.panel_matmul(variant, type_, weights, len(weights), x[t : t + 1], **options), wanted[t : t + 1]
            )
    return got


def test_every_level_of_this_machine_has_panels():
    """A variant that was left out of the build or of the choice would pass every other test here."""
    assert VARIANTS[0] == "base"
    assert len(set(VARIANTS)) == len(VARIANTS)
    for variant in VARIANTS:
        assert 1 <= kernels.panel_block(variant) <= 12


@every
@each_type
@pytest.mark.parametrize("n_out", [1, 7, 16, 33])
def test_products_of_odd_shapes(variant, name, n_out):
    for n_in in widths(name):
        weights = random_weights(name, n_out, n_in, n_in + n_out)
        x = random_tokens(max(TOKENS), n_in, n_in)
        wanted = kernels.vec_dot_matmul(GGMLType[name], weights, n_out, x)
        assert np.isfinite(wanted).all() and np.abs(wanted).max() > 0
        for n in TOKENS:
            assert same_bits(kernels.panel_matmul(variant, GGMLType[name], weights, n_out, x[:n]), wanted[:n])


def test_the_variants_that_take_one_token_without_a_panel():
    """Where the machine runs them: what is not listed here would be left out of the tests of single tokens."""
    taken = {name for name in TYPES if kernels.panel_takes_one(VARIANTS[-1], GGMLType[name])}
    assert taken == ({"Q2_K", "IQ2_XXS"} if VARIANTS[-1] == "avx512vnni" else set())


@every
@each_type
def test_one_token_in_panels(variant, name):
    """Tails of a matrix, of fewer than 16 rows, go through a panel where whole ones do without."""
    for n_in in widths(name):
        weights = random_weights(name, 16, n_in, n_in)
        x = random_tokens(1, n_in, n_in + 1)
        wanted = kernels.vec_dot_matmul(GGMLType[name], weights, 16, x)
        assert same_bits(kernels.panel_matmul(variant, GGMLType[name], weights, 16, x, in_panels=True), wanted)


@every
@each_type
def test_the_least_step_of_unpacking(variant, name):
    """Codes, scales and minimums of one step are those of the plain variant, in every step of a row."""
    for n_in in widths(name):
        weights = random_weights(name, 16, n_in, n_in)
        for step in range((n_in + 255) // 256):
            got = kernels.panel_unpack(variant, GGMLType[name], weights, n_in, step)
            wanted = kernels.panel_unpack("base", GGMLType[name], weights, n_in, step)
            for a, b in zip(got, wanted, strict=True):
                assert (a is None) == (b is None)
                if b is not None:
                    np.testing.assert_array_equal(a, b)


@each_type
def test_plain_panels_hold_what_the_decoder_decodes(name):
    weights = random_weights(name, 16, 256, 3)
    codes, scales, factors, mins, d, dmin = kernels.panel_unpack("base", GGMLType[name], weights, 256, 0)
    wanted = dequant.DECODERS[GGMLType[name]](weights.reshape(-1, BLOCKS[GGMLType[name]][1])).reshape(16, 256)
    scale = np.ones((16, 8)) if scales is None else scales.astype(np.float64)
    scale = scale if factors is None else scale * factors
    value = codes * np.repeat(scale, 32, 1) * (1.0 if d is None else d[:, None].astype(np.float64))
    if mins is not None:
        value -= np.repeat(mins, 16, 1) * dmin[:, None].astype(np.float64)
    np.testing.assert_allclose(value, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


def every_code(name):
    """256 rows of 256 columns: every byte of a block takes every value, the scales apart."""
    type_ = GGMLType[name]
    block, n_bytes = BLOCKS[type_]
    raw = (np.arange(65536 // block)[:, None] + 89 * np.arange(n_bytes)).astype(np.uint8)
    for at in dequant.F16_FIELDS.get(type_, ()):
        raw[:, at : at + 2] = np.array([0.01], np.float16).view(np.uint8)
    if name == "MXFP4":
        raw[:, 0] = 120
    return raw.reshape(256, -1)


@every
@each_type
def test_every_code_at_every_place(variant, name):
    """A unit vector shows each weight alone: 256 tokens, each with one column that is not zero."""
    weights = every_code(name)
    got = assert_defined(variant, name, weights, np.eye(256, dtype=F))
    exact = dequant.DECODERS[GGMLType[name]](weights.reshape(-1, BLOCKS[GGMLType[name]][1])).reshape(256, 256)
    np.testing.assert_allclose(got.T, exact, rtol=1e-6, atol=1e-6 * np.abs(exact).max())


@every
@each_type
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0x81, 0xFF, 0x0F, 0xF0])
def test_extreme_codes_meet_saturating_activations(variant, name, byte):
    """Nothing saturates or overflows: every activation is -127 or 127, in patterns that add up."""
    type_ = GGMLType[name]
    block, n_bytes = BLOCKS[type_]
    raw = np.full((16 * 512 // block, n_bytes), byte, np.uint8)
    for at in dequant.F16_FIELDS.get(type_, ()):
        raw[:, at : at + 2] = np.array([1.0], np.float16).view(np.uint8)
    if name == "MXFP4":
        raw[:, 0] = 128
    signs = np.sign(dequant.DECODERS[type_](raw).reshape(16, 512)[0]) + 0.5
    alternating = np.where(np.arange(512) % 2, 1.0, -1.0)
    x = np.array([np.ones(512), -np.ones(512), np.sign(signs), -np.sign(signs), alternating], F) * F(3)
    weights = raw.reshape(16, -1)
    got = assert_defined(variant, name, weights, x)
    exact = x.astype(np.float64) @ dequant.DECODERS[type_](raw).reshape(16, 512).T.astype(np.float64)
    np.testing.assert_allclose(got, exact, rtol=2e-6, atol=1e-2)


@every
@each_type
def test_extreme_scales(variant, name):
    """The largest halves, subnormals and zeros of both signs; scale bytes of MXFP4 from the subnormals to NaN."""
    type_ = GGMLType[name]
    block, n_bytes = BLOCKS[type_]
    rng = np.random.default_rng(9)
    raw = rng.integers(0, 256, (33 * 512 // block, n_bytes), dtype=np.uint8)
    for at in dequant.F16_FIELDS.get(type_, ()):
        raw[:, at : at + 2] = rng.choice(EXTREME, len(raw))[:, None].view(np.uint8)
    if name == "MXFP4":
        raw[:, 0] = rng.choice(np.array([0, 1, 2, 3, 126, 127, 254, 255], np.uint8), len(raw))
    x = random_tokens(5, 512, 4)
    x[3] *= F(1e-30)
    assert_defined(variant, name, raw.reshape(33, -1), x)


@every
@each_type
def test_scales_that_are_not_finite(variant, name):
    """An infinite or NaN scale of one row spoils that row and no other."""
    weights = random_weights(name, 32, 512, 6)
    bad = {5: 0x7E00, 20: 0x7C00}
    for row, half in bad.items():
        for at in dequant.F16_FIELDS.get(GGMLType[name], ()):
            weights[row, at : at + 2] = np.array([half], np.uint16).view(np.uint8)
        if name == "MXFP4":
            weights[row, 0] = 255  # as the definition has it: a large finite scale
    got = assert_defined(variant, name, weights, random_tokens(4, 512, 7))
    assert np.isfinite(np.delete(got, list(bad), 1)).all()


@every
@each_type
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_tokens_that_are_not_finite_give_nan_and_leave_the_others(variant, name, bad):
    weights = random_weights(name, 17, 512, 8)
    x = random_tokens(13, 512, 9)
    clean = assert_defined(variant, name, weights, x)
    x[4, 300] = bad
    got = assert_defined(variant, name, weights, x)
    assert np.isnan(got[4]).all()
    assert same_bits(np.delete(got, 4, 0), np.delete(clean, 4, 0))


@every
@each_type
def test_zero_denormal_and_huge_tokens(variant, name):
    """1e30 gives no NaN unless the product itself leaves float32; what is too small to scale counts as zero."""
    weights = random_weights(name, 16, 512, 10)
    x = random_tokens(6, 512, 11)
    x[0] = 0
    x[1] = np.float32(1e-44)
    x[2] *= F(1e-40)
    x[3] *= F(1e30 / np.abs(x[3]).max())
    x[4, :256] = 0
    x[5] = np.where(np.arange(512) % 2, F(3.4e38), F(1e-45))
    got = assert_defined(variant, name, weights, x)
    assert not got[:2].any()
    assert np.isfinite(got[3]).all()


@every
@each_type
@pytest.mark.parametrize("gap", [0, 1, 3, 7, -1])
def test_weights_at_any_address_and_no_read_outside_them(variant, name, gap):
    """The bytes end 0 to 7 bytes before, or begin right behind, a page that cannot be read."""
    for n_in in widths(name)[:4]:
        weights = random_weights(name, 17, n_in, 12)
        assert_defined(variant, name, weights, random_tokens(3, n_in, 13), gap=gap)


@every
@each_type
def test_grouping_of_tokens_does_not_matter(variant, name):
    """A token alone and the same token in any block have the same bits."""
    weights = random_weights(name, 16, 512, 14)
    x = random_tokens(12, 512, 15)
    together = kernels.panel_matmul(variant, GGMLType[name], weights, 16, x)
    for t in range(12):
        alone = kernels.panel_matmul(variant, GGMLType[name], weights, 16, x[t : t + 1])
        assert same_bits(alone[0], together[t])


# ------------------------------------------------------------------------------------------------------- accuracy

EPS = 2.0**-24


def rounding_bound(name, weights, x):
    """Bound on |product - exact| [n, n_out] of the exact product of decoded weights and unrounded activations.

    Rounding an activation to 8 bits moves it by at most half a step d_a, and a little for the float32 inverse of the
    step: 0.5 d_a (1 + 2^-16) suffices, since codes stay below 128. Each block adds at most six float32 roundings of
    values no larger than sum |w x| of the block (codes and minimums apart), and the sum across blocks one each.
    """
    type_ = GGMLType[name]
    n_bytes = BLOCKS[type_][1]
    n_out, n_in = len(weights), x.shape[1]
    raw = weights.reshape(-1, n_bytes)
    w = np.abs(dequant.DECODERS[type_](raw).astype(np.float64)).reshape(n_out, n_in)
    # |scale * code| + |min|: the sizes of the two sums that are subtracted, which w itself does not show
    parts = w
    if name in ("Q2_K", "Q4_K"):
        at = dequant.F16_FIELDS[type_]
        d, dmin = (np.abs(dequant.f16_field(raw, i).astype(np.float64)) for i in at)
        if name == "Q2_K":
            codes, s, per = dequant.two_bit_codes(raw[:, 16:80]), (raw[:, :16] & 15, raw[:, :16] >> 4), 16
        else:
            codes, s, per = dequant.four_bit_codes(raw[:, 16:144]), dequant.six_bit_scales(raw[:, 4:16]), 32
        parts = (np.repeat(d * s[0], per, 1) * codes + np.repeat(dmin * s[1], per, 1)).reshape(n_out, n_in)
    size = 256 if kernels.activation_kind(type_) == 1 else 32
    x64 = np.abs(x.astype(np.float64)).reshape(len(x), -1, size)
    step = np.repeat(x64.max(2) / 127, size, 1)
    rounding = 0.5 * (1 + 2.0**-16) * step @ w.T
    return rounding + EPS * (n_in / size + 6) * ((step + x64.reshape(len(x), -1)) @ parts.T)


@each_type
@pytest.mark.parametrize("tails", ["normal", "heavy"])
def test_distance_from_the_exact_product(name, tails):
    """Within the bound everywhere, and not so far below it that the bound says nothing."""
    rng = np.random.default_rng(21)
    n_in = 2048
    weights = random_weights(name, 32, n_in, 22)
    x = (rng.standard_normal((16, n_in)) if tails == "normal" else rng.standard_t(1.2, (16, n_in))).astype(F)
    type_ = GGMLType[name]
    w = dequant.DECODERS[type_](weights.reshape(-1, BLOCKS[type_][1])).reshape(32, n_in).astype(np.float64)
    bound = rounding_bound(name, weights, x)
    for variant in VARIANTS:
        error = np.abs(kernels.panel_matmul(variant, type_, weights, 32, x) - x.astype(np.float64) @ w.T)
        assert (error <= bound).all()
    assert (error / bound).max() > 0.01


@each_type
def test_the_bound_is_reached_by_activations_half_way_between_codes(name):
    """Activations at half steps, rounded away from the exact product's side: error above 90 % of the bound."""
    type_ = GGMLType[name]
    weights = random_weights(name, 16, 256, 23)
    w = dequant.DECODERS[type_](weights.reshape(-1, BLOCKS[type_][1])).reshape(16, 256).astype(np.float64)
    size = 256 if kernels.activation_kind(type_) == 1 else 32
    # even codes plus nearly half a step in the direction of the weight's sign, and one peak of 127 a block
    x = np.where(w[0] > 0, 0.4999, -0.4999).astype(F)
    x[::size] = 127
    error = abs(float(kernels.vec_dot_matmul(type_, weights, 16, x[None])[0, 0]) - float(x.astype(np.float64) @ w[0]))
    bound = rounding_bound(name, weights, x[None])[0, 0]
    assert 0.85 * bound < error <= bound
