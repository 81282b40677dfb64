"""The tokenizer: text to token ids and back, built from the token table in a model file.

DeepSeek V4 uses byte-level BPE. Ids 0-2 are the beginning, end and pad tokens, ids 3-258 the single bytes, id 259+k the
product of merge k, and the ids behind them are added tokens, among them the protocol tokens of the chat format. Because
a merge's number is also its token's id, "join the adjacent pair whose joined bytes have the lowest id" is the whole
merge rule; tiktoken applies it, in O(n log n) from its version 0.13 on (earlier ones take quadratic time for long
pieces). Cutting a text into pieces, inside which merging happens, is one regular expression (`_PIECE`).

Encoding does not know special tokens unless it is asked to: text from a user stays text. What the chat
protocol puts between texts is added as ids (see `ds4.chat.Prompt`).
"""

from __future__ import annotations

import codecs
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, SupportsIndex

import regex  # type: ignore[import-untyped, unused-ignore]
import tiktoken

MODEL = "gpt2"
"""Value of `tokenizer.ggml.model` for byte-level BPE."""

PRE = "joyai-llm"
"""Name of V4's way of cutting text, the value of `tokenizer.ggml.pre`."""

_PRE_SYNONYMS = (PRE, "deepseek-v3")  # the expressions of both are the same

V4_SIZE = 129_280
FIRST_BYTE = 3
FIRST_MERGE = FIRST_BYTE + 256

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Values of `tokenizer.ggml.token_type`."""

_CONVERSATION = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
)
"""Tokens without which no conversation can be rendered."""

# The added tokens of V4 that carry a protocol meaning. Source: the tokenizer published with the model.
_V4_FIRST_PROTOCOL = 128_800
_V4_PROTOCOL = (
    "<｜fim▁hole｜> <｜fim▁begin｜> <｜fim▁end｜> <｜User｜> <｜Assistant｜> <|EOT|> "
    "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> "
    "<｜tool▁outputs▁begin｜> <｜tool▁outputs▁end｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜> <｜tool▁sep｜> "
    "<｜begin▁of▁repo▁name｜> <｜end▁of▁repo▁name｜> <｜begin▁of▁file▁name｜> <｜end▁of▁file▁name｜> "
    "<｜begin▁of▁file｜> <｜end▁of▁file｜> <think> </think> "
    "<｜place▁holder▁for▁copy｜> <｜place▁holder▁for▁pointer▁replace｜> ｜DSML｜ <｜begin▁sys｜> <｜end▁sys｜> "
    "<｜latest_reminder｜> <｜action｜> <｜query｜> <｜authority｜> <｜domain｜> <｜task｜> <｜political｜> "
    "<｜entity｜> <｜title｜> <｜safety｜> <｜answer｜> <｜search｜> <dsml: </dsml: "
    "<｜search▁begin｜> <｜search▁end｜> <｜extracted_url｜> <｜read_url｜> <｜end_of_query｜>"
)
_V4_TABLE = {
    0: "<｜begin▁of▁sentence｜>",
    1: "<｜end▁of▁sentence｜>",
    2: "<｜▁pad▁｜>",
    **dict(enumerate(_V4_PROTOCOL.split(), _V4_FIRST_PROTOCOL)),
}

_SHOWN_PROBLEMS = 20


def _byte_order() -> list[int]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return printable + [b for b in range(256) if b not in printable]


BYTE_ORDER = tuple(_byte_order())
"""The byte of each of the ids 3-258: printable Latin-1 first, then the other 68 in ascending order."""

BYTE_CHARS = dict(zip(BYTE_ORDER, [*map(chr, BYTE_ORDER[:188]), *map(chr, range(256, 324))], strict=True))
"""GPT-2's alphabet, byte to character: printable bytes stand for themselves, the others for U+0100 onward."""

_CHAR_BYTES = {char: byte for byte, char in BYTE_CHARS.items()}


