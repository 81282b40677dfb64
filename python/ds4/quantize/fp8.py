"""The number forms of the published checkpoints: E4M3 (FP8), E8M0 (scales) and packed E2M1 (FP4).

Decoding is exact: every product of a code and its scale is a float32 value, subnormal ones included, unless it
overflows. Codes that mean NaN are found by functions of their own, for the caller knows their place.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

E8M0_NAN = 255
FP4_GROUP = 32
"""Input columns that share one scale of an FP4 weight."""

MAX_E4M3_EXPONENT = 246
"""Largest E8M0 byte at which 448, the largest E4M3 value, is still a float32."""

MAX_FP4_EXPONENT = 252
"""Largest E8M0 byte at which 6, the largest E2M1 value, is still a float32."""

_MAGNITUDE = 0x7F
_LOW_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_HIGH_NIBBLES = np.uint64(0xF0F0F0F0F0F0F0F0)


def e4m3_nan(codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Tell which codes are NaN: 0x7F and 0xFF. E4M3 has no infinities."""
    nan: NDArray[np.bool_] = (codes & _MAGNITUDE) == _MAGNITUDE
    return nan


def decode_e4m3(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the values of E4M3 codes; NaN codes give +-480.

    Sign, exponent and mantissa move to their places in a float32, whose exponent bias is larger by 120.
    """
    bits = codes.view(np.int8).astype(np.int32)
    bits <<= 20
    bits &= np.int32(-0x80000000 + (_MAGNITUDE << 20))
    values = bits.view(np.float32)
    values *= np.float32(2.0**120)
    return values


def _e2m1_pairs() -> NDArray[np.uint64]:
    """Two float32 values for every byte, low half first, as one word each."""
    positive = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    values = np.concatenate([positive, -positive])
    byte = np.arange(256)
    return np.stack([values[byte & 15], values[byte >> 4]], axis=1).astype("<f4").view("<u8").reshape(256)


_E2M1_PAIRS = _e2m1_pairs()


def decode_e2m1(packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the values of packed E2M1 codes, two for each byte, the low half first; the last dimension doubles."""
    return _E2M1_PAIRS.take(packed).view("<f4")


def decode_e8m0(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the values of E8M0 codes, 2^(e - 127); 255, which means NaN, gives infinity."""
    bits = codes.astype(np.uint32)
    bits <<= 23
    bits[codes == 0] = 0x00400000  # 2^-127 is subnormal
    return bits.view(np.float32)


def fp4_to_mxfp4(codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Regroup packed FP4 rows into MXFP4 blocks; no value changes.

    Parameters
    ----------
    codes : array of uint8, shape (n_rows, width / 2)
        Byte b of a row holds column 2b in its low half and column 2b + 1 in its high half.
    scales : array of uint8, shape (n_rows, width / 32)
        E8M0 scales.

    Returns
    -------
    array of uint8, shape (n_rows, width / 32, 17)
        The scale byte, then 16 bytes of which byte j holds value j of the group in its low half and value j + 16 in
        its high half.
    """
    n_rows, n_groups = scales.shape
    words = np.ascontiguousarray(codes).view("<u8").reshape(n_rows, n_groups, 2)
    first, second = words[:, :, 0], words[:, :, 1]
    even = (first & _LOW_NIBBLES) | ((second & _LOW_NIBBLES) << np.uint64(4))
    odd = ((first >> np.uint64(4)) & _LOW_NIBBLES) | (second & _HIGH_NIBBLES)
    blocks = np.empty((n_rows, n_groups, 17), np.uint8)
    blocks[:, :, 0] = scales
    blocks[:, :, 1::2] = even.astype("<u8").view(np.uint8).reshape(n_rows, n_groups, 8)
    blocks[:, :, 2::2] = odd.astype("<u8").view(np.uint8).reshape(n_rows, n_groups, 8)
    return blocks
