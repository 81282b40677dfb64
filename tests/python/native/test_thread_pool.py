"""The thread pool: each item once whatever the cut, stealing, nesting, sleep, more threads than cores."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from support import native


@pytest.fixture(scope="module")
def ds4_kernels() -> ModuleType:
    return native.kernels_module()


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_each_item_once(ds4_kernels: ModuleType, threads: int) -> None:
    pool = ds4_kernels.ThreadPool(threads)
    assert pool.size == threads
    for items in (1, 2, 3, 7, 16, 17, 100, 1001):
        for grain in (0, 1, 2, 3, 16, 64, 1000, 5000):
            calls, owner, ranges, faults = pool.cover(items, grain, regions=3)
            np.testing.assert_array_equal(calls, 3, f"{items} items, grain {grain}")
            assert faults == 0
            assert owner.max() < threads
            if grain and threads > 1:
                assert ranges == 3 * -(-items // grain)


def test_pieces_of_the_usual_cut(ds4_kernels: ModuleType) -> None:
    """About eight pieces a thread, and groups of 16 where there are many items."""
    pool = ds4_kernels.ThreadPool(2)
    assert pool.cover(2)[2] == 2
    assert pool.cover(160)[2] == 16
    calls, _, ranges, _ = pool.cover(100_003)
    assert 12 <= ranges <= 17
    np.testing.assert_array_equal(calls, 1)
    assert pool.cover(100_003, grain=-(-100_003 // 16 // 16) * 16)[3] == 0


def test_no_items_no_call(ds4_kernels: ModuleType) -> None:
    for threads in (1, 2):
        assert ds4_kernels.ThreadPool(threads).cover(0, 4)[2:] == (0, 0)


def test_zero_threads_are_one(ds4_kernels: ModuleType) -> None:
    assert ds4_kernels.ThreadPool(0).size == 1


def test_small_work_stays_with_the_caller(ds4_kernels: ModuleType) -> None:
    calls, owner, ranges, _ = ds4_kernels.ThreadPool(4).cover(1000, 1, work=100)
    assert ranges == 1
    assert not owner.any()
    np.testing.assert_array_equal(calls, 1)


def test_many_regions_with_more_threads_than_cores(ds4_kernels: ModuleType) -> None:
    pool = ds4_kernels.ThreadPool(8)
    pool.begin()
    calls, _, ranges, faults = pool.cover(37, 3, regions=5000)
    pool.end()
    np.testing.assert_array_equal(calls, 5000)
    assert (ranges, faults) == (13 * 5000, 0)


def test_two_pools_at_once(ds4_kernels: ModuleType) -> None:
    def regions(_: int) -> bool:
        pool = ds4_kernels.ThreadPool(3)
        calls, _, _, faults = pool.cover(100, 7, regions=500)
        return bool((calls == 500).all()) and faults == 0

    with ThreadPoolExecutor(3) as executor:
        assert all(executor.map(regions, range(9)))


@pytest.mark.parametrize("sleeper", [0, 1, 2])
def test_a_slow_thread_loses_its_share_to_the_others(ds4_kernels: ModuleType, sleeper: int) -> None:
    pool = ds4_kernels.ThreadPool(3)
    pool.cover(100, 1)  # the workers have started
    owner = pool.owners_beside_sleeper(300, sleeper, 20_000)
    share = owner[100 * sleeper : 100 * (sleeper + 1)]
    assert (share == sleeper).sum() <= 10  # a piece of 20 ms; 299 others of 20 us
    assert (share != sleeper).sum() >= 90


def test_a_thread_begins_with_its_own_share(ds4_kernels: ModuleType) -> None:
    """The caller takes the first piece of the first share, whoever else is awake."""
    pool = ds4_kernels.ThreadPool(2)
    pool.cover(100, 1)
    owner = pool.owners_beside_sleeper(100, 1, 1000)
    assert owner[0] == 0


def test_a_region_inside_a_region_runs_on_its_thread(ds4_kernels: ModuleType) -> None:
    for threads in (1, 2, 5):
        calls, foreign = ds4_kernels.ThreadPool(threads).nested(40, 13)
        np.testing.assert_array_equal(calls, 1)
        assert foreign == 0


@pytest.mark.parametrize("burst", [False, True])
def test_an_idle_pool_takes_no_cpu(ds4_kernels: ModuleType, burst: bool) -> None:
    """Asleep outside of begin and end at once; inside after a while, so that a forgotten end costs nothing either."""
    pool = ds4_kernels.ThreadPool(2)
    if burst:
        pool.begin()
    pool.cover(100, 1, regions=10)
    time.sleep(0.05)
    before = cpu_seconds()
    time.sleep(0.5)
    assert cpu_seconds() - before < 0.005
    pool.end()


def test_workers_sleep_soon_after_the_last_region(ds4_kernels: ModuleType) -> None:
    """2 us in theory; a scheduler's tick of 4 ms here."""
    pool = ds4_kernels.ThreadPool(2)
    before = cpu_seconds()
    for _ in range(20):
        pool.begin()
        pool.cover(100, 1)
        pool.end()
        time.sleep(0.02)
    assert cpu_seconds() - before < 0.08


def test_workers_join_short_regions_of_a_burst(ds4_kernels: ModuleType) -> None:
    if os.getloadavg()[0] > len(os.sched_getaffinity(0)) + 1:
        pytest.skip("other processes hold the cores")
    pool = ds4_kernels.ThreadPool(2)
    best = 0.0
    for _ in range(100):  # other processes may hold the second core for a while
        _, joined = pool.region_times(50, gap=10, piece=20)
        best = max(best, float((joined == 2).mean()))
        if best > 0.9:
            break
    assert best > 0.5


def test_refused_threads_are_an_error(ds4_kernels: ModuleType) -> None:
    """Threads that started before the refusal end; the process goes on."""
    program = f"""
import resource, sys
sys.path.insert(0, {str(Path(str(ds4_kernels.__file__)).parent)!r})
import ds4_kernels
vm = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (vm + (100 << 20), resource.RLIM_INFINITY))
try:
    ds4_kernels.ThreadPool(250)
except (RuntimeError, MemoryError) as error:
    print("refused:", error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(ds4_kernels.ThreadPool(4).cover(100, 1)[2])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused:") and done.stdout.endswith("100\n"), done.stdout
