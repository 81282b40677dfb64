"""What holds for attention, indexer and their like on the GPU back ends beyond the conformance cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import gpu
from support.gpu.attention import attend

F = np.float32


PLAIN, GFX11, GFX12 = 0, 2, 3


@pytest.mark.parametrize(
    ("host", "unit"), [*((host, PLAIN) for host in gpu.HOSTS), ("cuda_host", GFX11), ("cuda_host", GFX12)]
)
def test_attention_with_every_unit(host: str, unit: int) -> None:
    """The plain fallback, and units that the conformance cases do not use."""
    library = gpu.host_library(host)
    controls = gpu.HostControls(library)
    cases = [c for c in gpu.all_cases() if c.name.startswith("attention-") and c.name.endswith("f16=1")]
    assert len(cases) > 5
    try:
        controls.matrix_units(unit)
        for case in cases:
            want = case.outputs(gpu.Device())
            for name, value in case.outputs(gpu.Device(library)).items():
                case.tolerance.check(value, want[name], f"{case.name}: {name}")
    finally:
        controls.matrix_units(1)


@pytest.mark.parametrize("host", gpu.HOSTS)
@pytest.mark.parametrize("size", [1e-30, 1e-6, 3e4, 1e30])
def test_queries_of_any_size_keep_their_precision(host: str, size: float) -> None:
    """Matrix units take halves, whose range is small; the scale gives back what the queries are multiplied by."""
    rng = np.random.default_rng(8)
    q = rng.standard_normal((1, 4, 64)).astype(F)
    ring, sinks = rng.standard_normal((80, 64)).astype(np.float16), np.zeros(4, F)
    device = gpu.Device(gpu.host_library(host))
    want = attend(gpu.Device(), q, ring, sinks, window=80, pos0=79)
    got = attend(device, (q * F(size)).astype(F), ring, sinks, window=80, pos0=79, scale=64**-0.5 / size)
    np.testing.assert_allclose(got, want, rtol=0, atol=4e-6)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("attention", {"n": 1, "heads": 1, "dim": 516, "window": 1, "capacity": 1}, "heads of 516 dims"),
    ("attention", {"n": 1, "heads": 1, "dim": 30, "window": 1, "capacity": 1}, "heads of 30 dims"),
    ("indexer", {"n": 1, "heads": 1, "dim": 4, "top_k": 4096, "ratio": 4}, "4096 rows a token"),
    ("router", {"n": 1, "n_expert": 64, "k": 33}, "33 of 64 experts"),
    ("router", {"n": 1, "n_expert": 4, "k": 5}, "5 of 4 experts"),
    ("router", {"n": 1, "n_expert": 4096, "k": 2}, "2 of 4096 experts"),
    ("compress", {"n": 1, "dim": 1028, "width": 1028, "ratio": 4, "ring": 4}, "rows of 1028 dims"),
    ("hc_pre", {"n": 1, "n_hc": 9, "dim": 4}, "9 streams"),
    ("hc_post", {"n": 1, "n_hc": 9, "dim": 4}, "9 streams"),
    ("hc_head", {"n": 1, "n_hc": 9, "dim": 4}, "9 streams"),
]


@pytest.mark.parametrize(("name", "fields", "message"), REFUSED, ids=[f"{r[0]}-{r[2]}" for r in REFUSED])
def test_shapes_beyond_the_kernels_are_refused(name: str, fields: dict[str, Any], message: str) -> None:
    """The queue reports it, and is whole again afterwards."""
    device = gpu.Device(gpu.host_library("cuda_host"))
    with pytest.raises(RuntimeError, match=message):
        device.run(name, **fields)
    device.run(name, **fields | {"n": 0})
