"""The cache of experts: what it holds is what the file has, who goes and who stays, and how many can share it."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.native import E_ARGUMENT, E_IO, kernels_module

ds4_kernels = kernels_module()

N = 8  # experts of a layer
PAGE = 4096
STACKED = (N, (1000, 100_000, 203_333), (5000, 5000, 7001), (5000, 5000, 7001))
RECORDS = (N, (65_536 * 5, 65_536 * 5 + 5056, 65_536 * 5 + 10_112), (5000, 5000, 7001), (20_480, 20_480, 20_480))
SMALL = (N, (700_000, 702_000, 704_000), (17, 9, 33), (17, 9, 33))
LAYERS = [STACKED, RECORDS, SMALL]
SLOT = 9 * PAGE  # three parts that begin anywhere in a page, of two pages each


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cache") / "f"
    path.write_bytes(np.random.default_rng(1).integers(0, 256, 800_000, np.uint8).tobytes())
    return path


def make(file: Path, slots: int, **options: Any) -> Any:
    probe = ds4_kernels.ExpertCache(str(file), LAYERS, 1 << 30)
    cache = ds4_kernels.ExpertCache(str(file), LAYERS, slots * probe.slot_bytes, **options)
    assert cache.n_slots == min(slots, len(LAYERS) * N)
    return cache


def expected(file: Path, layer: int, experts: list[int]) -> list[bytes]:
    data = file.read_bytes()
    _, offset, size, stride = LAYERS[layer]
    return [
        b"".join(data[o + e * s : o + e * s + n] for o, n, s in zip(offset, size, stride, strict=True)) for e in experts
    ]


def get(cache: Any, layer: int, experts: list[int]) -> None:
    """Ask for experts and let them go."""
    ticket = cache.acquire(layer, experts)
    cache.wait(ticket, layer)
    ticket.release()


def held(cache: Any) -> list[tuple[int, int]]:
    return [divmod(i, N) for i, state in enumerate(cache.map()) if state]


@pytest.mark.parametrize("io", ["automatic", "threads"])
@pytest.mark.parametrize("slots", [1, 3, 8, 24])
def test_slots_hold_the_bytes_of_the_file(file: Path, slots: int, io: str) -> None:
    """Stacked parts take three reads, neighbouring ones a single read; thousands of evictions."""
    cache = make(file, slots, io=io)
    rng = np.random.default_rng(slots)
    for _ in range(1500):
        layer = int(rng.integers(3))
        experts = sorted(int(e) for e in rng.permutation(N)[: rng.integers(1, min(slots, N) + 1)])
        cache.selected(layer, [[e] for e in experts])
        ticket = cache.acquire(layer, experts)
        assert cache.wait(ticket, layer) == expected(file, layer, experts)
        ticket.release()
    stats = [cache.stats(i) for i in range(3)]
    assert all(s["asked"] == s["hits"] + s["late"] + s["misses"] for s in stats)
    assert cache.reads == 3 * stats[0]["misses"] + stats[1]["misses"] + stats[2]["misses"] * 1
    assert sum(s["evicted"] for s in stats) == (0 if slots == 24 else sum(s["misses"] for s in stats) - slots)


def test_a_pinned_expert_stays(file: Path) -> None:
    cache = make(file, 3)
    ticket = cache.acquire(0, [1, 2])
    before = cache.wait(ticket, 0)
    for e in range(N):
        get(cache, 1, [e])
    assert cache.wait(ticket, 0) == before == expected(file, 0, [1, 2])
    assert cache.map()[1:3] == [3, 3]
    assert cache.acquire(1, [0, 1], attempt=True) is None
    assert cache.acquire(1, [0, 1], patience_ms=30) is None
    ticket.release()
    get(cache, 1, [0, 1])


def test_the_one_that_was_selected_least_goes(file: Path) -> None:
    cache = make(file, 4)
    cache.selected(0, [[0, 1], [0, 2], [0, 1], [3, 1]])
    get(cache, 0, [0, 1, 2, 3])
    cache.selected(0, [[2, 2]])
    get(cache, 1, [5])
    assert (0, 3) not in held(cache)
    cache.selected(1, [[5, 5]] * 9)
    get(cache, 1, [6])  # 0 and 1 have the same worth, 2 was selected later: the first slot goes
    get(cache, 1, [7])  # 6 was never selected: it goes, and no other
    assert held(cache) == [(0, 1), (0, 2), (1, 5), (1, 7)]


def test_selections_lose_their_worth(file: Path) -> None:
    """Half after half_life tokens of the layer; another layer's tokens do not count."""
    cache = make(file, 4, half_life=10)
    cache.selected(0, [[3]] * 4)
    heat = cache.heat()
    assert heat[3] == pytest.approx(4)
    assert sum(heat) == pytest.approx(4)
    cache.selected(0, [[1]] * 10)
    cache.selected(1, [[1]] * 1000)
    heat = cache.heat()
    assert heat[3] == pytest.approx(2)
    assert heat[1] == pytest.approx(10)
    other = make(file, 4, half_life=10)
    other.set_heat(heat)
    assert other.heat() == pytest.approx(heat)
    other.set_heat([0.0] * 24)
    assert other.heat() == [0.0] * 24


