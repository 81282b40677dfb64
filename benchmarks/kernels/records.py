"""The argument records of operations (src/ds4core/backend/kernel_args.h) as ctypes, and buffers for them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

U32, U64, F32 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_float


class Ref(ctypes.Structure):
    """A place in a buffer; all zero: absent."""

    _fields_ = (("buffer", U64), ("offset", U64))


class Weight(ctypes.Structure):
    """A weight matrix, or a stack of them."""

    _fields_ = (
        ("data", Ref), ("row_stride", U64), ("type", U32), ("n_in", U32), ("n_out", U32), ("n_matrices", U32),
        ("matrix_stride", U64),
    )  # fmt: skip


class Importance(ctypes.Structure):
    """Statistics; absent here."""

    _fields_ = (("sum_in", Ref), ("sum_mid", Ref), ("counts", Ref))


def _record(name: str, *fields: tuple[str, str]) -> type[ctypes.Structure]:
    """Make a record of fields given as (type, "names")."""
    kinds = {"ref": Ref, "weight": Weight, "u32": U32, "u64": U64, "f32": F32, "importance": Importance}
    found = [(field, kinds[kind]) for kind, names in fields for field in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": found})


RECORDS = {
    "rms_norm": _record("RmsNorm", ("ref", "x w y"), ("u32", "n_rows dim"), ("f32", "eps")),
    "matmul": _record(
        "Matmul", ("weight", "w"), ("ref", "x y"), ("u32", "n x_stride y_stride groups accumulate quantized")
    ),
    "hc_pre": _record(
        "HcPre", ("ref", "mix streams scale base x post comb"), ("u32", "n n_hc dim iterations"),
        ("f32", "norm_eps hc_eps"),
    ),
    "hc_post": _record("HcPost", ("ref", "y post comb streams"), ("u32", "n n_hc dim")),
    "rope": _record("Rope", ("ref", "x freqs"), ("u32", "n heads dim n_rot pos0"), ("f32", "sign")),
    "round_rows": _record("RoundRows", ("ref", "x"), ("u32", "n_rows dim n_rot mode")),
    "indexer": _record(
        "Indexer", ("ref", "q weights rows selected counts"), ("u32", "n heads dim top_k ratio pos0 row_type"),
        ("f32", "scale"),
    ),
    "attention": _record(
        "Attention", ("ref", "q window_rows compressed_rows selected counts sinks out"),
        ("u32", "n heads dim window capacity ratio top_k pos0 row_type"), ("f32", "scale"),
    ),
    "router": _record(
        "Router", ("ref", "scores bias table tokens ids weights"), ("u32", "n n_expert k"), ("f32", "scale")
    ),
    "experts": _record(
        "Experts", ("weight", "gate up down"), ("ref", "x ids weights y"), ("u32", "n k quantized"), ("f32", "clamp"),
        ("importance", "importance"), ("u32", "work"), ("ref", "places chosen"),
    ),
    "swiglu": _record("Swiglu", ("ref", "a b"), ("u64", "count"), ("f32", "clamp")),
}  # fmt: skip


class Bench:
    """One queue of the CPU backend, with its data, and operations to run on them."""

    def __init__(self, module: Any, threads: int) -> None:
        self.module, self._queue = module, module.Queue(threads)

    def put(self, values: NDArray[Any]) -> Ref:
        """Copy an array into a buffer."""
        return Ref(self._queue.upload(np.ascontiguousarray(values).reshape(-1).view(np.uint8)), 0)

    def room(self, *shape: int) -> Ref:
        """Make a buffer of float32 zeros."""
        return self.put(np.zeros(shape, np.float32))

    def weight(self, rng: np.random.Generator, kind: str, n_out: int, n_in: int, n_matrices: int = 1) -> Weight:
        """Make random weights of a tensor type."""
        data, type_id, row = random_weights(rng, kind, n_matrices * n_out, n_in)
        return Weight(self.put(data), row, type_id, n_in, n_out, n_matrices, n_out * row)

    def get(self, ref: Ref, n: int) -> NDArray[np.float32]:
        """Copy n floats back."""
        return np.asarray(self._queue.download(ref.buffer, 4 * n)).view(np.float32)

    def operation(self, name: str, **fields: Any) -> Any:
        """Return a function that runs an operation with these arguments; fields not given are 0."""
        record = RECORDS[name](**fields)
        data, run = bytes(record), self._queue.run
        return lambda: run(name, data)


# GGUF type id, values and bytes of a block, and where its half-precision scales stand.
TYPES = {
    "F16": (1, 1, 2, ()), "BF16": (30, 1, 2, ()), "Q8_0": (8, 32, 34, (0,)), "MXFP4": (39, 32, 17, ()),
    "Q2_K": (10, 256, 84, (80, 82)), "Q4_K": (12, 256, 144, (0, 2)), "IQ2_XXS": (16, 256, 66, (0,)),
}  # fmt: skip


def random_weights(rng: np.random.Generator, kind: str, n_rows: int, n_in: int) -> tuple[NDArray[np.uint8], int, int]:
    """Return bytes of random but finite weights, the type's id, and the bytes of a row."""
    type_id, values, size, halves = TYPES[kind]
    n = n_rows * n_in // values
    if kind in ("F16", "BF16"):
        floats = rng.standard_normal(n, np.float32) * np.float32(0.02)
        data = floats.astype(np.float16).view(np.uint8) if kind == "F16" else (
            (floats.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        )  # fmt: skip
    else:
        blocks = rng.integers(0, 256, (n, size), np.uint8)
        scales = rng.uniform(0.001, 0.01, n).astype(np.float16).view(np.uint8).reshape(n, 2)
        for at in halves:
            blocks[:, at : at + 2] = scales
        if kind == "MXFP4":
            blocks[:, 0] = rng.integers(118, 122, n)  # the exponent of a block
        data = blocks.reshape(-1)
    return data, type_id, n_in // values * size
