"""The host executor of GPU kernels: what breaks a rule is reported, in every order of threads, and nothing else is."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support import native

SEEDS = range(6)
BLOCK = 256

# What is missing when nobody has waited: another thread may not have written yet, or may write at any time.
NOT_WAITED = r"(race on shared array|shared array) (line|tile)\[\d+\](: .* no barrier between| is read, but nobody has)"

# Kernel of tests/simt/faults.cpp -> the words of its report.
FAULTS = {
    "missing_barrier": NOT_WAITED,
    "missing_warp_barrier": NOT_WAITED,
    "warp_barrier_for_another_warp": NOT_WAITED,
    "write_after_read": r"race on shared array line\[\d+\]",
    "write_after_reads_of_all": r"race on shared array line\[0\]",
    "two_writers": r"race on shared array line\[\d\]: written by thread \d+ and written by thread \d+",
    "divergent_barrier": r"waits in sync_block \(faults\.cpp:\d+\), but thread \d+ has returned without it",
    "divergent_barriers": r"different barriers: sync_block \(faults\.cpp:\d+\), and thread \d+ in sync_block",
    "barrier_against_shuffle": r"threads wait for each other: thread \d+ in .* thread \d+ in ",
    "divergent_shuffle": r"waits in a shuffle \(faults\.cpp:\d+\), but thread \d+ has returned without it",
    "different_shuffles": r"lanes of a warp meet at different places: thread \d+ in a shuffle \(faults\.cpp:\d+\)",
    "wrong_lane": r"shuffle at .*faults\.cpp:\d+ from lane (32|64); a warp has (32|64) lanes",
    "wrong_mask": r"from lane \d+; a warp has",
    "early_return": r"sync_block \(faults\.cpp:\d+\), but thread 9 has returned without it",
    "behind_the_end": r"shared array line\[\d+\] is out of bounds: it has 32 elements",
    "before_the_start": r"shared array line\[-1\] is out of bounds: it has 32 elements",
    "unset": r"shared array line\[0\] is read, but nobody has written it in this block",
    "unset_dynamic": r"shared array line\[\d+\] is read, but nobody has written it",
    "unset_in_later_blocks": r"block \(2,0,0\), thread 0: shared array line\[0\] is read, but nobody",
    "beyond_the_dynamic": r"shared array line\[256\] is out of bounds: it has 256 elements",
    "overlapping_parts": r"the parts first and second of the dynamic shared array overlap",
    "part_too_long": r"first: 1024 elements of 4 bytes from byte 64 on do not fit the 1024 dynamic bytes",
    "raw_race": NOT_WAITED,
    "deep_stack": r"the stack of a thread is full \(64 KiB\)",
    "too_much_shared": r"shared array huge of 4194304 bytes: a block has",
    "thrown": r"thread 3: an exception left the kernel",
}
GOOD = ("well_behaved", "warp_barrier_is_enough", "raw_after_barrier")

Try = Callable[..., str]


class Tries:
    """An executor with the kernels of tests/simt/faults.cpp."""

    def __init__(self, warp: int, threads: int) -> None:
        folder = Path(str(native.kernels_module().__file__)).parent
        self._library = ctypes.CDLL(str(folder / f"libds4_simt_faults{warp}.so"))
        self._library.simt_executor.restype = ctypes.c_void_p
        self._library.simt_try.argtypes = [
            ctypes.c_void_p, ctypes.c_char_p, *[ctypes.c_uint32] * 3, ctypes.c_char_p, ctypes.c_uint32,
        ]  # fmt: skip
        self._library.simt_executor_free.argtypes = [ctypes.c_void_p]
        self._executor = self._library.simt_executor(threads)

    def close(self) -> None:
        self._library.simt_executor_free(self._executor)

    def run(self, name: str, seed: int = 0, grid: int = 4, block: int = BLOCK) -> str:
        message = ctypes.create_string_buffer(1024)
        assert self._library.simt_try(self._executor, name.encode(), seed, grid, block, message, 1024) == 0, name
        return message.value.decode()

    def results(self, n: int) -> np.ndarray:
        out = np.zeros(n, np.float32)
        self._library.simt_results(out.ctypes.data_as(ctypes.c_void_p), n)
        return out


@pytest.fixture(params=[(32, 1), (32, 2), (64, 2)], ids=["warp32-alone", "warp32", "warp64"])
def tries(request: pytest.FixtureRequest) -> Iterator[Tries]:
    made = Tries(*request.param)
    yield made
    made.close()


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_reported_in_every_order(tries: Tries, name: str) -> None:
    for seed in SEEDS:
        message = tries.run(name, seed)
        assert re.search(FAULTS[name], message), (seed, message)
        assert message.startswith(f"kernel {name}, block (")
    # The executor is as good as before.
    assert tries.run("well_behaved") == ""


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_reported_of_a_good_kernel(tries: Tries, name: str) -> None:
    for seed in SEEDS:
        for grid, block in ((1, 64), (5, 128), (3, 1024), (4, BLOCK)):
            assert tries.run(name, seed, grid, block) == "", (seed, grid, block)


def test_results_do_not_depend_on_the_order(tries: Tries) -> None:
    kept = []
    for seed in SEEDS:
        assert tries.run("well_behaved", seed, 4, BLOCK) == ""
        kept.append(tries.results(4 * BLOCK))
    t = np.arange(BLOCK)
    turned = (BLOCK - 1 - t).astype(np.float32)
    warp = 64 if tries.run("well_behaved", 0, 1, 32) else 32
    neighbour = turned // warp * warp + (turned % warp + 1) % warp
    expected = np.tile(t.sum() + (BLOCK - 1) + neighbour, 4).astype(np.float32)
    for got in kept:
        np.testing.assert_array_equal(got, expected)


def test_launches_that_no_device_takes(tries: Tries) -> None:
    assert "a block of 100 threads; it must be whole warps of" in tries.run("well_behaved", 0, 1, 100)
    assert "a block of 2048 threads" in tries.run("well_behaved", 0, 1, 2048)
    assert "a block of 0 threads" in tries.run("well_behaved", 0, 1, 0)
    assert "an empty grid" in tries.run("well_behaved", 0, 0, 64)
