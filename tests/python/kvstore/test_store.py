"""Saving and finding states: what is shared, what is kept apart, what survives."""

from __future__ import annotations

import stat
import threading
from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest
from ds4.kvstore import KVStore, session_settings
from support.stored_session import PlainModel, PlainSession

from .conftest import Open
from .stores import files, find, load


def test_a_state_comes_back(store: KVStore) -> None:
    source = PlainSession(range(700))
    entry = store.save(source, b"the prompt", reason="cold", tool_blocks={"call_1": "<x>", "call_2": "<x>"})
    assert entry is not None
    assert (entry.n_tokens, entry.n_key, entry.reason) == (700, 10, "cold")
    target = PlainSession()
    with find(store, b"the prompt and more", target) as hit:  # type: ignore[union-attr]
        assert hit.key == b"the prompt"
        assert hit.tokens == list(range(700))
        assert hit.n_tokens == 700
        assert hit.tool_blocks == {"call_1": "<x>", "call_2": "<x>"}
        assert hit.load(target) == 700
        assert hit.load(target) == 700  # again, as after a failed prefill
    assert target.tokens == source.tokens
    with pytest.raises(ValueError, match="released"):
        hit.load(target)


def test_the_longest_prefix_is_found(store: KVStore) -> None:
    for n in (10, 20, 30):
        store.save(PlainSession(range(n)), bytes(range(n)), reason="cold")
    assert [load(store, bytes(range(n))) for n in (9, 10, 19, 20, 29, 30, 100)] == [0, 10, 10, 20, 20, 30, 30]
    assert load(store, bytes(range(29)) + b"x") == 20
    assert load(store, b"") == 0
    assert load(store, b"\xff" * 100) == 0


def test_a_position_must_be_left_to_go_on(store: KVStore) -> None:
    store.save(PlainSession(range(10)), b"k" * 10, reason="cold")
    store.save(PlainSession(range(20)), b"k" * 20, reason="cold")
    found = [find(store, b"k" * 30, n_ctx=n) for n in (10, 11, 20, 21)]
    assert [h and h.n_tokens for h in found] == [None, 10, 10, 20]
    with pytest.raises(ds4.ContextFullError, match="20 positions"):
        found[3].load(PlainSession(n_ctx=19))  # type: ignore[union-attr]
    for hit in found:
        if hit is not None:
            hit.release()


@pytest.mark.parametrize(
    "other", [PlainSession(qat=False), PlainSession(model=PlainModel(b"g" * 16))], ids=["settings", "model"]
)
def test_other_models_and_settings_never_meet(store: KVStore, other: PlainSession) -> None:
    store.save(PlainSession(range(10)), b"key", reason="cold")
    assert find(store, b"key", other) is None
    other.tokens = list(range(10))
    store.save(other, b"key", reason="cold")
    assert load(store, b"key", other) == load(store, b"key") == 10
    assert len(store.entries()) == 2
    with find(store, b"key") as hit, pytest.raises(ValueError, match="another model or other settings"):  # type: ignore[union-attr]
        hit.load(other)


def test_steering_is_a_setting() -> None:
    session = PlainSession()
    plain = session_settings(session)
    session.steering_key = b"\x01\x02"  # type: ignore[attr-defined]
    assert session_settings(session) != plain


def test_rows_are_written_once(store: KVStore, where: Path) -> None:
    session = PlainSession(range(100), row_bytes=1000)
    store.save(session, b"turn 1", reason="cold")
    before = files(where)
    session.tokens += range(100, 130)
    entry = store.save(session, b"turn 1, turn 2", reason="evict")
    assert session.exported == [(0, 100), (100, 130)]
    assert entry is not None
    assert [(r.start, r.stop) for r in entry.rows] == [(0, 100), (100, 130)]
    new = {n: b for n, b in files(where).items() if n not in before}
    assert sum(map(len, new.values())) < 40_000
    assert {n: b for n, b in files(where).items() if n in before} == before
    assert load(store, b"turn 1, turn 2") == 130
    assert load(store, b"turn 1") == 100


def test_keys_of_one_state_share_its_rows(store: KVStore, where: Path) -> None:
    """The history with its reasoning, and the same as a client will send it."""
    session = PlainSession(range(100))
    store.save(session, b"with reasoning", reason="evict")
    store.save(session, b"without", reason="evict")
    assert sorted(p.suffix for p in where.iterdir() if p.is_file() and p.suffix) == [".rows", ".state", ".state"]
    assert load(store, b"without") == load(store, b"with reasoning") == 100


