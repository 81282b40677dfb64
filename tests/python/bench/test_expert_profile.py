"""Caches over recorded selections: simulations that agree with plain ones and with the engine."""

from __future__ import annotations

import importlib.util
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest
from ds4.bench.expert_profile import POLICIES, SCALES, HeatScales, Selections, compare_policies, profile_facts, simulate
from ds4.cli.main import main
from ds4.experts import ReadOptions

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def random_selections(n: int, blocks: int, experts: int, used: int, seed: int) -> Selections:
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, experts + 1)
    ids = [rng.choice(experts, used, replace=False, p=weights / weights.sum()) for _ in range(n * blocks)]
    return Selections(np.tile(np.arange(blocks), n), np.array(ids), (experts,) * blocks)


def plain_lru(selections: Selections, slots: int) -> int:
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for wanted in selections.keys().tolist():
        hits += sum(key in held for key in wanted)
        for key in wanted:
            held.pop(key, None)
        while len(held) + len(wanted) > slots:
            held.popitem(last=False)
        held.update(dict.fromkeys(wanted))
    return hits


def best_possible(rows: list[list[int]], slots: int) -> int:
    """The most hits of any cache, by trying all ways."""
    from itertools import combinations

    states: dict[frozenset[int], int] = {frozenset(): 0}
    for row in rows:
        after: dict[frozenset[int], int] = {}
        for held, hits in states.items():
            got = hits + sum(key in held for key in row)
            rest = held - set(row)
            keep = min(len(rest), slots - len(row))
            for kept in combinations(sorted(rest), keep):
                state = frozenset(kept) | frozenset(row)
                after[state] = max(after.get(state, -1), got)
        states = after
    return max(states.values())


@pytest.mark.parametrize("slots", [3, 5, 9, 20])
def test_lru_is_a_plain_lru(slots: int) -> None:
    selections = random_selections(300, 2, 10, 1, slots)  # one expert a row: there are no ties
    assert simulate(selections, "lru", slots).hits == plain_lru(selections, slots)


@pytest.mark.parametrize("seed", range(6))
def test_belady_is_the_best_possible(seed: int) -> None:
    selections = random_selections(9, 2, 4, 2, seed)
    for slots in (2, 3, 4, 5):
        best = simulate(selections, "belady", slots).hits
        assert best == best_possible(selections.keys().tolist(), slots)
        assert all(simulate(selections, policy, slots).hits <= best for policy in POLICIES)


def test_with_room_for_all_only_first_uses_miss() -> None:
    selections = random_selections(60, 3, 8, 2, 1)
    used = len(np.unique(selections.keys()))
    for policy in POLICIES:
        found = simulate(selections, policy, 24)
        assert found.asked - found.hits == used


def test_ours_forgets() -> None:
    """After long use of one expert two others take its place: soon with short half-lives, never with long ones."""
    ids = np.array([[0]] * 100 + [[1], [2]] * 20)
    selections = Selections(np.zeros(len(ids), np.int64), ids, (3,))
    hits = [simulate(selections, "ours", 2, scales=s).hits for s in (HeatScales(2, 8), SCALES, HeatScales(1e6, 1e6))]
    assert hits[0] > hits[1] > hits[2]
    assert simulate(selections, "lfu", 2).hits == 99


def test_old_sums_are_brought_up_to_date() -> None:
    """Scales that shrink for ever would vanish; the choice does not change when they are started anew."""
    rng = np.random.default_rng(4)
    ids = np.array([rng.permutation(12)[:2] for _ in range(3000)])
    long, short = (
        Selections(np.zeros(3000, np.int64), ids, (12,)),
        Selections(np.zeros(400, np.int64), ids[-400:], (12,)),
    )
    scales = HeatScales(0.5, 2, 0.5)  # anew every 250 tokens
    misses = [s.asked - s.hits for s in (simulate(s, "ours", 4, scales=scales) for s in (long, short))]
    assert 0.8 < misses[0] / 3000 / (misses[1] / 400) < 1.2