def _piece_pattern() -> str:
    r"""Return the expression that cuts text into pieces.

    The published tokenizer cuts in three passes: digits in groups of up to three; runs of Han and kana;
    then, inside each stretch that these leave *and inside each run they made*, words, punctuation and white
    space. Matches become pieces, and so does whatever stands unmatched between two matches. One pass does
    the same if the alternatives for Han and kana characters (set K) and those for all others never reach
    across a border of K or of the digits:

    1. up to three digits; 2. in K: marks and letters, with at most one unassigned character before them;
    punctuation and symbols (the
       middle dot and the like); unassigned characters, except the last if it belongs to a word;
    3. an ASCII punctuation character with the ASCII letters after it; 4. letters and marks, with at most one
    other character before them: a space, usually; 5. punctuation and symbols, with at most one space before
    and the line ends behind; 6. white space up to its last line end; 7. white space in a line: all of it if
    a digit, K or the end follows (the border: what is behind it is not seen),
       else all but the last character, which goes with the next piece, or is alone;
    8. what nothing above takes (control, format and unassigned characters), except the last if it belongs to
    a word.
    """
    k = r"\u4E00-\u9FA5\u3040-\u30FF"
    word = rf"[[\p{{L}}\p{{M}}]--[{k}]]"
    sign = rf"[[\p{{P}}\p{{S}}]--[{k}]]"
    k_word = rf"[[\p{{L}}\p{{M}}]&&[{k}]]"
    k_sign = rf"[[\p{{P}}\p{{S}}]&&[{k}]]"
    k_rest = rf"[[{k}]--[\p{{L}}\p{{M}}\p{{P}}\p{{S}}]]"
    return "|".join(
        (
            r"\p{N}{1,3}",
            rf"{k_rest}?{k_word}+|{k_sign}+|{k_rest}+(?!{k_word})",
            r"[!-/:-@\[-`{-~][A-Za-z]+",
            rf"[^\r\n\p{{L}}\p{{N}}\p{{P}}\p{{S}}{k}]?{word}+",
            rf" ?{sign}+[\r\n]*",
            r"\s*[\r\n]+",
            rf"\s+(?![^\s\p{{N}}{k}])|\s",
            rf"[^\s\p{{L}}\p{{M}}\p{{N}}\p{{P}}\p{{S}}{k}]+(?!{word})",
        )
    )


# tiktoken's own expression engine gives up (it panics) on runs of about a million characters; this one has no such
# limit and needs no backtracking beyond one character here.
_PIECE = regex.compile(_piece_pattern(), regex.V1)