def test_a_checkpoint_of_the_session_can_be_stored(store: KVStore) -> None:
    session = PlainSession(range(100))
    entry = store.save(session, b"anchor", reason="cold", at=60)
    assert entry is not None
    assert entry.n_tokens == 60
    assert load(store, b"anchor and more") == 60
    store.save(session, b"anchor and more", reason="evict")
    assert session.exported == [(0, 60), (60, 100)]


def test_branches_share_what_they_begin_with(store: KVStore) -> None:
    store.save(PlainSession(range(100)), b"system", reason="cold")
    for branch in (1, 2, 3):
        session = PlainSession([*range(100), *range(1000 * branch, 1000 * branch + 50)])
        store.save(session, b"system, chat %d" % branch, reason="evict")
        assert session.exported == [(100, 150)]
    for branch in (1, 2, 3):
        target = PlainSession()
        assert load(store, b"system, chat %d" % branch, target) == 150
        assert target.tokens[100] == 1000 * branch


def test_a_state_is_removed_with_its_own_rows_only(store: KVStore, where: Path, open_store: Open) -> None:
    """Not while it is read, nor by a store that may only read."""
    first = store.save(PlainSession(range(100)), b"first", reason="evict")
    longer = store.save(PlainSession(range(150)), b"first and more", reason="evict")
    assert first is not None and longer is not None
    with KVStore(where, read_only=True) as reader:
        assert not reader.remove(longer)
    with find(store, b"first and more, to go on", PlainSession()):  # type: ignore[union-attr]
        assert not store.remove(longer)
    assert store.remove(longer) and store.remove(longer)
    assert load(store, b"first and more, to go on") == 100
    assert store.remove(first)
    assert store.entries() == [] and not [p for p in where.iterdir() if p.suffix in (".rows", ".state")]
    with open_store() as other:
        assert other.entries() == []


def test_other_tokens_of_the_same_length_share_nothing(store: KVStore) -> None:
    store.save(PlainSession(range(100)), b"a", reason="cold")
    session = PlainSession(range(1, 101))
    store.save(session, b"b", reason="cold")
    assert session.exported == [(0, 100)]
    assert load(store, b"b") == 100


def test_chains_stay_short(open_store: Open) -> None:
    store = open_store(max_chain=4)
    session = PlainSession()
    longest = 0
    for turn in range(1, 40):
        session.tokens += range(turn * 10, turn * 10 + 10)
        entry = store.save(session, b"x" * turn, reason="evict")
        assert entry is not None
        longest = max(longest, len(entry.rows))
        assert load(store, b"x" * turn) == 10 * turn
    assert longest == 4
    # Rows that were written anew as one are not kept twice for long.
    needed = {r.name for e in store.entries() for r in e.rows}
    assert needed == {p.stem for p in store.path.glob("*.rows")}


def test_saving_again_writes_nothing(store: KVStore, where: Path) -> None:
    session = PlainSession(range(100))
    first = store.save(session, b"key", reason="cold", tool_blocks={"a": "A"})
    before = files(where)
    assert store.save(session, b"key", reason="evict") == first
    assert store.save(session, b"key", reason="evict", tool_blocks={"a": "A"}) == first
    assert files(where) == before
    assert store.stats().saves == 1


def test_new_tool_calls_are_added_to_a_state(store: KVStore, where: Path, open_store: Open) -> None:
    session = PlainSession(range(100))
    store.save(session, b"key", reason="cold", tool_blocks={"a": "A"})
    rows = {n: b for n, b in files(where).items() if n.endswith("rows")}
    entry = store.save(session, b"key", reason="cold", tool_blocks={"b": "B"})
    assert entry is not None
    assert entry.calls == ("a", "b")
    assert {n: b for n, b in files(where).items() if n.endswith("rows")} == rows
    for opened in (store, open_store()):
        assert opened.find_tool_blocks(["b", "c"], model=session.model.fingerprint) == {"a": "A", "b": "B"}
        assert opened.find_tool_blocks(["b"], model=b"another") == {}
        assert load(opened, b"key") == 100


def test_texts_of_tool_calls_are_kept_to_the_byte(store: KVStore) -> None:
    blocks = {"call_é": "<｜DSML｜tool_calls>\n\r\t\0", "b": "\ud800", "c": ""}
    store.save(PlainSession([1]), b"key", reason="cold", tool_blocks=blocks)
    with find(store, b"key") as hit:  # type: ignore[union-attr]
        assert hit.tool_blocks == blocks


