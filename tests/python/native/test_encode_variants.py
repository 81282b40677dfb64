"""The encoders in every CPU variant and on any number of threads: the same bytes, whatever the values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import ds4
import numpy as np
import pytest
from ds4 import gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import dequant
from support.gguf_write import GGMLType

F32 = np.float32
Floats = NDArray[np.float32]

ENCODED = ["F32", "F16", "BF16", "Q8_0", "MXFP4", "Q2_K", "Q4_K", "IQ2_XXS"]
BLOCKWISE = [
    ("Q8_0", False),
    ("MXFP4", False),
    ("Q2_K", False),
    ("Q2_K", True),
    ("Q4_K", False),
    ("Q4_K", True),
    ("IQ2_XXS", True),
]


def variants() -> list[str]:
    found = []
    for name in ("base", "avx2", "avx512"):
        try:
            ds4.set_cpu_isa(name)
        except ds4.BackendUnavailableError:
            break
        found.append(name)
    ds4.set_cpu_isa("auto")
    return found


@pytest.fixture(autouse=True)
def own_variant() -> Iterator[None]:
    yield
    ds4.set_cpu_isa("auto")


each_blockwise = pytest.mark.parametrize(("name", "weighted"), BLOCKWISE, ids=[n + "+w" * w for n, w in BLOCKWISE])


def encode_everywhere(name: str, x: Floats, weights: Floats | None) -> bytes:
    """Encode in the base variant, and check that the others agree."""
    stored = {}
    for isa in variants():
        ds4.set_cpu_isa(isa)
        assert ds4.cpu_isa() == isa
        stored[isa] = gguf.quantize(name, x, weights)
    first = stored["base"]
    for isa, other in stored.items():
        size = gguf.type_info(name).block_bytes
        a, b = (np.frombuffer(s, np.uint8).reshape(-1, size) for s in (first, other))
        assert np.flatnonzero((a != b).any(1)).tolist() == [], isa
    return first


# --------------------------------------------------------------------------------------------------------- digests


def golden(seed: int) -> NDArray[np.float64]:
    out, state = np.empty(512), seed
    for i in range(512):
        total = -98304
        for _ in range(3):
            state = (state * 1664525 + 1013904223) % 2**32
            total += state >> 16
        out[i] = total
    return out


DIGESTS = {
    ("Q8_0", False): "9e9380712eb48970",
    ("Q2_K", False): "739a14883e6dafc2",
    ("Q2_K", True): "5fc2038769ff7a58",
    ("Q4_K", False): "d207054da39cc725",
    ("Q4_K", True): "66fb3374089922cd",
    ("IQ2_XXS", True): "f58de3d7926b26b6",
}


@pytest.mark.parametrize(("name", "weighted"), DIGESTS, ids=[n + "+w" * w for n, w in DIGESTS])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_golden_rows_have_the_published_bytes_everywhere(name: str, weighted: bool, threads: int) -> None:
    x = (golden(1) * 2.0**-18).astype(F32)
    w = (golden(2) * 2.0**-14).astype(F32)
    weights = w * w + F32(2.0**-12) if weighted else None
    for isa in variants():
        ds4.set_cpu_isa(isa)
        stored = gguf.quantize(name, np.tile(x, (5, 1)), weights, threads=threads)
        for row in range(5):
            part = stored[row * len(stored) // 5 : (row + 1) * len(stored) // 5]
            assert hashlib.sha256(part).hexdigest()[:16] == DIGESTS[name, weighted], (isa, row)


# ---------------------------------------------------------------------------------------------------------- values

KINDS = ["normal", "scaled", "fp4", "sparse", "zeros", "tiny", "huge", "constant", "one sign", "ties"]


def rows_of(kind: str, rows: int, width: int, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, width))
    if kind == "scaled":
        x *= 10.0 ** rng.uniform(-6, 3, (rows, width // 32)).repeat(32, 1)
    elif kind == "fp4":
        x = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[rng.integers(0, 8, x.shape)] * rng.choice([-1, 1], x.shape)
        x *= 2.0 ** rng.integers(-12, 2, (rows, width // 32)).repeat(32, 1)
    elif kind == "sparse":
        x *= rng.random(x.shape) < 0.03
        x[x == 0] = rng.choice([0.0, -0.0], int((x == 0).sum()))
    elif kind == "zeros":
        x = rng.choice([0.0, -0.0], x.shape)
    elif kind == "tiny":
        x *= 10.0 ** rng.uniform(-45, -10, (rows, width // 32)).repeat(32, 1)
    elif kind == "huge":
        x = np.clip(x * 40000, -65504, 65504)
    elif kind == "constant":
        x = np.repeat(x[:, ::16], 16, 1)
    elif kind == "one sign":
        x = (np.abs(x) + 0.2) * rng.choice([-1, 1], (rows, width // 16)).repeat(16, 1)
    elif kind == "ties":
        x = rng.integers(-3, 4, x.shape) / 2
    return x.astype(F32)


@each_blockwise
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "width"), [(7, 256), (3, 768), (1, 4352)])
def test_variants_and_threads_agree(name: str, weighted: bool, kind: str, rows: int, width: int) -> None:
    """Numbers of blocks that fill the lanes of a search, and that do not."""
    x = rows_of(kind, rows, width, width)
    weights = None
    if weighted:
        weights = (10.0 ** np.random.default_rng(rows).uniform(-6, 6, width)).astype(F32)
        weights[::5] = 0
        weights[:256] *= kind != "normal"  # a block without weights
    stored = encode_everywhere(name, x, weights)
    for threads in (2, 3):
        assert gguf.quantize(name, x, weights, threads=threads) == stored
    assert np.isfinite(gguf.dequantize(name, stored)).all()


@pytest.mark.parametrize("name", ["Q2_K", "Q4_K", "IQ2_XXS"])
@pytest.mark.parametrize("size", [1e-45, 1e-20, 2.0**64])
def test_variants_agree_on_extreme_weights(name: str, size: float) -> None:
    weights = np.where(np.random.default_rng(3).random(512) < 0.5, F32(size), F32(0)).astype(F32)
    encode_everywhere(name, rows_of("normal", 4, 512, 4), weights)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Floats, Floats]:
    """Two blocks from a few values of any size, so that ties and equal sub-blocks are common; and weights."""
    pool = draw(st.lists(st.floats(-65504, 65504, width=32), min_size=1, max_size=12))
    weight_pool = draw(st.lists(st.floats(0, 2.0**64, width=32), min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = np.array(pool, F32)[rng.integers(0, len(pool), 512)]
    return x, np.array(weight_pool, F32)[rng.integers(0, len(weight_pool), 512)]


@each_blockwise
@settings(max_examples=60, deadline=None)
@given(data=blocks())
def test_variants_agree_on_any_values(name: str, weighted: bool, data: tuple[Floats, Floats]) -> None:
    x, weights = data
    stored = encode_everywhere(name, x, weights if weighted else None)
    assert np.isfinite(gguf.dequantize(name, stored)).all()


# ------------------------------------------------------------------------------------------------ rows of many blocks


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize("width", [256, 512, 768, 4096])
def test_every_block_of_a_row_has_its_own_place(name: str, width: int) -> None:
    """Known fault L019: the first block of a row right, every later one written over it."""
    x = rows_of("scaled", 2, width, width)
    weights = np.random.default_rng(5).uniform(0.1, 1, width).astype(F32)
    stored = encode_everywhere(name, x, weights)
    parts = [
        gguf.quantize(name, row[at : at + 256], weights[at : at + 256]) for row in x for at in range(0, width, 256)
    ]
    assert stored == b"".join(parts)
    decoded = gguf.dequantize(name, stored)
    np.testing.assert_array_equal(decoded, np.concatenate([gguf.dequantize(name, part) for part in parts]))
    raw = np.frombuffer(stored, np.uint8).reshape(-1, gguf.type_info(name).block_bytes)
    np.testing.assert_array_equal(decoded, dequant.DECODERS[GGMLType[name]](raw).ravel())
    blocks, wanted = decoded.reshape(-1, 256), x.reshape(-1, 256)
    error = np.sqrt(((blocks - wanted) ** 2).mean(1) / (wanted**2).mean(1))
    limit = {"F32": 0, "F16": 0.01, "BF16": 0.01, "Q8_0": 0.01, "MXFP4": 0.2, "Q2_K": 0.5, "Q4_K": 0.15}.get(name, 0.6)
    assert error.max() <= limit
