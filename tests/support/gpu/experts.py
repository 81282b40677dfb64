"""Cases of the routed experts. All of them ask for the CPU's bits: the kernels add in the CPU's order."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.gguf_write import GGMLType
from support.gpu import EXACT, Array, Device, Outputs, case
from support.gpu.weights import activations, rows
from support.kernel_args import CONSTANTS, ExpertPlace, Importance

DIM, WIDTH, N_EXPERT, K = 512, 256, 9, 3
GATE_UP, DOWN, ADD = (CONSTANTS[f"DS4_EXPERTS_{name}"] for name in ("GATE_UP", "DOWN", "ADD"))

# Gate, up, down: what files have, mixtures in which one product is rounded and another is not, and others.
KINDS = {
    name: tuple(GGMLType[part] for part in parts.split())
    for name, parts in {
        "usual": "IQ2_XXS IQ2_XXS Q2_K",
        "mixed": "Q8_0 F16 Q4_K",
        "f16": "F16 F16 F16",
        "q8": "Q8_0 Q8_0 Q8_0",
        "mxfp4": "MXFP4 MXFP4 Q4_K",
        "q4": "Q4_K Q4_K Q8_0",
    }.items()
}


class Layer:
    """Weights of a layer's experts on a device, the ids of a chunk, and room for results."""

    def __init__(self, device: Device, rng: np.random.Generator, n: int, kinds: str, *, few: bool = False) -> None:
        shapes = ((WIDTH, DIM), (WIDTH, DIM), (DIM, WIDTH))
        raw = [rows(rng, kind, N_EXPERT * shape[0], shape[1]) for kind, shape in zip(KINDS[kinds], shapes, strict=True)]
        self._device, self.n = device, n
        # The last expert is never chosen; `few`: expert 4 is chosen by all, and three more now and then.
        pool = [4, 1, 6, 2] if few else list(range(N_EXPERT - 1))
        ids = np.array(
            [[4, *rng.permutation(pool[1:])[: K - 1]] if few else rng.permutation(pool)[:K] for _ in range(n)]
        )
        self._fields: dict[str, Any] = {
            "x": device.put(activations(rng, n, DIM)),
            "ids": device.put(ids.astype(np.int32)),
            "weights": device.put(rng.random((n, K), np.float32)),
            "n": n, "k": K, "clamp": 2.5,
        }  # fmt: skip
        names = ("gate", "up", "down")
        self.stacked = {
            name: device.weight(data, kind, *shape, N_EXPERT)
            for name, data, kind, shape in zip(names, raw, KINDS[kinds], shapes, strict=True)
        }
        room = sum(data.nbytes // N_EXPERT + 64 for data in raw)
        slab, places = np.full(room * N_EXPERT, 0xFF, np.uint8), (ExpertPlace * N_EXPERT)()
        for slot, expert in enumerate(rng.permutation(N_EXPERT)):
            at = slot * room
            for name, data in zip(names, raw, strict=True):
                one = data.reshape(N_EXPERT, -1)[expert]
                setattr(places[int(expert)], name, at)
                slab[at : at + one.size] = one
                at += (one.size + 63) // 64 * 64
        self.scattered = {name: type(w).from_buffer_copy(w) for name, w in self.stacked.items()}
        everything = device.put(slab)
        for w in self.scattered.values():
            w.data = everything
        self.places = device.put(np.frombuffer(bytes(places), np.uint8))
        self.y = device.put(np.full((n, DIM), 7.0, np.float32))
        self.sums = [device.put(np.zeros(size)) for size in ((N_EXPERT, DIM), (N_EXPERT, WIDTH))]
        self.counts = device.put(np.zeros(N_EXPERT, np.uint64))

    def run(
        self,
        work: int,
        chosen: Array | None = None,
        *,
        scattered: bool = False,
        importance: bool = False,
        **fields: int,
    ) -> None:
        extra: dict[str, Any] = dict(self.scattered, places=self.places) if scattered else dict(self.stacked)
        if chosen is not None:
            extra["chosen"] = self._device.put(chosen.astype(np.uint8))
        if importance:
            extra["importance"] = Importance(self.sums[0], self.sums[1], self.counts)
        self._device.run("experts", **self._fields, **extra, **fields, work=work, y=self.y)

    def results(self) -> Outputs:
        get = self._device.get
        out: Outputs = {"y": get(self.y, self.n, DIM)}
        assert np.isfinite(out["y"]).all() and (out["y"] != 7.0).any()
        out["sum_in"], out["sum_mid"] = (
            get(s, N_EXPERT, size, dtype=np.float64) for s, size in zip(self.sums, (DIM, WIDTH), strict=True)
        )
        out["counts"] = get(self.counts, N_EXPERT, dtype=np.uint64)
        return out


@case(
    EXACT,
    [{"n": n, "kinds": kinds, "quantized": q} for n, kinds, q in (
        (1, "usual", 1), (1, "mixed", 1), (1, "q8", 0), (5, "usual", 1), (6, "mixed", 1), (3, "f16", 1),
        (11, "usual", 1), (10, "mixed", 1), (9, "mxfp4", 1), (12, "q4", 0),
    )],
)  # fmt: skip
def experts(device: Device, rng: np.random.Generator, n: int, kinds: str, quantized: int) -> Outputs:
    layer = Layer(device, rng, n, kinds)
    layer.run(GATE_UP | DOWN, importance=True, quantized=quantized)
    return layer.results()


@case(EXACT, [{"n": 70, "kinds": "usual"}, {"n": 20, "kinds": "mixed"}, {"n": 8, "kinds": "usual"}])
def experts_many_tokens_of_one(device: Device, rng: np.random.Generator, n: int, kinds: str) -> Outputs:
    """An expert with more pairs than a tile has, and most experts with none."""
    layer = Layer(device, rng, n, kinds, few=True)
    layer.run(GATE_UP | DOWN, importance=True, quantized=1)
    return layer.results()


@case(EXACT, [{"n": 87}])
def experts_of_many_pairs(device: Device, rng: np.random.Generator, n: int) -> Outputs:
    """More pairs than one thread block sorts."""
    layer = Layer(device, rng, n, "q8")
    layer.run(GATE_UP | DOWN, importance=True, quantized=1)
    return layer.results()


@case(EXACT, [{"n": n, "kinds": kinds} for n in (1, 4, 13) for kinds in ("usual", "mixed")])
def experts_in_parts(device: Device, rng: np.random.Generator, n: int, kinds: str) -> Outputs:
    """Each expert at a place of its own, in two waves: gate and up of a wave in two calls, then down, then the rest."""
    layer = Layer(device, rng, n, kinds)
    low = np.arange(N_EXPERT) < 5
    odd = np.arange(N_EXPERT) % 2 == 1
    for wave, add in ((low, 0), (~low, ADD)):
        layer.run(GATE_UP, wave & odd, scattered=True, importance=True, quantized=1)
        layer.run(GATE_UP, wave & ~odd, scattered=True, importance=True, quantized=1)
        layer.run(DOWN | add, wave, scattered=True, quantized=1)
    return layer.results()
