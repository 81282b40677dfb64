"""Every operation of the GPU back ends, on the host executor, against the CPU's: same results in every order."""

from __future__ import annotations

import numpy as np
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
                    case.tolerance.check(got[name], value, f"{case.name}: {name}")
            for name, value in first.items():
                np.testing.assert_array_equal(
                    got[name].view(np.uint8), value.view(np.uint8), err_msg=f"{case.name}: {name}: order {seed}"
                )
    finally:
        controls.order(0)