def test_preloading_takes_the_hot_ones_first(file: Path) -> None:
    cache = make(file, 5)
    heat = [0.0] * 24
    heat[9], heat[20], heat[3] = 3, 2, 1
    cache.set_heat(heat)
    cache.preload(2)
    assert held(cache) == [(1, 1), (2, 4)]
    cache.preload(5)
    assert held(cache) == [(0, 0), (0, 1), (0, 3), (1, 1), (2, 4)]
    assert sum(cache.stats(i)["prefetched"] for i in range(3)) == 5
    cache.set_fault(0, os_errno=errno.EIO)
    fresh = make(file, 5)
    fresh.set_fault(2, os_errno=errno.EIO)
    with pytest.raises(RuntimeError) as caught:
        fresh.preload(5)
    assert caught.value.args[:2] == (E_IO, errno.EIO)
    fresh.preload(5)
    assert len(held(fresh)) == 5


def settled(cache: Any) -> None:
    for _ in range(1000):
        if 1 not in cache.map():
            return
        time.sleep(0.002)
    raise AssertionError("reads that do not end")


def test_prefetching_takes_free_and_colder_slots(file: Path) -> None:
    cache = make(file, 4)
    cache.prefetch(0, [1, 2])
    settled(cache)
    assert held(cache) == [(0, 1), (0, 2)]
    get(cache, 0, [1, 2])
    assert cache.stats(0)["hits"] == 2
    cache.selected(0, [[1, 2]])
    get(cache, 1, [0, 1])
    cache.selected(1, [[0, 0]])
    cache.prefetch(2, [0, 1])  # never selected: takes nothing from anyone who was, not from 1 either
    settled(cache)
    assert held(cache) == [(0, 1), (0, 2), (1, 0), (1, 1)]
    cache.prefetch(2, [0, 1], certain=True)
    settled(cache)
    assert held(cache) == [(0, 2), (1, 0), (2, 0), (2, 1)] or held(cache) == [(0, 1), (1, 0), (2, 0), (2, 1)]


def test_a_wish_keeps_an_expert_until_nothing_else_is_left(file: Path) -> None:
    cache = make(file, 3)
    get(cache, 0, [1, 2])
    cache.selected(1, [[0, 1]] * 50)
    wish = cache.wish(0, [1, 2])
    get(cache, 1, [0])
    get(cache, 1, [1])
    assert held(cache) == [(0, 1), (0, 2), (1, 1)]
    cache.prefetch(1, [3, 4], certain=True)
    settled(cache)
    assert held(cache)[:2] == [(0, 1), (0, 2)]
    get(cache, 1, [0, 1, 5])  # needs them all
    wish.release()
    get(cache, 0, [1, 2])


def test_an_expert_that_cannot_be_read_is_named(file: Path) -> None:
    cache = make(file, 4)
    cache.set_fault(1, os_errno=errno.EIO)
    ticket = cache.acquire(0, [3])
    with pytest.raises(RuntimeError) as caught:
        cache.wait(ticket, 0)
    status, code, offset, message = caught.value.args
    assert (status, code, offset) == (E_IO, errno.EIO, 100_000 + 3 * 5000)
    assert message.startswith("cannot read layer 0, expert 3 (up), 5000 bytes at offset 115000")
    ticket.release()
    assert held(cache) == []
    get(cache, 0, [3])
    cache.set_fault(0, missing=8000)
    ticket = cache.acquire(1, [2])
    with pytest.raises(RuntimeError, match=r"layer 1, expert 2 \(up\)"):
        cache.wait(ticket, 1)
    ticket.release()
    ticket = cache.acquire(1, [2])
    assert cache.wait(ticket, 1) == expected(file, 1, [2])


def test_a_late_read_without_a_ticket_ends_well(file: Path) -> None:
    """A ticket that is given back early, as a cancelled call does, leaves a read under way; it becomes a hit."""
    cache = make(file, 2)
    cache.set_fault(0, times=3, late_us=20_000)
    cache.acquire(0, [1]).release()
    ticket = cache.acquire(0, [1])
    assert cache.wait(ticket, 0) == expected(file, 0, [1])
    assert cache.stats(0)["misses"] == 1
    assert cache.stats(0)["late"] == 1


@pytest.mark.parametrize("io", ["automatic", "threads"])
@pytest.mark.parametrize("slots", [1, 4, 9])
def test_many_share_it(file: Path, slots: int, io: str) -> None:
    """Threads that pin, try, wish and read ahead: every one gets its bytes and none waits for ever."""
    cache = make(file, slots, io=io)
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(150):
            layer = int(rng.integers(3))
            experts = sorted(int(e) for e in rng.permutation(N)[: rng.integers(1, min(slots, N) + 1)])
            cache.selected(layer, [[e] for e in experts])
            wish = cache.wish(layer, experts)
            cache.prefetch(int(rng.integers(3)), [int(e) for e in rng.permutation(N)[:3]], certain=bool(seed % 2))
            ticket = cache.acquire(layer, experts)
            if ticket is None or cache.wait(ticket, layer) != expected(file, layer, experts):
                wrong.append(f"{seed}: {layer} {experts}")
                return
            wish.release()
            more = cache.acquire(layer, experts[:1], attempt=True)
            ticket.release()
            if more is not None:
                if cache.wait(more, layer) != expected(file, layer, experts[:1]):
                    wrong.append(f"{seed}: more of {layer} {experts}")
                more.release()

    workers = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    assert not wrong


def test_a_cache_that_holds_no_expert_is_refused(file: Path) -> None:
    smallest = ds4_kernels.ExpertCache(str(file), LAYERS, 1 << 30).slot_bytes
    assert smallest == SLOT
    with pytest.raises(RuntimeError) as caught:
        ds4_kernels.ExpertCache(str(file), LAYERS, smallest - 1)
    assert caught.value.args[0] == E_ARGUMENT
    assert f"the smallest possible one has {smallest} bytes" in caught.value.args[3]
