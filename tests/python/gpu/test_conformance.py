"""Every operation of the GPU back ends, on the host executor, against the CPU's: same results in every order."""

from __future__ import annotations

import pytest
from support import gpu

CASES = gpu.all_cases()


@pytest.fixture(scope="module")
def cpu() -> gpu.Device:
    return gpu.Device()


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
@pytest.mark.parametrize("host", gpu.HOSTS)
def test_case(host: str, case: gpu.Case, cpu: gpu.Device) -> None:
    library = gpu.host_library(host)
    controls = gpu.HostControls(library)
    want = case.outputs(cpu)
    first: gpu.Outputs | None = None
    try:
        for seed in gpu.SEEDS:
            controls.order(seed)
            got = case.outputs(gpu.Device(library))
            assert got.keys() == want.keys()
            if first is None:
                first = got
                for name, value in want.items():
                    (case.metal if host == "metal_host" else case.tolerance).check(
                        got[name], value, f"{case.name}: {name}"
                    )
            for name, value in first.items():
                gpu.same_bits(got[name], value, f"{case.name}: {name}: order {seed}")
    finally:
        controls.order(0)
