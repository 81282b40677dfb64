"""The encoders of Q2_K, Q4_K and IQ2_XXS: digests of published quantizers, a numpy reference, and odd inputs."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from support import encode_reference, native, quant_encode
from support.gguf_write import GGMLType

kernels = native.kernels_module()

Q8_0, Q2_K, Q4_K, IQ2_XXS = GGMLType.Q8_0, GGMLType.Q2_K, GGMLType.Q4_K, GGMLType.IQ2_XXS
F32 = np.float32

CASES = [(Q2_K, False), (Q2_K, True), (Q4_K, False), (Q4_K, True), (IQ2_XXS, True)]
each_case = pytest.mark.parametrize(("type_", "weighted"), CASES, ids=[f"{t.name}{'+w' * w}" for t, w in CASES])
each_type = pytest.mark.parametrize("type_", [Q2_K, Q4_K, IQ2_XXS], ids=lambda t: t.name)


def encode(type_, x, weights=None):
    raw = kernels.encode_row(type_, np.asarray(x, F32), weights)
    assert raw is not None
    return raw


def decode(type_, raw, n):
    return kernels.dequantize_row(type_, raw, n)


def error(x, y, weights=1.0):
    """Weighted RMS error relative to the weighted RMS of x."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    return float(np.sqrt((weights * (x - y) ** 2).sum() / (weights * x**2).sum()))


def weights_for(x, seed):
    """A wide spread, as in measured ones: some columns count a thousand times more than others."""
    return (10.0 ** np.random.default_rng(seed).uniform(-3, 0, x.size)).astype(F32)


# --------------------------------------------------------------------------------------------------------- digests


def golden_row(seed, n=512):
    """Sums of three draws of a generator, roughly bell shaped and exact in float32."""
    out, state = np.empty(n), seed
    for i in range(n):
        total = -98304
        for _ in range(3):
            state = (state * 1664525 + 1013904223) % 2**32
            total += state >> 16
        out[i] = total
    return out


GOLDEN_X = (golden_row(1) * 2.0**-18).astype(F32)
GOLDEN_W = (golden_row(2) * 2.0**-14).astype(F32)
GOLDEN_W = GOLDEN_W * GOLDEN_W + F32(2.0**-12)


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def test_the_golden_inputs_are_the_published_ones():
    assert digest(GOLDEN_X.tobytes() + GOLDEN_W.tobytes()) == "bec914f0f49852a3"


@pytest.mark.parametrize(("type_", "weighted", "wanted"), [
    (Q2_K, False, "739a14883e6dafc2"),
    (Q2_K, True, "5fc2038769ff7a58"),
    (Q4_K, False, "d207054da39cc725"),
    (Q4_K, True, "66fb3374089922cd"),
    (IQ2_XXS, True, "f58de3d7926b26b6"),
])
def test_golden_rows_have_the_bytes_of_the_published_quantizer(type_, weighted, wanted):
    assert digest(encode(type_, GOLDEN_X, GOLDEN_W if weighted else None).tobytes()) == wanted


def test_the_golden_row_of_q8_0():
    assert digest(kernels.quantize_row(Q8_0, GOLDEN_X).tobytes()) == "9e9380712eb48970"


# ------------------------------------------------------------------------------------------------------- reference


