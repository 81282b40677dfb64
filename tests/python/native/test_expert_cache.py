"""The cache of experts: what it holds is what the file has, who goes and who stays, and how many can share it."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ds4.bench.expert_profile import Selections, simulate
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


@pytest.mark.parametrize("slots", [1, 3, 7, 12])
def test_the_simulation_takes_the_same_decisions(file: Path, slots: int) -> None:
    """`ds4 bench --expert-profile` tells what the engine would do: the same hits, row by row."""
    rng = np.random.default_rng(slots)
    weights = 1 / np.arange(1, N + 1)
    ids = np.concatenate([rng.permutation(N)[rng.choice(N, 200, p=weights / weights.sum())] for _ in range(6)])
    blocks = np.tile(np.arange(3), 400)
    cache = make(file, slots)
    for block, expert in zip(blocks.tolist(), ids.tolist(), strict=True):
        cache.selected(block, [[expert]])
        get(cache, block, [expert])
    found = simulate(Selections(blocks, ids[:, None], (N,) * 3), "ours", slots)
    assert sum(cache.stats(i)["hits"] for i in range(3)) == found.hits
    assert slots == 1 or 0 < found.hits < len(ids)


def test_selections_lose_their_worth(file: Path) -> None:
    """Half after `far` tokens of the layer; another layer's tokens do not count, nor how a run is cut into chunks."""
    cache = make(file, 4, far=10)
    cache.selected(0, [[3]])
    heat = cache.heat()
    assert heat[3] == pytest.approx(1)
    assert sum(heat) == pytest.approx(1)
    cache.selected(0, [[1]] * 10)
    cache.selected(1, [[1]] * 1000)
    heat = cache.heat()
    assert heat[3] == pytest.approx(0.5)
    other = make(file, 4, far=10)
    for e in [3] + [1] * 10:
        other.selected(0, [[e]])
    assert other.heat()[:N] == pytest.approx(heat[:N])
    other.set_heat(heat)
    assert other.heat() == pytest.approx(heat)
    other.set_heat([0.0] * 24)
    assert other.heat() == [0.0] * 24


def test_what_is_remembered_outlives_a_long_run(file: Path) -> None:
    """What is used for a hundred thousand tokens is told from what is not, and the past fades to nothing."""
    cache = make(file, 4)
    cache.selected(0, [[5]])
    for _ in range(1000):
        cache.selected(0, [[0], [1], [1], [2]] * 25)
    heat = cache.heat()
    assert heat[5] == 0
    far = 1 / (1 - 2 ** (-1 / 128))
    assert heat[:3] == pytest.approx([far / 4, far / 2, far / 4], rel=1e-3)


@pytest.mark.parametrize(("often", "near_share", "stays"), [(1, 0.7, 0), (1, 1.0, 1), (10, 0.7, 1), (10, 0.0, 0)])
def test_the_near_average_follows_and_the_far_one_remembers(
    file: Path, often: int, near_share: float, stays: int
) -> None:
    """Of one that was used by every token (or every tenth) until lately, and one that was used just now."""
    cache = make(file, 2, near_share=near_share)
    for token in range(500):
        cache.selected(0, [[0 if token % often == 0 else 7]])
    cache.selected(0, [[7]] * 40)
    cache.selected(0, [[1]])
    get(cache, 0, [0, 1])
    get(cache, 0, [2])
    assert held(cache) == [(0, stays), (0, 2)]


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


def test_reading_ahead_takes_slots_that_nobody_needs(file: Path) -> None:
    """Free ones first, then those of least worth; never what is wished for or pinned."""
    cache = make(file, 4)
    cache.prefetch(0, [1, 2])
    settled(cache)
    assert held(cache) == [(0, 1), (0, 2)]
    get(cache, 0, [1, 2])
    assert cache.stats(0)["hits"] == 2
    cache.selected(0, [[1, 2]])
    get(cache, 1, [0, 1])
    cache.selected(1, [[0, 0]])
    cache.prefetch(2, [0, 1])
    settled(cache)
    assert held(cache) == [(0, 2), (1, 0), (2, 0), (2, 1)] or held(cache) == [(0, 1), (1, 0), (2, 0), (2, 1)]
    wish = cache.wish(2, [0, 1])
    ticket = cache.acquire(1, [0])
    cache.prefetch(0, [5, 6, 7])
    settled(cache)
    assert held(cache) == [(0, 5), (1, 0), (2, 0), (2, 1)]
    ticket.release()
    wish.release()


