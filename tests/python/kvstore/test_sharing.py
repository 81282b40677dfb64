"""One directory, several stores and processes; files that come and go by other hands."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ds4.kvstore import KVStore, StoreDamageError
from ds4.kvstore.directory import Directory
from support.stored_session import PlainSession

from .conftest import Open
from .stores import files, find, load


def test_another_store_sees_what_is_added_and_removed(open_store: Open, where: Path) -> None:
    a, b = open_store(), open_store()
    for n in range(1, 20):
        a.save(PlainSession(range(n)), b"k" * n, reason="cold")
        assert load(b, b"k" * n) == n
        assert load(a, b"k" * n) == n
    for entry in a.entries():
        os.unlink(where / f"{entry.name}.state")
        assert load(b, b"k" * entry.n_tokens) < entry.n_tokens
    assert b.entries() == []


def test_a_lookup_does_not_read_the_directory(store: KVStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(1, 50):
        store.save(PlainSession(range(n)), b"k" * n, reason="cold")
    time.sleep(0.15)  # beyond the resolution of the file system's clock
    assert load(store, b"k" * 20) == 20

    def never(*args: Any) -> Any:
        raise AssertionError("the directory is read")

    monkeypatch.setattr(Directory, "names", never)
    monkeypatch.setattr(os, "scandir", never)
    assert [load(store, b"k" * n) for n in (1, 25, 200)] == [1, 25, 49]
    assert load(store, b"x") == 0


def test_both_may_save_the_same_state_at_once(open_store: Open, where: Path) -> None:
    a, b = open_store(), open_store()
    session = PlainSession(range(100))
    first, second = (s.stage(session, b"key", reason="cold") for s in (a, b))
    assert first is not None
    assert second is not None
    one = first.commit()
    before = files(where)
    two = second.commit()
    assert one is not None
    assert two is not None
    assert one.name == two.name
    assert files(where) == before
    assert load(a, b"key") == load(b, b"key") == 100


def test_another_store_sees_new_tool_calls(open_store: Open) -> None:
    """The name stays, the file is another."""
    a, b = open_store(), open_store()
    session = PlainSession(range(100))
    a.save(session, b"key", reason="cold", tool_blocks={"a": "A"})
    assert b.find_tool_blocks(["b"], model=session.model.fingerprint) == {}
    a.save(session, b"key", reason="cold", tool_blocks={"b": "B"})
    assert b.find_tool_blocks(["b"], model=session.model.fingerprint) == {"a": "A", "b": "B"}
    assert b.stats().n_bytes == a.stats().n_bytes
    assert b.entries() == a.entries()


def test_rows_that_a_save_continues_are_held(open_store: Open, where: Path) -> None:
    """Another process makes room between the taking and the writing."""
    a, b = open_store(), open_store()
    session = PlainSession(range(100))
    a.save(session, b"one", reason="evict")
    session.tokens += [1, 2]
    staged = a.stage(session, b"one two", reason="evict")
    assert staged is not None
    b.prune(0)
    assert {p.suffix for p in map(Path, files(where))} == {".rows"}  # held; the state that nobody needs went
    assert staged.commit() is not None
    assert load(b, b"one two") == 102
    b.prune(0)
    assert files(where) == {}


def test_rows_that_vanish_meanwhile_end_the_save(store: KVStore, where: Path) -> None:
    session = PlainSession(range(100))
    store.save(session, b"one", reason="evict")
    session.tokens += [1, 2]
    staged = store.stage(session, b"one two", reason="evict")
    assert staged is not None
    for path in where.glob("*.rows"):
        path.unlink()
    assert staged.commit() is None
    assert "put aside" in (store.stats().problem or "")
    assert not list((where / "tmp").iterdir())
    # Without them everything is written again.
    assert store.save(session, b"one two", reason="evict") is not None
    assert load(store, b"one two") == 102


def test_a_hit_is_held_against_another_store(open_store: Open, where: Path) -> None:
    a, b = open_store(), open_store()
    a.save(PlainSession(range(100)), b"one", reason="cold")
    hit = find(a, b"one")
    assert hit is not None
    assert b.prune(0) == 0
    with hit:
        assert hit.load(PlainSession()) == 100
    assert b.prune(0) > 0
    assert load(a, b"one") == load(b, b"one") == 0


@pytest.mark.parametrize("which", ["state", "rows"])
def test_files_deleted_before_lookup_are_a_miss(store: KVStore, where: Path, which: str) -> None:
    """L077."""
    store.save(PlainSession(range(50)), b"one", reason="cold")
    entry = store.save(PlainSession(range(100)), b"one two", reason="evict")
    assert entry is not None
    assert load(store, b"one two") == 100
    os.unlink(where / (f"{entry.name}.state" if which == "state" else f"{entry.rows[-1].name}.rows"))
    store._holdings._seen = os.stat(where).st_mtime_ns  # as if the change had not been noticed
    assert load(store, b"one two") == 50
    assert load(store, b"one two") == 50


def test_files_deleted_after_lookup_are_still_read(store: KVStore, where: Path) -> None:
    """L077: the hit holds them open."""
    store.save(PlainSession(range(100)), b"one", reason="cold")
    with find(store, b"one") as hit:  # type: ignore[union-attr]
        for name in files(where):
            os.unlink(where / name)
        assert hit.load(PlainSession()) == 100
    assert find(store, b"one") is None


def test_files_cut_after_lookup_are_damage(store: KVStore, where: Path) -> None:
    """L077."""
    entry = store.save(PlainSession(range(100)), b"one", reason="cold")
    assert entry is not None
    for suffix, name in (("state", entry.name), ("rows", entry.rows[0].name)):
        path = where / f"{name}.{suffix}"
        good = path.read_bytes()
        with find(store, b"one") as hit:  # type: ignore[union-attr]
            os.truncate(path, len(good) - 10)
            with pytest.raises(StoreDamageError, match="cut short"):
                hit.load(PlainSession())
        assert find(store, b"one") is None
        path.write_bytes(good)
        assert load(store, b"one") == 100


def test_the_directory_goes_away(store: KVStore, where: Path) -> None:
    store.save(PlainSession(range(100)), b"one", reason="cold")
    where.rename(where.with_name("elsewhere"))
    assert find(store, b"one") is None
    assert store.save(PlainSession([1]), b"two", reason="cold") is None
    where.with_name("elsewhere").rename(where)
    assert load(store, b"one") == 100
    assert store.save(PlainSession([1]), b"two", reason="cold") is not None


def test_only_what_nobody_writes_is_cleaned(open_store: Open, where: Path) -> None:
    store = open_store()
    left = where / "tmp" / "1-0123"
    left.write_bytes(b"half a file")
    held = store._holdings.directory.write_temporary([b"being written"])
    other = open_store()
    assert not left.exists()
    assert held.path.exists()
    held.close()
    assert not held.path.exists()
    other.close()


def test_names_change_only_under_the_lock(open_store: Open, where: Path) -> None:
    """While another process is making room or giving names, saves and opening wait."""
    store = open_store()
    store.save(PlainSession(range(9)), b"there", reason="cold")
    before = files(where)
    with open(where / "lock", "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        staged = store.stage(PlainSession(range(50)), b"new", reason="cold")
        assert staged is not None
        thread = threading.Thread(target=staged.commit)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        assert files(where) == before
        with ThreadPoolExecutor(1) as pool:
            opening = pool.submit(open_store)
            time.sleep(0.1)
            assert not opening.done()
            fcntl.flock(other, fcntl.LOCK_UN)
            reader = opening.result(timeout=30)
    thread.join(30)
    assert load(store, b"new") == load(reader, b"new") == 50


def test_a_process_that_was_stopped_stops_nobody(store: KVStore, where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the lock of the directory for ever: lookups go on, saves give up."""
    store.save(PlainSession(range(9)), b"there", reason="cold")
    entry = store.save(PlainSession(range(50)), b"bad", reason="cold")
    assert entry is not None
    with open(where / "lock", "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        patient = Directory.locked
        monkeypatch.setattr(Directory, "locked", lambda self, seconds=0.3: patient(self, min(seconds, 0.3)))
        saving = threading.Thread(target=store.save, args=(PlainSession(range(60)), b"new"), kwargs={"reason": "cold"})
        saving.start()
        begin = time.monotonic()
        for _ in range(20):
            assert load(store, b"there") == 9
        assert time.monotonic() - begin < 0.2
        saving.join(30)
        assert "has held the lock" in (store.stats().problem or "")
        path = where / f"{entry.name}.state"
        path.write_bytes(path.read_bytes()[:-1])
        assert load(store, b"bad") == load(store, b"bad") == 0
        assert path.exists()
        with pytest.raises(TimeoutError, match="lock"):
            KVStore(where)
        with KVStore(where, read_only=True) as reader:
            assert load(reader, b"there") == 9
    assert store.save(PlainSession(range(60)), b"new", reason="cold") is not None


def test_a_writer_whose_file_was_taken_for_a_stale_one(store: KVStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between making a file and locking it, a process that starts may remove it."""
    real, unlucky = fcntl.flock, [2]

    def flock(fd: int, how: int) -> None:
        if how == fcntl.LOCK_SH and unlucky[0]:
            unlucky[0] -= 1
            assert store._holdings.directory.remove_stale() == 1
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    made = store._holdings.directory.write_temporary([b"content"])
    assert made.path.read_bytes() == b"content"
    made.close()


WORK = """
    import faulthandler, sys
    faulthandler.dump_traceback_later(90, exit=True)
    from ds4.kvstore import KVStore
    sys.path.insert(0, {tests!r})
    from support.stored_session import PlainSession
    from ds4.kvstore import session_settings
    me = int(sys.argv[2])
    store = KVStore(sys.argv[1], budget_bytes={budget})
    print("ready", flush=True)
    sys.stdin.readline()
    wrong = 0
    for round in range(15):
        tokens = [*range(60), me, *range(round + 1)]
        session = PlainSession(tokens, row_bytes=20)
        key = b"common/%d/" % me + b"r" * round
        store.save(session, key, reason="evict")
        for other in (me, 1 - me):
            target = PlainSession()
            hit = store.lookup(b"common/%d/" % other + b"r" * 50, model=target.model.fingerprint,
                               settings=session_settings(target), n_ctx=1 << 20)
            if hit is not None:
                with hit:
                    n = hit.load(target)
                wrong += target.tokens[:61] != [*range(60), other]
    stats = store.stats()
    print("done", wrong, stats.put_aside, stats.n_bytes <= stats.budget_bytes, flush=True)
"""


@pytest.mark.parametrize("budget", [1 << 30, 30_000], ids=["roomy", "tight"])
def test_two_processes(where: Path, budget: int) -> None:
    """Both save and load all the time, in the tight case over each other's evictions."""
    code = textwrap.dedent(WORK.format(tests=str(Path(__file__).parents[2]), budget=budget))
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(where), str(me)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for me in (0, 1)
    ]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in both:
        out, _ = process.communicate(timeout=100)
        assert out == "done 0 0 True\n"
        assert process.returncode == 0
    assert not list((where / "tmp").iterdir())
    assert not list((where / "quarantine").iterdir())
