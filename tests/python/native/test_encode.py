"""The encoders of Q2_K, Q4_K and IQ2_XXS: digests of published quantizers, a numpy reference, and odd inputs."""

from __future__ import annotations

import hashlib
import signal
import time

import ds4
import numpy as np
import pytest
from ds4 import gguf
from support import encode_reference, quant_encode
from support.gguf_write import GGMLType

Q8_0, Q2_K, Q4_K, IQ2_XXS = GGMLType.Q8_0, GGMLType.Q2_K, GGMLType.Q4_K, GGMLType.IQ2_XXS
F32 = np.float32

CASES = [(Q2_K, False), (Q2_K, True), (Q4_K, False), (Q4_K, True), (IQ2_XXS, True)]
each_case = pytest.mark.parametrize(("type_", "weighted"), CASES, ids=[f"{t.name}{'+w' * w}" for t, w in CASES])
each_type = pytest.mark.parametrize("type_", [Q2_K, Q4_K, IQ2_XXS], ids=lambda t: t.name)


def encode(type_, x, weights=None):
    """x as one row."""
    return np.frombuffer(gguf.quantize(type_, np.asarray(x, F32), weights), np.uint8)


def decode(type_, raw, n):
    return gguf.dequantize(type_, raw, n)


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


@pytest.mark.parametrize(
    ("type_", "weighted", "wanted"),
    [
        (Q2_K, False, "739a14883e6dafc2"),
        (Q2_K, True, "5fc2038769ff7a58"),
        (Q4_K, False, "d207054da39cc725"),
        (Q4_K, True, "66fb3374089922cd"),
        (IQ2_XXS, True, "f58de3d7926b26b6"),
    ],
)
def test_golden_rows_have_the_bytes_of_the_published_quantizer(type_, weighted, wanted):
    assert digest(encode(type_, GOLDEN_X, GOLDEN_W if weighted else None).tobytes()) == wanted


def test_the_golden_row_of_q8_0():
    assert digest(gguf.quantize(Q8_0, GOLDEN_X)) == "9e9380712eb48970"


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


# ---------------------------------------------------------------------------------------------------- rows, threads

ENCODED = ["F32", "F16", "BF16", "Q8_0", "MXFP4", "Q2_K", "Q4_K", "IQ2_XXS"]


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize(("rows", "width"), [(1, 256), (7, 512), (3, 16640), (130, 768)])
def test_rows_share_their_weights_and_threads_do_not_show(name, rows, width):
    """Shapes with one row, short rows, rows longer than a piece of work, and a last piece that is not full."""
    if name == "IQ2_XXS":
        rows = min(rows, 70)
    x = rows_of_kind("scaled", rows * width // 256, 14).reshape(rows, width)
    weights = weights_for(x[0], 15)
    one = gguf.quantize(name, x, weights)
    assert one == b"".join(gguf.quantize(name, row, weights) for row in x)
    for threads in (2, 3):
        assert gguf.quantize(name, x, weights, threads=threads) == one
    y = gguf.dequantize(name, one)
    for threads in (2, 3):
        assert (gguf.dequantize(name, one, threads=threads) == y).all()


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_bad_value_is_named_whoever_finds_it(threads):
    x = np.ones((2000, 256), F32)
    x[1700:, 5] = np.nan
    x[1300, 77] = np.inf
    for _ in range(20):
        with pytest.raises(ds4.UnencodableValueError, match="row 101300, column 77: inf") as caught:
            gguf.quantize(Q8_0, x, threads=threads, first_row=100000)
        assert (caught.value.row, caught.value.column) == (101300, 77)


def test_a_signal_ends_a_long_call():
    """As Ctrl-C does: the handler runs during the call, and its exception comes out."""

    class StoppedError(Exception):
        pass

    def handler(*_):
        raise StoppedError

    x = np.tile(rows_of_kind("normal", 2048, 18).reshape(128, 4096), (16, 1))
    ds4.set_cpu_isa("base")  # the slowest
    start = time.monotonic()
    gguf.quantize(IQ2_XXS, x[:128], x[0] * x[0])
    part = time.monotonic() - start
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, part)
        start = time.monotonic()
        with pytest.raises(StoppedError):
            gguf.quantize(IQ2_XXS, x, x[0] * x[0])
        assert time.monotonic() - start < 10 * part
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        ds4.set_cpu_isa("auto")


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("F16", 65520.0),
        ("BF16", 3.3961776e38),
        ("Q8_0", 8319010.0),
        ("MXFP4", 2.6e38),
    ],
)
def test_values_that_would_become_infinite_are_refused(name, first):
    below = {"Q8_0": F32(8319008.0), "MXFP4": F32(6 * 2.0**125)}.get(name, np.nextafter(F32(first), F32(0)))
    assert np.isfinite(gguf.dequantize(name, gguf.quantize(name, np.full(32, below)))).all()
    with pytest.raises(ds4.UnencodableValueError, match=f"row 0, column 3: .* does not fit {name}"):
        gguf.quantize(name, np.where(np.arange(32) == 3, F32(first), F32(0)))


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_infinity_and_nan_are_stored_on_request_only(name):
    x = np.array([1, np.nan, -np.inf, 2], F32)
    with pytest.raises(ds4.UnencodableValueError, match="column 1: nan"):
        gguf.quantize(name, x)
    y = gguf.dequantize(name, gguf.quantize(name, x, allow_nonfinite=True))
    np.testing.assert_array_equal(y, x)