def rows_of_kind(kind, blocks, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((blocks, 256))
    if kind == "scaled":
        x *= 10.0 ** rng.uniform(-4, 2, (blocks, 8)).repeat(32, 1)
    elif kind == "fp4":  # few distinct values, many ties
        x = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[rng.integers(0, 8, x.shape)] * rng.choice([-1, 1], x.shape) * 0.01
    elif kind == "positive":
        x = np.abs(x) + 0.3
    elif kind == "negative":
        x = -np.abs(x) - 0.3
    elif kind == "sparse":
        x *= rng.random(x.shape) < 0.05
    elif kind == "heavy":
        x = np.sign(x) * np.abs(x) ** 5
    return x.astype(F32).ravel()


KINDS = ["normal", "scaled", "fp4", "positive", "negative", "sparse", "heavy"]


@each_case
@pytest.mark.parametrize("kind", KINDS)
def test_random_rows_have_the_bytes_of_the_reference(type_, weighted, kind):
    blocks = 24 if type_ is IQ2_XXS else 200
    x = rows_of_kind(kind, blocks, 10)
    weights = weights_for(x, 11) if weighted else None
    got = encode(type_, x, weights).reshape(blocks, -1)
    wanted = encode_reference.encode(type_, x, weights).reshape(blocks, -1)
    assert np.flatnonzero((got != wanted).any(1)).tolist() == []


@each_case
def test_a_block_does_not_depend_on_its_place(type_, weighted):
    x = rows_of_kind("scaled", 7, 12)
    weights = weights_for(x, 13) if weighted else None
    whole = encode(type_, x, weights).reshape(7, -1)
    for b in range(7):
        part = slice(256 * b, 256 * (b + 1))
        assert (encode(type_, x[part], None if weights is None else weights[part]) == whole[b]).all()


# --------------------------------------------------------------------------------------------------------- quality


@each_case
def test_errors_are_those_of_the_format(type_, weighted):
    x = rows_of_kind("normal", 64, 20)
    uniform = np.ones_like(x) if weighted else None
    y = decode(type_, encode(type_, x, uniform), x.size)
    assert error(x, y) < {Q2_K: 0.30, Q4_K: 0.08, IQ2_XXS: 0.40}[type_]
    assert error(x, y) < error(x, decode(type_, np.frombuffer(quant_encode.encode(type_, x), np.uint8), x.size))


@pytest.mark.parametrize("type_", [Q2_K, Q4_K], ids=lambda t: t.name)
def test_weights_help_where_they_are(type_):
    x = rows_of_kind("normal", 64, 21)
    weights = weights_for(x, 22)
    plain, weighted = encode(type_, x), encode(type_, x, weights)
    assert error(x, decode(type_, weighted, x.size), weights) < 0.97 * error(x, decode(type_, plain, x.size), weights)


def test_weights_help_iq2_xxs_where_they_are():
    x = rows_of_kind("normal", 64, 23)
    weights = weights_for(x, 24)
    level, weighted = encode(IQ2_XXS, x, np.ones_like(x)), encode(IQ2_XXS, x, weights)
    assert error(x, decode(IQ2_XXS, weighted, x.size), weights) < \
        0.9 * error(x, decode(IQ2_XXS, level, x.size), weights)


@each_type
def test_the_unit_of_weights_does_not_matter(type_):
    x = rows_of_kind("normal", 8, 25)
    weights = weights_for(x, 26)
    assert (encode(type_, x, weights) == encode(type_, x, weights * F32(2.0**20))).all()


# ------------------------------------------------------------------------------------------------------ odd inputs


@each_case
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zeros_stay_zeros(type_, weighted, zero):
    x = np.full(512, zero, F32)
    raw = encode(type_, x, np.ones_like(x) if weighted else None)
    assert (decode(type_, raw, 512) == 0).all()
    assert (raw == 0).all()


@each_case
@pytest.mark.parametrize("value", [1.0, -1.0, 1e-3, -65504.0, 65504.0])
def test_constant_rows(type_, weighted, value):
    x = np.full(256, value, F32)
    y = decode(type_, encode(type_, x, np.ones_like(x) if weighted else None), 256)
    assert np.isfinite(y).all()
    # The search of IQ2_XXS starts from the middle of its levels and mixes all three.
    assert error(x, y) < (0.4 if type_ is IQ2_XXS else 0.04)


@each_case
@pytest.mark.parametrize("spike", [2.0, -2.0])
def test_single_spikes(type_, weighted, spike):
    for at in (0, 7, 31, 100, 255):
        x = np.zeros(256, F32)
        x[at] = spike
        y = decode(type_, encode(type_, x, np.ones_like(x) if weighted else None), 256)
        assert np.isfinite(y).all()
        if type_ is not IQ2_XXS:  # which has no zeros: the others of the group cannot be small
            assert abs(y[at] - spike) < 0.02
            assert np.abs(np.delete(y, at)).max() < 0.02


@each_case
def test_minus_zero_counts_as_zero(type_, weighted):
    x = rows_of_kind("sparse", 4, 30)
    weights = weights_for(x, 31) if weighted else None
    assert (encode(type_, x, weights) == encode(type_, np.where(x == 0, F32(-0.0), x), weights)).all()


@each_case
@pytest.mark.parametrize("size", [1e-45, 1e-39, 1e-30, 1e-20, 1e-15, 1e-9])
def test_values_below_the_scales_of_f16_become_small(type_, weighted, size):
    x = (rows_of_kind("normal", 4, 32).astype(np.float64) * size).astype(F32)
    y = decode(type_, encode(type_, x, np.ones_like(x) if weighted else None), x.size)
    assert np.isfinite(y).all()
    assert np.abs(y).max() <= 1e-5


@each_type
@pytest.mark.parametrize("size", [1e-45, 1e-30, 1e-20, 2.0**64])
def test_extreme_weights_still_encode(type_, size):
    x = rows_of_kind("normal", 4, 33)
    y = decode(type_, encode(type_, x, np.full_like(x, size)), x.size)
    assert np.isfinite(y).all()
    assert error(x, y) < 0.7


@each_type
@pytest.mark.parametrize("value", [1.0, 65504.0])
def test_weights_on_few_values_do_not_spoil_the_scales(type_, value):
    x = np.clip(rows_of_kind("normal", 64, 34) * F32(value / 3), -value, value)
    weights = np.zeros_like(x)
    weights[np.random.default_rng(35).integers(0, x.size, 100)] = 1
    y = decode(type_, encode(type_, x, weights), x.size)
    assert np.isfinite(y).all()
    assert np.abs(y).max() < 10 * value
    assert error(x, y, weights) < 0.5


@each_type
def test_a_block_without_weights_is_encoded_evenly(type_):
    x = rows_of_kind("normal", 3, 36)
    weights = weights_for(x, 37)
    weights[256:512] = 0
    even = weights.copy()
    even[256:512] = 1
    assert (encode(type_, x, weights) == encode(type_, x, even)).all()


@each_case
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 65536.0, -1e38])
@pytest.mark.parametrize("at", [0, 300, 511])
def test_values_without_a_code_are_refused(type_, weighted, bad, at):
    x = np.ones(512, F32)
    x[at] = bad
    assert kernels.encode_row(type_, x, np.ones(512, F32) if weighted else None) is None


@each_type
@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, 1e38])
def test_weights_that_are_none_are_refused(type_, bad):
    weights = np.ones(512, F32)
    weights[400] = bad
    assert kernels.encode_row(type_, np.ones(512, F32), weights) is None


def test_what_is_refused():
    x = np.ones(256, F32)
    assert kernels.encode_row(IQ2_XXS, x) is None  # needs weights
    assert kernels.encode_row(Q8_0, x) is None  # quantize_row's
    assert kernels.encode_row(1000, x) is None
    assert kernels.encode_row(Q4_K, x[:128]) is None
    assert encode(Q4_K, x[:0]).size == 0


def test_synthetic_importance_is_the_sum_of_squares_of_a_column():
    rows = rows_of_kind("normal", 16, 40).reshape(8, 512)
    wanted = np.zeros(512, F32)
    for row in rows:
        wanted = wanted + row * row
    assert (kernels.synthetic_importance(rows) == wanted).all()
