"""What the model wrote, kept so that a history can be rendered and tokenized exactly as it was.

A client sends its history back as messages. Rendered anew, a call may differ from what the model wrote (spaces, order
of keys, forms of numbers), hidden reasoning may be missing, and the same text may be cut into other tokens than those
that were drawn. Each of these would make the model read something else than it wrote, and break the cached prefix. So
two things are remembered, within bounds:

- `ToolMemory`: the id of a call -> the turn that made it, as text. Ids are random, so this never mixes conversations.
- `TurnMemory`: the bytes of a conversation up to the end of a turn -> the tokens that were drawn in that turn, when
  they are not those that the tokenizer would choose.

Both decide what a request's prompt is. Whether states of it are cached anywhere has no influence on that.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...chat import Prompt, Special, Text, parse_completion
from ...chat.jsontext import loads
from ...chat.protocol import END_THINK, EOS, split_specials
from ...tokenizer import Tokenizer
from .bounded import BoundedDict

_EOS_KEY = b"\xff" + EOS.encode()


@dataclass(frozen=True, slots=True)
class WrittenTurn:
    """A turn with calls as the model wrote it.

    Parameters
    ----------
    reasoning, content : str
        Text before the block.
    block : str
        The block, with everything between content and end of turn.
    calls : tuple of (id, name, arguments)
    """

    reasoning: str
    content: str
    block: str
    calls: tuple[tuple[str, str, str], ...]

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        return 200 + len(self.reasoning) + len(self.content) + len(self.block) + sum(len(c[2]) for c in self.calls)


class ToolMemory:
    """Turns with calls by the ids of their calls.

    Parameters
    ----------
    max_ids, max_bytes : int
        Bounds; the turns that were not asked for longest go first.
    """

    def __init__(self, max_ids: int, max_bytes: int) -> None:
        self._turns: BoundedDict[str, WrittenTurn] = BoundedDict(max_bytes, max_ids)

    def __len__(self) -> int:
        return len(self._turns)

    def get(self, call_id: str) -> WrittenTurn | None:
        """Return the turn that made a call, or None."""
        return self._turns.get(call_id)

    def put(self, turn: WrittenTurn) -> None:
        """Remember a turn under the ids of all its calls."""
        for call_id, _, _ in turn.calls:
            self._turns.put(call_id, turn, turn.weight // len(turn.calls))


def restore(
    messages: Sequence[Mapping[str, Any]], turns: Mapping[int, WrittenTurn]
) -> tuple[list[Mapping[str, Any]], dict[int, str], int]:
    """Bring turns with calls back to what the model wrote.

    Reasoning that the client left out comes back, and so does content that it trimmed; content and calls that it
    changed stay as they are.

    Parameters
    ----------
    messages : sequence of mappings
    turns : mapping of int to WrittenTurn
        What is known, by the place among the messages.

    Returns
    -------
    messages : list of mappings
    blocks : dict of int to str
        For `ds4.chat.render`.
    n_unknown : int
        Turns with calls that nothing is known about.
    """
    out: list[Mapping[str, Any]] = list(messages)
    blocks: dict[int, str] = {}
    n_unknown = 0
    for i, message in enumerate(messages):
        calls = message.get("tool_calls")
        if not calls:
            continue
        turn = turns.get(i)
        if turn is None or not _same_calls(calls, turn):
            n_unknown += 1
            continue
        content = message.get("content")
        if content is None or (isinstance(content, str) and content.strip() == turn.content.strip()):
            content = turn.content
        reasoning = message.get("reasoning_content") or turn.reasoning
        out[i] = {**message, "content": content, "reasoning_content": reasoning}
        blocks[i] = turn.block
    return out, blocks, n_unknown


def call_ids(message: Mapping[str, Any]) -> list[str]:
    """Return the ids of a message's calls; none unless every call has one."""
    calls = message.get("tool_calls")
    if not isinstance(calls, Sequence) or isinstance(calls, (str, bytes)):
        return []
    ids = [call.get("id") if isinstance(call, Mapping) else None for call in calls]
    return [i for i in ids if isinstance(i, str)] if all(isinstance(i, str) for i in ids) else []


def _same_calls(calls: Any, turn: WrittenTurn) -> bool:
    """Tell whether a client's calls are those of a turn."""
    if not isinstance(calls, Sequence) or not all(isinstance(call, Mapping) for call in calls):
        return False  # check_messages says what is wrong with it
    return len(turn.calls) == len(calls) and all(map(_same_call, calls, turn.calls))


def _same_call(call: Mapping[str, Any], written: tuple[str, str, str]) -> bool:
    function = call.get("function")
    if not isinstance(function, Mapping) or (call.get("id"), function.get("name")) != written[:2]:
        return False
    arguments = function.get("arguments")
    if arguments == written[2]:
        return True
    try:
        value = loads(arguments) if isinstance(arguments, str) else arguments
        return _equal(value, loads(written[2]))
    except ValueError:
        return False


