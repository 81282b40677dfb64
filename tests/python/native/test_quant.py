"""Block formats: the scalar code of the core against numpy decoders written from the byte layouts."""

from __future__ import annotations

import numpy as np
import pytest
from support import dequant, native
from support.gguf_write import BLOCKS, GGMLType

kernels = native.kernels_module()

COMPUTABLE = ["F32", "F16", "BF16", "Q8_0", "Q2_K", "Q4_K", "IQ2_XXS", "MXFP4"]
INTEGER_PRODUCT = ["Q8_0", "MXFP4", "Q2_K", "Q4_K", "IQ2_XXS"]
REMOVED = [4, 5, 31, 32, 33, 36, 37, 38]


def same_bits(a, b):
    """Equal bit for bit, with any NaN equal to any other."""
    a, b = np.ascontiguousarray(a, np.float32).ravel(), np.ascontiguousarray(b, np.float32).ravel()
    return a.size == b.size and bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())


def reference(type_, raw):
    with np.errstate(all="ignore"):
        return dequant.DECODERS[type_](raw)


# ---------------------------------------------------------------------------------------------------------- types


def test_type_table_agrees_with_the_gguf_package():
    """Names and block sizes of every type of the format, not only of those ds4 computes with."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    for type_ in GGMLQuantizationType:
        if type_.name == "Q8_1":  # an activation type, never in a file; the package keeps an old size
            continue
        name, block, n_bytes, computable = kernels.type_info(int(type_))
        assert (name, block, n_bytes) == (type_.name, *GGML_QUANT_SIZES[type_])
        assert computable == (name in COMPUTABLE)


@pytest.mark.parametrize("type_id", [*REMOVED, 42, 100, 2**32 - 1])
def test_removed_and_unknown_types_have_no_size(type_id):
    assert kernels.type_info(type_id) is None
    assert kernels.row_bytes(type_id, 256) is None


def test_row_bytes_refuses_partial_blocks_and_sizes_that_wrap():
    assert kernels.row_bytes(GGMLType.Q8_0, 64) == 68
    assert kernels.row_bytes(GGMLType.Q8_0, 33) is None
    assert kernels.row_bytes(GGMLType.Q2_K, 128) is None
    assert kernels.row_bytes(GGMLType.F32, 2**62) is None
    assert kernels.row_bytes(GGMLType.F32, 0) == 0


# ------------------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("name", COMPUTABLE)
@pytest.mark.parametrize("width", [256, 512, 768, 1024, 2304, 4096])
def test_rows_of_any_width_decode_like_the_reference(name, width):
    """Known fault L019: every block of a row is decoded into its own place, bit for bit."""
    type_ = GGMLType[name]
    block, n_bytes = BLOCKS[type_]
    rng = np.random.default_rng(width)
    for shift in (0, 1, 2, 3):
        raw = dequant.random_blocks(rng, type_, width // block)
        got = kernels.dequantize_row(type_, raw.ravel(), width, shift)
        assert raw.size == width // block * n_bytes
        assert same_bits(got, reference(type_, raw))


@pytest.mark.parametrize("name", COMPUTABLE)
def test_any_bytes_decode_like_the_reference(name):
    """Blocks of random bytes: infinite and NaN scales included."""
    type_ = GGMLType[name]
    block, n_bytes = BLOCKS[type_]
    raw = np.random.default_rng(1).integers(0, 256, (512, n_bytes), dtype=np.uint8)
    assert same_bits(kernels.dequantize_row(type_, raw.ravel(), 512 * block), reference(type_, raw))


def test_every_half_decodes_and_encodes_like_numpy():
    halves = np.arange(65536, dtype=np.uint16)
    floats = halves.view(np.float16).astype(np.float32)
    got = kernels.dequantize_row(GGMLType.F16, halves.view(np.uint8), 65536)
    assert same_bits(got, floats)
    finite = ~np.isnan(floats)
    back = kernels.quantize_row(GGMLType.F16, floats).view(np.uint16)
    assert (back[finite] == halves[finite]).all()
    assert np.isnan(back.view(np.float16)[~finite]).all()


def test_mxfp4_scales_cover_all_exponents():
    raw = np.zeros((256, 17), np.uint8)
    raw[:, 0] = np.arange(256)
    raw[:, 1:] = np.arange(16) * 17
    assert same_bits(kernels.dequantize_row(GGMLType.MXFP4, raw.ravel(), 256 * 32), reference(GGMLType.MXFP4, raw))


# ------------------------------------------------------------------------------------------------------- encoding


def edge_values():
    """Floats around every rounding decision of the 16-bit formats."""
    halves = np.arange(0, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = ((halves[:-1].astype(np.float64) + halves[1:]) / 2).astype(np.float32)
    edges = [0.0, 65504.0, 65519.996, 65520.0, 1e38, 1e-45, 2.0**-24, 2.0**-25, np.nextafter(np.float32(2**-25), 1)]
    values = np.concatenate([halves, middles, np.nextafter(middles, 0), np.nextafter(middles, 1e9), edges, [np.inf]])
    return np.concatenate([values, -values]).astype(np.float32)


def test_f16_rounds_half_to_even_and_overflows_to_infinity():
    values = edge_values()
    with np.errstate(over="ignore"):
        wanted = values.astype(np.float16).view(np.uint16)
    assert (kernels.quantize_row(GGMLType.F16, values).view(np.uint16) == wanted).all()


def test_bf16_rounds_half_to_even_and_keeps_nan():
    rng = np.random.default_rng(2)
    bits = np.concatenate(
        [
            rng.integers(0, 2**32, 100_000, dtype=np.uint32),
            (np.arange(65536, dtype=np.uint32) << 16) | 0x8000,
            np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF], np.uint32),
        ]
    )
    got = kernels.quantize_row(GGMLType.BF16, bits.view(np.float32)).view(np.uint16)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    assert (got == np.where(nan, (bits >> 16) | 0x40, rounded)).all()


def q8_0_reference(x):
    blocks = x.reshape(-1, 32)
    d = np.abs(blocks).max(1) / np.float32(127)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    scaled = blocks * inverse[:, None]
    q = (np.sign(scaled) * np.floor(np.abs(scaled.astype(np.float64)) + 0.5)).astype(np.int8)
    return np.concatenate([d.astype(np.float16).view(np.uint8).reshape(-1, 2), q.view(np.uint8)], 1).ravel()


def test_q8_0_encodes_with_half_away_rounding():
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((64, 32)) * 10.0 ** rng.uniform(-4, 2, (64, 1))).astype(np.float32)
    x[0] = 0
    x[1] = np.arange(32) - 15.5  # with peak 127 the scale is 1 and each value a tie
    x[1, 0] = 127
    assert (kernels.quantize_row(GGMLType.Q8_0, x.ravel()) == q8_0_reference(x.ravel())).all()


def test_q8_0_of_values_too_small_for_a_half_is_zero():
    decoded = kernels.dequantize_row(GGMLType.Q8_0, kernels.quantize_row(GGMLType.Q8_0, np.full(32, 1e-42)), 32)
    assert (decoded == 0).all()


def test_q8_0_does_not_hide_nan():
    x = np.ones(64, np.float32)
    x[5] = np.nan
    decoded = kernels.dequantize_row(GGMLType.Q8_0, kernels.quantize_row(GGMLType.Q8_0, x), 64)
    assert np.isnan(decoded[:32]).all()
    assert (np.abs(decoded[32:] - 1) < 0.001).all()


# ----------------------------------------------------------------------------------------------------- activations


def q8_k_reference(x):
    rows = x.reshape(-1, 256)
    peak = rows[np.arange(len(rows)), np.abs(rows).argmax(1)]
    factor = np.divide(np.float32(-127), peak, out=np.zeros_like(peak), where=peak != 0)
    q = np.clip(np.rint(factor[:, None] * rows), -128, 127).astype(np.int8)
    d = np.divide(np.float32(1), factor, out=np.zeros_like(peak), where=factor != 0)
    return d, q, q.reshape(-1, 16, 16).astype(np.int16).sum(2, dtype=np.int16)


def q8_a_reference(x):
    rows = x.reshape(-1, 32)
    d = np.abs(rows).max(1) / np.float32(127)
    factor = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    return d, np.clip(np.rint(rows * factor[:, None]), -128, 127).astype(np.int8)


def activations(n, seed):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(n) * 10.0 ** rng.uniform(-3, 3, n)).astype(np.float32)
    x[: n // 8] = 0
    return x


def test_activations_are_rounded_like_the_reference():
    x = activations(8192, 4)
    for got, wanted in zip(kernels.quantize_q8_k(x), q8_k_reference(x), strict=True):
        assert (got == wanted).all()
    for got, wanted in zip(kernels.quantize_q8_a(x), q8_a_reference(x), strict=True):
        assert (got == wanted).all()


def test_activation_ties_go_to_the_even_code():
    x = np.zeros(256, np.float32)
    x[:8] = [-127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]
    d, q, _ = kernels.quantize_q8_k(x)
    assert d[0] == 1
    assert q[0, :8].tolist() == [-127, 0, 2, 2, 0, -2, -2, 126]


def test_the_peak_of_q8_k_keeps_its_sign():
    x = np.zeros(512, np.float32)
    x[7], x[256 + 9] = 3.0, -3.0
    d, q, _ = kernels.quantize_q8_k(x)
    assert q[0, 7] == -127 and q[1, 9] == -127
    assert d[0] < 0 < d[1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_activations_that_are_not_finite_give_nan_not_garbage(bad):
    x = np.ones(512, np.float32)
    x[300] = bad
    d, q, sums = kernels.quantize_q8_k(x)
    assert np.isnan(d[1]) and not q[1].any() and not sums[1].any() and np.isfinite(d[0])
    d, q = kernels.quantize_q8_a(x)
    assert np.isnan(d[9]) and not q[9].any() and np.isfinite(np.delete(d, 9)).all()


def test_activations_too_small_for_a_scale_count_as_zero():
    x = np.full(256, 1e-44, np.float32)
    d, q, sums = kernels.quantize_q8_k(x)
    assert d[0] == 0 and not q.any() and not sums.any()
    d, q = kernels.quantize_q8_a(x)
    assert not d.any() and not q.any()


# ---------------------------------------------------------------------------------------------- integer products


@pytest.mark.parametrize("name", INTEGER_PRODUCT)
@pytest.mark.parametrize("width", [256, 512, 768, 4096])
def test_integer_products_match_the_decoded_product(name, width):
    """Within 2e-6 of the float64 product of what both sides decode to, relative to the sum of |terms|."""
    type_ = GGMLType[name]
    rng = np.random.default_rng(width)
    for trial in range(4):
        raw = dequant.random_blocks(rng, type_, width // BLOCKS[type_][0])
        if name == "MXFP4":
            raw[:, 0] = rng.integers(118, 134, len(raw))
        x = activations(width, width + trial)
        if kernels.activation_kind(type_) == 1:
            d, q, _ = q8_k_reference(x)
        else:
            d, q = q8_a_reference(x)
        terms = reference(type_, raw).ravel().astype(np.float64) * (d[:, None] * q.astype(np.float64)).ravel()
        got = kernels.vec_dot(type_, raw.ravel(), x, shift=trial)
        scale = np.abs(terms).sum()
        # Blocks with a minimum subtract two large integer sums.
        assert abs(got - terms.sum()) <= 2e-6 * scale + 1e-30


@pytest.mark.parametrize("name", INTEGER_PRODUCT)
def test_integer_products_do_not_overflow(name):
    """The largest codes and scales of a format against activations of -127 and 127."""
    type_ = GGMLType[name]
    block, n_bytes = BLOCKS[type_]
    raw = np.full((256 // block, n_bytes), 0x7F if name == "Q8_0" else 0xFF, np.uint8)
    for at in dequant.F16_FIELDS.get(type_, ()):
        raw[:, at : at + 2] = np.array([1.0], np.float16).view(np.uint8)
    if name == "MXFP4":
        raw[:, 0] = 128
    x = np.where(np.arange(256) % 2, 127, -127).astype(np.float32)
    weights = reference(type_, raw).ravel().astype(np.float64)
    x = np.where(weights < 0, -127, 127).astype(np.float32)
    wanted = float(weights @ x.astype(np.float64))
    assert kernels.vec_dot(type_, raw.ravel(), x) == pytest.approx(wanted, rel=1e-6)


def test_types_without_an_integer_product_say_so():
    for name in ("F32", "F16", "BF16", "Q6_K", "I32"):
        assert kernels.activation_kind(GGMLType[name]) == 0


# ------------------------------------------------------------------------------------------------------------ base


def test_checked_arithmetic_refuses_to_wrap():
    top = 2**64 - 1
    assert kernels.add(top, 0) == top
    assert kernels.add(top, 1) is None
    assert kernels.mul(2**32, 2**32) is None
    assert kernels.mul(2**32, 2**32 - 1) == 2**64 - 2**32
    assert kernels.mul(0, top) == 0


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"blk.0.x", b"blk.0.x"),
        ("Gr\u00f6\u00dfe \u6a21".encode(), "Gr\u00f6\u00dfe \u6a21".encode()),
        (b"a\nb\x00\x1b[31m", rb"a\x0ab\x00\x1b[31m"),
        (b'say "x\\y"', rb"say \x22x\x5cy\x22"),
        (b"\xff\xc3", rb"\xff\xc3"),
        (b"\xc2\x9b", rb"\xc2\x9b"),
        (b"\xed\xa0\x80", rb"\xed\xa0\x80"),
        (b"n" * 100, b"n" * 80 + b"..."),
        (b"n" * 79 + "\u00e9".encode(), b"n" * 79 + b"..."),
    ],
)
def test_names_from_files_are_escaped_and_cut(name, shown):
    assert kernels.escape_name(name) == shown


def test_a_long_message_is_cut_at_a_whole_character():
    message = kernels.fail("x" * 3 + "\u6a21" * 20_000)
    assert len(message) in range(32768 - 4, 32768)
    assert set(message.decode()) == {"x", "\u6a21"}
    assert kernels.fail("short") == b"short"
