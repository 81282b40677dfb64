"""Likelihood of plain text, against numbers made in another way."""

from __future__ import annotations

import math
from collections.abc import Sequence

import ds4
import numpy as np
import pytest
from ds4.score import score_text, score_texts, score_tokens, text_cases, total_of
from ds4.score.forcing import predictions
from oracle import reference, tiny_shapes
from support.tiny_gguf import effective_weights


def losses_of(logits: np.ndarray, targets: Sequence[int]) -> np.ndarray:
    """Negative log-likelihoods, by another formula than the package's."""
    x = np.asarray(logits, dtype=np.longdouble)
    total = np.log(np.exp(x).sum(axis=1))
    return np.asarray(total - x[np.arange(len(targets)), list(targets)], dtype=np.float64)


def test_one_window_equals_the_reference(model: ds4.Model) -> None:
    """The numpy network in float64 gives the same likelihood of the same file's weights."""
    text = "the rest is one and another"
    config = tiny_shapes.VARIANTS["flash"]
    ids = [model.tokenizer.bos_id, *model.tokenizer.encode(text)]
    oracle = reference.Session(reference.Model(config, effective_weights("flash")))
    logits, _ = oracle.feed(np.array(ids[:-1]))
    with model.session(n_ctx=64, qat=False, rows="f32") as session:
        score = score_text(session, text)
    assert score.tokens == len(ids) - 1 and score.windows == 1
    assert score.nll == pytest.approx(losses_of(logits, ids[1:]).sum(), rel=1e-5)
    assert score.matches == int((logits.argmax(axis=1) == ids[1:]).sum())


def test_windows_equal_a_direct_computation(model: ds4.Model, text: str) -> None:
    ids = model.tokenizer.encode(text)
    n_ctx, stride = 64, 24
    expected = []
    done = 0
    with model.session(n_ctx=n_ctx) as session:
        while done < len(ids):
            end = min(len(ids), done + (stride if done else n_ctx))
            window = [model.tokenizer.bos_id, *ids[max(0, end - n_ctx) : end]]
            session.reset()
            rows = session.eval_logits(window[:-1])[-(end - done) :]
            expected.extend(losses_of(rows, window[-(end - done) :]))
            done = end
        score = score_text(session, text, stride=stride)
    assert score.tokens == len(ids) == len(expected)
    assert score.windows > 5
    assert score.nll == pytest.approx(sum(expected), rel=1e-9)
    assert score.avg_nll == pytest.approx(np.mean(expected), rel=1e-9)
    assert score.bytes == len(text.encode()) > len(text)
    assert score.nll_per_byte == pytest.approx(sum(expected) / len(text.encode()), rel=1e-9)
    assert score.bits_per_byte == pytest.approx(score.nll_per_byte / math.log(2))
    assert score.perplexity == pytest.approx(math.exp(np.mean(expected)), rel=1e-9)


@pytest.mark.parametrize(("n_ctx", "stride"), [(1, 1), (7, 1), (7, 7), (64, None), (2000, None)])
def test_windows_predict_every_token_once(model: ds4.Model, text: str, n_ctx: int, stride: int | None) -> None:
    ids = model.tokenizer.encode(text)
    cases = text_cases(model.tokenizer, text, n_ctx, stride=stride, name="t")
    assert [t for c in cases for t in c.target] == ids
    done = 0
    for case in cases:
        assert case.n_positions <= n_ctx
        assert case.prompt[0] == model.tokenizer.bos_id
        context = case.prompt[1:]
        assert list(context) == ids[done - len(context) : done]
        done += len(case.target)
        if stride is not None and done > n_ctx:
            assert len(case.prompt) + len(case.target) - 1 == n_ctx
    assert len({c.id for c in cases}) == len(cases)
    if len(cases) == 1:
        assert cases[0].id == "t"


def test_chunk_and_threads_change_no_bit(model: ds4.Model, text: str) -> None:
    found = set()
    for chunk, threads in ((256, 1), (1, 1), (7, 2), (64, 2)):
        with model.session(n_ctx=90, chunk=chunk, threads=threads) as session:
            found.add(score_text(session, text, stride=40).nll)
    assert len(found) == 1


def test_a_text_after_another_does_not_depend_on_it(model: ds4.Model, text: str) -> None:
    with model.session(n_ctx=100) as session:
        scores = score_texts(session, [("a", text), ("b", text[:50]), ("a again", text)])
    assert scores[0].nll == scores[2].nll
    total = total_of(scores)
    assert total.tokens == sum(s.tokens for s in scores)
    assert total.nll == pytest.approx(sum(s.nll for s in scores))


def test_tokens_are_scored_as_they_are(model: ds4.Model, session: ds4.Session, text: str) -> None:
    ids = model.tokenizer.encode(text)[:100]
    expected = losses_of(session.eval_logits(ids[:-1])[31:], ids[32:]).sum()
    assert score_tokens(session, ids, 32) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("stride", "text", "words"), [(0, "x", "stride"), (257, "x", "256"), (None, "", "empty")])
def test_bad_arguments(session: ds4.Session, stride: int | None, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        score_text(session, text, stride=stride)


def test_a_sequence_that_does_not_fit(model: ds4.Model) -> None:
    with model.session(n_ctx=16) as session:
        with pytest.raises(ds4.ContextFullError, match=r"19 positions.*16"):
            score_tokens(session, list(range(3, 23)), 1)
        assert session.pos == 0
        assert score_tokens(session, list(range(3, 20)), 1) > 0  # the last token needs no position
        for first in (0, 17):
            with pytest.raises(ValueError, match="cannot be predicted"):
                score_tokens(session, list(range(3, 20)), first)


class Broken:
    """A session whose logits are not finite after one position."""

    n_ctx, n_vocab, chunk = 100, 8, 4

    def __init__(self, bad: float) -> None:
        self.bad = bad
        self.pos = 0

    def reset(self) -> None:
        self.pos = 0

    def eval_logits(self, ids: Sequence[int]) -> np.ndarray:
        rows = np.zeros((len(ids), self.n_vocab), np.float32)
        for i in range(len(ids)):
            if self.pos + i == 5:
                rows[i, 3] = self.bad
        self.pos += len(ids)
        return rows


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_an_error(bad: float) -> None:
    with pytest.raises(ds4.WeightDataError, match="after position 5"):
        list(predictions(Broken(bad), [0] * 12, 1))  # type: ignore[arg-type]
    assert len(list(predictions(Broken(0.0), [0] * 12, 1))) == 11  # type: ignore[arg-type]


def test_progress_counts_positions_and_can_stop_the_work(session: ds4.Session, text: str) -> None:
    seen: list[tuple[int, int, str]] = []
    score_text(session, text, name="book", progress=lambda done, total, what: seen.append((done, total, what)))
    done = [d for d, _, _ in seen]
    assert done == sorted(done) and done[-1] == seen[0][1]
    assert {t for _, t, _ in seen} == {done[-1]}
    assert all(what.startswith("book[") for _, _, what in seen)

    def stop(done: int, total: int, what: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_text(session, text, progress=stop)
    assert score_text(session, "usable after that").tokens > 0
