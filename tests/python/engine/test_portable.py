"""States in parts, rows by ranges and a tail: whatever the cuts, importing gives the bits of going on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.golden import load_golden
from support.sealed import PART_HEADER, SNAPSHOT_HEADER, with_body

# Inside and at the borders of groups of 4 and 128, inside, at and beyond the window of 128.
CUTS = (1, 3, 4, 5, 8, 11, 64, 127, 128, 129, 132, 200, 255, 256, 290)
D, INDEX, ROT, V = 256, 128, 64, 512
"""Head dimension, indexer dimension, rotated values and vocabulary of the tiny shapes."""


@pytest.fixture(scope="module")
def tokens(variant: str) -> NDArray[np.int32]:
    return load_golden(variant).prompts[300].tokens


@pytest.fixture(scope="module")
def flash(tiny_gguf: Callable[..., Path]) -> Iterator[ds4.Model]:
    with ds4.Model.open(tiny_gguf("flash", recipe="q8")) as model:
        yield model


def prompt(n: int, salt: int = 0) -> list[int]:
    return np.random.default_rng([n, salt]).integers(0, V, n).tolist()


def ranges(session: ds4.Session, *cuts: int) -> list[bytes]:
    return [session.export_rows(a, b) for a, b in itertools.pairwise((0, *cuts))]


@pytest.mark.parametrize(("qat", "rows"), [(True, "f16"), (True, "f32"), (False, "f16")])
def test_imports_are_bit_identical_at_every_cut(
    model: ds4.Model, tokens: NDArray[np.int32], qat: bool, rows: Any
) -> None:
    options: dict[str, Any] = {"qat": qat, "rows": rows, "mtp": True}
    with model.session(n_ctx=512, chunk=64, **options) as source:
        reference = source.eval_logits(tokens)
    with (
        model.session(n_ctx=512, chunk=50, **options) as walker,
        # Other ring sizes than the source's: parts do not depend on them.
        model.session(n_ctx=400, chunk=17, **options) as other,
    ):
        done, parts = 0, []
        for cut in CUTS:
            walker.eval(tokens[done:cut])
            parts.append(walker.export_rows(done, cut))
            done = cut
            other.eval([1, 2, 3])
            assert other.import_state(tokens[:cut], parts, walker.export_tail()) == cut
            assert other.tokens == tokens[:cut].tolist()
            assert other.snapshot() == walker.snapshot(), "every bit of the state"
            np.testing.assert_array_equal(other.logits(), reference[cut - 1])
            np.testing.assert_array_equal(other.mtp_logits(3), walker.mtp_logits(3))
            rest = min(cut + 40, len(tokens))
            np.testing.assert_array_equal(other.eval_logits(tokens[cut:rest]), reference[cut:rest])


def test_the_same_state_gives_the_same_bytes(flash: ds4.Model) -> None:
    """Whatever the chunks, and whether the session stands there or has a checkpoint there."""
    tokens = prompt(300)
    with flash.session(n_ctx=512, chunk=256, mtp=True) as a, flash.session(n_ctx=400, chunk=7, mtp=True) as b:
        a.sync(tokens[:200])
        a.checkpoint()
        a.eval(tokens[200:])
        b.sync(tokens[:200])
        assert a.export_tail(200) == b.export_tail() == b.export_tail(200)
        for start, stop in ((0, 200), (3, 129), (127, 128)):
            assert a.export_rows(start, stop) == b.export_rows(start, stop)
        # A longer timeline, brought back to its checkpoint: the last range goes on behind the tail.
        assert b.import_state(tokens, [*ranges(a, 130), a.export_rows(130, 300)], a.export_tail(200)) == 200
        np.testing.assert_array_equal(b.eval_logits(tokens[200:])[-1], a.logits())


def test_an_import_is_a_place_to_go_back_to(flash: ds4.Model) -> None:
    tokens = prompt(200)
    with flash.session(n_ctx=512) as a, flash.session(n_ctx=512, checkpoint_every=16) as b:
        a.sync(tokens[:150])
        b.sync(prompt(60, 5))
        b.import_state(tokens[:150], ranges(a, 100, 150), a.export_tail())
        assert b.checkpoints == []
        b.eval([1, 2])
        assert b.checkpoints == [150]
        assert b.sync(tokens) == 150
        a.sync(tokens)
        np.testing.assert_array_equal(a.logits(), b.logits())


def test_rows_do_not_depend_on_mtp(flash: ds4.Model) -> None:
    tokens = prompt(100)
    with flash.session(n_ctx=128) as plain, flash.session(n_ctx=128, mtp=True) as with_mtp:
        plain.sync(tokens)
        with_mtp.sync(tokens)
        rows = plain.export_rows(0, 100)
        tail = with_mtp.export_tail()
        with_mtp.reset()
        with_mtp.import_state(tokens, [rows], tail)
        with pytest.raises(ds4.SnapshotError, match="the tail does not fit this session: mtp is on in it and off here"):
            plain.import_state(tokens, [rows], tail)


# Packing


def n_rows(model: ds4.Model, stop: int) -> tuple[int, int]:
    """Compressed rows and indexer rows of all layers."""
    ratios = model.shape.compress_ratio
    return sum(stop // r for r in ratios if r), sum(stop // r for r in ratios if r == 4)


@pytest.mark.parametrize("rows", ["f16", "f32"])
def test_rounded_rows_take_the_bits_that_they_have(flash: ds4.Model, rows: Any) -> None:
    tokens, value = prompt(300), {"f16": 2, "f32": 4}[rows]
    attention, indexer = n_rows(flash, 300)
    with flash.session(n_ctx=300, rows=rows) as session:
        session.sync(tokens)
        packed = attention * (1 + (D - ROT) + (D - ROT) // 64 + ROT * value) + indexer * (1 + INDEX // 2 + INDEX // 32)
        assert len(session.export_rows(0, 300)) == PART_HEADER + packed
    with flash.session(n_ctx=300, rows=rows, qat=False) as session:
        session.sync(tokens)
        plain = attention * (1 + D * value) + indexer * (1 + INDEX * value)
        assert len(session.export_rows(0, 300)) == PART_HEADER + plain


def test_the_embedded_model_packs_too() -> None:
    with ds4.Model.open_embedded() as model, model.session(n_ctx=2048) as session:
        tokens = model.tokenizer.encode("The quick brown fox jumps over the lazy dog. " * 60)[:600]
        session.sync(tokens)
        attention, indexer = n_rows(model, 600)
        d = model.shape.head_dim
        packed = attention * (1 + (d - ROT) + (d - ROT) // 64 + ROT * 2) + indexer * (1 + INDEX // 2 + INDEX // 32)
        assert len(session.export_rows(0, 600)) == PART_HEADER + packed


def specials(rows: str) -> NDArray[Any]:
    """Values at the edges of the formats."""
    kind = np.dtype("float16" if rows == "f16" else "float32")
    tiny, least, most = np.finfo(kind).tiny, np.finfo(kind).smallest_subnormal, np.finfo(kind).max
    found = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        448.0,
        224.0,
        240.0,
        464.0,
        480.0,
        6.0,
        3.0,
        4.0,
        5.0,
        2.0**-9,
        2.0**-10,
        1.0625,
        0.9375,
    ]
    found += [tiny, least, -least, 3 * least, 7 * least, 15 * least, 17 * least, most, -most, np.inf, -np.inf, np.nan]
    return np.array([*found, 2.0**-9, 2.0**-10, tiny * 448, tiny / 448], dtype=kind)


@st.composite
def row_of(draw: st.DrawFn, rows: str, dim: int) -> NDArray[Any]:
    """A row of codes times powers of two, as rounding makes them, with some values that do not belong there."""
    kind = np.dtype("float16" if rows == "f16" else "float32")
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    block = draw(st.sampled_from([32, 64]))
    steps = draw(st.sampled_from([2, 8]))
    low, high = (-24, 8) if rows == "f16" else (-140, 118)
    mantissas = rng.integers(0, 2 * steps, dim) / steps * np.exp2(rng.integers(-3, 4, dim)) * rng.choice([-1, 1], dim)
    exponents = np.repeat(rng.integers(low, high, dim // block), block).astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        row = (mantissas * np.exp2(exponents)).astype(kind)
    for _ in range(draw(st.integers(0, 3))):
        row[draw(st.integers(0, dim - 1))] = draw(st.sampled_from(specials(rows).tolist()))
    return row


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_row_comes_back_with_its_bits(flash: ds4.Model, data: st.DataObject) -> None:
    """Rows are put into a session through a snapshot with other rows in it, sealed anew."""
    rows = data.draw(st.sampled_from(["f16", "f32"]))
    value = {"f16": 2, "f32": 4}[rows]
    tokens = [1, 2, 3, 4]
    with flash.session(n_ctx=8, rows=rows, threads=1) as session, flash.session(n_ctx=8, rows=rows, threads=1) as other:
        session.sync(tokens)
        snapshot = session.snapshot()
        body = bytearray(snapshot[SNAPSHOT_HEADER:])
        window, at = 4 * D * value, 4 * 4 + 4 * V
        # Window of layer 0; compressed and indexer row of layer 2, behind its window and its compressor's K and S.
        places = [(at + i * D * value, D) for i in range(4)]
        compressed = at + 3 * window
        places.append((compressed, D))
        places.append((compressed + D * value + 2 * 4 * 2 * D * 4, INDEX))
        for place, dim in places:
            row = data.draw(row_of(rows, dim)).tobytes()
            body[place : place + len(row)] = row
        session.restore(with_body(snapshot, bytes(body)))
        assert session.snapshot()[SNAPSHOT_HEADER:] == bytes(body)
        other.import_state(tokens, [session.export_rows(0, 4)], session.export_tail())
        assert other.snapshot() == session.snapshot()


def test_rows_that_were_never_rounded_come_back_too(flash: ds4.Model) -> None:
    with flash.session(n_ctx=400) as a, flash.session(n_ctx=400) as b:
        a.fill(390, seed=4)
        assert b.import_state(a.tokens, ranges(a, 7, 300, 390), a.export_tail()) == 390
        assert a.snapshot() == b.snapshot()


# What is refused


def changed(data: bytes, at: int) -> bytes:
    out = bytearray(data)
    out[at] ^= 1 << (at % 8)
    return bytes(out)


def test_every_damaged_byte_and_every_truncation_is_found(flash: ds4.Model) -> None:
    tokens = prompt(9)
    with flash.session(n_ctx=16, threads=1) as a, flash.session(n_ctx=16, threads=1) as b:
        a.sync(tokens)
        rows, tail = a.export_rows(0, 9), a.export_tail()
        b.sync([4, 5, 6])
        before = b.snapshot()

        def refused(rows: bytes, tail: bytes) -> None:
            with pytest.raises(ds4.SnapshotError):
                b.import_state(tokens, [rows], tail)

        for at in range(len(rows)):
            refused(changed(rows, at), tail)
            refused(rows[:at], tail)
        for at in [*range(200), *range(200, len(tail), 5)]:
            refused(rows, changed(tail, at))
            refused(rows, tail[:at])
        refused(rows + b"\0", tail)
        refused(rows, tail + b"\0")
        assert b.snapshot() == before
        assert b.import_state(tokens, [rows], tail) == 9


def test_parts_that_do_not_belong_together_are_named(flash: ds4.Model) -> None:
    tokens = prompt(100)
    with flash.session(n_ctx=128) as a, flash.session(n_ctx=128) as b:
        a.sync(tokens[:60])
        early = a.export_tail()
        a.sync(tokens)
        tail = a.export_tail()
        parts = ranges(a, 40, 70, 100)
        b.sync([4, 5, 6])
        before = b.snapshot()
        others = [*tokens[:80], (tokens[80] + 1) % V, *tokens[81:]]
        for given_tokens, rows, end, message in (
            (tokens, parts[:2], tail, "the rows end at position 70, the tail is at 100"),
            (tokens, [], tail, "the rows end at position 0"),
            (tokens, [parts[0], parts[2]], tail, r"rows\[1\] begins at position 70; wanted are rows from 40 to 100"),
            (tokens, [parts[1], parts[0], parts[2]], tail, r"rows\[0\] begins at position 40"),
            (tokens, parts, early, r"rows\[2\] begins at position 70; wanted are rows from 70 to 60"),
            (tokens, [tail], tail, r"rows\[0\]: the first bytes are not those of rows"),
            (tokens, parts, parts[0], "the tail: the first bytes are not those of a tail"),
            (others, parts, tail, "the tail belongs to other tokens"),
            (others, parts, early, r"rows\[2\]"),
            (tokens, parts, b"", "the tail has 0 bytes"),
            (tokens, [b""], tail, r"rows\[0\] has 0 bytes"),
        ):
            with pytest.raises(ds4.SnapshotError, match=message):
                b.import_state(given_tokens, rows, end)
        with pytest.raises(ds4.SnapshotError, match=r"rows\[1\] belongs to other tokens"):
            b.import_state([tokens[0], *tokens[1:65], 1 + tokens[65] % (V - 1), *tokens[66:]], parts[:2], early)
        for n in (99, 1):
            with pytest.raises(ValueError, match=f"reaches position 100, but there are {n} tokens"):
                b.import_state(tokens[:n], parts, tail)
        assert b.snapshot() == before
        assert b.import_state(tokens, parts[:2], early) == 60
    with flash.session(n_ctx=99) as small, pytest.raises(ds4.ContextFullError, match="100 positions"):
        small.import_state(tokens, parts, tail)


def test_settings_and_model_are_part_of_parts(flash: ds4.Model, tiny_gguf: Callable[..., Path]) -> None:
    tokens = prompt(20)
    with flash.session(n_ctx=64) as a:
        a.sync(tokens)
        rows, tail = a.export_rows(0, 20), a.export_tail()
    for other in ({"qat": False}, {"rows": "f32"}, {"mtp": True}, {"activations": "float32"}):
        name = next(iter(other))
        with flash.session(n_ctx=64, **other) as b:  # type: ignore[arg-type]
            with pytest.raises(ds4.SnapshotError, match=f"the tail does not fit this session: {name} is .* here"):
                b.import_state(tokens, [rows], tail)
            if name != "mtp":
                b.sync(tokens)
                with pytest.raises(ds4.SnapshotError, match=rf"rows\[0\] does not fit this session: {name} is .* here"):
                    b.import_state(tokens, [rows], b.export_tail())
    with (
        ds4.Model.open(tiny_gguf("pro", recipe="q8")) as pro,
        pro.session(n_ctx=64) as b,
        pytest.raises(ds4.SnapshotError, match="another model"),
    ):
        b.import_state(tokens, [rows], tail)


def test_forged_parts_are_refused_or_harmless(flash: ds4.Model) -> None:
    """Bodies changed at random under checksums that fit: never a crash, and the session can go on after it."""
    rng = np.random.default_rng(1)
    tokens = prompt(9)
    with flash.session(n_ctx=16, threads=1) as a, flash.session(n_ctx=16, threads=1) as b:
        a.sync(tokens)
        good = [a.export_rows(0, 9), a.export_tail()]
        a.eval(3)
        expected = a.logits()
        outcomes = set()
        for i in range(300):
            parts = list(good)
            body = bytearray(parts[i % 2][PART_HEADER:])
            for at in rng.integers(0, len(body), rng.integers(1, 4)):
                body[at] = rng.integers(0, 256)
            if i % 7 == 0:
                body = body[: rng.integers(0, len(body))]
            parts[i % 2] = with_body(parts[i % 2], bytes(body))
            try:
                b.import_state(tokens, parts[:1], parts[1])
                b.eval(3)
                outcomes.add("taken")
            except (ds4.SnapshotError, ds4.WeightDataError) as error:
                outcomes.add(type(error).__name__)
        assert {"taken", "SnapshotError"} <= outcomes
        b.import_state(tokens, good[:1], good[1])
        b.eval(3)
        np.testing.assert_array_equal(b.logits(), expected)
        logits = np.frombuffer(good[1][PART_HEADER : PART_HEADER + 4 * V], np.float32).copy()
        logits[5] = np.nan
        bad = with_body(good[1], logits.tobytes() + good[1][PART_HEADER + 4 * V :])
        with pytest.raises(ds4.SnapshotError, match="logit 5 is not finite"):
            b.import_state(tokens, good[:1], bad)


def test_positions_that_are_not_there_are_refused(flash: ds4.Model) -> None:
    with flash.session(n_ctx=64, checkpoint_every=8) as session:
        with pytest.raises(ds4.StateError, match="empty"):
            session.export_tail()
        session.sync(prompt(20))
        for start, stop in ((0, 21), (5, 5), (6, 5), (-1, 5), (0, 2**40)):
            with pytest.raises(ValueError, match=r"0 <= start < stop <= 20"):
                session.export_rows(start, stop)
        for at in (21, -1, 2**40):
            with pytest.raises(ValueError, match=r"at must be in 0\.\.20"):
                session.export_tail(at)
        with pytest.raises(ds4.StateError, match="no checkpoint at position 7"):
            session.export_tail(7)
        assert session.checkpoints == [16]
        assert len(session.export_tail(16)) > 0
        with pytest.raises(TypeError):
            session.import_state([1], [3], b"")  # type: ignore[list-item]
    for call in (lambda: session.export_rows(0, 1), session.export_tail, lambda: session.import_state([1], [], b"")):
        with pytest.raises(ds4.ClosedError):
            call()