# ----------------------------------------------------------------------------------------------------------- MXFP4


def test_fp4_midpoints_round_to_even():
    """Known fault L020: midpoints that went the wrong way."""
    tie = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    even = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    x = np.zeros(32, F32)
    x[:7], x[8:15], x[31] = tie, np.negative(tie), 6.0  # the largest value sets the scale to 1
    y = gguf.dequantize("MXFP4", gguf.quantize("MXFP4", x))
    assert y[:7].tolist() == even
    assert y[8:15].tolist() == np.negative(even).tolist()
    for towards, wanted in ((0.0, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0]), (9.0, [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])):
        x[:7] = np.nextafter(np.array(tie, F32), F32(towards))
        assert gguf.dequantize("MXFP4", gguf.quantize("MXFP4", x))[:7].tolist() == wanted


def test_mxfp4_takes_the_least_scale_that_holds_all():
    def scale_byte(peak):
        x = np.zeros(32, F32)
        x[20] = peak
        return gguf.quantize("MXFP4", x)[0]

    for exponent in range(-124, 125):
        top = np.ldexp(F32(6), exponent)
        assert scale_byte(-top) == 127 + exponent
        assert scale_byte(np.nextafter(top, F32(np.inf))) == 128 + exponent
    assert scale_byte(6 * 2.0**125) == 252
    assert scale_byte(1e-45) == scale_byte(0.0) == scale_byte(-0.0) == 0


def test_what_mxfp4_can_hold_survives_encoding():
    raw = np.random.default_rng(16).integers(0, 256, (4096, 17), np.uint8)
    raw[:, 0] %= 253  # larger scales overflow float32
    raw[:8] = 0
    y = gguf.dequantize("MXFP4", raw)
    assert (gguf.dequantize("MXFP4", gguf.quantize("MXFP4", y)) == y).all()
    for value in (np.nan, np.inf):
        y[5] = value
        with pytest.raises(ds4.UnencodableValueError, match="column 5: "):
            gguf.quantize("MXFP4", y)


def test_mxfp4_takes_the_nearest_code():
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    grid = np.concatenate([values, -values])
    x = (np.random.default_rng(17).standard_normal((500, 32)) * 0.02).astype(F32)
    y = gguf.dequantize("MXFP4", gguf.quantize("MXFP4", x)).reshape(x.shape).astype(float)
    peak = np.abs(x).max(1, keepdims=True)
    scale = 2.0 ** np.ceil(np.log2(peak / 6))
    nearest = np.abs(x[..., None] / scale[..., None] - grid).min(-1) * scale
    np.testing.assert_allclose(np.abs(x - y), nearest, rtol=1e-5, atol=1e-9)


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
    assert error(x, decode(IQ2_XXS, weighted, x.size), weights) < 0.9 * error(
        x, decode(IQ2_XXS, level, x.size), weights
    )


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
def test_values_without_a_code_are_refused_with_their_place(type_, weighted, bad, at):
    x = np.ones((3, 512), F32)
    x[1, at] = bad
    with pytest.raises(ds4.UnencodableValueError, match=f"row 1, column {at}: .*{type_.name}") as caught:
        gguf.quantize(type_, x, np.ones(512, F32) if weighted else None)
    assert (caught.value.row, caught.value.column) == (1, at)


@each_type
@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, 1e38])
def test_weights_that_are_none_are_refused_with_their_place(type_, bad):
    weights = np.ones(512, F32)
    weights[400] = bad
    with pytest.raises(ValueError, match="importance of column 400 is "):
        gguf.quantize(type_, np.ones(512, F32), weights)


def test_what_else_is_refused():
    x = np.ones((2, 256), F32)
    with pytest.raises(ValueError, match="IQ2_XXS needs importance: one weight a column"):
        gguf.quantize(IQ2_XXS, x)
    with pytest.raises(ValueError, match="128 values are not a whole number of Q4_K blocks"):
        gguf.quantize(Q4_K, x.reshape(4, 128))
    with pytest.raises(ValueError, match=r"importance has shape \(512,\); rows of 256"):
        gguf.quantize(Q4_K, x, np.ones(512))
    for threads in (0, -1, 5000):
        with pytest.raises(ValueError, match="threads"):
            gguf.quantize(Q4_K, x, threads=threads)
    assert gguf.quantize(Q4_K, x[:0]) == b""
    assert gguf.quantize(IQ2_XXS, x[:, :0], np.ones(0)) == b""


def test_column_squares_add_up_row_by_row():
    rows = rows_of_kind("normal", 16, 40).reshape(8, 512)
    wanted = np.zeros(512, F32)
    for row in rows:
        wanted = wanted + row * row
    got = np.zeros(512, F32)
    gguf.add_column_squares(rows[:3], got)
    gguf.add_column_squares(rows[3:], got)
    assert (got == wanted).all()
    with pytest.raises(ValueError, match="512 values need as many sums, not 511"):
        gguf.add_column_squares(rows, got[:-1])


def test_blocks_without_weights_are_counted():
    weights = np.zeros(1024, F32)
    weights[300], weights[1023] = 1e-30, 2
    assert gguf.unweighted_blocks(weights) == 2
    assert gguf.unweighted_blocks(np.zeros(0)) == 0
