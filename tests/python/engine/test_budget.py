"""How much streaming takes is known from the head of a file, and agrees with what is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ds4
import numpy as np
import pytest
from ds4.budget import ExpertPlan, SessionNeed, cache_beside, cache_bytes, expert_plan
from support.gguf_write import string, tensor_f32, write_gguf
from support.rewrite import rewrite
from support.tiny_gguf import RECIPES, write_tiny_gguf

GIB = 1 << 30
FLASH = ExpertPlan(resident_bytes=8 * GIB, slot_bytes=7 << 20, n_experts=11008)


@pytest.fixture(scope="module", params=["standard", "adjacent", "embedded"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "embedded":
        return ds4.Model.embedded_path()
    made = write_tiny_gguf(tmp_path_factory.mktemp("budget") / "model.gguf", "flash", types=RECIPES["ds4-q2"])
    return made if request.param == "standard" else rewrite(made, made.with_name("adjacent.gguf"))


def test_the_plan_is_what_the_cache_takes(path: Path) -> None:
    plan = expert_plan([path])
    with ds4.Model.open(path, expert_cache=1 << 40) as model:
        stats = model.expert_stats()
        assert (plan.slot_bytes, plan.n_experts) == (stats.slot_bytes, stats.n_experts)
        assert plan.all_bytes == stats.n_slots * stats.slot_bytes
        # Gaps of less than a page between neighbours are read with them.
        assert plan.resident_bytes <= stats.resident_bytes < plan.resident_bytes + 200 * 4096
        assert model.memory_plan().weights_bytes == stats.resident_bytes + plan.all_bytes
        assert list(model.expert_map()) == [0] * plan.n_experts
        with model.session(n_ctx=64) as session:
            session.eval([1, 2, 3])
        assert 0 < sum(model.expert_map() > 0) <= plan.n_experts
    with pytest.raises(ValueError, match=f"the smallest possible one has {plan.slot_bytes} bytes"):
        ds4.Model.open(path, expert_cache=plan.slot_bytes - 1)


def test_the_plan_of_two_files(tiny_gguf: Callable[..., Path]) -> None:
    main, mtp = (tiny_gguf("flash", part=part, recipe="bf16") for part in ("main", "mtp"))
    plan = expert_plan([main, mtp])
    with ds4.Model.open(main, mtp=mtp, expert_cache=1 << 40) as model:
        stats = model.expert_stats()
        assert (plan.slot_bytes, plan.n_experts) == (stats.slot_bytes, stats.n_experts)


def test_budgets() -> None:
    """The cache gets what the rest leaves, a sixteenth stays free, and more than all experts is of no use."""
    assert cache_bytes(FLASH, 32 * GIB, 2 * GIB) == (20 * GIB) // FLASH.slot_bytes * FLASH.slot_bytes
    assert cache_bytes(FLASH, 1000 * GIB, 2 * GIB) == FLASH.all_bytes
    assert cache_bytes(FLASH, None, 2 * GIB) == FLASH.all_bytes // 4
    with pytest.raises(ValueError, match=r"cache of at least 7340032 bytes make 10.0 GiB"):
        cache_bytes(FLASH, 10 * GIB, 2 * GIB)


@pytest.mark.parametrize(
    ("size", "slots"), [("off", None), (None, None), ("1MiB", 8), (983040, 8), ("auto", 48), ("1TiB", 48)]
)
def test_sizes_of_open(size: int | str | None, slots: int | None) -> None:
    with ds4.Model.open_embedded() as model, ds4.Model.open(model.path, expert_cache=size) as streamed:
        assert streamed.streams == (slots is not None)
        if slots is not None:
            assert streamed.expert_stats().n_slots == slots


def test_wrong_sizes_of_open(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ds4.Model.embedded_path()
    for size in ("much", "-1", ""):
        with pytest.raises(ValueError, match="is not a size"):
            ds4.Model.open(path, expert_cache=size)
    monkeypatch.setattr("ds4.model.available_memory", lambda: 30 << 20)
    with pytest.raises(ValueError, match=r"not enough memory to stream experts: 5.5 MiB of other weights"):
        ds4.Model.open(path, expert_cache="auto")


def test_a_file_without_experts(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "none.gguf",
        {"general.architecture": string("x")},
        [tensor_f32("a.weight", np.zeros((2, 4), np.float32))],
    )
    assert expert_plan([path]) == ExpertPlan(32, 0, 0)


def need(short: int, long: int) -> SessionNeed:
    return SessionNeed(short, long, long - short)


def test_long_chunks_where_there_is_room() -> None:
    """What they take more comes out of the cache, and is at most a quarter of it."""
    ample, tight, none = need(GIB, 2 * GIB), need(GIB, 9 * GIB), need(GIB, 40 * GIB)
    long = cache_beside(FLASH, 32 * GIB, ample)
    assert long == cache_bytes(FLASH, 32 * GIB, 2 * GIB)
    assert ample.beside(FLASH, long) == 2 * GIB
    # The cache of short chunks has room for them, that of long ones has not: short ones, and a cache that says so.
    cut = cache_beside(FLASH, 48 * GIB, tight)
    assert cut < 32 * GIB < cache_bytes(FLASH, 48 * GIB, GIB)
    assert cut > 32 * GIB - 2 * FLASH.slot_bytes
    assert tight.beside(FLASH, cut) == GIB
    assert cache_beside(FLASH, 32 * GIB, none) == cache_bytes(FLASH, 32 * GIB, GIB)
    assert cache_beside(FLASH, 1000 * GIB, ample) == FLASH.all_bytes
    assert ample.beside(FLASH, FLASH.all_bytes) == GIB
    with pytest.raises(ValueError, match="not enough memory"):
        cache_beside(FLASH, 9 * GIB, ample)


def test_chunks_of_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans and sessions agree; an explicit chunk stands; without streaming nothing changes."""
    path = ds4.Model.embedded_path()
    with ds4.Model.open(path) as model, ds4.Model.open(path, expert_cache="5MiB") as streamed:
        short, long = (model.memory_plan(8192, chunk=n, threads=1) for n in (512, 2048))
        assert model.session_need(8192, threads=1) == need(short.total_session_bytes, long.total_session_bytes)
        assert streamed.memory_plan(8192, threads=1).scratch_bytes == short.scratch_bytes
        for takes in (True, False):
            monkeypatch.setattr("ds4.model.takes_long_chunks", lambda *a, takes=takes: takes)
            plan = streamed.memory_plan(8192, threads=1)
            assert plan.scratch_bytes == (long if takes else short).scratch_bytes
            with streamed.session(n_ctx=8192, threads=1) as session:
                assert session.chunk == (2048 if takes else 512)
            with streamed.session(n_ctx=8192, threads=1, chunk=64) as session:
                assert session.chunk == 64
            with model.session(n_ctx=8192, threads=1) as session:
                assert session.chunk == 512
    assert model.closed


def test_what_several_sessions_need() -> None:
    with ds4.Model.open_embedded() as model:
        one = model.session_need(256, threads=1)
        assert model.session_need(256, threads=1, n=3) == SessionNeed(3 * one.short, 3 * one.long, one.extra)
        assert model.session_need(256, threads=1, n=9, most=1) == one
        middle = 2 * one.short + 1
        assert model.session_need(256, threads=1, n=9, most=middle) == SessionNeed(
            middle, max(one.long, middle), one.extra
        )
