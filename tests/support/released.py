"""The released form of a checkpoint, written from plain weights: FP8 and FP4 codes with their E8M0 scales.

The tables follow the definitions of the formats value by value, and decoding is one product for one value: a
reference that shares nothing with ds4's reader. Encoding takes the nearest code of each value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Record = tuple[str, bytes]

QUANTIZATION_CONFIG: dict[str, Any] = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "scale_fmt": "ue8m0",
    "weight_block_size": [128, 128],
}
"""What config.json of the released checkpoints says, beside `"expert_dtype": "fp4"`."""

_EXPERT = re.compile(r"\.ffn\.experts\.\d+\.w[123]\.weight$")
_FP8 = re.compile(
    r"\.(attn\.(wq_a|wq_b|wkv|wo_a|wo_b)|attn\.indexer\.wq_b|ffn\.shared_experts\.w[123]|e_proj|h_proj)\.weight$"
)


def _e4m3(code: int) -> float:
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    return sign * (mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


E4M3 = np.array([_e4m3(code) for code in range(256)], np.float64)
E8M0 = np.array([2.0 ** (code - 127) for code in range(255)] + [np.nan], np.float64)
E2M1 = np.array([s * v for s in (1.0, -1.0) for v in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)], np.float64)


def stored_as(name: str) -> str:
    """Return FP8, FP4 or BF16: the form of a matrix in a released checkpoint."""
    if _EXPERT.search(name):
        return "FP4"
    return "FP8" if _FP8.search(name) else "BF16"


def _codes(values: NDArray[Any], positive: NDArray[np.float64], sign_bit: int) -> NDArray[np.uint8]:
    """Nearest of ascending positive values, with the sign bit set for negative ones."""
    middle = (positive[1:] + positive[:-1]) / 2
    codes = np.searchsorted(middle, np.abs(values)).astype(np.uint8)
    return np.where(np.signbit(values), codes | sign_bit, codes).astype(np.uint8)


def _exponents(amax: NDArray[Any], largest: float) -> NDArray[np.uint8]:
    with np.errstate(divide="ignore"):
        wanted = np.ceil(np.log2(amax / largest)) + 127
    return np.clip(wanted, 0, 254).astype(np.uint8)


def encode_fp8(values: NDArray[Any], block: int = 128) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return codes [out, in] and scales [ceil(out / 128), ceil(in / 128)]."""
    rows, width = values.shape
    n, m = -(-rows // block), -(-width // block)
    padded = np.zeros((n * block, m * block))
    padded[:rows, :width] = values
    amax = np.abs(padded).reshape(n, block, m, block).max(axis=(1, 3))
    scales = _exponents(amax, 448.0)
    spread = np.repeat(np.repeat(E8M0[scales], block, 0), block, 1)[:rows, :width]
    return _codes(values / spread, E4M3[:127], 0x80), scales


def decode_fp8(codes: NDArray[np.uint8], scales: NDArray[np.uint8], block: int = 128) -> NDArray[np.float32]:
    """Return values [out, in]."""
    rows, columns = np.indices(codes.shape)
    return (E4M3[codes] * E8M0[scales[rows // block, columns // block]]).astype(np.float32)


def encode_fp4(values: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return packed codes [out, in / 2] and scales [out, in / 32]."""
    rows, width = values.shape
    groups = values.reshape(rows, width // 32, 32)
    scales = _exponents(np.abs(groups).max(axis=2), 6.0)
    codes = _codes(groups / E8M0[scales][:, :, None], E2M1[:8], 8).reshape(rows, width)
    return codes[:, 0::2] | codes[:, 1::2] << 4, scales


def decode_fp4(packed: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return values [out, in]."""
    codes = np.empty((packed.shape[0], 2 * packed.shape[1]), np.uint8)
    codes[:, 0::2], codes[:, 1::2] = packed & 15, packed >> 4
    return (E2M1[codes] * np.repeat(E8M0[scales], 32, axis=1)).astype(np.float32)


def released_form(
    weights: Mapping[str, NDArray[Any]],
) -> tuple[dict[str, NDArray[Any]], dict[str, Record], dict[str, NDArray[Any]]]:
    """Store weights as a released checkpoint does.

    Returns
    -------
    arrays, records
        Arrays of the stored shapes, scales among them, and the element types and bytes of those in FP8 and FP4; what
        `write_checkpoint` takes.
    values
        What a reader must see, under the names of `weights`.
    """
    arrays: dict[str, NDArray[Any]] = {}
    records: dict[str, Record] = {}
    values: dict[str, NDArray[Any]] = {}
    for name, weight in weights.items():
        kind = stored_as(name)
        if kind == "BF16":
            arrays[name] = values[name] = weight
            continue
        codes, scales = encode_fp8(weight) if kind == "FP8" else encode_fp4(weight)
        values[name] = decode_fp8(codes, scales) if kind == "FP8" else decode_fp4(codes, scales)
        put(arrays, records, name, kind, codes, scales)
    return arrays, records, values


def put(
    arrays: dict[str, NDArray[Any]],
    records: dict[str, Record],
    name: str,
    kind: str,
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint8],
) -> None:
    """Add one weight and its scales."""
    scale = name.removesuffix(".weight") + ".scale"
    arrays[name], arrays[scale] = codes, scales
    records[name] = ("F8_E4M3" if kind == "FP8" else "I8", codes.tobytes())
    records[scale] = ("F8_E8M0", scales.tobytes())
