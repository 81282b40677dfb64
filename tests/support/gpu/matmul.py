"""Cases of matrix products. All of them ask for the CPU's bits: the kernels add in the CPU's order."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.gguf_write import GGMLType
from support.gpu import EXACT, Device, Outputs, case
from support.gpu.weights import BLOCKS_OF_32, BLOCKS_OF_256, FLOATS, TYPES, activations, bits_of_numbers, rows

# Few tokens, each count of the kernels and one that fills none of them, rows so long that they are read in stretches;
# then parts of tiles, whole ones and more.
_FLOAT_SHAPES = (
    {"n": 1, "n_out": 3, "n_in": 1100},
    {"n": 1, "n_out": 21, "n_in": 333},
    {"n": 6, "n_out": 3, "n_in": 4131},
    {"n": 3, "n_out": 18, "n_in": 31},
    {"n": 9, "n_out": 3, "n_in": 67},
    {"n": 20, "n_out": 35, "n_in": 300},
)
_SHAPES_OF_32 = (
    {"n": 1, "n_out": 37, "n_in": 96},
    {"n": 1, "n_out": 33, "n_in": 2112},
    {"n": 2, "n_out": 2, "n_in": 16448},
    {"n": 2, "n_out": 9, "n_in": 352},
    {"n": 7, "n_out": 6, "n_in": 2080},
    {"n": 9, "n_out": 66, "n_in": 288},
    {"n": 40, "n_out": 17, "n_in": 320},
    {"n": 70, "n_out": 5, "n_in": 32},
)
_SHAPES_OF_256 = (
    {"n": 1, "n_out": 37, "n_in": 256},
    {"n": 2, "n_out": 3, "n_in": 2816},
    {"n": 3, "n_out": 9, "n_in": 768},
    {"n": 8, "n_out": 6, "n_in": 512},
    {"n": 9, "n_out": 66, "n_in": 256},
    {"n": 40, "n_out": 17, "n_in": 768},
    {"n": 70, "n_out": 5, "n_in": 512},
)


def _product(
    device: Device, rng: np.random.Generator, kind: str, n: int, n_out: int, n_in: int, quantized: int = 1,
    groups: int = 1, accumulate: int = 0, apart: int = 0,
) -> np.ndarray[Any, np.dtype[np.float32]]:  # fmt: skip
    """The whole output, with what lies between the rows when they are `apart`."""
    type_ = GGMLType[kind]
    w = device.weight(rows(rng, type_, n_out, n_in), type_, n_out, n_in)
    x_stride, y_stride = n_in * groups + apart, n_out + apart
    x, y = activations(rng, n, x_stride), activations(rng, n, y_stride)
    out = device.put(y)
    device.run(
        "matmul", w=w, x=device.put(x), y=out, n=n, x_stride=x_stride, y_stride=y_stride, groups=groups,
        accumulate=accumulate, quantized=quantized,
    )  # fmt: skip
    got = device.get(out, n, y_stride)
    assert np.isfinite(got).all()
    assert not np.array_equal(got, y)
    return got


def _of(kinds: tuple[GGMLType, ...], shapes: tuple[dict[str, int], ...]) -> list[dict[str, Any]]:
    return [{"kind": kind.name, **shape} for kind in kinds for shape in shapes]


@case(EXACT, _of(FLOATS, _FLOAT_SHAPES) + _of(BLOCKS_OF_32, _SHAPES_OF_32) + _of(BLOCKS_OF_256, _SHAPES_OF_256))
def matmul(device: Device, rng: np.random.Generator, **shape: Any) -> Outputs:
    return {"y": _product(device, rng, **shape)}


@case(EXACT, [{"kind": k.name, "n": n} for k in (*BLOCKS_OF_32, *BLOCKS_OF_256) for n in (1, 5, 18)])
def matmul_float_activations(device: Device, rng: np.random.Generator, kind: str, n: int) -> Outputs:
    return {"y": _product(device, rng, kind, n, 11, 512, quantized=0)}


@case(EXACT, [{"kind": k.name, "n": n} for k in TYPES for n in (2, 12)])
def matmul_groups_and_strides(device: Device, rng: np.random.Generator, kind: str, n: int) -> Outputs:
    """Rows of a group do not fill the rows of a thread block, nor a tile; what lies between rows is left alone."""
    return {"y": _product(device, rng, kind, n, 3 * 5, 256, groups=3, accumulate=1, apart=3)}


@case(EXACT, [{"kind": k.name, "n": n} for k in (GGMLType.F16, GGMLType.Q8_0, GGMLType.Q4_K) for n in (2, 12)])
def matmul_not_finite(device: Device, rng: np.random.Generator, kind: str, n: int) -> Outputs:
    """NaN and infinities in the activations, in blocks and alone; blocks too small for their factors."""
    x = activations(rng, n, 1024)
    x[0, 5], x[1, 300], x[1, 700] = np.nan, np.inf, -np.inf
    x[-1, :256], x[-1, 256:512] = 1e-42, 3e38
    w = device.weight(rows(rng, GGMLType[kind], 6, 1024), GGMLType[kind], 6, 1024)
    y = device.room(n, 6)
    device.run("matmul", w=w, x=device.put(x), y=y, n=n, x_stride=1024, y_stride=6, groups=1, quantized=1)
    return bits_of_numbers(device.get(y, n, 6))
