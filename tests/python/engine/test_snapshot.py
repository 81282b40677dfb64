"""Snapshots: whatever the cut, restoring gives the bits that going on would have given; damage is found."""

from __future__ import annotations

import time

import ds4
import numpy as np
import pytest
from numpy.typing import NDArray
from support.golden import load_golden
from support.sealed import SNAPSHOT_HEADER, with_body

# Inside and at the borders of groups of 4 and 128, inside, at and beyond the window of 128.
CUTS = (
    *(1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 63, 64),
    *(126, 127, 128, 129, 130, 131, 132, 133, 200, 254, 255, 256, 257, 259, 290),
)


@pytest.fixture(scope="module")
def tokens(variant: str) -> NDArray[np.int32]:
    return load_golden(variant).prompts[300].tokens


@pytest.mark.parametrize("qat", [False, True])
def test_restore_is_bit_identical_at_every_cut(model: ds4.Model, tokens: NDArray[np.int32], qat: bool) -> None:
    with model.session(n_ctx=512, qat=qat, mtp=True, chunk=64) as source:
        reference = source.eval_logits(tokens)
    with (
        model.session(n_ctx=512, qat=qat, mtp=True, chunk=50) as walker,
        # Other ring sizes than the source's: a snapshot does not depend on them.
        model.session(n_ctx=400, qat=qat, mtp=True, chunk=17) as other,
    ):
        done = 0
        for cut in CUTS:
            walker.eval(tokens[done:cut])
            done = cut
            snapshot = walker.snapshot()
            other.restore(snapshot)
            assert other.tokens == tokens[:cut].tolist()
            np.testing.assert_array_equal(other.logits(), reference[cut - 1])
            np.testing.assert_array_equal(other.mtp_logits(3), walker.mtp_logits(3))
            rest = min(cut + 40, len(tokens))
            np.testing.assert_array_equal(other.eval_logits(tokens[cut:rest]), reference[cut:rest])


def test_restore_of_an_empty_session(model: ds4.Model) -> None:
    with model.session(n_ctx=64) as a, model.session(n_ctx=64) as b:
        b.eval([1, 2, 3])
        b.restore(a.snapshot())
        assert b.pos == 0
        with pytest.raises(RuntimeError):
            b.logits()


def test_every_damaged_byte_is_found(model: ds4.Model, tokens: NDArray[np.int32]) -> None:
    with model.session(n_ctx=64) as a, model.session(n_ctx=64) as b:
        a.eval(tokens[:6])
        good = a.snapshot()
        b.eval(tokens[:9])
        before = b.logits()
        step = max(1, len(good) // 400)
        for at in [*range(80), *range(80, len(good), step)]:
            bad = bytearray(good)
            bad[at] ^= 1 << (at % 8)
            with pytest.raises(ds4.SnapshotError):
                b.restore(bytes(bad))
        for cut in (0, 1, 8, 79, 80, 81, len(good) - 1):
            with pytest.raises(ds4.SnapshotError):
                b.restore(good[:cut])
        with pytest.raises(ds4.SnapshotError):
            b.restore(good + b"\0")
        assert b.tokens == tokens[:9].tolist()
        np.testing.assert_array_equal(b.logits(), before)


def test_settings_and_model_are_part_of_a_snapshot(model: ds4.Model, tokens: NDArray[np.int32]) -> None:
    with model.session(n_ctx=64) as a:
        a.eval(tokens[:20])
        good = a.snapshot()
    for other in ({"qat": False}, {"rows": "f32"}, {"mtp": True}, {"activations": "float32"}):
        name = next(iter(other))
        with model.session(n_ctx=64, **other) as b, pytest.raises(ds4.SnapshotError, match=f"{name} is .* here"):
            b.restore(good)
    with model.session(n_ctx=16) as small, pytest.raises(ds4.ContextFullError, match="20 positions"):
        small.restore(good)


def test_a_stopped_prefill_leaves_the_last_whole_chunk(model: ds4.Model, tokens: NDArray[np.int32]) -> None:
    """Stop between layers of a batch: what the batch wrote must not show in anything that follows."""
    with model.session(n_ctx=512, chunk=32) as clean:
        reference = clean.eval_logits(tokens)
    for stop_at in (70, 150, 250):
        with model.session(n_ctx=512, chunk=32) as session:
            seen = 0

            def tap(
                stage: str, layer: int, pos: int, values: object, session: ds4.Session = session, stop_at: int = stop_at
            ) -> None:
                nonlocal seen
                if pos <= stop_at < pos + 32 and layer == 3:
                    seen += 1
                    session.cancel()
                    time.sleep(0.06)  # a session asks whether to go on at most every 50 ms

            session.set_tap(tap)
            with pytest.raises(ds4.Cancelled):
                session.eval(tokens)
            session.set_tap(None)
            assert seen == 1
            assert session.pos == stop_at // 32 * 32
            np.testing.assert_array_equal(session.logits(), reference[session.pos - 1])
            rest = session.pos
            np.testing.assert_array_equal(session.eval_logits(tokens[rest:]), reference[rest:])


def forged(snapshot: bytes, at: int, value: bytes) -> bytes:
    """A snapshot with other bytes in its body, and checksums that fit them."""
    body = bytearray(snapshot[SNAPSHOT_HEADER:])
    body[at : at + len(value)] = value
    return with_body(snapshot, bytes(body))


def test_a_forged_snapshot_cannot_bring_in_bad_values(model: ds4.Model, tokens: NDArray[np.int32]) -> None:
    with model.session(n_ctx=16) as a, model.session(n_ctx=16) as b:
        a.eval(tokens[:3])
        good = a.snapshot()
        b.restore(forged(good, 0, good[SNAPSHOT_HEADER : SNAPSHOT_HEADER + 4]))
        assert b.tokens == a.tokens, "the forgery itself is sound"
        for id_ in (-1, 512, 2**31 - 1):
            with pytest.raises(ds4.SnapshotError, match="outside the vocabulary"):
                b.restore(forged(good, 8, np.int32(id_).tobytes()))
        with pytest.raises(ds4.SnapshotError, match="logit 5 is not finite"):
            b.restore(forged(good, 12 + 20, np.float32(np.nan).tobytes()))
