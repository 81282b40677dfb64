"""Decoders of the block formats, the reference for the native kernels.

Each takes raw blocks, uint8 [n, block bytes], and returns float32 [n, block elements]. The arithmetic is float32 in
the order of ggml: first ``d * scale``, then times the code, then minus ``dmin * min``; a native decoder must give the
same bits. `decode` handles whole tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.gguf_write import BLOCKS, GGMLType, payload_bytes

F32 = np.float32
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

FP4_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice the value of an FP4 code; bit 3 is the sign."""


@functools.cache
def iq2_xxs_grid() -> NDArray[np.uint8]:
    """The 256 x 8 magnitudes (8, 25 or 43) of IQ2_XXS. They follow no rule; the `gguf` package has them."""
    from gguf.quants import IQ2_XXS

    IQ2_XXS.init_grid()
    return np.asarray(IQ2_XXS.grid).reshape(256, 8).astype(np.uint8)


@functools.cache
def iq2_xxs_signs() -> NDArray[np.int8]:
    """128 x 8 factors. Bit 7 is not stored: it makes the number of minus signs even."""
    fields = np.arange(128, dtype=np.uint8)
    bits = (fields[:, None] >> np.arange(8, dtype=np.uint8)) & 1
    bits[:, 7] = bits[:, :7].sum(1) & 1
    return (1 - 2 * bits.astype(np.int8)).astype(np.int8)


