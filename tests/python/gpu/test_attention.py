"""What holds for attention, indexer and their like on the GPU back ends beyond the conformance cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import gpu
from support.gpu.attention import attend

F = np.float32


@pytest.fixture(params=gpu.HOSTS)
def plain(request: pytest.FixtureRequest) -> Iterator[gpu.Device]:
    """A device without matrix units."""
    library = gpu.host_library(request.param)
    controls = gpu.HostControls(library)
    controls.matrix_units(False)
    yield gpu.Device(library)
    controls.matrix_units(True)


def test_attention_without_matrix_units(plain: gpu.Device) -> None:
    cases = [c for c in gpu.all_cases() if c.name.startswith("attention-") and c.name.endswith("f16=1")]
    assert len(cases) > 5
    for case in cases:
        want = case.outputs(gpu.Device())
        for name, value in case.outputs(plain).items():
            case.tolerance.check(value, want[name], f"{case.name}: {name}")


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
