"""Saved conversations: what comes back, without computing, and what becomes of faults."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ds4
import pytest
from ds4.cli.chats import ChatError, Chats
from ds4.cli.conversation import Conversation
from ds4.cli.reply import make_reply
from ds4.sampling import Sampler

from .test_units import Recorder


@pytest.fixture(scope="module")
def model(model_path: Path) -> Iterator[ds4.Model]:
    with ds4.Model.open(model_path) as opened:
        yield opened


def ask(chat: Conversation, session: ds4.Session, text: str) -> Any:
    reply = make_reply(
        session, chat.add(text), Recorder(), thinking=chat.thinking, sampler=Sampler.greedy(), max_tokens=5
    )
    chat.set_reply(reply.tokens)
    return reply


@pytest.fixture
def talked(model: ds4.Model) -> Iterator[tuple[Conversation, ds4.Session]]:
    """A conversation of two turns, the first one thinking."""
    chat = Conversation(model.tokenizer, system="Be brief.", mode="think")
    with model.session(n_ctx=400) as session:
        ask(chat, session, "one <｜User｜> two")
        chat.mode = "nothink"
        ask(chat, session, "and then?")
        yield chat, session


def test_a_loaded_conversation_goes_on_without_computing(
    model: ds4.Model, talked: tuple[Conversation, ds4.Session], tmp_path: Path
) -> None:
    chat, session = talked
    chats = Chats(tmp_path / "my chats")
    assert chats.save("a name with spaces, é", chat, session) == []
    assert chats.names() == ["a name with spaces, é"]
    with model.session(n_ctx=300) as other:
        loaded = chats.load("a name with spaces, é", other)
        assert loaded.notices == []
        assert loaded.n_held == loaded.n_tokens == len(chat.tokens())
        assert loaded.chat.turns == chat.turns
        assert (loaded.chat.mode, loaded.chat.system) == ("nothink", "Be brief.")
        again, before = ask(loaded.chat, other, "more"), ask(chat, session, "more")
        assert again.tokens == before.tokens and other.logits().tobytes() == session.logits().tobytes()
        assert again.n_kept == before.n_kept == loaded.n_tokens


def test_saved_files_are_private(talked: tuple[Conversation, ds4.Session], tmp_path: Path) -> None:
    Chats(tmp_path / "c").save("x", *talked)
    for path in (tmp_path / "c", *(tmp_path / "c").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_after_undo_the_state_is_that_of_the_conversation(
    model: ds4.Model, talked: tuple[Conversation, ds4.Session], tmp_path: Path
) -> None:
    """The session holds a turn more; it goes back to a checkpoint, and what that leaves out is computed."""
    chat, session = talked
    first = chat.turns[0]
    chat.drop_last()
    chats = Chats(tmp_path)
    assert chats.save("x", chat, session) == []
    with model.session(n_ctx=300) as other:
        loaded = chats.load("x", other)
        assert loaded.chat.turns == [first]
        assert 0 < loaded.n_held < loaded.n_tokens
        assert ask(loaded.chat, other, "more").tokens == ask(chat, session, "more").tokens


@pytest.mark.parametrize("harm", ["gone", "damaged", "cut", "settings"])
def test_without_its_state_it_is_computed(
    model: ds4.Model, talked: tuple[Conversation, ds4.Session], tmp_path: Path, harm: str
) -> None:
    chat, session = talked
    chats = Chats(tmp_path)
    chats.save("x", chat, session)
    files = [p for p in (tmp_path / "states").rglob("*") if p.suffix in (".state", ".rows")]
    assert files
    for path in files:
        if harm == "gone":
            path.unlink()
        elif harm == "cut":
            os.truncate(path, path.stat().st_size // 2)
        elif harm == "damaged":
            data = bytearray(path.read_bytes())
            data[-1000:] = bytes(b ^ 0x55 for b in data[-1000:])
            path.write_bytes(data)
    with model.session(n_ctx=300, qat=harm != "settings") as other:
        loaded = chats.load("x", other)
        assert loaded.n_held == 0 and other.pos == 0
        assert loaded.notices[-1] == f"{loaded.n_tokens} tokens will be computed with the next message"
        assert len(loaded.notices) >= 2
        if harm != "settings":
            assert ask(loaded.chat, other, "more").tokens == ask(chat, session, "more").tokens


def test_a_full_disk_keeps_the_earlier_transcript(
    talked: tuple[Conversation, ds4.Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = Chats(tmp_path)
    chats.save("x", *talked)
    before = (tmp_path / "x.json").read_bytes()

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as error:
        chats.save("x", *talked)
    assert error.value.filename == str(tmp_path / "x.json")
    assert (tmp_path / "x.json").read_bytes() == before
    assert not list(tmp_path.glob(".saving*"))


def test_a_store_that_cannot_be_opened_costs_the_state_only(
    model: ds4.Model, talked: tuple[Conversation, ds4.Session], tmp_path: Path
) -> None:
    (tmp_path / "states").write_text("in the way")
    chats = Chats(tmp_path)
    told = chats.save("x", *talked)
    assert "was not stored" in told[-1] and len(told) == 2
    with model.session(n_ctx=300) as other:
        loaded = chats.load("x", other)
        assert loaded.n_held == 0 and loaded.chat.turns == talked[0].turns and len(loaded.notices) == 2


@pytest.mark.parametrize("name", ["", " ", " x", "a\nb", "x" * 201, "é" * 40])
def test_names_that_are_none(talked: tuple[Conversation, ds4.Session], tmp_path: Path, name: str) -> None:
    with pytest.raises(ChatError, match="name"):
        Chats(tmp_path).save(name, *talked)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["../x", "/etc/x", ".", "..", "-rf", "%2e"])
def test_names_that_look_like_paths_stay_in_the_directory(
    talked: tuple[Conversation, ds4.Session], tmp_path: Path, name: str
) -> None:
    chats = Chats(tmp_path / "chats")
    chats.save(name, *talked)
    assert chats.names() == [name]
    assert [p.name for p in tmp_path.iterdir()] == ["chats"]


def test_no_place_and_nothing_to_save(talked: tuple[Conversation, ds4.Session], tmp_path: Path) -> None:
    chat, session = talked
    assert Chats(None).names() == Chats(tmp_path / "none").names() == []
    with pytest.raises(ChatError, match="home directory"):
        Chats(None).save("x", chat, session)
    chat.turns.clear()
    with pytest.raises(ChatError, match="nothing to save"):
        Chats(tmp_path).save("x", chat, session)
    with pytest.raises(ChatError, match="/list"):
        Chats(tmp_path).load("x", session)


def test_a_conversation_that_does_not_fit(
    model: ds4.Model, talked: tuple[Conversation, ds4.Session], tmp_path: Path
) -> None:
    chats = Chats(tmp_path)
    chats.save("x", *talked)
    n = len(talked[0].tokens())
    with model.session(n_ctx=n) as other, pytest.raises(ChatError, match=f"/ctx {n + 1}"):
        chats.load("x", other)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2),
        ("mode", "loud"),
        ("system", 5),
        ("system", "\ud800"),
        ("model", None),
        ("turns", []),
        ("turns", [5]),
        ("turns.text", None),
        ("turns.text", "\udfff"),
        ("turns.thinking", 1),
        ("turns.reply", "abc"),
        ("turns.reply", [-1]),
        ("turns.reply", [True]),
        ("turns.reply", [10**9]),
        ("turns.reply", [1.5]),
        ("turns.reply_text", "other words"),
    ],
)
def test_damaged_transcripts_are_refused_whole(
    talked: tuple[Conversation, ds4.Session], tmp_path: Path, field: str, value: object
) -> None:
    chat, session = talked
    chats = Chats(tmp_path)
    chats.save("x", chat, session)
    path = tmp_path / "x.json"
    facts = json.loads(path.read_text())
    place, _, inner = field.partition(".")
    if inner:
        facts[place][1][inner] = value
    else:
        facts[place] = value
    path.write_text(json.dumps(facts))
    held = session.tokens
    with pytest.raises(ChatError, match=r"x\.json"):
        chats.load("x", session)
    assert session.tokens == held
    assert [s.name for s in chats.summaries(b"")] == ["x"]  # /list goes on


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"version": 1}', b"[" * 100_000])
def test_files_that_are_no_transcripts(
    talked: tuple[Conversation, ds4.Session], tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ChatError, match="damaged"):
        Chats(tmp_path).load("x", talked[1])
    (found,) = Chats(tmp_path).summaries(b"")
    assert found.problem


def test_summaries_are_the_newest_first(talked: tuple[Conversation, ds4.Session], tmp_path: Path) -> None:
    chats = Chats(tmp_path)
    for name in ("old", "new"):
        chats.save(name, *talked)
    new, old = chats.summaries(talked[1].model.fingerprint)
    assert (new.name, old.name) == ("new", "old")
    assert (new.n_turns, new.first, new.same_model) == (2, "one <｜User｜> two", True)
    assert not chats.summaries(b"other")[0].same_model


def test_deleting(model: ds4.Model, talked: tuple[Conversation, ds4.Session], tmp_path: Path) -> None:
    """What only this conversation needs goes from the store, what another one begins with stays."""
    chat, session = talked
    chats = Chats(tmp_path)
    chats.save("first", chat, session)
    ask(chat, session, "go on")
    chats.save("longer", chat, session)
    store = tmp_path / "states"

    def lengths() -> list[int]:
        from ds4.kvstore import KVStore

        with KVStore(store, read_only=True) as opened:
            return sorted(e.n_tokens for e in opened.entries())

    assert len(lengths()) == 2
    with pytest.raises(ChatError, match="nothing is saved under 'fir'"):  # the name in full
        chats.delete("fir", model)
    assert chats.delete("longer", model) == [] and chats.names() == ["first"]
    assert len(lengths()) == 1
    with model.session(n_ctx=300) as other:
        loaded = chats.load("first", other)
        assert loaded.n_held == loaded.n_tokens
    ask(chat, session, "once more")
    chats.save("again", chat, session)
    assert chats.delete("first", model) == []
    assert len(lengths()) == 2  # "again" begins with it
    assert chats.delete("again", model) == [] and lengths() == [] and chats.names() == []
    assert not [p for p in store.rglob("*") if p.suffix in (".state", ".rows")]


def test_deleting_what_is_damaged_or_of_another_model(
    model: ds4.Model, talked: tuple[Conversation, ds4.Session], tmp_path: Path
) -> None:
    chats = Chats(tmp_path)
    chats.save("a", *talked)
    chats.save("b", *talked)
    (tmp_path / "a.json").write_text("{")
    (notice,) = chats.delete("a", model)
    assert "cannot be told from here and stays" in notice and "ds4 kv list" in notice
    with ds4.Model.open_embedded() as other:
        (notice,) = chats.delete("b", other)
    assert "stays" in notice and chats.names() == []
    with pytest.raises(ChatError, match="nothing is saved"):
        chats.delete("b", model)
    with pytest.raises(ChatError, match="no name"):
        chats.delete(" b", model)
    assert Chats(None).names() == []
    with pytest.raises(ChatError, match="no home directory"):
        Chats(None).delete("b", model)
