"""What holds for matrix products of the GPU back ends beyond the conformance cases."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support import gpu
from support.gguf_write import GGMLType
from support.gpu import experts
from support.gpu.weights import TYPES, activations, rows

TILES = [
    c for c in gpu.all_cases() if re.match("(matmul|experts)", c.name) and re.search("-n=(9|11|12|40)(-|$)", c.name)
]
PLAIN, GFX11, GFX12 = 0, 2, 3


@pytest.mark.parametrize(
    ("host", "unit"), [*((host, PLAIN) for host in gpu.HOSTS), ("cuda_host", GFX11), ("cuda_host", GFX12)]
)
def test_every_unit_gives_the_same_bits(host: str, unit: int) -> None:
    """The plain fallback, and units that the conformance cases do not use: those of gfx11 and gfx12."""
    library = gpu.host_library(host)
    controls = gpu.HostControls(library)
    cases = TILES if unit == PLAIN else [c for c in TILES if c.name.startswith("matmul")]
    assert len(cases) > 10
    try:
        controls.matrix_units(unit)
        for case in cases:
            want = case.outputs(gpu.Device())
            for name, value in case.outputs(gpu.Device(library)).items():
                case.tolerance.check(value, want[name], f"{case.name}: {name}")
    finally:
        controls.matrix_units(1)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("host_name", gpu.HOSTS)
def test_a_token_has_the_same_bits_alone_and_among_others(host_name: str, kind: GGMLType) -> None:
    rng = np.random.default_rng(3)
    n, n_out, n_in = 21, 7, 512
    raw, x = rows(rng, kind, n_out, n_in), activations(rng, n, n_in)
    device = gpu.Device(gpu.host_library(host_name))
    w = device.weight(raw, kind, n_out, n_in)

    def product(part: np.ndarray) -> np.ndarray:
        y = device.room(len(part), n_out)
        device.run(
            "matmul", w=w, x=device.put(part), y=y, n=len(part), x_stride=n_in, y_stride=n_out, groups=1, quantized=1
        )
        return device.get(y, len(part), n_out)

    together = product(x)
    for size in (1, 2, 3, 5, 8):
        for first in range(0, n - size, 5):
            np.testing.assert_array_equal(product(x[first : first + size]), together[first : first + size])


@pytest.mark.parametrize("host_name", gpu.HOSTS)
def test_experts_in_parts_have_the_bits_of_one_call(host_name: str) -> None:
    for n in (1, 9):
        whole, parts = (
            experts.Layer(gpu.Device(gpu.host_library(host_name)), np.random.default_rng(n), n, "usual")
            for _ in range(2)
        )
        whole.run(experts.GATE_UP | experts.DOWN, quantized=1)
        low = np.arange(experts.N_EXPERT) < 4
        parts.run(experts.GATE_UP, low, quantized=1)
        parts.run(experts.DOWN, low, quantized=1)
        parts.run(experts.GATE_UP, ~low, scattered=True, quantized=1)
        parts.run(experts.DOWN | experts.ADD, ~low, scattered=True, quantized=1)
        np.testing.assert_array_equal(whole.results()["y"], parts.results()["y"])


def test_weights_of_an_unknown_type_are_refused() -> None:
    device = gpu.Device(gpu.host_library("cuda_host"))
    w = device.weight(np.zeros((1, 18), np.uint8), GGMLType.Q8_0, 1, 32)
    w.type = 2
    with pytest.raises(RuntimeError, match="matmul: weights of tensor type 2"):
        device.run("matmul", w=w, x=device.room(32), y=device.room(1), n=1, x_stride=32, y_stride=1, groups=1)
