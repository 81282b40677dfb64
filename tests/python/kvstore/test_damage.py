"""Damage: found whatever the byte, put aside, never loaded, never fatal."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ds4
import pytest
from ds4.kvstore import KVStore, StoreDamageError, StoredFileError
from ds4.kvstore.files import verify
from ds4.kvstore.format import StoredFile, encode
from support.stored_session import PlainSession

from .conftest import Open
from .stores import files, find, load

KEY = b"the key"


@pytest.fixture
def saved(store: KVStore, where: Path) -> dict[str, bytes]:
    """Two states that share rows; the files of the store."""
    session = PlainSession(range(8), row_bytes=2, tail_bytes=20)
    store.save(session, b"the", reason="cold")
    session.tokens += [9, 9, 9]
    store.save(session, KEY, reason="evict", tool_blocks={"id": "text"})
    return files(where)


def parts(where: Path, store: KVStore) -> list[Path]:
    """The files of the longer state: its own, and its two of rows."""
    entry = max(store.entries(), key=lambda e: e.n_tokens)
    return [where / f"{entry.name}.state", *(where / f"{r.name}.rows" for r in entry.rows)]


def attempt(store: KVStore) -> int:
    """Load what there is, and return the positions; damage that only loading finds is a miss as well."""
    for _ in range(3):
        session = PlainSession()
        try:
            n = load(store, KEY, session)
        except StoreDamageError:
            assert session.tokens == []
            continue
        assert len(session.tokens) == n
        return n
    raise AssertionError("the same damage is met again and again")


def each_damage(store: KVStore, where: Path, saved: dict[str, bytes], damage: Callable[[Path, bytes], None]) -> None:
    """Damage each file of a state in turn; the rest must be used, and the good file taken back."""
    for path in parts(where, store):
        damage(path, saved[path.name])
        # Rows that both need take both along; of the others the shorter state is left.
        shared = path.suffix == ".rows" and path == parts_of_shorter(where, saved)
        assert attempt(store) == (0 if shared else 8)
        assert not path.exists()
        path.write_bytes(saved[path.name])
        assert attempt(store) == 11
    aside = where / "quarantine"
    for old in aside.iterdir():
        old.unlink()


def parts_of_shorter(where: Path, saved: dict[str, bytes]) -> Path:
    for name in saved:
        if name.endswith(".state"):
            entry = verify(where / name)
            if entry.n_tokens == 8:  # type: ignore[union-attr]
                return where / f"{entry.rows[0].name}.rows"  # type: ignore[union-attr]
    raise AssertionError


def test_every_flipped_byte_is_found(store: KVStore, where: Path, saved: dict[str, bytes]) -> None:
    rng = random.Random(1)
    shorter = parts_of_shorter(where, saved)
    for path in parts(where, store):
        good = saved[path.name]
        for at in range(len(good)):
            bad = bytearray(good)
            bad[at] ^= rng.randrange(1, 256)
            path.write_bytes(bad)
            assert attempt(store) == (0 if path == shorter else 8), (path.suffix, at)
            assert not path.exists()
            path.write_bytes(good)
        assert attempt(store) == 11
    assert files(where) == saved
    assert store.stats().put_aside == sum(len(saved[p.name]) for p in parts(where, store))


def test_every_truncation_is_found(store: KVStore, where: Path, saved: dict[str, bytes]) -> None:
    shorter = parts_of_shorter(where, saved)
    for path in parts(where, store):
        good = saved[path.name]
        for length in range(len(good)):
            path.write_bytes(good[:length])
            assert attempt(store) == (0 if path == shorter else 8), (path.suffix, length)
            assert not path.exists()
            path.write_bytes(good)
        assert attempt(store) == 11


def test_other_damage_is_found(store: KVStore, where: Path, saved: dict[str, bytes]) -> None:
    each_damage(store, where, saved, lambda path, good: path.write_bytes(good + b"\0") and None)
    each_damage(store, where, saved, lambda path, good: path.write_bytes(good * 2) and None)
    each_damage(store, where, saved, lambda path, good: path.write_bytes(bytes(len(good))) and None)
    # A sound file under the name of another one.
    for other in sorted(saved):
        each_damage(
            store, where, saved, lambda path, good, other=other: path.write_bytes(
                saved[other] if other != path.name else b"") and None
        )  # fmt: skip


@pytest.mark.parametrize("rebuild", [False, True], ids=["index", "no index"])
def test_damage_is_found_by_the_next_process(open_store: Open, where: Path, rebuild: bool) -> None:
    store = open_store()
    session = PlainSession(range(8), row_bytes=2, tail_bytes=20)
    store.save(session, KEY, reason="cold")
    good = files(where)
    store.close()
    for name, data in good.items():
        for at in range(0, len(data), 37):
            (where / name).write_bytes(data[:at] + bytes([data[at] ^ 64]) + data[at + 1 :])
            if rebuild:
                (where / "index" / "index.sqlite3").unlink()
            store = open_store()
            assert attempt(store) == 0
            assert not (where / name).exists()
            store.close()
            (where / name).write_bytes(data)
    assert attempt(open_store()) == 8


def test_a_quarantined_file_keeps_its_bytes(store: KVStore, where: Path, saved: dict[str, bytes]) -> None:
    path = parts(where, store)[0]
    bad = saved[path.name][:-1] + b"!"
    path.write_bytes(bad)
    hit = find(store, KEY)
    assert hit is not None
    with hit, pytest.raises(StoreDamageError, match=r"checksum of section TAIL") as caught:
        hit.load(PlainSession())
    assert caught.value.path == str(path)
    assert [p.read_bytes() for p in (where / "quarantine").iterdir()] == [bad]
    assert store.stats().quarantined_bytes == len(bad)


def test_the_quarantine_is_bounded(open_store: Open, where: Path) -> None:
    store = open_store(budget_bytes=32_000)
    for n in range(8):
        key = b"key %d" % n
        entry = store.save(PlainSession(range(n * 10, n * 10 + 8)), key, reason="cold")
        assert entry is not None
        path = where / f"{entry.name}.state"
        path.write_bytes(path.read_bytes()[:-1])
        assert load(store, key) == 0
    assert 0 < store.stats().quarantined_bytes <= 2000


def test_what_a_session_refuses_is_not_tried_again(store: KVStore, where: Path) -> None:
    """L065: a sound file whose content is of no use."""
    with ds4.Model.open_embedded() as model, model.session(n_ctx=256) as session:
        tokens = list(range(3, 40))
        session.sync(tokens)
        entry = store.save(session, KEY, reason="cold")
        assert entry is not None
        path = where / f"{entry.name}.state"
        file = StoredFile(path)
        sections = {tag: bytes(file.read(tag)) for tag in file.sections}
        file.close()
        sections["TAIL"] = bytes(len(sections["TAIL"]))
        path.write_bytes(b"".join(map(bytes, encode(sections.items()))))
        with pytest.raises(StoreDamageError, match="the session refused it"):
            load(store, KEY, session)
        assert session.tokens == tokens
        assert load(store, KEY, session) == 0
        # Stored anew, it is used again.
        store.save(session, KEY, reason="cold")
        assert load(store, KEY, session) == len(tokens)


def test_a_caller_can_put_a_state_aside(store: KVStore, saved: dict[str, bytes]) -> None:
    """L065: the first computation after loading fails."""
    hit = find(store, KEY)
    assert hit is not None
    with hit:
        hit.load(PlainSession())
        assert "the prefill failed" in str(hit.reject("the prefill failed"))
    assert find(store, KEY) is None
    assert find(store, b"the") is None  # its rows were among those that were loaded
    assert store.stats().put_aside == 3


def test_a_restore_without_effect_is_told(store: KVStore, saved: dict[str, bytes]) -> None:
    """L076."""

    class Deaf(PlainSession):
        def import_state(self, *args: Any) -> None:
            pass

    with pytest.raises(StoreDamageError, match="holds other tokens"):
        load(store, KEY, Deaf())


def test_files_that_are_no_files(store: KVStore, where: Path, saved: dict[str, bytes], tmp_path: Path) -> None:
    """Neither links nor pipes nor directories are followed, waited for, or fatal."""
    state = parts(where, store)[0]
    for make in (
        lambda: state.symlink_to(tmp_path / "elsewhere"),
        lambda: os.mkfifo(state),
        lambda: state.mkdir(),
    ):
        state.unlink()
        (tmp_path / "elsewhere").write_bytes(saved[state.name])
        make()
        assert attempt(store) == 8
        assert store.save(PlainSession([1, 2]), b"more", reason="cold") is not None
        if state.is_dir() and not state.is_symlink():
            state.rmdir()
        else:
            state.unlink(missing_ok=True)
        state.write_bytes(saved[state.name])
        assert attempt(store) == 11


def test_facts_that_cannot_be(tmp_path: Path, store: KVStore, where: Path, saved: dict[str, bytes]) -> None:
    """A file whose checksums are right says what no store writes."""
    path = parts(where, store)[0]
    file = StoredFile(path)
    sections = {tag: bytes(file.read(tag)) for tag in file.sections}
    file.close()
    facts = json.loads(sections["META"])
    wrong: list[tuple[str, Any]] = [
        *((name, value) for name in facts for value in (None, [], -1, "x", 1e400, {}, True)),
        ("tokens", 1 << 62), ("tokens", 12), ("key", 3), ("reason", "why"), ("kind", "rows"), ("digest", "0" * 64),
        ("rows", [["0" * 64, 1, 11, 5]]), ("rows", [["0" * 64, 0, 11]]), ("rows", [["../x", 0, 11, 5]]),
        ("calls", ["other"]), ("calls", ["x" * 300]), ("model", "zz"), ("created", 1e20),
    ]  # fmt: skip
    for name, value in wrong:
        if facts[name] == value:
            continue
        meta = json.dumps({**facts, name: value}).encode()
        path.write_bytes(b"".join(map(bytes, encode({**sections, "META": meta}.items()))))
        with pytest.raises(StoredFileError):
            verify(path)
    for meta in (b"", b"[" * 100_000, b"\xff", b"[]", b"{}", b'{"kind":"state"}', json.dumps(facts)[:-1].encode()):
        path.write_bytes(b"".join(map(bytes, encode({**sections, "META": meta}.items()))))
        with pytest.raises(StoredFileError):
            verify(path)
    assert attempt(store) == 8


def test_heads_that_cannot_be(tmp_path: Path) -> None:
    """Lengths are checked before memory is taken for them, also where the checksum is right."""

    def made(sections: list[tuple[bytes, int, int]], total: int | None = None, body: bytes = b"1234") -> bytes:
        table = b"".join(struct.pack("<4sIQ32s", t, z, n, hashlib.sha256(body).digest()) for t, z, n in sections)
        size = 24 + len(table) + 32 + len(body)
        head = struct.pack("<8sIIQ", b"DS4KVF\x1a\n", 1, len(sections), size if total is None else total) + table
        return head + hashlib.sha256(head).digest() + body

    path = tmp_path / "file"
    path.write_bytes(made([(b"META", 0, 4)]))
    file = StoredFile(path)
    assert file.read("META") == b"1234"
    with pytest.raises(StoredFileError, match="3 are the most"):
        file.read("META", 3)
    with pytest.raises(StoredFileError, match="no section TAIL"):
        file.read("TAIL")
    file.close()
    file.close()
    for bad in (
        made([(b"META", 0, 1 << 63)]),
        made([(b"META", 0, (1 << 64) - 1), (b"TAIL", 0, 5)]),  # the sum wraps around
        made([(b"META", 0, 2), (b"META", 0, 2)]),
        made([(b"META", 1, 4)]),
        made([(b"META", 0, 4)], total=5),
        made([(b"META", 0, 3)]),
        made([]),
        made([(b"META", 0, 4)] * 8193),
        b"",
        b"DS4KVF\x1a\n" * 20,
    ):
        path.write_bytes(bad)
        with pytest.raises(StoredFileError):
            StoredFile(path)


# The index


def damage_index(where: Path, how: str) -> None:
    path = where / "index" / "index.sqlite3"
    if how == "gone":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "random":
        path.write_bytes(random.Random(1).randbytes(20_000))
    elif how == "page":
        data = bytearray(path.read_bytes())
        data[4096:] = random.Random(1).randbytes(len(data) - 4096)
        path.write_bytes(data)
    elif how == "other table":
        path.unlink()
        database = sqlite3.connect(path)
        database.execute("create table files (x)")
        database.commit()
        database.close()
    elif how == "other version":
        database = sqlite3.connect(path)
        database.execute("pragma user_version = 99")
        database.close()
    elif how == "wrong facts":
        database = sqlite3.connect(path)
        database.execute("update files set meta = x'00', hits = 'many', last_used = 'never'")
        database.commit()
        database.close()
    elif how == "directory":
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize(
    "how", ["gone", "empty", "random", "page", "other table", "other version", "wrong facts", "directory"]
)
def test_the_index_is_made_anew(open_store: Open, where: Path, how: str) -> None:
    store = open_store()
    session = PlainSession(range(100))
    store.save(session, b"one", reason="cold", tool_blocks={"id": "text"})
    store.save(PlainSession(range(50, 100)), b"other", reason="cold")
    load(store, b"one")
    recent = store.entries()[0].last_used
    store.close()
    damage_index(where, how)
    again = open_store()
    assert [(e.n_tokens, e.reason) for e in again.entries()] == [(100, "cold"), (50, "cold")]
    assert again.entries()[0].last_used == pytest.approx(recent, abs=1)  # the file's own time stamp knows
    assert again.find_tool_blocks(["id"], model=session.model.fingerprint) == {"id": "text"}
    assert load(again, b"one") == 100
    session.tokens += [1]
    assert again.save(session, b"one more", reason="evict") is not None
    again.close()
    assert load(open_store(), b"one more") == 101


def test_the_index_forgets_files_that_others_deleted(open_store: Open, where: Path) -> None:
    store = open_store()
    for n in range(4):
        store.save(PlainSession([n] * 20), b"key %d" % n, reason="cold")
    store.close()
    for path in [*where.glob("*.state")][:3]:
        path.unlink()
    with open_store() as again:
        assert len(again.entries()) == 1
    database = sqlite3.connect(where / "index" / "index.sqlite3")
    assert database.execute("select kind, count(*) from files group by kind order by kind").fetchall() == [
        ("rows", 4), ("state", 1),
    ]  # fmt: skip
    database.close()


def test_a_locked_index_does_not_stop_the_store(open_store: Open, where: Path, caplog: Any) -> None:
    store = open_store()
    other = sqlite3.connect(where / "index" / "index.sqlite3", isolation_level=None)
    other.execute("begin exclusive")
    try:
        store._holdings.index._database.execute("pragma busy_timeout = 10")  # type: ignore[union-attr]
        with caplog.at_level(logging.WARNING):
            assert store.save(PlainSession(range(100)), b"one", reason="cold") is not None
        assert "the store goes on without it" in caplog.text
        assert load(store, b"one") == 100
    finally:
        other.close()
    store.close()
    assert load(open_store(), b"one") == 100