def test_wrong_use() -> None:
    selections = random_selections(2, 1, 8, 3, 1)
    with pytest.raises(ValueError, match="a cache of 2 experts does not hold the 3"):
        simulate(selections, "lru", 2)
    with pytest.raises(ValueError, match="policy must be one of"):
        simulate(selections, "fifo", 4)


def test_the_engine_reads_what_is_simulated() -> None:
    """Token by token with one thread: misses of the engine and of "ours" on its own record."""
    with (
        ds4.Model.open(ds4.Model.embedded_path(), expert_cache="1MiB", reads=ReadOptions(guess=False)) as model,
        model.session(n_ctx=512, threads=1) as session,
        model.record_experts() as recorder,
    ):
        session.sync(model.tokenizer.encode("What is the capital of France?"))
        for step in session.generate(max_tokens=200, sampler=ds4.Sampler(1.5, seed=3)):
            assert step.token >= 0
        stats = model.expert_stats()
        rows, lost = recorder.read()
    assert lost == 0
    assert rows.shape[1] == 1 + model.shape.n_expert_used
    selections = Selections(
        rows[:, 0].astype(np.int64), rows[:, 1:].astype(np.int64), tuple(b.n_experts for b in stats.blocks)
    )
    counts = selections.counts()
    assert counts.sum() == rows[:, 1:].size
    read = stats.total("misses") + stats.total("prefetched")
    simulated = simulate(selections, "ours", stats.n_slots)
    assert read == pytest.approx(simulated.asked - simulated.hits, rel=0.15)
    assert simulate(selections, "belady", stats.n_slots).hits >= simulated.hits


def test_rows_beyond_the_room_are_counted() -> None:
    with ds4.Model.open(ds4.Model.embedded_path(), expert_cache="1MiB") as model, model.session(n_ctx=64) as session:
        with model.record_experts(7) as recorder:
            session.eval([1, 2, 3, 4])
        rows, lost = recorder.read()
        assert len(rows) == 7
        assert lost == 4 * len(model.expert_stats().blocks) - 7 or lost > 0
        session.eval([5])
        assert len(recorder.read()[0]) == 7
    with ds4.Model.open_embedded() as model, pytest.raises(ds4.StateError), model.record_experts():
        pass


def test_facts_are_plain_data() -> None:
    selections = random_selections(20, 2, 8, 2, 1)
    facts = json.loads(json.dumps(profile_facts(selections, compare_policies(selections))))
    assert facts["format"] == "ds4-expert-profile"
    assert [sum(row) for row in facts["counts"]] == [40, 40]
    assert {c["policy"] for c in facts["caches"]} == set(POLICIES)


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
@pytest.mark.parametrize(
    "form", [["--tests", "pp16,tg4"], ["--ctx-max", "64", "--ctx-start", "32", "--step-incr", "32"]]
)
def test_the_program_writes_both_files(tmp_path: Path, form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "heat.svg"
    words = ["bench", *form, "--expert-cache", "1MiB", "--expert-profile", str(picture), "-t", "1"]
    if "--ctx-max" in form:
        words += ["--gen-tokens", "2", "--cold"]
    assert main(words) == 0, capsys.readouterr().err
    assert picture.read_text().startswith("<?xml")
    facts = json.loads(picture.with_suffix(".json").read_text())
    assert facts["n_rows"] > 0
    assert facts["lost_rows"] == 0


def test_it_needs_a_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--tests", "tg1", "--expert-profile", str(tmp_path / "heat.svg")]) == 2
    assert "--expert-profile needs --expert-cache" in capsys.readouterr().err


def test_the_engine_is_near_the_best_on_made_traces() -> None:
    """The bars of benchmarks/expert_trace.py, on a small trace."""
    spec = importlib.util.spec_from_file_location("expert_trace", ROOT / "benchmarks/expert_trace.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    trace = module.make_trace(300, n_layers=8)
    for budget, bar in module.BARS.items():
        slots = round(budget * sum(trace.n_experts))
        ours, best = (simulate(trace, policy, slots).hit_rate for policy in ("ours", "belady"))
        assert ours >= bar * best
