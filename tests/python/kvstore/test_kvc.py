"""Files of the other engine: sizes, fields, tool calls, and everything that can be wrong with them."""

from __future__ import annotations

import random
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import ds4
import numpy as np
import pytest
from ds4.kvstore import StoredFileError
from ds4.kvstore.dsv4 import Dims, Payload, group_shape, payload_bytes
from ds4.kvstore.exchange import from_kvc, key_of_kvc, to_kvc
from ds4.kvstore.kvc import KvcFile, kvc_name, read_kvc, write_kvc
from ds4.state_arrays import LayerState

FLASH = Dims((0, 0, *[4, 128] * 20, 4), 512, 128, 128, 129_280)
PRO = Dims((128, 128, *[4, 128] * 29, 4), 512, 128, 128, 129_280)
SMALL = Dims((0, 4, 128, 4), 16, 8, 8, 50)


@pytest.mark.parametrize(
    ("dims", "n_tokens", "n_bytes"),
    [
        (FLASH, 2048, 52_184_460),
        (FLASH, 8192, 136_750_476),
        (FLASH, 65_536, 926_033_292),
        (PRO, 2048, 75_564_572),
        (PRO, 32_768, 680_748_572),
    ],
)
def test_sizes_are_the_published_ones(dims: Dims, n_tokens: int, n_bytes: int) -> None:
    assert payload_bytes(dims, n_tokens) == n_bytes


def test_bytes_per_token_of_flash() -> None:
    assert payload_bytes(FLASH, 65_536) - payload_bytes(FLASH, 32_768) == 32_768 * 13_764


def payload_of(n: int, dims: Dims = SMALL, seed: int = 1) -> Payload:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return rng.standard_normal(shape, dtype=np.float32)

    layers = []
    for ratio in dims.ratios:
        arrays = [draw(min(n, dims.window), dims.head_dim)]
        for width in [dims.head_dim, dims.index_dim][: 0 if not ratio else 2 if ratio == 4 else 1]:
            arrays += [draw(n // ratio, width), draw(*group_shape(ratio, width)), draw(*group_shape(ratio, width))]
        layers.append(LayerState(*arrays))
    tokens = rng.integers(0, dims.n_vocab, n).tolist()
    return Payload(1000, 512, 16, 600, tokens, draw(dims.n_vocab), layers)


@pytest.mark.parametrize("n", [1, 3, 4, 7, 8, 9, 127, 128, 300])
def test_a_payload_comes_back(n: int) -> None:
    payload = payload_of(n)
    data = payload.to_bytes(SMALL)
    assert len(data) == payload_bytes(SMALL, n)
    back = Payload.from_bytes(data, SMALL)
    assert back.tokens == payload.tokens
    assert (back.n_ctx, back.chunk, back.ring, back.row_capacity) == (1000, 512, 16, 600)
    np.testing.assert_array_equal(back.logits, payload.logits)
    for a, b in zip(back.layers, payload.layers, strict=True):
        for x, y in zip(a.arrays(), b.arrays(), strict=True):
            np.testing.assert_array_equal(x, y)
    assert back.to_bytes(SMALL) == data


def test_the_head_of_a_payload() -> None:
    head = struct.unpack_from("<13I", payload_of(9).to_bytes(SMALL))
    assert head == (0x34565344, 2, 1000, 512, 16, 8, 600, 9, 4, 16, 8, 50, 8)
    assert payload_of(9).to_bytes(SMALL)[:4] == b"DSV4"


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        (0, 1, "no DSV4 payload"),
        (1, 1, "version 1"),
        (2, 9, "9 tokens in a context of 9"),
        (4, 7, "capacity 7"),
        (5, 128, "window is 128, this model has 8"),
        (6, 1, "more than the capacity 1"),
        (7, 0, "0 tokens"),
        (7, 10, "10 tokens take"),
        (7, 0xFFFFFFFF, "4294967295 tokens"),
        (8, 5, "layers is 5"),
        (9, 512, "width of rows is 512"),
        (10, 128, "width of indexer rows"),
        (11, 51, "vocabulary is 51"),
        (12, 9, "9 rows in the window"),
    ],
)
def test_each_field_of_the_head_is_checked(field: int, value: int, text: str) -> None:
    data = bytearray(payload_of(9).to_bytes(SMALL))
    struct.pack_into("<I", data, 4 * field, value)
    with pytest.raises(StoredFileError, match=text):
        Payload.from_bytes(data, SMALL)


