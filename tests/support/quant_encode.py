"""Encoders of the block formats, good enough to make test files.

They produce valid blocks quickly and without importance weights; the native quantizer is better and is tested against
its own golden vectors. Each takes float32 [n, block elements] and returns uint8 [n, block bytes].
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.dequant import Bytes, Floats, iq2_xxs_grid
from support.gguf_write import BLOCKS, GGMLType

F32 = np.float32


def _half(x: NDArray[Any]) -> tuple[Bytes, Floats]:
    """Halves [n] as bytes [n, 2] and as the float32 they stand for [n, 1]."""
    h = np.ascontiguousarray(x, "<f2")
    return h.view(np.uint8).reshape(-1, 2), h.astype(F32).reshape(-1, 1)


def _ratio(a: NDArray[Any], b: NDArray[Any]) -> Floats:
    """a / b, and 0 where b is 0."""
    return np.divide(a, b, out=np.zeros(np.broadcast_shapes(a.shape, b.shape), F32), where=b != 0)


def encode_f32(x: Floats) -> Bytes:
    return np.ascontiguousarray(x, "<f4").view(np.uint8).reshape(len(x), -1)


def encode_f16(x: Floats) -> Bytes:
    return np.ascontiguousarray(x, "<f2").view(np.uint8).reshape(len(x), -1)


def encode_bf16(x: Floats) -> Bytes:
    bits = np.ascontiguousarray(x, F32).view(np.uint32)
    short = np.where(np.isnan(x), (bits >> 16) | 64, (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
    return np.ascontiguousarray(short.astype("<u2")).view(np.uint8).reshape(len(x), -1)


def encode_q8_0(x: Floats) -> Bytes:
    scale = np.abs(x).max(1, keepdims=True) / F32(127)
    scaled = x * _ratio(np.ones_like(scale), scale)
    codes = np.copysign(np.floor(np.abs(scaled) + F32(0.5)), scaled).astype(np.int8)
    return np.concatenate([_half(scale[:, 0])[0], codes.view(np.uint8)], 1)


def _affine(x: Floats, n_sub: int, top_code: int, top_scale: int) -> tuple[Bytes, Bytes, Bytes, Bytes, Bytes]:
    """Scales, minimums [n, n_sub] and codes [n, n_sub, width] of a K format, with d and dmin as bytes."""
    sub = x.reshape(len(x), n_sub, -1)
    low = np.maximum(-sub.min(2), 0)
    scale = np.maximum(sub.max(2) + low, 0) / F32(top_code)
    d_bytes, d = _half(scale.max(1) / F32(top_scale))
    dmin_bytes, dmin = _half(low.max(1) / F32(top_scale))
    ls = np.clip(np.rint(_ratio(scale, d)), 0, top_scale)
    lm = np.clip(np.rint(_ratio(low, dmin)), 0, top_scale)
    codes = np.rint(_ratio(sub + (dmin * lm)[:, :, None], (d * ls)[:, :, None]))
    codes = np.clip(codes, 0, top_code).astype(np.uint8)
    return ls.astype(np.uint8), lm.astype(np.uint8), codes, d_bytes, dmin_bytes


def encode_q2_k(x: Floats) -> Bytes:
    ls, lm, codes, d, dmin = _affine(x, 16, 3, 15)
    q = codes.reshape(len(x), 2, 4, 32) << np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    qs = np.bitwise_or.reduce(q, 2).reshape(len(x), 64)
    return np.concatenate([ls | (lm << 4), qs, d, dmin], 1)


def encode_q4_k(x: Floats) -> Bytes:
    ls, lm, codes, d, dmin = _affine(x, 8, 15, 63)
    k = np.zeros((len(x), 12), np.uint8)
    k[:, 0:4] = ls[:, :4] | ((ls[:, 4:] >> 4) << 6)
    k[:, 4:8] = lm[:, :4] | ((lm[:, 4:] >> 4) << 6)
    k[:, 8:12] = (ls[:, 4:] & 15) | ((lm[:, 4:] & 15) << 4)
    q = codes.reshape(len(x), 4, 2, 32)
    return np.concatenate([d, dmin, k, (q[:, :, 0] | (q[:, :, 1] << 4)).reshape(len(x), 128)], 1)


def encode_mxfp4(x: Floats) -> Bytes:
    peak = np.abs(x).max(1)
    exponent = np.ceil(np.log2(np.where(peak > 0, peak, 1) / 6)).astype(np.int64)
    e = np.where(peak > 0, np.clip(exponent + 127, 0, 254), 0)
    v = x.astype(np.float64) / np.exp2(e - 127.0)[:, None]
    middle = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    codes = np.searchsorted(middle, np.abs(v)).astype(np.uint8) | (np.signbit(v).astype(np.uint8) << 3)
    return np.concatenate([e.astype(np.uint8)[:, None], codes[:, :16] | (codes[:, 16:] << 4)], 1)


@functools.cache
def _nearest_grid_row() -> NDArray[np.uint8]:
    """Index of the grid row nearest to any 8 levels (0, 1, 2), looked up by their digits in base 3."""
    digits = np.arange(3**8)[:, None] // 3 ** np.arange(8) % 3
    points = np.array([8, 25, 43])[digits].astype(F32)
    grid = iq2_xxs_grid().astype(F32)
    distance = (points**2).sum(1)[:, None] - 2 * points @ grid.T + (grid**2).sum(1)
    return distance.argmin(1).astype(np.uint8)


def encode_iq2_xxs(x: Floats) -> Bytes:
    n = len(x)
    v = x.reshape(n, 8, 4, 8)  # group of 32, tuple, element
    minus = v < 0
    size = np.abs(v)
    # An odd number of minus signs cannot be stored: drop the sign of the smallest element and treat it as nearly 0.
    odd = minus.sum(3) % 2 == 1
    smallest = size.argmin(3)[..., None]
    flip = np.zeros_like(minus)
    np.put_along_axis(flip, smallest, odd[..., None], 3)
    minus, size = minus ^ flip, np.where(flip, 0, size)

    peak = size.max((2, 3)) / F32(43)  # per group: the scale that maps the largest element to the top level
    d_bytes, d = _half(peak.max(1) / F32(3.875))
    nibble = np.clip(np.rint(4 * _ratio(peak, d) - F32(0.5)), 0, 15)
    scale = d * (F32(0.5) + nibble) * F32(0.25)
    level = np.searchsorted([16.5, 34.0], _ratio(size, scale[:, :, None, None]))
    index = _nearest_grid_row()[(level * 3 ** np.arange(8)).sum(3)]

    words = np.zeros((n, 8, 2), np.uint32)
    words[:, :, 0] = (index.astype(np.uint32) << np.array([0, 8, 16, 24], np.uint32)).sum(2)
    fields = (minus[..., :7].astype(np.uint32) << np.arange(7, dtype=np.uint32)).sum(3)
    words[:, :, 1] = (fields << np.array([0, 7, 14, 21], np.uint32)).sum(2) | (nibble.astype(np.uint32) << 28)
    out = np.concatenate([d_bytes, words.astype("<u4").view(np.uint8).reshape(n, 64)], 1)
    out[d[:, 0] == 0] = 0
    return out


ENCODERS: dict[GGMLType, Callable[[Floats], Bytes]] = {
    GGMLType.F32: encode_f32,
    GGMLType.F16: encode_f16,
    GGMLType.BF16: encode_bf16,
    GGMLType.Q8_0: encode_q8_0,
    GGMLType.Q2_K: encode_q2_k,
    GGMLType.Q4_K: encode_q4_k,
    GGMLType.IQ2_XXS: encode_iq2_xxs,
    GGMLType.MXFP4: encode_mxfp4,
}


def encode(type_: GGMLType, values: NDArray[Any]) -> bytes:
    """A whole tensor, rows along its last dimension."""
    if type_ is GGMLType.I32:
        return np.ascontiguousarray(values, "<i4").tobytes()
    elements = BLOCKS[type_][0]
    if values.shape[-1] % elements:
        raise ValueError(f"rows of {values.shape[-1]} are not whole blocks of {type_.name}")
    blocks = np.ascontiguousarray(values, F32).reshape(-1, elements if elements > 1 else values.shape[-1])
    return ENCODERS[type_](blocks).tobytes()
