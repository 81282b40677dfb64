"""The store of session states, as jobs use it: what is fetched from it, and what is put there.

Everything here may take a while, and runs in a thread beside the worker while the job whose session it is stands still.
Faults of the store are misses: no request fails because of them.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ...chat.protocol import ASSISTANT, USER
from ...kvstore import Hit, KVStore, Reason, SavePolicy, Staged, StoreDamageError, session_settings
from ...model import Model
from ...tokenizer import Tokenizer
from .pool import Slot
from .replay import key_of_tokens
from .statistics import Statistics

log = logging.getLogger("ds4.server")


@dataclass(frozen=True, slots=True)
class Fetched:
    """A state that was found, and perhaps loaded.

    Parameters
    ----------
    hit : Hit
        To be rejected if the state proves to be of no use; to be released either way.
    tokens : array of int
        Tokens of the prompt: where the state was computed from other tokens of the same bytes, those.
    kept : int
        Tokens of the state.
    """

    hit: Hit
    tokens: array[int]
    kept: int


class Storage:
    """Fetches and saves states.

    Parameters
    ----------
    store : KVStore
    policy : SavePolicy
    model : Model
    statistics : Statistics
    n_ctx : int
    """

    def __init__(self, store: KVStore, policy: SavePolicy, model: Model, statistics: Statistics, n_ctx: int) -> None:
        self.policy = policy
        self._store = store
        self._fingerprint = model.fingerprint
        self._tokenizer: Tokenizer = model.tokenizer
        self._statistics = statistics
        self._n_ctx = n_ctx
        self._user = self._tokenizer.special(USER)
        self._assistant = self._tokenizer.special(ASSISTANT)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ds4-save")

    def find_blocks(self, names: Sequence[str]) -> Mapping[str, str]:
        """Return what the store has of turns with calls."""
        return self._store.find_tool_blocks(names, model=self._fingerprint)

    def stops(self, tokens: array[int], reused: int) -> list[tuple[int, Reason]]:
        """Return where a prefill should stop to save, and why."""
        return self.policy.stops(tokens, reused, user=self._user, assistant=self._assistant)

    def find(self, slot: Slot, tokens: array[int], key: bytes, kept: int) -> Fetched | None:
        """Find the longest stored state of a prompt, if it has more than `kept` tokens of it, and hold its files.

        Nothing that is saved from now on takes them away.
        """
        if len(tokens) - kept < self.policy.min_tokens:
            return None
        hit = self._store.lookup(
            key, model=self._fingerprint, settings=session_settings(slot.session), n_ctx=self._n_ctx
        )
        if hit is None:
            return None
        try:
            grafted = graft(self._tokenizer, tokens, hit.tokens, len(hit.key)) if hit.n_tokens > kept else None
        except BaseException:
            hit.release()
            raise
        if grafted is None or not hit.n_tokens <= len(grafted) < self._n_ctx:
            hit.release()
            return None
        return Fetched(hit, grafted, hit.n_tokens)

    def load(self, slot: Slot, found: Fetched) -> bool:
        """Load a state that was found into a session, and return whether that was possible."""
        hit = found.hit
        try:
            slot.tokens = array("i")  # until it is known what the session holds
            hit.load(slot.session)
            slot.tokens = array("i", hit.tokens)
        except StoreDamageError as error:
            log.warning("a stored state cannot be used, the prompt is computed: %s", error)
            slot.session.reset()
            slot.tokens = array("i")
            hit.release()
            self._statistics.count("store_total", "damaged")
            return False
        except BaseException:
            hit.release()
            raise
        self._statistics.count("store_total", "loaded")
        return True

    def save(self, slot: Slot, reason: Reason, *, wait: bool = False) -> None:
        """Take the state out of a session; it is written while the session goes on."""
        n = len(slot.tokens)
        if n < self.policy.min_tokens or slot.saved == n:
            return
        if reason in ("evict", "shutdown"):
            self._save_question(slot, reason)
        key = key_of_tokens(self._tokenizer, slot.tokens)
        blocks = slot.blocks
        if reason in ("cold", "continued"):  # in the middle of a conversation: what comes later does not belong there
            blocks = _blocks_of(key, blocks)
        staged = self._store.stage(slot.session, key, reason=reason, tool_blocks=blocks)
        slot.saved = n
        self._write(staged, reason, wait=wait)

    def _save_question(self, slot: Slot, reason: Reason) -> None:
        """Save the state before an answer as well, where the session can still go: the next prompt may begin there.

        It does when the history is rendered without reasoning, and when the same question is asked again.
        """
        at = slot.turn - 1
        if not self.policy.min_tokens <= at < len(slot.tokens) or at not in slot.session.checkpoints:
            return
        key = key_of_tokens(self._tokenizer, slot.tokens[:at])
        blocks = _blocks_of(key, slot.blocks)
        staged = self._store.stage(slot.session, key, reason=reason, at=at, tool_blocks=blocks)
        self._write(staged, reason, wait=True)  # so that the whole state, staged next, shares its rows

    def _write(self, staged: Staged | None, reason: Reason, *, wait: bool) -> None:
        if staged is None:
            self._statistics.count("store_total", "not_saved")
        elif wait:
            self._commit(staged, reason)
        else:
            self._writer.submit(self._commit, staged, reason)

    def _commit(self, staged: Staged, reason: Reason) -> None:
        try:
            entry = staged.commit()
            self._statistics.count("store_total", "not_saved" if entry is None else f"saved_{reason}")
        except Exception:
            log.exception("a session state was not saved")
            self._statistics.count("store_total", "not_saved")

    def close(self) -> None:
        """Wait for what is being written."""
        self._writer.shutdown(wait=True)


def _blocks_of(key: bytes, blocks: Mapping[str, str]) -> dict[str, str]:
    """Return the texts that a key has in it."""
    text_of_key = key.replace(b"\xff", b"")
    return {name: text for name, text in blocks.items() if text.encode() in text_of_key}


def graft(tokenizer: Tokenizer, tokens: array[int], stored: Sequence[int], n_bytes: int) -> array[int] | None:
    """Put the tokens of a stored state in place of those of a prompt that have the same bytes.

    Parameters
    ----------
    tokens : array of int
        Tokens of the prompt.
    stored : sequence of int
        Tokens of the state.
    n_bytes : int
        Length of its key, which is a prefix of the prompt's.

    Returns
    -------
    array of int or None
        None if the text would have to be cut where the tokenizer would not cut it: next to no special token.
    """
    head = array("i", stored)
    if head == tokens[: len(head)]:
        return tokens
    offset = i = 0
    while offset < n_bytes and i < len(tokens):
        offset += len(tokenizer.token_bytes(tokens[i])) + tokenizer.is_special(tokens[i])
        i += 1
    if offset != n_bytes:
        return None
    if i < len(tokens) and not (tokenizer.is_special(tokens[i]) or tokenizer.is_special(head[-1])):
        return None
    return head + tokens[i:]
