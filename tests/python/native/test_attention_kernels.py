"""Attention and indexer of the CPU backend: the formula, equal bits on every path; the exponential's error."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from support import native

F = np.float32
Floats = NDArray[np.float32]
VARIANTS = ("base", "avx2", "avx512")


@pytest.fixture(scope="module")
def ds4_kernels() -> ModuleType:
    return native.kernels_module()


def variants(kernels: ModuleType) -> list[str]:
    return [isa for isa in VARIANTS if kernels.can_run(isa)]


def test_exp_is_within_one_ulp_where_normal(ds4_kernels: ModuleType) -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(-87.3, 88.7, 200_000), rng.standard_normal(100_000) * 0.3]).astype(F)
    exact = np.exp(x.astype(np.float64))
    error = np.abs(ds4_kernels.exp_row("base", x) - exact) / np.spacing(exact.astype(F))
    assert error.max() < 1


def test_exp_at_the_ends(ds4_kernels: ModuleType) -> None:
    """0 below the smallest normal number, infinity above the largest, NaN stays; exactly 1 at 0."""
    tiny, big = F(np.log(2.0) * -126), F(88.7228)
    x = np.array([0, -0.0, tiny + F(1e-5), tiny - F(1e-5), -104, -1e30, -np.inf, big, 88.7229, 1e30, np.inf, np.nan], F)
    y = ds4_kernels.exp_row("base", x)
    np.testing.assert_array_equal(y[[0, 1]], 1)
    assert np.finfo(F).tiny <= y[2] < 1.2e-38
    np.testing.assert_array_equal(y[3:7], 0)
    assert 3.4e38 < y[7] < np.inf
    np.testing.assert_array_equal(y[8:11], np.inf)
    assert np.isnan(y[11])


def test_exp_has_the_same_bits_everywhere(ds4_kernels: ModuleType) -> None:
    """Every 997th float32 pattern on every variant; a value's bits do not depend on its place in the row."""
    x = np.arange(0, 2**32, 997, dtype=np.uint32).view(F)
    expected = ds4_kernels.exp_row("base", x)
    for isa in variants(ds4_kernels):
        np.testing.assert_array_equal(ds4_kernels.exp_row(isa, x).view(np.uint32), expected.view(np.uint32))
        for n in (1, 15, 16, 17, 33):
            np.testing.assert_array_equal(ds4_kernels.exp_row(isa, x[3 : 3 + n]), expected[3 : 3 + n])


Rows = NDArray[np.float16] | NDArray[np.float32]