@pytest.mark.parametrize("call", ["", "x" * 257])
def test_call_ids_have_a_length(store: KVStore, call: str) -> None:
    with pytest.raises(ValueError, match="call id"):
        store.save(PlainSession([1]), b"key", reason="cold", tool_blocks={call: "text"})


def test_arguments_are_checked(store: KVStore, tmp_path: Path) -> None:
    session = PlainSession(range(5))
    with pytest.raises(ValueError, match="at least one byte"):
        store.save(session, b"", reason="cold")
    with pytest.raises(ValueError, match="reason must be one of cold"):
        store.save(session, b"k", reason="other")  # type: ignore[arg-type]
    for at in (-1, 6):
        with pytest.raises(ValueError, match="has 5 positions"):
            store.save(session, b"k", reason="cold", at=at)
    assert store.save(PlainSession(), b"k", reason="cold") is None
    assert store.stats().problem == "the session is empty"
    for options in ({"budget_bytes": -1}, {"daily_write_bytes": -1}, {"max_chain": 1}):
        with pytest.raises(ValueError, match="must be"):
            KVStore(tmp_path / "x", **options)  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        KVStore(tmp_path / "file")


def test_a_closed_store_says_so(store: KVStore) -> None:
    store.save(PlainSession(range(5)), b"k", reason="cold")
    hit = find(store, b"k")
    assert hit is not None
    store.close()
    store.close()
    for use in (lambda: find(store, b"k"), lambda: store.save(PlainSession([1]), b"k", reason="cold"), store.stats):
        with pytest.raises(ds4.ClosedError):
            use()
    hit.read()  # its files are open
    hit.release()


def test_everything_is_private(store: KVStore, where: Path) -> None:
    store.save(PlainSession(range(100)), b"key", reason="cold")
    for path in [where, *where.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert not list((where / "tmp").iterdir())


def test_a_store_survives_its_process(open_store: Open) -> None:
    store = open_store()
    session = PlainSession(range(100))
    store.save(session, b"one", reason="cold")
    session.tokens += [1, 2, 3]
    store.save(session, b"one two", reason="shutdown", tool_blocks={"a": "A"})
    load(store, b"one two")
    before = store.entries()
    store.close()
    again = open_store()
    assert again.entries() == before
    assert {e.hits for e in before} == {0, 1}
    assert load(again, b"one two three") == 103
    session.tokens += [4]
    again.save(session, b"one two three", reason="evict")
    assert session.exported[-1] == (103, 104)


def test_staging_takes_the_state_of_the_moment(store: KVStore) -> None:
    session = PlainSession(range(100))
    staged = store.stage(session, b"key", reason="evict")
    assert staged is not None
    session.tokens = [7]
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(staged.commit()))
    thread.start()
    thread.join()
    assert done[0].n_tokens == 100
    assert load(store, b"key") == 100
    with store.stage(session, b"other", reason="evict") as dropped:  # type: ignore[union-attr]
        assert dropped.n_bytes > 100
    assert find(store, b"other") is None


def test_many_threads(store: KVStore) -> None:
    wrong = []

    def work(mine: int) -> None:
        session = PlainSession(range(50))
        for turn in range(8):
            session.tokens += [mine, turn]
            store.save(session, b"common, %d, " % mine + b"t" * turn, reason="evict")
            if load(store, b"common, %d, " % mine + b"t" * turn) != len(session.tokens):
                wrong.append((mine, turn))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("mtp", [False, True])
def test_a_real_session_goes_on_bit_by_bit(store: KVStore, mtp: bool) -> None:
    with ds4.Model.open_embedded() as model:
        tokens = model.tokenizer.encode("A store keeps what was computed. " * 60)
        cut, turn = len(tokens) // 2, len(tokens) - 20
        with model.session(n_ctx=2048, mtp=mtp and model.has_mtp) as source:
            source.sync(tokens[:cut])
            store.save(source, b"half", reason="cold")
            source.sync(tokens[:turn])
            store.save(source, b"half and more", reason="evict")
            reference = source.eval_logits(tokens[turn:])
        with model.session(n_ctx=1024, chunk=64, mtp=mtp and model.has_mtp) as target:
            assert load(store, b"half and more, and the rest", target) == turn
            assert target.tokens == tokens[:turn]
            np.testing.assert_array_equal(target.eval_logits(tokens[turn:]), reference)
            assert load(store, b"half", target) == cut
            target.sync(tokens[:turn])
            np.testing.assert_array_equal(target.eval_logits(tokens[turn:]), reference)
