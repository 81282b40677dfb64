"""The operation of the routed experts: in parts, and with each expert at a place of its own, the bits are the same."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from support.gguf_write import GGMLType
from support.native import kernels_module

ds4_kernels = kernels_module()

GATE_UP, DOWN, ADD = 1, 2, 4
DIM, WIDTH, N_EXPERT, K = 512, 256, 11, 3
Array = NDArray[np.uint8]


def matrices(kind: GGMLType, n_in: int, n_out: int, rng: np.random.Generator) -> Array:
    """The bytes of N_EXPERT matrices, [N_EXPERT][bytes]."""
    values = (rng.standard_normal((N_EXPERT, n_out * n_in)) * 0.1).astype(np.float32)
    return np.stack([np.frombuffer(ds4_kernels.quantize_row(kind, v).tobytes(), np.uint8) for v in values])


def weight(buffer: int, kind: GGMLType, n_in: int, n_out: int, bytes_: int) -> bytes:
    return struct.pack("<QQQIIIIQ", buffer, 0, bytes_ // n_out, kind, n_in, n_out, N_EXPERT, bytes_)


@dataclass
class Setting:
    """A queue with weights stacked, and the same weights scattered over one buffer."""

    queue: object
    stacked: tuple[bytes, ...]
    scattered: tuple[bytes, ...]
    places: bytes
    middle: bytes
    y: int
    sums: tuple[int, int, int]
    n: int

    def run(self, work: int, chosen: NDArray[np.bool_] | None = None, *, scattered: bool = False) -> None:
        q = self.queue
        none = struct.pack("<QQ", 0, 0)
        mask = none if chosen is None else struct.pack("<QQ", q.upload(chosen.astype(np.uint8)), 0)  # type: ignore[attr-defined]
        sums = b"".join(struct.pack("<QQ", b, 0) for b in self.sums)
        record = b"".join(self.scattered if scattered else self.stacked) + self.middle + sums
        record += struct.pack("<II", work, 0) + (self.places if scattered else none) + mask
        q.run("experts", record)  # type: ignore[attr-defined]

    def results(self) -> list[bytes]:
        """y, and the statistics, which then begin at 0 again."""
        sizes = (self.n * DIM * 4, N_EXPERT * DIM * 8, N_EXPERT * WIDTH * 8, N_EXPERT * 8)
        q = self.queue
        found = [q.download(b, n).tobytes() for b, n in zip((self.y, *self.sums), sizes, strict=True)]  # type: ignore[attr-defined]
        fresh = [q.upload(np.zeros(n, np.uint8)) for n in sizes]  # type: ignore[attr-defined]
        self.middle = self.middle[:48] + struct.pack("<QQ", fresh[0], 0) + self.middle[64:]
        self.y, self.sums = fresh[0], tuple(fresh[1:])
        return found


def setting(kind: GGMLType, n: int, quantized: bool, threads: int) -> Setting:
    rng = np.random.default_rng(5)
    queue = ds4_kernels.Queue(threads)
    shapes = ((DIM, WIDTH), (DIM, WIDTH), (WIDTH, DIM))
    parts = [matrices(kind, n_in, n_out, rng) for n_in, n_out in shapes]
    stacked = tuple(
        weight(queue.upload(p.reshape(-1)), kind, *shape, p.shape[1]) for p, shape in zip(parts, shapes, strict=True)
    )
    room = sum(p.shape[1] for p in parts) + 192
    slab, places = np.full(room * N_EXPERT, 0xFF, np.uint8), np.zeros((N_EXPERT, 3), np.uint64)
    for slot, expert in enumerate(rng.permutation(N_EXPERT)):
        at = slot * room
        for i, p in enumerate(parts):
            places[expert, i] = at
            slab[at : at + p.shape[1]] = p[expert]
            at += p.shape[1] + 64
    everything = queue.upload(slab)
    scattered = tuple(weight(everything, kind, *s, p.shape[1]) for p, s in zip(parts, shapes, strict=True))
    ids = np.stack([rng.permutation(N_EXPERT - 1)[:K] for _ in range(n)]).astype(np.int32)  # the last one is never used
    inputs = [rng.standard_normal((n, DIM)).astype(np.float32), ids, rng.random((n, K)).astype(np.float32)]
    refs = [queue.upload(np.frombuffer(a.tobytes(), np.uint8)) for a in inputs]
    sizes = (n * DIM * 4, N_EXPERT * DIM * 8, N_EXPERT * WIDTH * 8, N_EXPERT * 8)
    y, *sums = (queue.upload(np.zeros(size, np.uint8)) for size in sizes)
    middle = b"".join(struct.pack("<QQ", r, 0) for r in (*refs, y)) + struct.pack("<IIIf", n, K, quantized, 7.0)
    at = struct.pack("<QQ", queue.upload(np.frombuffer(places.tobytes(), np.uint8)), 0)
    return Setting(queue, stacked, scattered, at, middle, y, tuple(sums), n)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("kind", "quantized"), [(GGMLType.Q8_0, True), (GGMLType.Q4_K, True), (GGMLType.Q4_K, False), (GGMLType.F16, True)]
)
@pytest.mark.parametrize("n", [1, 2, 40])
def test_parts_and_places_change_no_bit(kind: GGMLType, quantized: bool, n: int, threads: int) -> None:
    """Any cut into waves of ascending experts, gate and up of each wave in any order; importances too."""
    s = setting(kind, n, quantized, threads)
    s.run(GATE_UP | DOWN)
    expected = s.results()
    assert np.frombuffer(expected[0], np.float32).any()
    assert np.frombuffer(expected[3], np.uint64).sum() == n * K
    s.run(GATE_UP | DOWN, scattered=True)
    assert s.results() == expected
    rng = np.random.default_rng(n)
    for _ in range(6):
        ends = [0, *sorted(rng.integers(0, N_EXPERT, 3)), N_EXPERT]
        for first, last in pairwise(ends):
            wave = np.zeros(N_EXPERT, bool)
            wave[first:last] = True
            early = wave & (rng.random(N_EXPERT) < 0.5)
            for part in (early, wave & ~early):
                s.run(GATE_UP, part, scattered=True)
            s.run(DOWN | (ADD if first else 0), wave, scattered=True)
        assert s.results() == expected
