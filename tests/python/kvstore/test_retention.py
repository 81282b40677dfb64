"""Making room: what goes, what stays, and the faults that other stores of this kind have shown."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from ds4.kvstore import Entry, KVStore, Retention, SavePolicy
from support.stored_session import PlainSession

from .conftest import Open
from .stores import files, find, load

HOUR = 3600.0
SIZE = 11_000  # of a state of 100 tokens, a little more than it takes


def conversation(number: int, n: int = 100) -> PlainSession:
    return PlainSession([*range(number * 10_000, number * 10_000 + n)], row_bytes=80, tail_bytes=1000)


def keys(store: KVStore, *wanted: bytes) -> list[bytes]:
    """Which of these keys are stored."""
    out = []
    for key in wanted:
        hit = find(store, key)
        if hit is not None:
            with hit:
                out += [key] if hit.key == key else []
    return out


def age(store: KVStore, key: bytes, hours: float, hits: int = 0) -> None:
    """Let the last use of a state be so long ago."""
    for name, entry in list(store._holdings.catalogue.states.items()):
        if len(key) == entry.n_key and (hit := find(store, key)) is not None:
            with hit:
                if hit.entry.name == name:
                    when = time.time() - hours * HOUR
                    new = Entry(**{f: getattr(entry, f) for f in entry.__slots__} | {"created": when - 1})
                    store._holdings.catalogue.states[name] = new.used(hits, when)
                    store._holdings.index.add([store._holdings.catalogue.states[name]])
                    return
    raise AssertionError(key)


def test_the_budget_holds(open_store: Open, where: Path) -> None:
    store = open_store(budget_bytes=5 * SIZE)
    for number in range(20):
        assert store.save(conversation(number), b"key %d" % number, reason="evict") is not None
        assert sum(map(len, files(where).values())) == store.stats().n_bytes <= 5 * SIZE
    assert store.stats().evicted >= 14
    assert load(store, b"key 19") == 100
    smaller = open_store(budget_bytes=2 * SIZE)  # the same at the start
    assert 0 < smaller.stats().n_bytes <= 2 * SIZE


def test_the_least_worthy_goes_first(open_store: Open) -> None:
    """Of three states of one age and size the one that nobody asked for."""
    store = open_store(budget_bytes=3 * SIZE + 200, retention=Retention(anchor_share=0))
    for number, reason in ((0, "evict"), (1, "continued"), (2, "cold")):
        store.save(conversation(number), b"key %d" % number, reason=reason)
        age(store, b"key %d" % number, 1)
    store.save(conversation(7), b"key 7", reason="continued")
    assert keys(store, b"key 0", b"key 1", b"key 2", b"key 7") == [b"key 0", b"key 2", b"key 7"]


@pytest.mark.parametrize(("hours", "survivor"), [(1.0, b"often"), (200.0, b"never")])
def test_hits_count_and_fade(open_store: Open, hours: float, survivor: bytes) -> None:
    store = open_store(budget_bytes=2 * SIZE + 200, retention=Retention(protect=0, anchor_share=0))
    store.save(conversation(1), b"often", reason="evict")
    lighter = PlainSession(range(100), row_bytes=70, tail_bytes=1000)
    store.save(lighter, b"never", reason="evict")
    age(store, b"often", hours, hits=3)
    age(store, b"never", hours - 0.5)
    store.save(conversation(3), b"new", reason="evict")
    assert keys(store, b"often", b"never", b"new") == [survivor, b"new"]


def test_a_state_that_does_not_fit_leaves_everything(open_store: Open, where: Path) -> None:
    store = open_store(budget_bytes=3 * SIZE)
    store.save(conversation(1), b"one", reason="evict")
    before = files(where)
    assert store.save(conversation(2, 1000), b"two", reason="evict") is None
    assert "the budget is" in (store.stats().problem or "")
    with find(store, b"one"):  # type: ignore[union-attr]
        assert store.save(conversation(3, 250), b"three", reason="evict") is None
        assert "in use or protected" in (store.stats().problem or "")
    assert files(where) == before
    assert not list((where / "tmp").iterdir())
    assert store.stats().failed_saves == 2
    assert store.save(conversation(3, 250), b"three", reason="evict") is not None


def test_saving_the_old_conversation_does_not_evict_what_the_new_one_needs(open_store: Open) -> None:
    """L068: room for two; A is stored, B is live, and the request is A and one turn."""
    store = open_store(budget_bytes=int(2.3 * SIZE))
    store.save(conversation(1), b"A", reason="evict")
    store.save(conversation(9), b"old", reason="evict")
    age(store, b"A", 5)
    hit = find(store, b"A, and a turn")
    assert hit is not None
    assert store.save(conversation(2), b"B", reason="evict") is not None
    with hit:
        assert hit.load(PlainSession()) == 100
    assert keys(store, b"A", b"B", b"old") == [b"A", b"B"]


def test_a_small_prefix_that_is_used_stays(open_store: Open) -> None:
    """Weighing by bytes saved per byte lets the system text of every conversation go first."""
    store = open_store(budget_bytes=5 * SIZE, retention=Retention(anchor_share=0))
    store.save(PlainSession(range(20), tail_bytes=3000), b"system", reason="cold")
    for number in range(1, 30):
        assert load(store, b"system, user %d" % number) >= 20
        session = PlainSession([*range(20), *range(number * 1000, number * 1000 + 900)], row_bytes=5)
        assert store.save(session, b"system, user %d" % number, reason="evict") is not None
    assert keys(store, b"system") == [b"system"]


def test_small_anchors_have_a_share(open_store: Open) -> None:
    """Also when nobody has used them lately."""
    store = open_store(budget_bytes=20 * SIZE)
    for number in range(3):
        store.save(PlainSession([number, number], tail_bytes=3000), b"system %d" % number, reason="cold")
        age(store, b"system %d" % number, 10 - number)
    for number in range(1, 60):
        store.save(conversation(number, 150), b"key %d" % number, reason="evict")
    assert len(keys(store, b"system 0", b"system 1", b"system 2")) == 3
    # A tenth of the budget, not more.
    for number in range(3, 40):
        store.save(PlainSession([number, number], tail_bytes=3000), b"system %d" % number, reason="cold")
    for number in range(60, 120):
        store.save(conversation(number, 150), b"key %d" % number, reason="evict")
    kept = len(keys(store, *(b"system %d" % n for n in range(40))))
    assert 3 <= kept <= 6


def test_use_refreshes_every_ancestor(open_store: Open) -> None:
    """A system text whose file ages although each request begins with it."""
    store = open_store()
    session = conversation(1)
    store.save(session, b"system", reason="cold")
    session.tokens += [1] * 50
    store.save(session, b"system, first turn", reason="cold")
    store.save(conversation(5), b"other", reason="cold")
    for key in (b"system", b"system, first turn", b"other"):
        age(store, key, 100)
    assert load(store, b"system, first turn, second") == 150
    by_key = {e.n_key: e for e in store.entries()}
    assert {n: e.hits for n, e in by_key.items()} == {6: 0, 18: 1, 5: 0}
    assert all(time.time() - by_key[n].last_used < 60 for n in (6, 18))
    assert time.time() - by_key[5].last_used > HOUR
    # In the index and in the time stamps too.
    (store.path / "index" / "index.sqlite3").unlink()
    store.close()
    again = {e.n_key: e.last_used for e in open_store().entries()}
    assert again[6] > time.time() - 60
    assert again[18] > time.time() - 60


def test_one_line_of_states_per_conversation(open_store: Open, where: Path) -> None:
    """Ever longer states of one conversation push nothing else out, and little is written."""
    store = open_store(budget_bytes=40 * SIZE)
    store.save(conversation(9), b"other", reason="evict")
    age(store, b"other", 50)
    session = conversation(1)
    store.save(session, b"turn", reason="cold")
    for turn in range(1, 25):
        session.tokens += range(500 + turn * 20, 520 + turn * 20)
        assert store.save(session, b"turn" * (turn + 1), reason="evict" if turn % 2 else "continued") is not None
    of_one = [e for e in store.entries() if e.n_key != 5]
    assert sorted(e.n_tokens for e in of_one) == [100, 560, 580]
    assert load(store, b"other") == 100
    assert load(store, b"turn" * 100) == 580
    whole = 580 * 80
    assert store.stats().written_today < 4 * whole  # each state whole would be 7 times that


def test_where_conversations_part_a_state_stays(open_store: Open) -> None:
    store = open_store()
    common = conversation(1)
    store.save(common, b"common", reason="evict")
    for branch in (b"a", b"b"):
        session = PlainSession([*common.tokens, *branch], row_bytes=80)
        store.save(session, b"common" + branch, reason="evict")
    for n, branch in ((1, b"a"), (2, b"a"), (1, b"b"), (2, b"b")):
        session = PlainSession([*common.tokens, *branch, *[7] * n], row_bytes=80)
        store.save(session, b"common" + branch + b"+" * n, reason="evict")
    assert keys(store, b"common", b"commona", b"commona+", b"commona++", b"commonb++") == [
        b"common", b"commona+", b"commona++", b"commonb++",
    ]  # fmt: skip


def test_a_continued_state_is_cheap_once_a_longer_one_comes(open_store: Open) -> None:
    """Of two states the one that the new one continues goes, although it is worth more."""
    for continued in (True, False):
        store = open_store(budget_bytes=2 * SIZE + 3000, retention=Retention(lineage=5, anchor_share=0))
        store.prune(0)
        sizes = {"row_bytes": 30, "tail_bytes": 6000}
        store.save(PlainSession(range(100), row_bytes=30, tail_bytes=7000), b"older", reason="continued")
        store.save(PlainSession(range(500, 600), **sizes), b"newer", reason="continued")
        age(store, b"older", 6)
        age(store, b"newer", 5)
        tokens = [*(range(500, 600) if continued else range(900, 1000)), 1, 2]
        assert store.save(PlainSession(tokens, **sizes), b"newer, and more", reason="continued") is not None
        assert keys(store, b"older", b"newer") == ([b"older"] if continued else [b"newer"])
        store.close()


def test_a_parent_does_not_make_room(open_store: Open) -> None:
    for named in (True, False):
        store = open_store(budget_bytes=2 * SIZE + 2000, retention=Retention(anchor_share=0))
        store.prune(0)
        heavier = PlainSession(range(100), row_bytes=80, tail_bytes=2000)
        parent = store.save(heavier, b"parent", reason="continued")
        store.save(conversation(2), b"other", reason="continued")
        age(store, b"parent", 9)
        age(store, b"other", 8)
        store.save(conversation(3), b"new", reason="continued", parent=parent if named else None)
        assert keys(store, b"parent", b"other", b"new") == [b"parent" if named else b"other", b"new"]
        store.close()


def test_a_limit_of_saving_deletes_nothing_that_is_loaded(store: KVStore) -> None:
    """L067: the cold limit is 100 tokens, the state has 150; it is loaded twice."""
    policy = SavePolicy(min_tokens=10, cold_max_tokens=100)
    tokens = list(range(150))
    assert policy.cold_anchor(tokens) is None
    store.save(PlainSession(tokens), b"key", reason="evict")
    assert [load(store, b"key"), load(store, b"key"), load(store, b"key")] == [150, 150, 150]
    assert store.entries()[0].hits == 3


def test_no_load_and_fail_loop_of_storing_and_evicting(open_store: Open) -> None:
    """Two conversations take turns in a store that holds one and a half: nothing grows, nothing is lost in between."""
    store = open_store(budget_bytes=int(1.6 * SIZE))
    for turn in range(10):
        for who in (1, 2):
            loaded = load(store, b"chat %d" % who + b"t" * turn)
            session = conversation(who, 100 + turn)
            assert loaded in (0, 99 + turn)
            store.save(session, b"chat %d" % who + b"t" * turn, reason="evict")
            assert store.stats().n_bytes <= 1.6 * SIZE
    assert store.stats().put_aside == 0


def test_a_day_has_a_limit(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(daily_write_bytes=3 * SIZE)
    saved = [store.save(conversation(n), b"key %d" % n, reason="evict") is not None for n in range(5)]
    assert saved == [True, True, True, False, False]
    assert "are allowed" in (store.stats().problem or "")
    assert store.stats().written_today <= 3 * SIZE
    # What is small may still fit, other processes count, and the next day is new.
    other = open_store(daily_write_bytes=3 * SIZE)
    assert other.stats().written_today == store.stats().written_today
    assert other.save(conversation(9), b"key", reason="evict") is None
    real = time.gmtime
    monkeypatch.setattr(time, "gmtime", lambda *a: real(time.time() + 24 * HOUR))
    assert other.stats().written_today == 0
    assert other.save(conversation(9), b"key", reason="evict") is not None


def test_prune(store: KVStore, where: Path) -> None:
    for number in range(6):
        store.save(conversation(number), b"key %d" % number, reason="evict")
    total = store.stats().n_bytes
    assert store.prune() == 0
    freed = store.prune(3 * SIZE)
    assert total - freed == store.stats().n_bytes <= 3 * SIZE
    assert store.prune(0) == total - freed
    assert files(where) == {}


def test_new_tool_calls_do_not_push_their_own_state_out(open_store: Open) -> None:
    store = open_store(budget_bytes=2 * SIZE + 500)
    store.save(conversation(1), b"one", reason="continued")
    store.save(conversation(2), b"two", reason="evict")
    age(store, b"one", 100)
    entry = store.save(conversation(1), b"one", reason="continued", tool_blocks={"id": "text" * 300})
    assert entry is not None
    assert keys(store, b"one", b"two") == [b"one"]
    assert load(store, b"one") == 100


def test_what_nobody_can_use_goes_first(open_store: Open, where: Path) -> None:
    """Rows without a state, and states without their rows."""
    store = open_store()
    lost = store.save(conversation(1), b"lost", reason="cold")
    orphan = store.save(conversation(2), b"orphan", reason="cold")
    store.save(conversation(3), b"good", reason="continued")
    assert lost is not None
    assert orphan is not None
    os.unlink(where / f"{lost.rows[0].name}.rows")
    os.unlink(where / f"{orphan.name}.state")
    age(store, b"good", 100)
    assert [e.n_key for e in store.entries()] == [4]
    store.prune(store.stats().n_bytes - 1)
    assert [p for p in files(where) if orphan.rows[0].name in p] == []
    store.prune(store.stats().n_bytes - 1)
    assert load(store, b"good") == 100
    assert store.stats().states == 1


def test_recent_use_protects_half_of_the_budget_only(open_store: Open) -> None:
    """Otherwise a store full of states just used would take nothing new."""
    store = open_store(budget_bytes=6 * SIZE + 500)
    for number in range(6):
        store.save(conversation(number), b"key %d" % number, reason="evict")
        load(store, b"key %d" % number)
    for number in range(10, 20):
        assert store.save(conversation(number), b"key %d" % number, reason="evict") is not None
    left = keys(store, *(b"key %d" % n for n in range(6)))
    assert left[-3:] == [b"key 3", b"key 4", b"key 5"]
    assert len(left) < 6


def test_times_that_are_yet_to_come_protect_nothing(open_store: Open) -> None:
    """A clock that was wrong once."""
    store = open_store(budget_bytes=2 * SIZE + 500, retention=Retention(anchor_share=0, protect_share=1.0))
    for number in range(2):
        store.save(conversation(number), b"key %d" % number, reason="evict")
    age(store, b"key 0", -1000)
    age(store, b"key 1", -1000)
    for number in range(2, 5):
        assert store.save(conversation(number), b"key %d" % number, reason="evict") is not None


def test_a_budget_of_nothing(open_store: Open) -> None:
    with open_store(budget_bytes=0) as nothing:
        assert nothing.save(conversation(1), b"key", reason="cold") is None
        assert nothing.entries() == []