_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """Byte-level BPE over a token table.

    Parameters
    ----------
    tokens : sequence of str or bytes
        Token i at place i. A `str` is in GPT-2's byte alphabet if the token is normal and literal if it is
        added; `bytes` are the token's bytes. Copied.
    merges : sequence of str, optional
        Merge k as "left right" in GPT-2's alphabet. Only checked against the tokens, which hold the same
        knowledge.
    token_type : sequence of int, optional
        1 normal, 3 control, 4 user-defined, 5 unused. Needed to tell where the added tokens begin if there
        are no merges.
    bos_id, eos_id, pad_id : int, optional
        By default 0, 1 and none.

    Raises
    ------
    ValueError
        The table is not what V4 needs. Every difference is named (beyond 20, counted).
    """

    def __init__(
        self,
        tokens: Sequence[str | bytes],
        merges: Sequence[str] | None = None,
        token_type: Sequence[int] | None = None,
        *,
        bos_id: int = 0,
        eos_id: int = 1,
        pad_id: int | None = None,
    ) -> None:
        n = len(tokens)
        types = None if token_type is None else [int(t) for t in token_type]
        if types is not None and len(types) != n:
            raise ValueError(f"{n} tokens but {len(types)} token types")
        n_base = _base_size(n, merges, types)
        problems: list[str] = []
        self._bytes = [_token_bytes(i, token, FIRST_BYTE <= i < n_base, problems) for i, token in enumerate(tokens)]
        self._n_base = n_base
        self._added = {self._bytes[i].decode(errors="replace"): i for i in range(n) if not FIRST_BYTE <= i < n_base}
        problems += _layout_problems(self._bytes, n_base, merges, types)
        problems += _special_problems(self._bytes, self._added)
        for name, value in (("bos_id", bos_id), ("eos_id", eos_id), ("pad_id", pad_id)):
            if value is not None and not 0 <= value < n:
                problems.append(f"{name} is {value}, but there are {n} tokens")
        if problems:
            shown = problems[:_SHOWN_PROBLEMS]
            more = [f"and {len(problems) - len(shown)} more"] if len(problems) > len(shown) else []
            raise ValueError("the token table cannot be used: " + "; ".join(shown + more))
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.pad_id = pad_id
        ranks = {self._bytes[i]: i for i in range(FIRST_BYTE, n_base)}
        self._whole = {text: i for i in range(FIRST_BYTE, n_base) if (text := _decoded(self._bytes[i])) is not None}
        # The piece is the unit given to tiktoken, so its own expression takes everything at once.
        self._bpe = tiktoken.Encoding("ds4", pat_str="(?s:.+)", mergeable_ranks=ranks, special_tokens={})

    @classmethod
    def from_gguf_metadata(cls, meta: Mapping[str, Any]) -> Tokenizer:
        """Build the tokenizer from the `tokenizer.ggml.*` entries of a GGUF file.

        Raises
        ------
        ValueError
            A key is missing, the model is not "gpt2" or the pre-tokenizer not V4's, the arrays disagree in
            length, or the table is not what V4 needs.
        """

        def get(key: str, default: Any = None) -> Any:
            value = meta.get(f"tokenizer.ggml.{key}", default)
            if value is None:
                raise ValueError(f"tokenizer.ggml.{key} is missing")
            return value

        model, pre = _string(get("model")), _string(get("pre"))
        if model != MODEL:
            raise ValueError(f"tokenizer.ggml.model is {model!r}, not {MODEL!r}")
        if pre not in _PRE_SYNONYMS:
            raise ValueError(f"tokenizer.ggml.pre is {pre!r}; known: {', '.join(_PRE_SYNONYMS)}")
        pad = meta.get("tokenizer.ggml.padding_token_id")
        return cls(
            [_string(token) for token in get("tokens")],
            [_string(merge) for merge in get("merges")],
            [int(kind) for kind in get("token_type")],
            bos_id=int(get("bos_token_id", 0)),
            eos_id=int(get("eos_token_id", 1)),
            pad_id=None if pad is None else int(pad),
        )

    @property
    def n_vocab(self) -> int:
        """Number of tokens, added ones included."""
        return len(self._bytes)

    def __repr__(self) -> str:
        return f"<Tokenizer with {self.n_vocab} tokens, {len(self._added)} of them added>"

    def encode(self, text: str, *, specials: bool = False) -> list[int]:
        """Return the ids of a text; nothing is put in front or behind.

        Pairs of surrogates are read as the character they mean; a lone one, which no UTF-8 can express, as
        U+FFFD.

        Parameters
        ----------
        text : str
        specials : bool
            Recognise the contents of added tokens, leftmost and longest first, as the published pipeline
            does with a rendered prompt. Never for text that somebody else wrote: it could then open turns of
            its own.
        """
        text = _well_formed(text)
        if not specials:
            return self._encode_plain(text)
        ids: list[int] = []
        for i, part in enumerate(self._added_pattern.split(text)):
            if i % 2:
                ids.append(self._added[part])
            else:
                ids.extend(self._encode_plain(part))
        return ids

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """Return the text of ids; bytes that are not UTF-8 become U+FFFD.

        Raises
        ------
        ValueError
            An id is not in the table; the text names it.
        """
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[SupportsIndex]) -> bytes:
        """Return the exact bytes of ids.

        Raises
        ------
        ValueError
            An id is not in the table; the text names it.
        """
        return b"".join([self.token_bytes(i) for i in ids])

    def token_bytes(self, token_id: SupportsIndex) -> bytes:
        """Return the bytes of one token; for an added token, its content in UTF-8.

        Raises
        ------
        ValueError
            The id is not in the table.
        """
        return self._bytes[self._checked(token_id)]

    def is_special(self, token_id: SupportsIndex) -> bool:
        """Tell whether a token is an added one: markup, never the result of `encode` without `specials`.

        Raises
        ------
        ValueError
            The id is not in the table.
        """
        return not FIRST_BYTE <= self._checked(token_id) < self._n_base

    def special(self, name: str) -> int:
        """Return the id of an added token, given its content.

        Raises
        ------
        ValueError
            No added token has this content.
        """
        try:
            return self._added[name]
        except KeyError:
            raise ValueError(f"the tokenizer has no special token {name!r}") from None

    def piece(self, token_id: SupportsIndex) -> str:
        """Return a token in printable form: control characters and broken UTF-8 are shown as escapes.

        Raises
        ------
        ValueError
            The id is not in the table.
        """
        text = self.token_bytes(token_id).decode("utf-8", "backslashreplace")
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)

    def stream_decoder(self) -> StreamDecoder:
        """Return a fresh decoder for ids that arrive one after another."""
        return StreamDecoder(self)

    @cached_property
    def _added_pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self._added, key=len, reverse=True)
        return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def _encode_plain(self, text: str) -> list[int]:
        ids: list[int] = []
        whole = self._whole.get
        for piece in _PIECE.findall(text):
            token = whole(piece)
            if token is None:
                ids.extend(self._bpe.encode_ordinary(piece))
            else:
                ids.append(token)
        return ids

    def _checked(self, token_id: SupportsIndex) -> int:
        i = operator.index(token_id)
        if not 0 <= i < len(self._bytes):
            raise ValueError(f"token id {i} is not in the table of {len(self._bytes)} tokens")
        return i


