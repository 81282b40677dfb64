"""``ds4 kv`` on stores that hold states of a session without a model."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ds4 import Model
from ds4.kvstore import Entry, KVStore
from ds4.kvstore.kvc import kvc_name, read_kvc
from support.stored_session import PlainSession


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def entries(where: Path) -> list[Entry]:
    """A start of a prompt, and a conversation that continues it."""
    with KVStore(where) as store:
        session = PlainSession(range(600), row_bytes=10)
        one = store.save(session, b"\xff<begin>You are helpful.", reason="cold")
        session.tokens += range(50)
        two = store.save(
            session, b"\xff<begin>You are helpful.\xff<user>Gr\xc3\xbc\xc3\x9fe", reason="evict",
            tool_blocks={"call_1": "<x>"},
        )  # fmt: skip
        assert one is not None
        assert two is not None
        hit = store.lookup(b"\xff<begin>You are helpful.!", model=one.model, settings=one.settings, n_ctx=1 << 20)
        assert hit is not None
        with hit:
            hit.load(PlainSession())
    return [one, two]


def test_list(ds4: Any, where: Path, entries: list[Entry]) -> None:
    done = ds4("kv", "list", where)
    assert done.returncode == 0
    head, first, second, last = done.stdout.splitlines()
    assert head.split() == ["name", "tokens", "key", "reason", "hits", "used", "own", "all"]
    assert first.split()[:5] == [entries[0].name[:12], "600", str(entries[0].n_key), "cold", "1"]
    assert second.split()[:5] == [entries[1].name[:12], "650", str(entries[1].n_key), "evict", "0"]
    assert last.startswith("2 states, ")
    facts = json.loads(ds4("kv", "list", where, "--json").stdout)
    assert [s["name"] for s in facts["states"]] == [e.name for e in entries]
    assert facts["states"][1]["calls"] == ["call_1"]
    assert facts["states"][1]["settings"]["qat"] is True
    assert facts["bytes"] == sum(p.stat().st_size for p in where.iterdir() if p.suffix in (".state", ".rows"))
    assert facts["states"][0]["hits"] == 1


def test_list_changes_nothing(ds4: Any, where: Path, entries: list[Entry]) -> None:
    before = {p: p.stat().st_mtime_ns for p in where.rglob("*") if p.is_file() and p.parent.name != "index"}
    ds4("kv", "list", where)
    ds4("kv", "check", where)
    assert {p: p.stat().st_mtime_ns for p in where.rglob("*") if p.is_file() and p.parent.name != "index"} == before


def test_show(ds4: Any, where: Path, entries: list[Entry]) -> None:
    done = ds4("kv", "show", where, entries[1].name[:9].upper())
    assert done.returncode == 0
    shown = dict(line.split(None, 1) for line in done.stdout.replace("tool calls", "calls").splitlines())
    assert shown["name"] == entries[1].name
    assert shown["tokens"] == "650"
    assert shown["calls"] == "call_1"
    assert shown["rows"].startswith("0..600 ")
    assert shown["ends"] == "'<begin>You are helpful.<user>Grüße'"
    assert ds4("kv", "show", where, entries[1].name, "--key").stdout == "<begin>You are helpful.<user>Grüße"
    facts = json.loads(ds4("kv", "show", where, entries[0].name, "--json").stdout)
    assert facts["text"] == "<begin>You are helpful."
    assert [(r["start"], r["stop"]) for r in facts["rows"]] == [(0, 600)]
    assert abs(facts["last_used"] - time.time()) < 100


def test_names_that_are_not_one_state(ds4: Any, where: Path, entries: list[Entry]) -> None:
    for name, text in (("", "2 states"), ("zz", "no state"), (entries[0].name + "0", "no state")):
        done = ds4("kv", "show", where, name)
        assert done.returncode == 1
        assert text in done.stderr
    assert ds4("kv", "show", where, "0", "--key", "--json").returncode == 2


def test_check(ds4: Any, where: Path, entries: list[Entry]) -> None:
    done = ds4("kv", "check", where)
    assert (done.returncode, done.stdout) == (0, "4 files, 0 with faults\n")
    path = where / f"{entries[0].rows[0].name}.rows"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    done = ds4("kv", "check", where, "--json")
    assert done.returncode == 1
    facts = json.loads(done.stdout)
    assert facts["files"] == 4
    assert facts["faults"] == [
        {"file": path.name, "problem": "damaged: the checksum of section ROWS differs", "damaged": True}
    ]
    assert path.exists()
    assert ds4("kv", "check", where, "--put-aside").returncode == 1
    assert not path.exists()
    assert len(list((where / "quarantine").iterdir())) == 1
    done = ds4("kv", "check", where)
    assert done.returncode == 1
    assert done.stdout.count("are missing") == 2
    assert "put aside" in ds4("kv", "list", where).stdout


def test_check_of_a_cut_head(ds4: Any, where: Path, entries: list[Entry]) -> None:
    path = where / f"{entries[0].name}.state"
    path.write_bytes(path.read_bytes()[:50])
    done = ds4("kv", "check", where, "--put-aside")
    assert done.returncode == 1
    assert "cut short" in done.stdout
    assert [p.name.split(".")[0] for p in (where / "quarantine").iterdir()] == [entries[0].name]


def test_prune(ds4: Any, where: Path, entries: list[Entry]) -> None:
    done = ds4("kv", "prune", where, "--budget", "1GiB")
    assert (done.returncode, done.stdout.split(";")[0]) == (0, "freed 0 bytes")
    facts = json.loads(ds4("kv", "prune", where, "--budget", "0", "--json").stdout)
    assert (facts["states"], facts["bytes"]) == (0, 0)
    assert facts["freed"] > 6000
    assert ds4("kv", "list", where).stdout == "0 states, 0 bytes\n"
    assert ds4("kv", "prune", where).returncode == 2


def test_prune_leaves_what_is_being_loaded(ds4: Any, where: Path, entries: list[Entry]) -> None:
    with (
        KVStore(where) as store,
        store.lookup(b"\xff<begin>You are helpful.", model=entries[0].model, settings=entries[0].settings, n_ctx=9999),  # type: ignore[union-attr]
    ):
        done = ds4("kv", "prune", where, "--budget", "0")
        assert done.returncode == 1
        assert "in use" in done.stderr
        assert "1 states" in done.stdout


def test_export_and_import(ds4: Any, where: Path, entries: list[Entry], tmp_path: Path) -> None:
    out, other = tmp_path / "state.ds4kv", tmp_path / "other"
    assert ds4("kv", "export", where, entries[1].name[:8], out).returncode == 0
    assert out.stat().st_mode & 0o777 == 0o600
    done = ds4("kv", "export", where, entries[1].name[:8], out)
    assert done.returncode == 1
    assert str(out) in done.stderr
    assert json.loads(ds4("kv", "export", where, entries[1].name, out, "--force", "--json").stdout)["tokens"] == 650
    done = ds4("kv", "import", other, out)
    assert (done.returncode, done.stdout[:12]) == (0, entries[1].name[:12])
    assert json.loads(ds4("kv", "import", other, out, "--json").stdout)["name"] == entries[1].name
    assert json.loads(ds4("kv", "list", other, "--json").stdout)["states"][0]["tokens"] == 650
    out.write_bytes(out.read_bytes()[:-3])
    done = ds4("kv", "import", other, out)
    assert done.returncode == 1
    assert "instead of" in done.stderr


def test_files_of_the_other_engine(ds4: Any, where: Path, tmp_path: Path) -> None:
    """Out of a store and into another one: the same state, found by the same prompt."""
    other, cache = tmp_path / "other", tmp_path / "cache"
    cache.mkdir()
    with Model.open_embedded() as model, KVStore(where) as store, model.session(n_ctx=256) as session:
        tokens = [*model.tokenizer.encode("A question. "), model.tokenizer.eos_id, *model.tokenizer.encode("More.")] * 5
        key = b"".join(
            b"\xff" * model.tokenizer.is_special(t) + model.tokenizer.token_bytes(t) for t in tokens
        )  # as a rendered prompt has it
        session.sync(tokens)
        logits = session.logits()
        entry = store.save(session, key, reason="evict", tool_blocks={"call_1": "<x>"})
        assert entry is not None
    for quant in ([], ["--quant", "2"]):
        done = ds4("kv", "export", where, entry.name, cache, "--kvc", "--force", *quant)
        assert done.returncode == 0, done.stderr
        [path] = cache.iterdir()
        assert read_kvc(path).quant == (2 if quant else 4)
    assert path.name == kvc_name(key.replace(b"\xff", b""))
    assert path.stat().st_mode & 0o777 == 0o600
    again = ds4("kv", "export", where, entry.name, cache, "--kvc", "--quant", "2")
    assert (again.returncode, str(path) in again.stderr) == (1, True)
    facts = json.loads(ds4("kv", "import", other, path, "--json").stdout)
    assert (facts["name"], facts["reason"], facts["calls"]) == (entry.name, "evict", ["call_1"])
    with Model.open_embedded() as model, KVStore(other) as store, model.session(n_ctx=256) as session:
        hit = store.lookup(key, model=entry.model, settings=entry.settings, n_ctx=256)
        assert hit is not None
        with hit:
            hit.load(session)
        np.testing.assert_array_equal(session.logits(), logits)
    path.write_bytes(path.read_bytes()[:-5])
    done = ds4("kv", "import", other, path)
    assert done.returncode == 0  # the list of tool calls alone is cut
    path.write_bytes(path.read_bytes()[:3000])
    done = ds4("kv", "import", other, path)
    assert done.returncode == 1
    assert "cut short" in done.stderr
    assert str(path) in done.stderr


def test_options_of_the_model_are_for_other_files(ds4: Any, where: Path, entries: list[Entry], tmp_path: Path) -> None:
    assert ds4("kv", "export", where, entries[0].name, tmp_path / "x", "--quant", "2").returncode == 2
    assert ds4("kv", "export", where, entries[0].name, tmp_path / "x", "-m", "y.gguf").returncode == 2
    assert ds4("kv", "export", where, entries[0].name, tmp_path / "x").returncode == 0
    assert ds4("kv", "import", where, tmp_path / "x", "--no-qat").returncode == 2
    done = ds4("kv", "export", where, entries[0].name, tmp_path, "--kvc", "--quant", "2")
    assert done.returncode == 1
    assert "another model file" in done.stderr


@pytest.mark.parametrize(
    "args", [["list"], ["show", "NAME"], ["check"], ["prune", "--budget", "1"], ["export", "NAME", "OUT"]]
)
def test_a_directory_that_is_not_there(ds4: Any, where: Path, tmp_path: Path, args: list[str]) -> None:
    done = ds4("kv", args[0], where, *(str(tmp_path / "out") if a == "OUT" else a for a in args[1:]))
    assert done.returncode == 1
    assert str(where) in done.stderr
    assert not where.exists()


def test_help_teaches(ds4: Any) -> None:
    for command in ("list", "show", "check", "prune", "export", "import"):
        done = ds4("kv", command, "-h")
        assert done.returncode == 0
        assert "Examples:" in done.stdout.split("\n\n")[1]
    assert "ds4 kv prune" in ds4("kv", "-h").stdout
