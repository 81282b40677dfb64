"""A quantized file against its parent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ds4
import numpy as np
import pytest
from ds4.score import Case, divergence, score_cases, text_cases
from support.gguf_write import ValueType, array
from support.tiny_gguf import RECIPES, vocabulary, write_tiny_gguf


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    rng = np.random.default_rng(5)
    sizes = ((20, 30, "a"), (3, 60, "b"), (1, 17, "a"), (40, 1, None))
    return [
        Case(str(i), tuple(rng.integers(3, 270, n).tolist()), tuple(rng.integers(3, 270, m).tolist()), kind)
        for i, (n, m, kind) in enumerate(sizes)
    ]


def test_a_model_does_not_diverge_from_itself(model: ds4.Model, cases: list[Case]) -> None:
    with model.session(n_ctx=64) as one, model.session(n_ctx=80, chunk=5) as other:
        total = divergence(one, other, cases).total
    assert total.tokens == 108
    assert total.mean_kl == total.median_kl == total.p99_kl == total.max_kl == 0.0
    assert total.agreement == 1.0 and total.max_gap == total.mean_gap == 0.0
    assert total.delta == 0.0 and total.nll == total.parent_nll


def test_one_session_cannot_be_both(model: ds4.Model, cases: list[Case]) -> None:
    with model.session(n_ctx=64) as session, pytest.raises(ValueError, match="two sessions"):
        divergence(session, session, cases)


def test_q8_diverges_a_little_and_q2_more(model: ds4.Model, cases: list[Case], tiny_gguf: Callable[..., Path]) -> None:
    """The numbers are those of a direct computation from all logits; so are the rate and size of flips (L125)."""
    found = {}
    for recipe in ("q8", "ds4-q2"):
        with ds4.Model.open(tiny_gguf("flash", part="main", recipe=recipe)) as quantized:
            with quantized.session(n_ctx=64) as session, model.session(n_ctx=64) as parent:
                report = divergence(session, parent, cases)
                scores = score_cases(session, cases), score_cases(parent, cases)
            kl, gaps = [], []
            for case in cases:
                ids = [*case.prompt, *case.target][:-1]
                with quantized.session(n_ctx=64) as session, model.session(n_ctx=64) as parent:
                    q, p = (s.eval_logits(ids)[len(case.prompt) - 1 :].astype(np.longdouble) for s in (session, parent))
                q, p = (x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in (q, p))
                kl.append((np.exp(p) * (p - q)).sum(axis=1))
                picks = q.argmax(axis=1)
                gaps.append(p.max(axis=1) - p[np.arange(len(p)), picks])
        every, all_gaps = np.concatenate(kl), np.concatenate(gaps)
        total = report.total
        assert total.mean_kl == pytest.approx(float(every.mean()), rel=1e-6)
        assert total.median_kl == pytest.approx(float(np.median(every)), rel=1e-6)
        assert total.p99_kl == pytest.approx(float(np.percentile(every.astype(float), 99)), rel=1e-6)
        assert total.max_kl == pytest.approx(float(every.max()), rel=1e-6)
        assert total.tokens - total.agreements == int((all_gaps > 0).sum())
        assert total.max_gap == pytest.approx(float(all_gaps.max()), rel=1e-6)
        assert (total.nll, total.parent_nll) == pytest.approx([run.totals.nll for run in scores], rel=1e-12)
        assert [d.id for d in report.cases] == ["0", "1", "2", "3"]
        for d, each in zip(report.cases, kl, strict=True):
            assert d.mean_kl == pytest.approx(float(each.mean()), rel=1e-6)
        assert [(d.id, d.tokens) for d in report.kinds] == [("a", 47), ("b", 60)]
        found[recipe] = total
    assert 0 < found["q8"].mean_kl < 0.05 * found["ds4-q2"].mean_kl
    assert found["q8"].agreement > found["ds4-q2"].agreement
    assert found["ds4-q2"].mean_gap > 0


def test_texts_are_measured_window_by_window(model: ds4.Model, text: str) -> None:
    cases = text_cases(model.tokenizer, text, 64, stride=50, name="t")
    with model.session(n_ctx=64) as one, model.session(n_ctx=64) as other:
        report = divergence(one, other, cases)
    assert report.total.tokens == len(model.tokenizer.encode(text))
    assert report.total.max_kl == 0.0 and not report.kinds


def test_other_tokenizers_are_refused(model: ds4.Model, cases: list[Case], tmp_path: Path) -> None:
    tokens, _, _ = vocabulary()
    at = next(i for i, t in enumerate(tokens) if t.startswith("<｜place▁holder"))
    tokens[at] = "<｜another｜>"
    changes = {"tokenizer.ggml.tokens": array(ValueType.STRING, tokens)}
    path = write_tiny_gguf(tmp_path / "o.gguf", "flash", part="main", types=RECIPES["q8"], changes=changes)
    with (
        ds4.Model.open(path) as other,
        other.session(n_ctx=64) as session,
        model.session(n_ctx=64) as parent,
    ):
        with pytest.raises(ValueError, match=rf"different vocabularies: token {at} is .*another"):
            divergence(parent, session, cases)
        assert session.pos == parent.pos == 0


def test_bad_arguments(model: ds4.Model) -> None:
    with model.session(n_ctx=64) as one, model.session(n_ctx=16) as small:
        with pytest.raises(ValueError, match="no cases"):
            divergence(one, small, [])
        for pair in ((one, small), (small, one)):
            with pytest.raises(ValueError, match=r"case x: .*16"):
                divergence(*pair, [Case("x", (3,) * 16, (4, 4))])
