"""Saved conversations: a transcript in a file of its own, and the state of the session in a store beside it.

The transcript is all that a conversation needs; the state saves computing it again. So a state that is gone, damaged
or of other settings only costs time. Both are readable for their owner only.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ds4 import Model, Session, Tokenizer
from ds4.kvstore import KVStore, StoreDamageError, session_settings
from ds4.user_cache import write_private

from .conversation import MODES, Conversation, Turn

_VERSION = 1
_SUFFIX = ".json"
_MOST_BYTES = 256 << 20
_LONGEST_NAME = 200
_STATES = "states"


class ChatError(ValueError):
    """A saved conversation cannot be used, or a name is no name for one."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A saved conversation in a list. `problem` says why it cannot be read."""

    name: str
    saved: float
    n_turns: int = 0
    first: str = ""
    same_model: bool = True
    problem: str | None = None


@dataclass(slots=True)
class Loaded:
    """A conversation that was loaded, how many positions the session holds of it, and what to tell about that."""

    chat: Conversation
    n_tokens: int
    n_held: int = 0
    notices: list[str] = field(default_factory=list)


def chats_directory() -> Path | None:
    """Return where conversations are saved; None for a user without a home directory."""
    try:
        return Path.home() / ".ds4" / "chats"
    except RuntimeError:
        return None


