"""Importance files built byte by byte, as their documents describe them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from ds4.imatrix import Entry, Imatrix
from numpy.typing import NDArray

N_EXPERT, N_EMBD, N_FF = 4, 6, 3
GATE, UP, DOWN = (f"blk.0.ffn_{part}_exps.weight" for part in ("gate", "up", "down"))


def dat_entry(name: bytes, n_calls: int, values: NDArray[np.float32], n_values: int | None = None) -> bytes:
    head = struct.pack("<i", len(name)) + name
    return head + struct.pack("<ii", n_calls, values.size if n_values is None else n_values) + values.tobytes()


def dat_bytes(entries: Sequence[bytes], tail: bytes = b"", n: int | None = None) -> bytes:
    return struct.pack("<i", len(entries) if n is None else n) + b"".join(entries) + tail


def tail_bytes(n_chunks: int, dataset: bytes) -> bytes:
    return struct.pack("<ii", n_chunks, len(dataset)) + dataset


def means(seed: int, n: int, width: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(0.01, 3, (n, width)).astype(np.float32)


def good_dat(unobserved: int | None = None) -> bytes:
    """One layer of 4 experts, as DS4 writes it: ncall 1 and the means."""
    gate, down = means(1, N_EXPERT, N_EMBD), means(2, N_EXPERT, N_FF)
    if unobserved is not None:
        gate[unobserved] = down[unobserved] = 1
    entries = [dat_entry(n.encode(), 1, v) for n, v in ((GATE, gate), (UP, gate), (DOWN, down))]
    return dat_bytes(entries, tail_bytes(7, b"set.txt"))


def counted_imatrix(seed: int = 3, counts: Sequence[float] = (5, 0, 1, 12)) -> Imatrix:
    """One layer of 4 experts with sums and token counts."""
    entries = {}
    for name, width in ((GATE, N_EMBD), (UP, N_EMBD), (DOWN, N_FF)):
        n = np.array(counts, dtype=np.float64)
        sums = means(seed + width, N_EXPERT, width).astype(np.float64) * n[:, None]
        entries[name] = Entry(sums, n)
    return Imatrix(entries, datasets=["a.txt", "b.txt"], n_chunks=9, chunk_size=512)


def write_bytes(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
