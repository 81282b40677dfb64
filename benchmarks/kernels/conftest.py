"""Choices of the micro-benchmarks: instruction sets, threads, sizes; and a table of what the times mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from records import Bench

try:
    import ds4_kernels
except ImportError as error:
    raise pytest.UsageError(
        f"the native test module is missing ({error}): build it with scripts/build release -DDS4_BUILD_TESTS=ON and "
        "put build/release/tests/native on PYTHONPATH"
    ) from None

_rates: list[tuple[str, float, float, float]] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--isa", default="all", help="CPU variants, separated by commas; all that run here by default")
    parser.addoption("--threads", type=int, default=1, help="threads of an operation")
    parser.addoption("--small", action="store_true", help="small sizes, to see that everything runs")


def _variants(wanted: str) -> list[str]:
    found = []
    for name in ("base", "avx2", "avx512", "avx512vnni", "dotprod", "i8mm") if wanted == "all" else wanted.split(","):
        try:
            ds4_kernels.limit_isa(name)
        except RuntimeError as error:
            if wanted != "all":
                raise pytest.UsageError(str(error)) from None
            continue
        if ds4_kernels.active_isa() == name:
            found.append(name)
    ds4_kernels.limit_isa("auto")
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", _variants(metafunc.config.getoption("--isa")))


@pytest.fixture
def small(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--small"))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(1)


@pytest.fixture
def bench(isa: str, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A queue that uses the variant."""
    ds4_kernels.limit_isa(isa)
    yield Bench(ds4_kernels, request.config.getoption("--threads"))
    ds4_kernels.limit_isa("auto")


@pytest.fixture
def timed(benchmark: Any, request: pytest.FixtureRequest) -> Callable[..., None]:
    """Time a function: `timed(run, macs=..., n_bytes=...)` with the multiply-adds and bytes of one call."""

    def run(function: Callable[[], object], *, macs: float = 0, n_bytes: float = 0) -> None:
        benchmark.extra_info.update(macs=macs, bytes=n_bytes)
        benchmark(function)
        if benchmark.stats is not None:  # None with --benchmark-disable
            _rates.append((request.node.name, float(benchmark.stats.stats.min), macs, n_bytes))

    return run


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _rates:
        return
    terminalreporter.write_line(f"\n{'rates of the fastest round':<60} {'us':>12} {'G mul-adds/s':>13} {'GB/s':>8}")
    for name, seconds, macs, n_bytes in sorted(_rates):
        rates = f"{macs / seconds / 1e9:13.2f}" if macs else f"{'-':>13}"
        rates += f" {n_bytes / seconds / 1e9:8.2f}" if n_bytes else f" {'-':>8}"
        terminalreporter.write_line(f"{name:<60} {1e6 * seconds:12.1f} {rates}")