class Chats:
    """The saved conversations of a directory.

    Parameters
    ----------
    directory : Path or None
        Made with the first save. None when there is nowhere to save.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def names(self) -> list[str]:
        """Return the names, sorted."""
        if self._directory is None:
            return []
        try:
            found = [entry.name for entry in os.scandir(self._directory) if entry.name.endswith(_SUFFIX)]
        except FileNotFoundError:
            return []
        return sorted(unquote(name.removesuffix(_SUFFIX)) for name in found if not name.startswith("."))

    def summaries(self, model: bytes) -> list[Summary]:
        """Return what is saved, the newest first."""
        out = []
        for name in self.names():
            path = self._path(name)
            try:
                facts = _read(path)
                turns = facts["turns"]
                first = turns[0]["text"] if turns else ""
                out.append(Summary(name, float(facts["saved"]), len(turns), str(first), facts["model"] == model.hex()))
            except (OSError, ChatError, KeyError, TypeError, ValueError) as error:
                with contextlib.suppress(OSError):
                    out.append(Summary(name, path.stat().st_mtime, problem=str(error) or type(error).__name__))
        return sorted(out, key=lambda s: (-s.saved, s.name))

    def save(self, name: str, chat: Conversation, session: Session) -> list[str]:
        """Save a conversation under a name, in the place of an earlier one; returns what to tell about the state.

        Raises
        ------
        ChatError
            The name is no name, or there is nothing to save.
        OSError
            The transcript cannot be written. An earlier one is as it was.
        """
        path = self._path(name)
        if not chat.turns:
            raise ChatError("there is nothing to save yet")
        tokenizer = chat.tokenizer
        facts = {
            "version": _VERSION, "name": name, "saved": time.time(), "model": session.model.fingerprint.hex(),
            "mode": chat.mode, "system": chat.system,
            "turns": [
                {"text": t.text, "thinking": t.thinking, "reply": t.reply, "reply_text": tokenizer.decode(t.reply)}
                for t in chat.turns
            ],
        }  # fmt: skip
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(path, json.dumps(facts, ensure_ascii=False, allow_nan=False).encode())
        return self._save_state(chat.tokens(), session)

    def _save_state(self, ids: list[int], session: Session) -> list[str]:
        assert self._directory is not None
        held = session.tokens
        common = next((i for i, (a, b) in enumerate(zip(held, ids, strict=False)) if a != b), min(len(held), len(ids)))
        if common < len(held):  # after /undo it holds more than the conversation
            session.rewind(common)
        if session.pos == 0:
            return ["the session holds nothing of it, so loading it will mean computing it"]
        key = _key(session.model.tokenizer, session.tokens)
        with _told() as notices:
            try:
                with KVStore(self._directory / _STATES) as store:
                    entry = store.save(session, key, reason="shutdown")
            except OSError as error:
                notices.append(f"{self._directory / _STATES}: {error.strerror or error}")
                entry = None
        if entry is not None:
            return notices
        return [*notices, "the state of the session was not stored: loading will mean computing the conversation"]

    def load(self, name: str, session: Session) -> Loaded:
        """Load a conversation, and its state into the session if there is one.

        Raises
        ------
        ChatError
            There is no such conversation, it is damaged, its tokens are not those of this model, or it does not fit
            into the context. The session is unchanged.
        OSError
            It cannot be read.
        """
        path = self._path(name)
        try:
            facts = _read(path)
        except FileNotFoundError:
            raise ChatError(f"nothing is saved under {name!r}; /list shows what is") from None
        chat = _conversation(facts, path, session.model.tokenizer)
        ids = chat.tokens()
        if len(ids) >= session.n_ctx:
            raise ChatError(
                f"{name!r} has {len(ids)} tokens, the context has room for {session.n_ctx}; use /ctx {len(ids) + 1} "
                "or more first"
            )
        loaded = Loaded(chat, len(ids))
        if facts["model"] != session.model.fingerprint.hex():
            loaded.notices.append("it was saved with another model")
        self._load_state(loaded, ids, session)
        if loaded.n_held < len(ids):
            loaded.notices.append(f"{len(ids) - loaded.n_held} tokens will be computed with the next message")
        return loaded

    def _load_state(self, loaded: Loaded, ids: list[int], session: Session) -> None:
        """Load the state of a conversation, if it is there and sound."""
        assert self._directory is not None
        model = session.model
        with _told() as notices:
            try:
                with KVStore(self._directory / _STATES) as store:
                    hit = store.lookup(
                        _key(model.tokenizer, ids),
                        model=model.fingerprint,
                        settings=session_settings(session),
                        n_ctx=session.n_ctx,
                    )
                    if hit is not None:
                        with hit:
                            if hit.tokens == ids[: hit.n_tokens]:
                                loaded.n_held = hit.load(session)
            except StoreDamageError as error:
                session.reset()
                notices.append(f"its stored state is damaged: {error}")
            except OSError as error:
                notices.append(f"its stored state cannot be read: {error.filename}: {error.strerror or error}")
        if not loaded.n_held and not notices:
            notices.append("its stored state is gone")
        loaded.notices += notices

    def delete(self, name: str, model: Model) -> list[str]:
        """Delete a conversation and what the store holds of it alone; returns what to tell about that.

        Raises
        ------
        ChatError
            There is no such conversation.
        OSError
            The transcript cannot be deleted.
        """
        path = self._path(name)
        key = self._key_of(path, model)
        try:
            path.unlink()
        except FileNotFoundError:
            raise ChatError(f"nothing is saved under {name!r}; /list shows what is") from None
        assert self._directory is not None
        states = self._directory / _STATES
        if not states.is_dir():
            return []
        if key is None:
            return [f"what {states} holds of it cannot be told from here and stays; ds4 kv list {states} shows it"]
        others = [k for k in (self._key_of(self._path(n), model) for n in self.names()) if k is not None]
        kept = 0
        with _told() as notices:
            try:
                with KVStore(states) as store:
                    for entry in store.entries():
                        if entry.model != model.fingerprint:
                            continue
                        held = store.read_key(entry)
                        if key.startswith(held) and not any(other.startswith(held) for other in others):
                            kept += not store.remove(entry)
            except (OSError, StoreDamageError) as error:
                notices.append(f"{states}: {error}")
        if kept:
            notices.append(f"{kept} of its states are in use and stay in {states}")
        return notices

    def _key_of(self, path: Path, model: Model) -> bytes | None:
        """Return the key of a saved conversation; None if it is of another model, damaged or gone."""
        try:
            facts = _read(path)
            if facts.get("model") != model.fingerprint.hex():
                return None
            return _key(model.tokenizer, _conversation(facts, path, model.tokenizer).tokens())
        except (ChatError, OSError):
            return None

    def _path(self, name: str) -> Path:
        if self._directory is None:
            raise ChatError("there is no home directory to save conversations in")
        encoded = quote(name, safe=" !#$&'()+,-=@_~")
        encoded = "%2E" + encoded[1:] if encoded.startswith(".") else encoded
        if not name.isprintable() or not name.strip() or name != name.strip():
            raise ChatError(f"{name!r} is no name for a conversation")
        if len(encoded) > _LONGEST_NAME:
            raise ChatError(f"a name has at most {_LONGEST_NAME} bytes; signs outside of ASCII take several")
        return self._directory / (encoded + _SUFFIX)


def _write(path: Path, data: bytes) -> None:
    """Write a file that appears when it is complete, readable for its owner only; an error names it."""
    try:
        write_private(path, data)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from None


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as f:
        size = os.fstat(f.fileno()).st_size
        if size > _MOST_BYTES:
            raise ChatError(f"{path} is damaged: {size} bytes are too many")
        data = f.read(_MOST_BYTES)
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ChatError(f"{path} is damaged: {error}") from None
    if not isinstance(facts, dict) or facts.get("version") != _VERSION:
        raise ChatError(f"{path} is damaged, or of another release of ds4")
    return facts


def _conversation(facts: dict[str, Any], path: Path, tokenizer: Tokenizer) -> Conversation:
    """Make the conversation that a file tells of, every field checked."""

    def need(good: bool, what: str) -> None:
        if not good:
            raise ChatError(f"{path} is damaged: {what}")

    system, mode, turns = facts.get("system"), facts.get("mode"), facts.get("turns")
    need(system is None or (isinstance(system, str) and _is_text(system)), "system")
    need(mode in MODES, "mode")
    need(isinstance(facts.get("model"), str), "model")
    if not isinstance(turns, list) or not turns:
        raise ChatError(f"{path} is damaged: turns")
    assert isinstance(mode, str)
    chat = Conversation(tokenizer, system=system, mode=mode)
    for i, facts_of_turn in enumerate(turns):
        where = f"turn {i + 1}"
        need(isinstance(facts_of_turn, dict), where)
        text, thinking, reply, reply_text = (facts_of_turn.get(k) for k in ("text", "thinking", "reply", "reply_text"))
        need(isinstance(text, str) and _is_text(text) and type(thinking) is bool, where)
        need(isinstance(reply, list) and all(type(t) is int and t >= 0 for t in reply), where)
        if any(t >= tokenizer.n_vocab for t in reply) or tokenizer.decode(reply) != reply_text:
            raise ChatError(f"{path} was saved with a model that has other tokens, or is damaged ({where})")
        turn: Turn = chat.turn(text, thinking=thinking)
        turn.reply = list(reply)
        chat.turns.append(turn)
    return chat


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _key(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    """Return the bytes of tokens, with 0xFF before each special one, as `Prompt.key` does."""
    return b"".join(b"\xff" * tokenizer.is_special(t) + tokenizer.token_bytes(t) for t in ids)


@contextlib.contextmanager
def _told() -> Iterator[list[str]]:
    """Collect what the store says in its log."""
    notices: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            notices.append(record.getMessage())

    log, collector = logging.getLogger("ds4.kvstore"), Collector(logging.WARNING)
    propagate, log.propagate = log.propagate, False
    log.addHandler(collector)
    try:
        yield notices
    finally:
        log.removeHandler(collector)
        log.propagate = propagate