def test_a_guess_reads_what_is_likelier_than_what_it_takes_the_place_of(file: Path) -> None:
    """At first guesses are taken to be right half the time: more than an expert of one selection in three tokens."""
    cache = make(file, 3)
    for i in range(300):
        cache.selected(0, [[0 if i % 8 else 1]])
    get(cache, 0, [0, 1])
    guess = cache.guess(2, [4])
    settled(cache)
    assert held(cache) == [(0, 0), (0, 1), (2, 4)]  # an empty slot
    cache.selected(2, [[4]] * 300)
    more = cache.guess(2, [5, 6])
    settled(cache)
    assert held(cache) == [(0, 0), (2, 4), (2, 5)]  # 1 went; 0 and 4 are needed by nearly every token
    guess.settle([4])
    more.settle([5, 7])
    assert cache.stats(2)["guessed"] == 3
    assert cache.stats(2)["guessed_right"] == 2
    assert cache.stats(2)["prefetched"] == 2


def test_a_guess_leaves_room(file: Path) -> None:
    cache = make(file, 4)
    cache.set_fault(0, times=99, late_us=30_000)
    guess = cache.guess(0, [0, 1, 2, 3], spare=2)
    assert cache.stats(0)["prefetched"] == 2
    other = cache.guess(1, [0, 1], spare=2)
    assert cache.stats(1)["prefetched"] == 0  # two are being read for nobody
    assert cache.guess(1, [0], spare=4) is not None
    assert cache.stats(1)["prefetched"] == 0
    ticket = cache.acquire(2, [0, 1], attempt=True)
    assert ticket is not None
    assert cache.wait(ticket, 2) == expected(file, 2, [0, 1])
    guess.settle([])
    other.release()


@pytest.mark.parametrize("io", ["automatic", "threads"])
def test_a_wrong_guess_is_given_up(file: Path, io: str) -> None:
    """What has not begun is not read at all; what is under way is not taken for an expert afterwards."""
    cache = make(file, 8, io=io, depth=4)  # of guesses one piece at a time
    cache.set_fault(0, times=1, late_us=200_000)
    guess = cache.guess(0, [0, 1, 2, 3])
    guess.settle([2])
    get(cache, 0, [2])
    settled(cache)
    assert (0, 2) in held(cache)
    assert len(held(cache)) <= 2  # and the one whose pieces all were under way
    assert cache.reads < 3 * 4
    for e in range(4):
        ticket = cache.acquire(0, [e])
        assert cache.wait(ticket, 0) == expected(file, 0, [e])
        ticket.release()


def test_a_right_guess_is_hurried(file: Path) -> None:
    cache = make(file, 8, depth=4)
    guess = cache.guess(0, [0, 1, 2, 3])
    guess.settle([1, 3])
    ticket = cache.acquire(0, [1, 3])
    assert cache.wait(ticket, 0) == expected(file, 0, [1, 3])
    assert cache.stats(0)["misses"] == 0
    assert cache.stats(0)["guessed_right"] == 2


def test_guesses_that_do_not_pay_are_not_read(file: Path) -> None:
    """Of the second rank only the count goes on; when it is right again, it is read again. So for each layer."""
    small = make(file, 2)
    begun = []
    for i in range(120):
        before = small.stats(0)["prefetched"]
        small.guess(0, [0, 1]).settle([0] if i < 60 else [0, 1])
        settled(small)
        begun.append(small.stats(0)["prefetched"] - before)
        get(small, 1, [0, 1])
    assert begun[0] == 2
    assert begun[40:60] == [1] * 20
    assert begun[-20:] == [2] * 20
    assert small.guesses_pay(0)
    for _ in range(100):
        small.guess(1, [2, 3]).settle([])
        settled(small)
        get(small, 0, [4, 5])
    assert [small.guesses_pay(1) for _ in range(32)].count(True) == 2
    assert small.guesses_pay(0)


def test_a_wish_keeps_an_expert_until_nothing_else_is_left(file: Path) -> None:
    cache = make(file, 3)
    get(cache, 0, [1, 2])
    cache.selected(1, [[0, 1]] * 50)
    wish = cache.wish(0, [1, 2])
    get(cache, 1, [0])
    get(cache, 1, [1])
    assert held(cache) == [(0, 1), (0, 2), (1, 1)]
    cache.prefetch(1, [3, 4])
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
    """Threads that pin, try, wish, guess and read ahead: every one gets its bytes and none waits for ever."""
    cache = make(file, slots, io=io)
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(150):
            layer = int(rng.integers(3))
            experts = sorted(int(e) for e in rng.permutation(N)[: rng.integers(1, min(slots, N) + 1)])
            cache.selected(layer, [[e] for e in experts])
            wish = cache.wish(layer, experts)
            ahead, some = int(rng.integers(3)), [int(e) for e in rng.permutation(N)[:3]]
            if seed % 2:
                cache.prefetch(ahead, some)
            guess = cache.guess(layer, [int(e) for e in rng.permutation(N)[:4]], spare=int(rng.integers(slots + 1)))
            if seed == 3:
                guess.settle(experts)
            ticket = cache.acquire(layer, experts)
            if ticket is None or cache.wait(ticket, layer) != expected(file, layer, experts):
                wrong.append(f"{seed}: {layer} {experts}")
                return
            wish.release()
            guess.release()
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