def f16_field(blocks: Bytes, at: int) -> Floats:
    """The half at a byte offset of every block, as float32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(F32)


def decode_f32(b: Bytes) -> Floats:
    return b.view("<f4").astype(F32)


def decode_f16(b: Bytes) -> Floats:
    return b.view("<f2").astype(F32)


def decode_bf16(b: Bytes) -> Floats:
    return (b.view("<u2").astype(np.uint32) << 16).view(F32)


def decode_q8_0(b: Bytes) -> Floats:
    return f16_field(b, 0) * b[:, 2:34].view(np.int8).astype(F32)


def two_bit_codes(qs: Bytes) -> Bytes:
    """64 bytes -> 256 codes: element i of a half of 128 sits at bits 2 * (i // 32) of byte i % 32."""
    n = len(qs)
    q = qs.reshape(n, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    return (q & 3).reshape(n, 256)


def decode_q2_k(b: Bytes) -> Floats:
    scales, codes = b[:, 0:16], two_bit_codes(b[:, 16:80])
    d, dmin = f16_field(b, 80), f16_field(b, 82)
    scale = np.repeat(d * (scales & 15).astype(F32), 16, 1)
    low = np.repeat(dmin * (scales >> 4).astype(F32), 16, 1)
    return scale * codes.astype(F32) - low


def decode_q3_k(b: Bytes) -> Floats:
    mask, codes, packed, d = b[:, 0:32], two_bit_codes(b[:, 32:96]), b[:, 96:108], f16_field(b, 108)
    i, j = np.arange(256), np.arange(16)
    bit = (mask[:, i % 32] >> (i // 32).astype(np.uint8)) & 1
    low = np.concatenate([packed[:, 0:8] & 15, packed[:, 0:8] >> 4], 1)
    high = (packed[:, 8 + j % 4] >> (2 * (j // 4)).astype(np.uint8)) & 3
    scale = (low | (high << 4)).astype(np.int8) - 32
    value = codes.astype(np.int8) - 4 * (1 - bit).astype(np.int8)
    return np.repeat(d * scale.astype(F32), 16, 1) * value.astype(F32)


def six_bit_scales(k: Bytes) -> tuple[Bytes, Bytes]:
    """12 bytes of Q4_K or Q5_K -> 8 scales, 8 minimums."""
    scale = np.concatenate([k[:, 0:4] & 63, (k[:, 8:12] & 15) | ((k[:, 0:4] >> 6) << 4)], 1)
    low = np.concatenate([k[:, 4:8] & 63, (k[:, 8:12] >> 4) | ((k[:, 4:8] >> 6) << 4)], 1)
    return scale, low


def four_bit_codes(qs: Bytes) -> Bytes:
    """128 bytes -> 256 codes: 32 low nibbles, then the 32 high ones of the same bytes."""
    n = len(qs)
    q = qs.reshape(n, 4, 1, 32) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
    return (q & 15).reshape(n, 256)


def _decode_45_k(b: Bytes, codes: Bytes) -> Floats:
    d, dmin = f16_field(b, 0), f16_field(b, 2)
    scale, low = six_bit_scales(b[:, 4:16])
    return np.repeat(d * scale.astype(F32), 32, 1) * codes.astype(F32) - np.repeat(dmin * low.astype(F32), 32, 1)


def decode_q4_k(b: Bytes) -> Floats:
    return _decode_45_k(b, four_bit_codes(b[:, 16:144]))


def decode_q5_k(b: Bytes) -> Floats:
    i = np.arange(256)
    high = (b[:, 16:48][:, i % 32] >> (i // 32).astype(np.uint8)) & 1
    return _decode_45_k(b, four_bit_codes(b[:, 48:176]) | (high << 4))


def decode_q6_k(b: Bytes) -> Floats:
    ql, qh, scale, d = b[:, 0:128], b[:, 128:192], b[:, 192:208].view(np.int8), f16_field(b, 208)
    i = np.arange(256)
    n, t, k = i // 128, (i % 128) // 32, i % 32
    low = (ql[:, 64 * n + 32 * (t & 1) + k] >> (4 * (t >> 1)).astype(np.uint8)) & 15
    high = (qh[:, 32 * n + k] >> (2 * t).astype(np.uint8)) & 3
    code = (low | (high << 4)).astype(np.int8) - 32
    return np.repeat(d * scale.astype(F32), 16, 1) * code.astype(F32)


def decode_iq2_xxs(b: Bytes) -> Floats:
    n = len(b)
    words = np.ascontiguousarray(b[:, 2:66]).view("<u4").reshape(n, 8, 2)
    index = (words[:, :, 0, None] >> np.array([0, 8, 16, 24], np.uint32)) & 255
    field = (words[:, :, 1, None] >> np.array([0, 7, 14, 21], np.uint32)) & 127
    scale = f16_field(b, 0) * (F32(0.5) + (words[:, :, 1] >> 28).astype(F32)) * F32(0.25)
    values = iq2_xxs_grid()[index].astype(F32) * iq2_xxs_signs()[field].astype(F32)
    return (scale.reshape(n, 8, 1, 1) * values).reshape(n, 256)


def mxfp4_scale(e: Bytes) -> Floats:
    """2^(e - 128): half the E8M0 value, because the codes are doubled. e = 0 and 1 are subnormal."""
    wide = e.astype(np.uint32)
    return np.where(e < 2, np.uint32(0x00200000) << wide, (wide - 1) << 23).astype(np.uint32).view(F32)


def decode_mxfp4(b: Bytes) -> Floats:
    codes = np.concatenate([b[:, 1:17] & 15, b[:, 1:17] >> 4], 1)
    return mxfp4_scale(b[:, 0:1]) * FP4_DOUBLED[codes].astype(F32)


DECODERS: dict[GGMLType, Callable[[Bytes], Floats]] = {
    GGMLType.F32: decode_f32,
    GGMLType.F16: decode_f16,
    GGMLType.BF16: decode_bf16,
    GGMLType.Q8_0: decode_q8_0,
    GGMLType.Q2_K: decode_q2_k,
    GGMLType.Q3_K: decode_q3_k,
    GGMLType.Q4_K: decode_q4_k,
    GGMLType.Q5_K: decode_q5_k,
    GGMLType.Q6_K: decode_q6_k,
    GGMLType.IQ2_XXS: decode_iq2_xxs,
    GGMLType.MXFP4: decode_mxfp4,
}

F16_FIELDS: dict[GGMLType, tuple[int, ...]] = {
    GGMLType.Q8_0: (0,),
    GGMLType.Q2_K: (80, 82),
    GGMLType.Q3_K: (108,),
    GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2),
    GGMLType.Q6_K: (208,),
    GGMLType.IQ2_XXS: (0,),
}
"""Byte offsets of the halves in a block."""


def decode(type_: GGMLType, data: bytes | NDArray[Any], shape: Sequence[int]) -> Floats:
    """A whole tensor, float32 in the given numpy shape."""
    size = BLOCKS[type_][1]
    raw = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data).view(np.uint8)
    if raw.size != payload_bytes(type_, tuple(reversed(tuple(shape)))):
        raise ValueError(f"{raw.size} bytes are not {type_.name} of shape {tuple(shape)}")
    return DECODERS[type_](raw.reshape(-1, size)).reshape(shape)


def random_blocks(rng: np.random.Generator, type_: GGMLType, n: int) -> Bytes:
    """n blocks of random bytes with finite scales of both signs, some of them zero or subnormal."""
    b = rng.integers(0, 256, (n, BLOCKS[type_][1]), dtype=np.uint8)
    for at in F16_FIELDS.get(type_, ()):
        half = (rng.standard_normal(n) * 10.0 ** rng.uniform(-6, 1, n)).astype(np.float16)
        half[16::17] = 0
        b[:, at : at + 2] = half.view(np.uint8).reshape(n, 2)
    if type_ is GGMLType.MXFP4:
        b[:, 0] = rng.integers(0, 255, n)  # 255 is NaN
        b[: min(n, 8), 0] = [0, 1, 2, 3, 126, 127, 128, 254][: min(n, 8)]
    return b
