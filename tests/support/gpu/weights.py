"""Weights and ids for cases of matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from support import dequant
from support.gguf_write import BLOCKS, GGMLType

FLOATS = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
BLOCKS_OF_32 = (GGMLType.Q8_0, GGMLType.MXFP4)
BLOCKS_OF_256 = (GGMLType.Q2_K, GGMLType.Q4_K, GGMLType.IQ2_XXS)
TYPES = (*FLOATS, *BLOCKS_OF_32, *BLOCKS_OF_256)


def rows(rng: np.random.Generator, kind: GGMLType, n_rows: int, n_in: int) -> NDArray[np.uint8]:
    """The bytes of rows of random weights: every code, scales of both signs, some of them zero or subnormal."""
    if kind in FLOATS:
        values = rng.standard_normal((n_rows, n_in)).astype(np.float32)
        if kind == GGMLType.BF16:
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype(np.float16 if kind == GGMLType.F16 else np.float32).view(np.uint8)
    blocks = dequant.random_blocks(rng, kind, n_rows * n_in // BLOCKS[kind][0])
    if kind == GGMLType.MXFP4:  # products of the largest would be infinite
        blocks[:, 0] = rng.integers(118, 136, len(blocks))
        blocks[3::7, 0] = rng.integers(0, 2, len(blocks[3::7]))
    return blocks.reshape(n_rows, -1)


def activations(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Values of many magnitudes; whole rows of some blocks are zero, others have two values of the same magnitude."""
    x = (rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 1, shape)).astype(np.float32)
    flat = x.reshape(-1)
    if flat.size > 600:
        flat[32:64] = 0
        flat[256:512:7] = np.copysign(np.float32(50), flat[256:512:7])
    return x


def bits_of_numbers(values: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Outputs of a case whose NaNs may have any bits."""
    return {"nan": np.isnan(values), "numbers": np.nan_to_num(values, nan=0.0)}