class StreamDecoder:
    """Turns ids into text piece by piece; the pieces joined are `Tokenizer.decode` of all ids.

    A token may end inside a character. Its bytes are held back until the character is whole, so no piece
    ever shows half of one. A decoder serves one stream.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, *ids: SupportsIndex) -> str:
        """Return the text that became complete with these ids, possibly none.

        Raises
        ------
        ValueError
            An id is not in the table; the decoder is unchanged.
        """
        return self._utf8.decode(self._tokenizer.decode_bytes(ids))

    def flush(self) -> str:
        """End the stream: an incomplete character that is left comes out as U+FFFD. The decoder may be used again."""
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text


def to_alphabet(data: bytes) -> str:
    """Write bytes in GPT-2's alphabet."""
    return "".join(BYTE_CHARS[byte] for byte in data)


def from_alphabet(text: str) -> bytes:
    """Read bytes written in GPT-2's alphabet.

    Raises
    ------
    ValueError
        A character is not in the alphabet.
    """
    try:
        return bytes([_CHAR_BYTES[char] for char in text])
    except KeyError as error:
        raise ValueError(f"{text!r} holds {error.args[0]!r}, which stands for no byte") from None


def _base_size(n: int, merges: Sequence[str] | None, types: Sequence[int] | None) -> int:
    """Return the id where the added tokens begin."""
    if merges is not None:
        n_base = FIRST_MERGE + len(merges)
        if n_base > n:
            raise ValueError(f"{len(merges)} merges need at least {n_base} tokens, but there are {n} tokens")
        return n_base
    if types is None:
        raise ValueError("merges or token types are needed to tell where the added tokens begin")
    normal = [i for i, kind in enumerate(types) if kind == NORMAL]
    return max(normal, default=-1) + 1


def _token_bytes(i: int, token: str | bytes, normal: bool, problems: list[str]) -> bytes:
    if isinstance(token, (bytes, bytearray, memoryview)):
        return bytes(token)
    if not normal:
        return _well_formed(token).encode()
    try:
        return from_alphabet(token)
    except ValueError as error:
        problems.append(f"token {i}: {error}")
        return b""


def _layout_problems(
    table: Sequence[bytes], n_base: int, merges: Sequence[str] | None, types: Sequence[int] | None
) -> list[str]:
    problems = []
    n = len(table)
    if n < FIRST_MERGE:
        return [f"{n} tokens cannot hold the 256 single bytes at the ids {FIRST_BYTE}-{FIRST_MERGE - 1}"]
    for i, byte in enumerate(BYTE_ORDER, FIRST_BYTE):
        if table[i] != bytes([byte]):
            problems.append(f"token {i} is {table[i]!r}, not the byte {bytes([byte])!r}")
    first: dict[bytes, int] = {}
    for i in range(FIRST_BYTE, n_base):
        if first.setdefault(table[i], i) != i and table[i]:
            problems.append(f"tokens {first[table[i]]} and {i} are both {table[i]!r}")
    added: dict[bytes, int] = {}
    for i in (*range(FIRST_BYTE), *range(n_base, n)):
        if not table[i]:
            problems.append(f"added token {i} is empty")
        elif added.setdefault(table[i], i) != i:
            problems.append(f"added tokens {added[table[i]]} and {i} are both {table[i].decode(errors='replace')!r}")
    for k, merge in enumerate(merges or ()):
        problems += _merge_problem(k, merge, table[FIRST_MERGE + k], first)
    for i, kind in enumerate(types or ()):
        if (kind == NORMAL) != (FIRST_BYTE <= i < n_base):
            problems.append(f"token {i} has type {kind}, but the normal tokens are {FIRST_BYTE}-{n_base - 1}")
    return problems


def _merge_problem(k: int, merge: str, product: bytes, known: Mapping[bytes, int]) -> list[str]:
    """Check that merge k makes token 259+k out of two earlier tokens."""
    left, gap, right = merge.partition(" ")
    try:
        halves = (from_alphabet(left), from_alphabet(right))
    except ValueError as error:
        return [f"merge {k}: {error}"]
    if not gap or not left or not right:
        return [f"merge {k} is {merge!r}, not two tokens"]
    if b"".join(halves) != product:
        return [f"merge {k} is {merge!r}, but token {FIRST_MERGE + k} is {to_alphabet(product)!r}"]
    return [
        f"merge {k} needs {to_alphabet(half)!r}, which is no earlier token"
        for half in halves
        if known.get(half, FIRST_MERGE + k) >= FIRST_MERGE + k
    ]


def _special_problems(table: Sequence[bytes], added: Mapping[str, int]) -> list[str]:
    if len(table) == V4_SIZE:
        expected = ((i, content.encode()) for i, content in _V4_TABLE.items())
        return [f"token {i} is {table[i]!r}, not {want.decode()!r}" for i, want in expected if table[i] != want]
    return [f"the special token {name!r} is missing" for name in _CONVERSATION if name not in added]


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _string(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _well_formed(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"text must be str, not {type(text).__name__}")
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
