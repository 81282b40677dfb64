"""States carried from one store to another in one file."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path

import pytest
from ds4.kvstore import KVStore, StoreDamageError, StoredFileError
from ds4.kvstore.format import StoredFile, encode
from support.stored_session import PlainSession

from .conftest import Open
from .stores import files, load


@pytest.fixture
def carried(store: KVStore, tmp_path: Path) -> Path:
    """An exported state with two files of rows."""
    session = PlainSession(range(20), row_bytes=3, tail_bytes=30)
    store.save(session, b"one", reason="cold")
    session.tokens += [1, 2, 3]
    entry = store.save(session, b"one two", reason="evict", tool_blocks={"a": "A"})
    assert entry is not None
    path = tmp_path / "state.ds4kv"
    assert store.export_state(entry, path) == path.stat().st_size
    return path


def test_a_state_arrives(carried: Path, open_store: Open, tmp_path: Path, where: Path) -> None:
    assert stat.S_IMODE(carried.stat().st_mode) == 0o600
    other = open_store(directory=tmp_path / "other")
    entry = other.import_state(carried)
    assert entry is not None
    assert load(other, b"one two three") == 23
    assert other.find_tool_blocks(["a"], model=entry.model) == {"a": "A"}
    assert files(tmp_path / "other").items() <= files(where).items()
    assert other.import_state(carried) == other.entries()[0]
    assert other.stats().n_bytes == sum(map(len, files(tmp_path / "other").values()))


def test_rows_that_are_there_are_not_written_again(carried: Path, open_store: Open, tmp_path: Path) -> None:
    other = open_store(directory=tmp_path / "other")
    other.save(PlainSession(range(20), row_bytes=3), b"one", reason="cold")
    before = files(tmp_path / "other")
    other.import_state(carried)
    assert before.items() <= files(tmp_path / "other").items()
    assert len(files(tmp_path / "other")) == len(before) + 2
    assert load(other, b"one two") == 23


def test_every_flipped_byte_and_truncation_is_found(carried: Path, open_store: Open, tmp_path: Path) -> None:
    other = open_store(directory=tmp_path / "other")
    good = carried.read_bytes()
    for at in range(len(good)):
        carried.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(StoredFileError):
            other.import_state(carried)
        if at % 7 == 0:
            carried.write_bytes(good[:at])
            with pytest.raises(StoredFileError):
                other.import_state(carried)
    assert files(tmp_path / "other") == {}


def test_sections_that_do_not_belong_together(carried: Path, store: KVStore, tmp_path: Path) -> None:
    file = StoredFile(carried)
    parts = {tag: bytes(file.read(tag)) for tag in file.sections}
    file.close()
    state = next(iter(store.entries()))
    own = (store.path / f"{state.name}.state").read_bytes()
    for wrong in (
        {**parts, "R000": parts["R001"], "R001": parts["R000"]},
        {k: v for k, v in parts.items() if k != "R001"},
        {**parts, "R002": parts["R001"]},
        {**parts, "STAT": parts["R000"]},
        {**parts, "META": b"{}"},
        {**parts, "META": b'{"state": 7}'},
        {**parts, "META": b"["},
        {**parts, "R000": b"short"},
        {"META": parts["META"]},
    ):
        carried.write_bytes(b"".join(map(bytes, encode(wrong.items()))))
        with pytest.raises(StoredFileError):
            store.import_state(carried)
    carried.write_bytes(own)  # a file of a store
    with pytest.raises(StoredFileError, match="not an exported state"):
        store.import_state(carried)


def test_rows_of_other_positions(carried: Path, store: KVStore) -> None:
    """All checksums are right, and the name is; the state asks for other positions."""
    with contextlib.closing(StoredFile(carried)) as file:
        parts = {tag: bytes(file.read(tag)) for tag in file.sections}
        with contextlib.closing(StoredFile(carried, file.sections["R001"])) as rows:
            inner = {tag: bytes(rows.read(tag)) for tag in rows.sections}
    facts = json.loads(inner["META"])
    assert (facts["start"], facts["stop"]) == (20, 23)
    inner["META"] = json.dumps({**facts, "start": 19}, separators=(",", ":")).encode()
    parts["R001"] = b"".join(map(bytes, encode(inner.items())))
    carried.write_bytes(b"".join(map(bytes, encode(parts.items()))))
    with pytest.raises(StoredFileError, match="not those of the state"):
        store.import_state(carried)


def test_what_cannot_be_exported(store: KVStore, carried: Path, where: Path, tmp_path: Path) -> None:
    entry = store.entries()[0]
    with pytest.raises(FileExistsError):
        store.export_state(entry, carried)
    store.export_state(entry, carried, force=True)
    with pytest.raises(FileNotFoundError, match="missing"):
        store.export_state(entry, tmp_path / "missing" / "x")
    path = where / f"{entry.rows[0].name}.rows"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(StoreDamageError, match="checksum of section ROWS"):
        store.export_state(entry, tmp_path / "new")
    assert not path.exists()
    assert os.listdir(tmp_path) == ["state.ds4kv"]