def test_counts_and_tokens_are_checked() -> None:
    good = payload_of(9).to_bytes(SMALL)
    counts = 52 + 4 * 9 + 4 * 50
    for at, text in ((counts + 4, "layer 1 has"), (counts + 16, "layer 0 has"), (52, "outside the vocabulary")):
        data = bytearray(good)
        struct.pack_into("<I", data, at, 77)
        with pytest.raises(StoredFileError, match=text):
            Payload.from_bytes(data, SMALL)
    for data in (good[:-1], good + b"\0", good[:51], b""):
        with pytest.raises(StoredFileError):
            Payload.from_bytes(data, SMALL)


def test_shapes_are_checked_on_writing() -> None:
    payload = payload_of(9)
    with pytest.raises(ValueError, match="4 layers instead of 3"):
        payload.to_bytes(Dims((0, 4, 128), 16, 8, 8, 50))
    with pytest.raises(ValueError, match="layer 1 has 7 arrays instead of 4"):
        payload.to_bytes(Dims((0, 128, 128, 4), 16, 8, 8, 50))
    with pytest.raises(ValueError, match="shape"):
        payload.to_bytes(Dims((0, 4, 128, 4), 8, 8, 8, 50))


def file_of() -> KvcFile:
    payload = payload_of(9).to_bytes(SMALL)
    return KvcFile(
        b"ein Text", payload, 9, 1000, 2, 1, reason=3, flags=4, hits=7, created=1_700_000_000,
        last_used=1_700_000_001, tool_blocks={"call_1": b"<exact>", "call_\udcff": b""},
    )  # fmt: skip


def test_a_file_comes_back(tmp_path: Path) -> None:
    path = write_kvc(tmp_path, file_of())
    assert path.name == kvc_name(b"ein Text")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    back = read_kvc(path)
    assert back == KvcFile(**{**{f: getattr(file_of(), f) for f in KvcFile.__slots__}, "flags": 5})
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_the_bytes_of_a_file() -> None:
    data = file_of().to_bytes()
    size = payload_bytes(SMALL, 9)
    head = b"KVC" + bytes([1, 2, 3, 5, 1]) + struct.pack("<III", 9, 7, 1000) + bytes([2, 0, 0, 0])
    head += struct.pack("<QQQI", 1_700_000_000, 1_700_000_001, size, 8)
    assert data[:52] == head
    assert data[52:60] == b"ein Text"
    assert data[60 + size :] == (
        b"KTM\x01" + struct.pack("<I", 2) + struct.pack("<II", 6, 7) + b"call_1<exact>" + struct.pack("<II", 6, 0)
        + b"call_\xff"
    )  # fmt: skip


def test_a_name_is_the_sha1_of_the_text() -> None:
    assert kvc_name(b"abc") == "a9993e364706816aba3e25717850c26c9cd0d89d.kv"


@pytest.mark.parametrize(
    ("at", "value", "text"),
    [
        (0, b"X", "not a KVC file"),
        (3, b"\x02", "KVC version 2"),
        (4, b"\x03", "quant 3"),
        (5, b"\x07", "reason 7"),
        (8, bytes(4), "0 tokens"),
        (20, b"\x01", "payload 1"),
        (22, b"\x01", "KVC version 1"),
        (40, b"\xff" * 8, "cut short"),
        (48, b"\xff" * 4, "cut short"),
    ],
)
def test_the_head_of_a_file_is_checked(at: int, value: bytes, text: str) -> None:
    data = file_of().to_bytes()
    with pytest.raises(StoredFileError, match=text):
        KvcFile.from_bytes(data[:at] + value + data[at + len(value) :])


