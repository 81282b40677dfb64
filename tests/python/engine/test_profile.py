"""Times of parts: complete, in the right places, and without effect on results. And contexts that nobody computed."""

from __future__ import annotations

import time
from typing import Any

import ds4
import numpy as np
import pytest
from ds4._native._session import part_names as native_parts
from ds4.profile import PhaseProfile
from numpy.typing import NDArray

MTP, OUTSIDE = -2, -1  # rows after those of the layers


@pytest.fixture(scope="module")
def tokens() -> NDArray[np.int32]:
    return np.random.default_rng(7).integers(0, 200, 100).astype(np.int32)


def column(phase: PhaseProfile, part: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    i = phase.parts.index(part)
    return phase.seconds[:, i], phase.entries[:, i]


def test_parts_stand_in_their_rows(model: ds4.Model, tokens: NDArray[np.int32]) -> None:
    with model.session(n_ctx=256, chunk=40) as session, session.profile() as profile:
        session.sync(tokens)
        session.eval(1)
        session.eval(2)
    n_layer, ratios = model.shape.n_layer, np.array(model.shape.compress_ratio)
    for phase, n, chunks in ((profile.prefill, 100, 3), (profile.decode, 2, 2)):
        assert phase.tokens == n
        assert phase.seconds.shape == phase.entries.shape == (n_layer + 2, len(phase.parts))
        for part in ("projections", "attention", "router", "experts_gate_up", "experts_down", "shared"):
            seconds, entries = column(phase, part)
            assert (entries[:n_layer] == chunks).all() and (seconds[:n_layer] > 0).all(), part
            assert not entries[n_layer:].any() and not seconds[n_layer:].any(), part
        np.testing.assert_array_equal(column(phase, "compressor")[0][:n_layer] > 0, ratios > 0)
        np.testing.assert_array_equal(column(phase, "indexer")[0][:n_layer] > 0, ratios == 4)
        np.testing.assert_array_equal(column(phase, "hyper")[1][:n_layer], 4 * chunks)
        for part in ("embedding", "head"):
            seconds, entries = column(phase, part)
            assert entries[OUTSIDE] == chunks and not entries[:OUTSIDE].any() and seconds[OUTSIDE] > 0
        assert not phase.seconds[MTP].any()
        assert phase.by_layer().sum() == pytest.approx(phase.total)
        assert sum(phase.by_part().values()) == pytest.approx(phase.total)
        plain = phase.as_json()
        assert plain["tokens"] == n and len(plain["layers"]) == n_layer + 2 and set(plain["parts"]) == set(phase.parts)


def test_times_add_up_to_the_time_of_the_call(model: ds4.Model, tokens: NDArray[np.int32]) -> None:
    with model.session(n_ctx=256) as session, session.profile() as profile:
        begin = time.perf_counter()
        session.sync(tokens)
        wall = time.perf_counter() - begin
        first = profile.prefill
        assert 0.5 * wall < first.total <= wall
        session.reset()
        session.sync(tokens)
        assert profile.prefill.tokens == 200 and profile.prefill.total > first.total
        assert profile.decode.tokens == 0 and profile.decode.total == 0


def test_the_mtp_block_has_its_row(model: ds4.Model, tokens: NDArray[np.int32]) -> None:
    with model.session(n_ctx=256, mtp=True) as session, session.profile() as profile:
        session.sync(tokens)
        before = profile.prefill
        session.mtp_logits(3)
        np.testing.assert_array_equal(profile.prefill.seconds, before.seconds)
        assert profile.decode.total == 0
    assert column(before, "projections")[0][MTP] > 0
    assert not column(before, "attention")[0][MTP]


@pytest.mark.parametrize("activations", ["float32", "quantized"])
def test_measuring_changes_no_result(model: ds4.Model, tokens: NDArray[np.int32], activations: Any) -> None:
    options: dict[str, Any] = {"n_ctx": 256, "chunk": 40, "activations": activations, "mtp": True}
    with model.session(**options) as plain, model.session(**options) as session:
        with session.profile():
            np.testing.assert_array_equal(session.eval_logits(tokens), plain.eval_logits(tokens))
            assert session.snapshot() == plain.snapshot()
        session.eval(5)
        plain.eval(5)
        np.testing.assert_array_equal(session.logits(), plain.logits())


def test_a_profile_begins_at_zero_ends_and_stays_readable(model: ds4.Model, tokens: NDArray[np.int32]) -> None:
    with model.session(n_ctx=256) as session:
        with session.profile() as profile:
            session.sync(tokens[:20])
            with pytest.raises(ds4.StateError, match="already"):
                session.profile()
            with pytest.raises(ValueError, match="'decoding'"):
                profile.phase("decoding")  # type: ignore[arg-type]
        assert not profile.running
        session.sync(tokens[:40])
        assert profile.prefill.tokens == 20
        profile.stop()
        with session.profile() as again:
            assert again.prefill.total == 0 and again.prefill.tokens == 0
            session.close()
    with pytest.raises(ds4.StateError, match="closed before"):
        again.prefill  # noqa: B018


def test_a_stopped_chunk_has_time_but_no_tokens(model: ds4.Model, tokens: NDArray[np.int32]) -> None:
    def stop(stage: str, layer: int, pos: int, values: NDArray[np.float32]) -> None:
        if layer == 2:
            raise RuntimeError("enough")

    with model.session(n_ctx=256) as session, session.profile() as profile:
        session.set_tap(stop)
        with pytest.raises(RuntimeError, match="enough"):
            for token in tokens:  # the pulse that sees the failure comes every 50 ms
                session.eval_logits([int(token)] * 2)
        session.set_tap(None)
        stopped = profile.prefill
        assert stopped.tokens == session.pos and stopped.total > 0
        session.eval(1)
        assert profile.decode.tokens == 1


def test_a_filled_context_can_be_continued(model: ds4.Model) -> None:
    """As long as asked for, equal for equal seeds, finite, restorable; logits are all zero."""
    with model.session(n_ctx=700, mtp=True) as session, model.session(n_ctx=700, mtp=True) as other:
        session.fill(600, seed=3)
        other.fill(600, seed=3)
        assert session.pos == 600 and min(session.tokens) >= 0 and len(set(session.tokens)) > 100
        assert not session.logits().any()
        assert session.snapshot() == other.snapshot()
        other.fill(600, seed=4)
        assert session.snapshot() != other.snapshot()
        other.restore(session.snapshot())
        for tokens in ([1, 2, 3], [4]):
            session.eval(tokens)
            other.eval(tokens)
            assert np.isfinite(session.logits()).all() and session.logits().any()
            np.testing.assert_array_equal(session.logits(), other.logits())
        assert np.isfinite(session.mtp_logits(1)).all()
        session.fill(1)
        assert session.pos == 1


@pytest.mark.parametrize("rows", ["f16", "f32"])
def test_a_filled_context_is_finite_in_both_row_types(model: ds4.Model, rows: Any) -> None:
    with model.session(n_ctx=300, rows=rows) as session:
        session.fill(290)
        assert np.isfinite(session.eval_logits([1, 2, 3, 4])).all()


def test_what_cannot_be_filled(model: ds4.Model) -> None:
    with model.session(n_ctx=64) as session:
        session.sync([1, 2, 3])
        for n in (0, -1):
            with pytest.raises(ValueError, match="1 or more"):
                session.fill(n)
        with pytest.raises(ValueError, match="seed"):
            session.fill(1, seed=-1)
        with pytest.raises(ds4.ContextFullError, match="65 positions do not fit a context of 64"):
            session.fill(65)
        assert session.tokens == [1, 2, 3]


def test_the_core_checks_what_it_is_asked_for(model: ds4.Model) -> None:
    """Below the Python class, which asks for nothing wrong."""
    with model.session(n_ctx=8) as session:
        native = session._open()
        ns = np.zeros((model.shape.n_layer + 2) * len(native_parts()), np.uint64)
        with pytest.raises(ds4.StateError, match="takes no times"):
            native.profile_into(0, ns, ns.copy())
        with session.profile():
            with pytest.raises(ValueError, match="phase is 2"):
                native.profile_into(2, ns, ns.copy())
            with pytest.raises(ValueError, match="room for"):
                native.profile_into(0, ns[:-1], ns.copy())
        with pytest.raises(ValueError, match="0 positions cannot be filled"):
            native.fill(0, 1)
