"""Importance statistics: the sums that the engine gathers are those of the reference, and gathering changes nothing."""

from __future__ import annotations

import threading
from typing import Any

import ds4
import numpy as np
import pytest
from ds4.importance import LayerImportance
from numpy.typing import NDArray
from oracle import tiny_shapes
from oracle.reference import Model, Session, sigmoid
from support.golden import load_golden

PLAIN: dict[str, Any] = {"qat": False, "rows": "f32"}


class Counting(Model):
    """The reference, adding up what reaches the matrices of its experts."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sums: dict[str, list[NDArray[Any]]] = {}

    def moe(self, x: NDArray[Any], tokens: NDArray[Any], prefix: str) -> tuple[NDArray[Any], NDArray[Any]]:
        c, limit = self.c, self.c["swiglu_limit"]
        n, width = c["n_routed_experts"], c["moe_intermediate_size"]
        fresh = [np.zeros((n, x.shape[1])), np.zeros((n, width)), np.zeros(n, np.int64)]
        sum_in, sum_mid, counts = self.sums.setdefault(prefix, fresh)
        chosen, weight, _ = self.route(x, tokens, prefix)
        for e in np.unique(chosen):
            t, k = np.nonzero(chosen == e)
            w1, w3 = (self.w[f"{prefix}experts.{e}.{name}.weight"].T for name in ("w1", "w3"))
            gate, up = np.minimum(x[t] @ w1, limit), np.clip(x[t] @ w3, -limit, limit)
            mid = gate * sigmoid(gate) * up * weight[t, k, None]
            sum_in[e] += (x[t] ** 2).sum(0)
            sum_mid[e] += (mid**2).sum(0)
            counts[e] += len(t)
        return super().moe(x, tokens, prefix)


def gathered(model: ds4.Model, tokens: NDArray[np.int32], **options: Any) -> list[LayerImportance]:
    with model.session(n_ctx=1024, **options) as session, session.collect_importance() as importance:
        session.sync(tokens)
        return [importance.layer(i) for i in range(importance.n_layer + importance.mtp)]


def assert_equal(a: list[LayerImportance], b: list[LayerImportance]) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x.sum_in, y.sum_in)
        np.testing.assert_array_equal(x.sum_mid, y.sum_mid)
        np.testing.assert_array_equal(x.counts, y.counts)


@pytest.fixture(scope="module")
def tokens(variant: str) -> NDArray[np.int32]:
    return load_golden(variant).prompts[129].tokens


def test_sums_are_the_references(model: ds4.Model, variant: str, tokens: NDArray[np.int32]) -> None:
    """All layers, the hash-routed ones too, and the MTP block over the pairs that the prompt completes."""
    reference = Counting(tiny_shapes.VARIANTS[variant], tiny_shapes.weights_of(variant))
    timeline = Session(reference)
    _, streams = timeline.feed(tokens)
    timeline.feed_mtp(streams[:-1], tokens[1:], 0)
    ours = gathered(model, tokens, mtp=True, chunk=50, **PLAIN)
    assert len(ours) == len(reference.sums) == model.shape.n_layer + 1
    for i, layer in enumerate(ours):
        prefix = f"layers.{i}.ffn." if i < model.shape.n_layer else "mtp.0.ffn."
        sum_in, sum_mid, counts = reference.sums[prefix]
        np.testing.assert_array_equal(layer.counts, counts)
        assert counts.sum() == (len(tokens) - (i == model.shape.n_layer)) * model.shape.n_expert_used
        for got, expected in ((layer.sum_in, sum_in), (layer.sum_mid, sum_mid)):
            seen = counts > 0
            assert not got[~seen].any() and got[seen].all()
            scale = expected[seen].mean(axis=1, keepdims=True)
            assert (np.abs(got[seen] - expected[seen]) <= 1e-5 * (expected[seen] + scale)).all()


def test_chunks_and_threads_do_not_change_a_bit(model: ds4.Model, tokens: NDArray[np.int32]) -> None:
    """Sums in token order: the default arithmetic, with its roundings, and the MTP block too."""
    one = gathered(model, tokens, chunk=256, threads=1, mtp=True)
    for options in ({"chunk": 1, "threads": 1}, {"chunk": 7, "threads": 2}, {"chunk": 256, "threads": 3}):
        assert_equal(gathered(model, tokens, mtp=True, **options), one)
    without = gathered(model, tokens, chunk=31)
    assert_equal(without, one[:-1])


def test_several_calls_and_decoding_add_up(model: ds4.Model, tokens: NDArray[np.int32]) -> None:
    whole = gathered(model, tokens)
    with model.session(n_ctx=1024) as session, session.collect_importance() as importance:
        session.sync(tokens[:70])
        session.sync(tokens[:100])  # the first 70 are kept, and so not counted again
        session.eval_logits(tokens[100:110])
        for token in tokens[110:]:
            session.eval(int(token))
        assert_equal([importance.layer(i) for i in range(importance.n_layer)], whole)
        session.reset()
        session.sync(tokens)
        twice = importance.layer(0)
    np.testing.assert_array_equal(twice.counts, 2 * whole[0].counts)
    np.testing.assert_allclose(twice.sum_in, 2 * whole[0].sum_in, rtol=1e-12)


@pytest.mark.parametrize("activations", ["float32", "quantized"])
def test_gathering_changes_no_result(model: ds4.Model, tokens: NDArray[np.int32], activations: Any) -> None:
    options: dict[str, Any] = {"n_ctx": 256, "mtp": True, "chunk": 40, "activations": activations}
    with model.session(**options) as plain, model.session(**options) as session:
        expected, draft = plain.eval_logits(tokens), plain.mtp_logits(3)
        with session.collect_importance():
            np.testing.assert_array_equal(session.eval_logits(tokens), expected)
            np.testing.assert_array_equal(session.mtp_logits(3), draft)
            assert session.snapshot() == plain.snapshot()
        plain.eval(5)
        session.eval(5)
        np.testing.assert_array_equal(session.logits(), plain.logits())
        np.testing.assert_array_equal(session.mtp_logits(3), plain.mtp_logits(3))


def test_drafts_and_restored_states_are_not_counted(model: ds4.Model, tokens: NDArray[np.int32]) -> None:
    with model.session(n_ctx=256, mtp=True) as session:
        session.sync(tokens[:50])
        saved = session.snapshot()
        with session.collect_importance() as importance:
            session.mtp_logits(1)
            session.restore(saved)
            assert not any(importance.layer(i).counts.any() for i in range(importance.n_layer + 1))


def test_a_collection_begins_at_zero_and_ends(model: ds4.Model, tokens: NDArray[np.int32]) -> None:
    with model.session(n_ctx=256) as session:
        session.sync(tokens[:20])
        with session.collect_importance() as importance:
            assert importance.running and not importance.mtp
            assert not importance.layer(0).sum_in.any()
            session.sync(tokens[:30])
            with pytest.raises(ds4.StateError, match="already"):
                session.collect_importance()
            first = importance.layer(1)
            assert first.counts.sum() == 10 * model.shape.n_expert_used
            for index in (-1, importance.n_layer):
                with pytest.raises(IndexError, match=rf"layer {index} is not in 0\.\.{importance.n_layer - 1}"):
                    importance.layer(index)
        with pytest.raises(ds4.StateError, match="has ended"):
            importance.layer(0)
        session.sync(tokens[:40])
        with session.collect_importance() as again:
            assert not again.layer(1).counts.any()
            session.close()
            with pytest.raises(ds4.ClosedError):
                again.layer(0)
    assert not again.running
    with pytest.raises(ds4.ClosedError):
        session.collect_importance()


def test_sessions_gather_apart(model: ds4.Model, tokens: NDArray[np.int32]) -> None:
    expected = gathered(model, tokens)
    results: list[list[LayerImportance]] = []
    threads = [threading.Thread(target=lambda: results.append(gathered(model, tokens, threads=2))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    for result in results:
        assert_equal(result, expected)
