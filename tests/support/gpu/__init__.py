"""Conformance of back ends: cases of operations, run through the table of a back end and compared with the CPU's.

A case is a function ``(device, rng) -> {name: array}`` in one of the modules here, made known by ``@case``. It gets its
inputs from ``rng`` alone, so that every back end sees the same ones.
"""

from __future__ import annotations

import ctypes
import importlib
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from support import native
from support.kernel_args import RECORDS, Ref, Weight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Array = NDArray[Any]
Outputs = dict[str, Array]

HOSTS = ("cuda_host", "hip_host", "metal_host")  # back ends whose device is the host executor; hip_host has warps of 64
SEEDS = (0, 1, 2, 3)  # orders in which threads and blocks run: see tests/simt/simt.h


class Device:
    """A queue of a back end, with its buffers; of the CPU when no library is named."""

    def __init__(self, library: Path | None = None, threads: int = 2) -> None:
        module = native.kernels_module()
        self._queue = module.Queue(threads, str(library) if library else "")

    def put(self, values: Array) -> Any:
        """Copy an array into a new buffer."""
        return Ref(self._queue.upload(np.ascontiguousarray(values).reshape(-1).view(np.uint8)), 0)

    def room(self, *shape: int) -> Any:
        """Make a buffer of float32 zeros."""
        return self.put(np.zeros(shape, np.float32))

    def weight(self, data: Array, kind: int, n_out: int, n_in: int, n_matrices: int = 1) -> Any:
        """Make a weight of the bytes of whole rows."""
        row = data.nbytes // (n_out * n_matrices)
        return Weight(self.put(data), row, kind, n_in, n_out, n_matrices, n_out * row)

    def run(self, name: str, **fields: Any) -> None:
        """Run an operation and wait for it; fields that are not given are 0."""
        self._queue.run(name, bytes(RECORDS[name](**fields)))

    def reset_margins(self) -> None:
        """Forget the gaps of what was chosen before."""
        self._queue.reset_margins()

    def margins(self) -> tuple[float, float]:
        """Return the smallest gaps at the boundary of a choice since then: indexer, router."""
        indexer, router = self._queue.margins()
        return indexer, router

    def get(self, ref: Any, *shape: int, dtype: Any = np.float32) -> Array:
        """Copy an array back."""
        kind = np.dtype(dtype)
        data = np.asarray(self._queue.download(ref.buffer, int(np.prod(shape)) * kind.itemsize))
        return data.view(kind).reshape(shape)


def same_bits(got: Array, want: Array, what: str) -> None:
    """Raise AssertionError where bits differ, but for those that tell one NaN from another."""
    if got.dtype == np.float32:
        got, want = (np.where(np.isnan(v), np.float32(np.nan), v) for v in (got, want))
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8), err_msg=what)


@dataclass(frozen=True)
class Tolerance:
    """What a result may differ from the CPU's: absolute + relative * max |want|. Zeros ask for the same bits."""

    relative: float = 0.0
    absolute: float = 0.0

    def check(self, got: Array, want: Array, what: str) -> None:
        """Raise AssertionError with the first place that differs too much."""
        assert got.shape == want.shape and got.dtype == want.dtype, f"{what}: {got.dtype}{got.shape}"
        if not self.relative and not self.absolute:
            same_bits(got, want, what)
            return
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want), err_msg=f"{what}: what is finite")
        finite = np.isfinite(want)
        scale = float(np.abs(want[finite]).max(initial=0.0))
        np.testing.assert_allclose(
            got[finite], want[finite], rtol=0, atol=self.absolute + self.relative * scale, err_msg=what
        )


EXACT = Tolerance()
SUMS = Tolerance(relative=1e-6)  # a sum in another order: a few units in the last place


@dataclass(frozen=True)
class Case:
    """One operation with one shape."""

    name: str
    run: Callable[[Device, np.random.Generator], Outputs]
    tolerance: Tolerance
    metal: Tolerance

    def outputs(self, device: Device) -> Outputs:
        """Run on a device, with the inputs that belong to the case's name."""
        return self.run(device, np.random.default_rng(list(self.name.encode())))


CASES: list[Case] = []


def case(
    tolerance: Tolerance = EXACT,
    shapes: Iterable[dict[str, Any]] = ({},),
    metal: Tolerance | None = None,
) -> Callable[[Callable[..., Outputs]], Callable[..., Outputs]]:
    """Make ``function(device, rng, **shape)`` known as a case for each shape; metal: its tolerance there."""

    def add(function: Callable[..., Outputs]) -> Callable[..., Outputs]:
        for shape in shapes:
            words = [function.__name__, *(f"{key}={value}" for key, value in shape.items())]
            CASES.append(
                Case(
                    "-".join(words),
                    lambda device, rng, shape=shape: function(device, rng, **shape),
                    tolerance,
                    metal or tolerance,
                )
            )
        return function

    return add


def all_cases() -> list[Case]:
    """Return the cases of all modules of this package."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return CASES


def host_library(name: str) -> Path:
    """Return the path of a back end that runs on the host executor, built with the native test module."""
    folder = Path(str(native.kernels_module().__file__)).parent
    found = folder / f"libds4_{name}.so"
    assert found.exists(), f"no {found}: it is built with the native test module (scripts/build)"
    return found


class HostControls:
    """What tests may turn on a back end of the host executor."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.simt_set_order.argtypes = [ctypes.c_uint32]
        self._library.simt_set_memory.argtypes = [ctypes.c_uint64]
        self._library.simt_used_memory.restype = ctypes.c_uint64
        self._library.simt_set_matrix_units.argtypes = [ctypes.c_uint32]

    def order(self, seed: int) -> None:
        """Choose the order of threads and blocks of the launches to come."""
        self._library.simt_set_order(seed)

    def memory(self, total: int) -> None:
        """Choose the size of the card."""
        self._library.simt_set_memory(total)

    def matrix_units(self, unit: int) -> None:
        """Choose how tiles are multiplied: 0 plainly, 1 by the usual unit, 2 by that of gfx11, 3 by that of gfx12."""
        self._library.simt_set_matrix_units(unit)

    def used(self) -> int:
        """Return the bytes that are allocated on the card."""
        return int(self._library.simt_used_memory())

    def unified(self, shared: bool) -> None:
        """Choose whether the card shares the host's memory."""
        self._library.simt_set_unified(int(shared))

    def lose(self, launches: int) -> None:
        """Lose the card after so many launches more; -1: it is there."""
        self._library.simt_lose(ctypes.c_int64(launches))

    def graphs(self) -> int:
        """Return how many graphs have been submitted."""
        return self._counted("simt_graphs")

    def launches(self) -> int:
        """Return how many kernels have run."""
        return self._counted("simt_launches")

    def _counted(self, name: str) -> int:
        function = getattr(self._library, name)
        function.restype = ctypes.c_uint64
        return int(function())