def test_a_damaged_trailer_ends_the_list_quietly() -> None:
    good = file_of().to_bytes()
    body = 60 + payload_bytes(SMALL, 9)
    for length in range(52):
        with pytest.raises(StoredFileError):
            KvcFile.from_bytes(good[:length])
    with pytest.raises(StoredFileError):
        KvcFile.from_bytes(good[: body - 1])
    found = [len(KvcFile.from_bytes(good[:length]).tool_blocks) for length in range(body, len(good) + 1)]
    assert found == sorted(found)
    assert {found[0], found[-1]} == {0, 2}
    rng = random.Random(5)
    for _ in range(300):
        data = bytearray(good)
        for _ in range(3):
            data[rng.randrange(body, len(data))] = rng.randrange(256)
        back = KvcFile.from_bytes(bytes(data))
        assert back.payload == file_of().payload
        assert len(back.tool_blocks) <= 2
    for count in (3, 400_001, 0xFFFFFFFF):
        data = bytearray(good)
        struct.pack_into("<I", data, body + 4, count)
        assert len(KvcFile.from_bytes(bytes(data)).tool_blocks) == (2 if count == 3 else 0)


def test_fields_out_of_range_are_not_written() -> None:
    good = {f: getattr(file_of(), f) for f in KvcFile.__slots__}
    for change in (
        {"quant": 3},
        {"n_tokens": 0},
        {"n_tokens": 1 << 32},
        {"hits": -1},
        {"model": 256},
        {"tool_blocks": {"": b"x"}},
        {"tool_blocks": {"x" * 257: b"x"}},
    ):
        with pytest.raises(ValueError, match=r"quant|range|call id"):
            KvcFile(**{**good, **change}).to_bytes()


def test_an_unwritable_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        write_kvc(tmp_path / "missing", file_of())


# Sessions of ours


@pytest.fixture(scope="module")
def model() -> Iterator[ds4.Model]:
    with ds4.Model.open_embedded() as model:
        yield model


@pytest.mark.parametrize("n", [1, 5, 127, 128, 129, 300])
def test_a_session_goes_there_and_back(model: ds4.Model, tmp_path: Path, n: int) -> None:
    """What follows is the same to the bit, in a session of another size too."""
    tokens = model.tokenizer.encode("A file of another engine. " * 80)[: n + 20]
    with model.session(n_ctx=512) as source, model.session(n_ctx=400, chunk=33) as target:
        source.sync(tokens[:n])
        file = to_kvc(source, b"\xff<mark>text", quant=2, tool_blocks={"call": "block"})
        assert len(file.payload) == payload_bytes(Dims.of(model.shape), n)
        assert file.text == b"<mark>text"
        assert (file.n_ctx, file.n_tokens) == (n + 1, n)
        back = read_kvc(write_kvc(tmp_path, file))
        assert back.tool_blocks == {"call": b"block"}
        assert from_kvc(back, target) == n
        assert target.tokens == tokens[:n]
        np.testing.assert_array_equal(target.logits(), source.logits())
        np.testing.assert_array_equal(target.eval_logits(tokens[n:]), source.eval_logits(tokens[n:]))


def test_what_does_not_fit_a_session(model: ds4.Model) -> None:
    with model.session(n_ctx=64) as session:
        session.eval(list(range(3, 30)))
        file = to_kvc(session, b"key", quant=4)
        fields = {f: getattr(file, f) for f in KvcFile.__slots__}
        with pytest.raises(StoredFileError, match="the file says 26"):
            from_kvc(KvcFile(**{**fields, "n_tokens": 26}), session)
        with pytest.raises(StoredFileError, match="layers is 4"):
            from_kvc(KvcFile(**{**fields, "payload": payload_of(9).to_bytes(SMALL)}), session)
        assert session.pos == 27
    with model.session(n_ctx=20) as small, pytest.raises(ds4.ContextFullError):
        from_kvc(file, small)


def test_keys_of_texts(model: ds4.Model) -> None:
    """A mark in the text is a special token where the tokens say so, and where nothing does."""
    tokenizer = model.tokenizer
    eos = tokenizer.token_bytes(tokenizer.eos_id).decode()
    quoted = tokenizer.encode(f"a {eos} b")  # text that only looks like one
    real = [*tokenizer.encode("a "), tokenizer.eos_id, *tokenizer.encode(" b")]
    file = KvcFile(f"a {eos} b".encode(), b"", 1, 2, 2, 0)
    mark = b"\xff" + eos.encode()
    assert key_of_kvc(file, tokenizer, quoted) == file.text
    assert key_of_kvc(file, tokenizer, real) == b"a " + mark + b" b"
    assert key_of_kvc(file, tokenizer, [*real, 5]) == b"a " + mark + b" b"