@dataclass
class Case:
    """One call of attention: rows in a ring of `capacity`, compressed rows all (`selected` None) or chosen ones."""

    q: NDArray[np.float32]
    window_rows: Rows
    compressed: Rows
    selected: NDArray[np.int32] | None
    counts: NDArray[np.int32]
    sinks: NDArray[np.float32]
    window: int
    ratio: int
    pos0: int

    def run(self, kernels: ModuleType, isa: str, threads: int, first: int = 0, n: int | None = None) -> Floats:
        part = slice(first, None if n is None else first + n)
        none = np.zeros((0, 0), np.int32)
        chosen = none if self.selected is None else self.selected[part]
        return cast(
            Floats,
            kernels.attention(
                isa,
                threads,
                self.q[part],
                self.window_rows,
                self.compressed,
                chosen,
                self.counts[part],
                self.sinks,
                self.window,
                self.ratio,
                self.pos0 + first,
                1 / np.sqrt(self.q.shape[2]),
            ),
        )

    def exact(self) -> NDArray[np.float64]:
        out = np.empty(self.q.shape)
        for t, q in enumerate(self.q.astype(np.float64)):
            pos = self.pos0 + t
            places = np.arange(max(0, pos + 1 - self.window), pos + 1) % len(self.window_rows)
            rows = self.window_rows[places]
            if self.ratio:
                visible = np.arange((pos + 1) // self.ratio)
                ids = visible if self.selected is None else self.selected[t, : self.counts[t]]
                rows = np.concatenate([rows, self.compressed[ids]])
            scores = q @ rows.astype(np.float64).T / np.sqrt(q.shape[1])
            scores = np.concatenate([scores, self.sinks[:, None]], 1)
            e = np.exp(scores - scores.max(1, keepdims=True))
            out[t] = (e / e.sum(1, keepdims=True))[:, :-1] @ rows.astype(np.float64)
        return out


def make_case(
    n: int, heads: int, dim: int, pos0: int, ratio: int, top_k: int, type_: type[np.floating[Any]], window: int = 32
) -> Case:
    rng = np.random.default_rng(n + heads + dim + pos0)
    end = pos0 + n
    visible = max(1, end // ratio) if ratio else 1
    counts = np.array([min(top_k, (pos0 + t + 1) // ratio) if ratio and top_k else 0 for t in range(n)], np.int32)
    selected = np.full((n, top_k), -1, np.int32) if ratio and top_k else None
    if selected is not None:
        for t in range(n):
            among = rng.permutation((pos0 + t + 1) // ratio)[: counts[t]]
            selected[t, : counts[t]] = np.sort(among)
    return Case(
        q=rng.standard_normal((n, heads, dim)).astype(F),
        window_rows=rng.standard_normal((window + n, dim)).astype(type_),
        compressed=rng.standard_normal((visible, dim)).astype(type_),
        selected=selected,
        counts=counts,
        sinks=rng.standard_normal(heads).astype(F),
        window=window,
        ratio=ratio,
        pos0=pos0,
    )


CASES = [
    # n, heads, dim, pos0, ratio, top_k, rows; a strip of dims is 64, lanes are 16 heads
    (1, 64, 512, 700, 4, 100, np.float16),
    (7, 64, 128, 300, 128, 0, np.float16),
    (5, 4, 256, 0, 0, 0, np.float32),
    (3, 70, 128, 90, 4, 16, np.float16),
    (4, 21, 80, 3, 4, 16, np.float32),
    (2, 1, 16, 1000, 4, 0, np.float16),
]


@pytest.mark.parametrize("case", CASES)
def test_attention_is_the_formula_with_equal_bits(ds4_kernels: ModuleType, case: tuple[Any, ...]) -> None:
    """Every instruction set, any number of threads, a chunk or its tokens alone: the same bits."""
    c = make_case(*case)
    expected = c.run(ds4_kernels, "base", 1)
    np.testing.assert_allclose(expected, c.exact(), rtol=0, atol=3e-6)
    for isa in variants(ds4_kernels):
        for threads in (1, 2, 3):
            np.testing.assert_array_equal(c.run(ds4_kernels, isa, threads), expected)
        alone = [c.run(ds4_kernels, isa, 2, t, 1) for t in range(len(c.q))]
        np.testing.assert_array_equal(np.concatenate(alone), expected)


def test_attention_with_large_scores_and_not_a_number(ds4_kernels: ModuleType) -> None:
    """Scores of some hundreds neither overflow nor vanish; a NaN stays within the heads and tokens that meet it."""
    c = make_case(3, 5, 64, 40, 0, 0, np.float32)
    c.q *= 300
    out = c.run(ds4_kernels, "base", 1)
    np.testing.assert_allclose(out, c.exact(), rtol=0, atol=1e-3)
    c.q[1, 2, 0] = np.nan
    for isa in variants(ds4_kernels):
        broken = c.run(ds4_kernels, isa, 2)
        assert np.isnan(broken[1, 2]).all()
        broken[1, 2] = out[1, 2]
        np.testing.assert_array_equal(broken, out)


@pytest.mark.parametrize(
    ("n", "heads", "dim", "pos0", "top_k", "type_"),
    [
        (1, 64, 128, 900, 50, np.float16),
        (7, 64, 128, 395, 100, np.float16),  # the first tokens take every row
        (5, 8, 64, 333, 33, np.float32),
        (3, 70, 128, 200, 1, np.float16),
        (4, 16, 128, 20, 16, np.float16),
    ],
)
def test_indexer_takes_the_best_rows_with_equal_bits(
    ds4_kernels: ModuleType, n: int, heads: int, dim: int, pos0: int, top_k: int, type_: type[np.floating[Any]]
) -> None:
    rng = np.random.default_rng(pos0)
    q = rng.standard_normal((n, heads, dim)).astype(F)
    weights = rng.standard_normal((n, heads)).astype(F)
    rows = rng.standard_normal(((pos0 + n) // 4, dim)).astype(type_)
    args = (top_k, 4, pos0, 0.05)
    ids, counts, margin = ds4_kernels.indexer("base", 1, q, weights, rows, *args)
    gaps = [np.inf]
    for t in range(n):
        visible = (pos0 + t + 1) // 4
        assert counts[t] == min(visible, top_k)
        dots = np.maximum(q[t].astype(np.float64) @ rows[:visible].astype(np.float64).T, 0)
        scores = (dots * weights[t, :, None] * 0.05).sum(0)
        order = np.argsort(-scores, kind="stable")
        np.testing.assert_array_equal(ids[t, : counts[t]], np.sort(order[:top_k]))
        if visible > top_k:
            gaps.append(scores[order[top_k - 1]] - scores[order[top_k]])
    np.testing.assert_allclose(margin, min(gaps), atol=1e-5)
    for isa in variants(ds4_kernels):
        for threads in (1, 2, 3):
            again = ds4_kernels.indexer(isa, threads, q, weights, rows, *args)
            np.testing.assert_array_equal(again[0], ids)
            np.testing.assert_array_equal(again[1], counts)
            assert again[2] == margin
        alone = [
            ds4_kernels.indexer(isa, 2, q[t : t + 1], weights[t : t + 1], rows, top_k, 4, pos0 + t, 0.05)
            for t in range(n)
        ]
        np.testing.assert_array_equal(np.concatenate([a[0] for a in alone]), ids)
        assert min(a[2] for a in alone) == margin


def test_indexer_ties_and_not_a_number(ds4_kernels: ModuleType) -> None:
    """Equal scores: the lower row, margin 0; a NaN loses against every number."""
    q, weights = np.ones((1, 16, 32), F), np.ones((1, 16), F)
    rows = np.ones((12, 32), F)
    rows[[3, 7]] = 2
    for threads in (1, 2):
        ids, _, margin = ds4_kernels.indexer("base", threads, q, weights, rows, 5, 4, 47, 1.0)
        np.testing.assert_array_equal(ids, [[0, 1, 2, 3, 7]])
        assert margin == 0
    rows[:6] = np.nan
    ids, _, margin = ds4_kernels.indexer("base", 1, q, weights, rows, 6, 4, 47, 1.0)
    np.testing.assert_array_equal(ids, [[6, 7, 8, 9, 10, 11]])
    assert margin == np.inf
    rows[:] = -1  # every ReLU is shut, half the weights are negative: all scores are zeros
    weights[:, ::2] = -1
    ids, _, margin = ds4_kernels.indexer("base", 1, q, weights, rows, 3, 4, 47, 1.0)
    np.testing.assert_array_equal(ids, [[0, 1, 2]])
    assert margin == 0