def _equal(a: Any, b: Any) -> bool:
    """Compare JSON values; 1 and 1.0 are equal, as they are for clients that know one kind of number only."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def written_turn(
    sampled: bytes, thinking: bool, reasoning: str, content: str, calls: Sequence[tuple[str, str, str]]
) -> WrittenTurn | None:
    """Describe a turn so that rendering it gives the same bytes, or return None if that is not possible.

    Parameters
    ----------
    sampled : bytes
        Key bytes of the tokens that were drawn, without the end of turn.
    thinking : bool
        Whether the prompt opened the reasoning.
    reasoning, content, calls
        What the parser found.
    """
    raw = sampled.replace(b"\xff", b"").decode("utf-8", "replace")
    before = f"{reasoning}{END_THINK}{content}" if thinking else content
    if not calls or not raw.startswith(before):
        return None
    block = raw[len(before) :]
    head = Text(reasoning), Special(END_THINK), Text(content)
    parts = [Special(piece) if i % 2 else Text(piece) for i, piece in enumerate(split_specials(block))]
    rendered = Prompt((*(head if thinking else head[2:]), *parts)).key()
    return WrittenTurn(reasoning, content, block, tuple(calls)) if rendered == sampled else None


# What a store of sessions keeps of turns with calls: a text for the id of each call, and another for what stood before.

_BEFORE = "#before"


def before_of(call_id: str) -> str:
    """Return the name under which the text before a call's block is stored."""
    return call_id + _BEFORE


def stored_blocks(turns: Collection[WrittenTurn]) -> dict[str, str]:
    """Return what a store keeps of turns; `turn_of_blocks` is the way back."""
    out: dict[str, str] = {}
    for turn in turns:
        for call_id, _, _ in turn.calls:
            out[call_id] = turn.block
            out[before_of(call_id)] = f"{turn.reasoning}{END_THINK}{turn.content}"
    return out


def turn_of_blocks(
    ids: Sequence[str], found: Mapping[str, str], tools: Sequence[Mapping[str, Any]]
) -> WrittenTurn | None:
    """Put a turn together from what a store has; None if it does not have all of it.

    Parameters
    ----------
    ids : sequence of str
        Ids of the turn's calls.
    found : mapping of str to str
        As from `stored_blocks`.
    tools : sequence of mappings
        For the types of arguments.
    """
    block, before = found.get(ids[0]), found.get(before_of(ids[0]))
    if block is None or before is None or any(found.get(i) != block for i in ids) or END_THINK not in before:
        return None
    reasoning, _, content = before.partition(END_THINK)
    calls = parse_completion(block, "chat", tools or [_ANY_TOOL]).tool_calls
    if len(calls) != len(ids):
        return None
    described = tuple((i, call.name, call.arguments) for i, call in zip(ids, calls, strict=True))
    return WrittenTurn(reasoning, content, block, described)


_ANY_TOOL = {"type": "function", "function": {"name": "any"}}  # a block is only read where there are tools


@dataclass(frozen=True, slots=True)
class _Drawn:
    start: int
    tokens: array[int]


class TurnMemory:
    """Tokens of turns, where they are not those of the tokenizer.

    Parameters
    ----------
    max_bytes : int
    """

    def __init__(self, max_bytes: int) -> None:
        self._turns: BoundedDict[bytes, _Drawn] = BoundedDict(max_bytes)

    def __len__(self) -> int:
        return len(self._turns)

    def put(self, prompt: bytes, turn: bytes, tokens: Sequence[int]) -> None:
        """Remember a turn.

        Parameters
        ----------
        prompt, turn : bytes
            Key bytes of the conversation before the turn, and of the turn without its end.
        tokens : sequence of int
            What was drawn.
        """
        digest = hashlib.blake2b(prompt, digest_size=16)
        digest.update(turn)
        self._turns.put(digest.digest(), _Drawn(len(prompt), array("i", tokens)), 200 + 4 * len(tokens))

    def find(self, key: bytes) -> dict[int, tuple[int, array[int]]]:
        """Return the remembered turns of a conversation: offset of the turn -> (offset of its end, tokens)."""
        found: dict[int, tuple[int, array[int]]] = {}
        if not len(self._turns):
            return found
        digest = hashlib.blake2b(digest_size=16)
        done = 0
        end = key.find(_EOS_KEY)
        while end >= 0:
            digest.update(memoryview(key)[done:end])
            done = end
            drawn = self._turns.get(digest.digest())
            if drawn is not None:
                found[drawn.start] = (end, drawn.tokens)
            end = key.find(_EOS_KEY, end + 1)
        return found


class TextCache:
    """Tokenizes texts, and remembers the results: the next prompt of a conversation repeats nearly all of them.

    Parameters
    ----------
    tokenizer : Tokenizer
    max_bytes : int
    """

    _SHORT = 32  # texts below this length are not worth a place

    def __init__(self, tokenizer: Tokenizer, max_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._known: BoundedDict[str, array[int]] = BoundedDict(max_bytes)

    def encode(self, text: str) -> array[int]:
        """Return the ids of a text, recognising no special token."""
        if len(text) < self._SHORT:
            return array("i", self._tokenizer.encode(text))
        ids = self._known.get(text)
        if ids is None:
            ids = array("i", self._tokenizer.encode(text))
            self._known.put(text, ids, 200 + 2 * len(text) + 4 * len(ids))
        return ids

    def encode_prompt(self, prompt: Prompt, drawn: Mapping[int, tuple[int, array[int]]]) -> array[int]:
        """Return the ids of a prompt, in which remembered turns keep the tokens that were drawn."""
        ids = array("i")
        offset = skip_to = 0
        for part in prompt.parts:
            special = isinstance(part, Special)
            if offset >= skip_to and offset in drawn:
                skip_to, tokens = drawn[offset]
                ids.extend(tokens)
            if offset >= skip_to:
                if special:
                    ids.append(self._tokenizer.special(part.text))
                else:
                    ids.extend(self.encode(part.text))
            offset += special + len(part.text.encode())
        return ids


def key_of_tokens(tokenizer: Tokenizer, tokens: Sequence[int]) -> bytes:
    """Return the bytes of tokens, with 0xFF before each special one: the key of the prompt that they make."""
    return b"".join(
        b"\xff" + tokenizer.token_bytes(t) if tokenizer.is_special(t) else tokenizer.token_bytes(t) for t in tokens
    )
