"""Drawing tokens, against the arithmetic written out in numpy."""

from __future__ import annotations

from typing import Any

import ds4
import numpy as np
import pytest
from ds4 import Sampler, log_softmax
from numpy.typing import NDArray

ZERO_SEED = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


class Reference:
    """xorshift64* and the rules of the module's description, in float64 behind a float32 softmax."""

    def __init__(self, temperature: float, top_k: int, top_p: float, min_p: float, seed: int) -> None:
        self.temperature, self.top_k, self.top_p, self.min_p = temperature, top_k, top_p, min_p
        self.state = seed

    def uniform(self) -> float:
        x = self.state or ZERO_SEED
        x ^= x >> 12
        x ^= (x << 25) & MASK
        x ^= x >> 27
        self.state = x
        return (((x * 0x2545F4914F6CDD1D) & MASK) >> 40) / (1 << 24)

    def sample(self, logits: NDArray[np.float32]) -> int:
        finite = np.flatnonzero(np.isfinite(logits))
        best = finite[np.argmax(logits[finite])]
        if self.temperature <= 0:
            return int(best)
        p = np.exp((logits[finite] - logits[best]) / np.float32(self.temperature), dtype=np.float32)
        keep = (p >= np.float32(self.min_p)) & (p > 0)
        ids, p = finite[keep], p[keep].astype(np.float64)
        if self.top_p < 1 or self.top_k > 0:
            order = np.argsort(-logits[ids], kind="stable")
            ids, p = ids[order], p[order]
            if self.top_k:
                ids, p = ids[: self.top_k], p[: self.top_k]
            n = int(np.searchsorted(np.cumsum(p), np.float32(self.top_p) * p.sum())) + 1
            ids, p = ids[:n], p[:n]
        at = self.uniform() * p.sum()
        return int(ids[min(np.searchsorted(np.cumsum(p), at, side="right"), len(ids) - 1)])


def make_logits(seed: int, n: int = 512) -> NDArray[np.float32]:
    return (3 * np.random.default_rng(seed).standard_normal(n)).astype(np.float32)


PARAMETERS = [
    {"temperature": 0.0},
    {"temperature": 1.0, "min_p": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.3, "min_p": 0.0},
    {"temperature": 2.5, "min_p": 0.2},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 40, "min_p": 0.0},
    {"temperature": 1.0, "top_k": 1024, "min_p": 0.0},
    {"temperature": 1.0, "top_p": 0.9, "min_p": 0.0},
    {"temperature": 1.5, "top_k": 7, "top_p": 0.5, "min_p": 0.01},
    {"temperature": 1.0, "top_p": 1e-6, "min_p": 0.0},
    {"temperature": 1.0, "min_p": 1.0},
]


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_draws_follow_the_written_arithmetic(parameters: dict[str, Any], seed: int) -> None:
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.05, **parameters, "seed": seed}
    sampler, reference = Sampler(**full), Reference(**full)
    for i in range(60):
        logits = make_logits(i)
        token, logprob = sampler.sample(logits)
        assert token == reference.sample(logits), f"draw {i}"
        assert logprob == pytest.approx(log_softmax(logits)[token], abs=1e-4)


def test_frequencies_follow_the_probabilities() -> None:
    """4000 draws of five tokens; the bound is five standard deviations."""
    logits = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05], dtype=np.float32))
    sampler = Sampler(min_p=0.0, seed=11)
    counts = np.bincount([sampler.sample(logits)[0] for _ in range(4000)], minlength=5)
    expected = 4000 * np.exp(logits)
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_greedy_takes_the_lowest_id_of_equals_and_draws_nothing() -> None:
    logits = np.array([1, 5, 5, 0], dtype=np.float32)
    sampler = Sampler(temperature=0.0, seed=3)
    assert sampler.is_greedy
    assert [sampler.sample(logits)[0] for _ in range(3)] == [1, 1, 1]
    assert Sampler.greedy().sample(logits)[0] == 1


def test_logits_that_are_not_finite_never_win() -> None:
    logits = np.array([np.nan, np.inf, 0.0, -np.inf, 1.0], dtype=np.float32)
    drawn = {Sampler(seed=i, temperature=5.0).sample(logits)[0] for i in range(50)}
    assert drawn == {2, 4}
    assert Sampler.greedy().sample(logits)[0] == 4
    with pytest.raises(ds4.WeightDataError):
        Sampler(seed=1).sample(np.full(4, np.nan, dtype=np.float32))


def test_equal_seeds_draw_equal_tokens() -> None:
    logits = make_logits(5)

    def draws(sampler: Sampler, n: int = 30) -> list[int]:
        return [sampler.sample(logits)[0] for _ in range(n)]

    for seed in (0, 7, 2**40, 2**64 - 1):
        assert draws(Sampler(seed=seed)) == draws(Sampler(seed=seed))
    assert draws(Sampler(seed=7)) != draws(Sampler(seed=8))
    assert draws(Sampler()) != draws(Sampler()), "a missing seed is random"
    unseeded = Sampler()
    assert draws(unseeded) == draws(Sampler(seed=unseeded.seed)), "and can be read to repeat"

    sampler = Sampler(seed=7)
    first = draws(sampler)
    copy = sampler.copy()
    assert draws(sampler) == draws(copy), "a copy goes on where the original stands"
    sampler.reset()
    assert draws(sampler) == first


def test_samplers_do_not_share_a_generator() -> None:
    logits = make_logits(6)
    a, b, alone = Sampler(seed=1), Sampler(seed=2), Sampler(seed=1)
    mixed = []
    for _ in range(10):
        mixed.append(a.sample(logits)[0])
        b.sample(logits)
    assert mixed == [alone.sample(logits)[0] for _ in range(10)]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 1025}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"min_p": -0.01}, "min_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
    ],
)
def test_parameters_out_of_range_are_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampler(**parameters)


@pytest.mark.parametrize("parameters", [{"top_k": 1.5}, {"seed": "7"}, {"seed": 1.0}, {"temperature": "warm"}])
def test_parameters_of_another_type_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Sampler(**parameters)


def test_parameters_are_frozen() -> None:
    sampler = Sampler()
    with pytest.raises(AttributeError):
        sampler.temperature = 0.5  # type: ignore[misc]
    assert "seed=" in repr(sampler)


@pytest.mark.parametrize("logits", [np.zeros((2, 3)), np.zeros(0)])
def test_logits_of_another_shape_are_refused(logits: NDArray[Any]) -> None:
    with pytest.raises(ValueError, match="n_vocab"):
        Sampler().sample(logits)


def test_log_softmax_is_exact_for_large_scores() -> None:
    x = np.array([[1000.0, 1000.0], [-np.inf, 3.0]])
    np.testing.assert_allclose(log_softmax(x), [[-np.log(2), -np.log(2)], [-np.inf, 0.0]])


def test_the_order_is_that_of_the_logits() -> None:
    """At a high temperature exp rounds different logits to one number: the better one must still be first."""
    logits = np.array([0.0, 1.0, 2.0, 2.5], np.float32)
    for seed in range(20):
        assert Sampler(temperature=1e8, top_k=1, min_p=0.0, seed=seed).sample(logits)[0] == 3
        assert Sampler(temperature=1e8, top_p=0.2, min_p=0.0, seed=seed).sample(logits)[0] == 3


def test_a_nucleus_may_hold_most_of_a_large_vocabulary() -> None:
    """More than the 64 that are sorted at first: nothing is lost or doubled."""
    logits = np.random.default_rng(3).permutation(np.linspace(0, 1, 5000)).astype(np.float32)
    wide = {Sampler(temperature=1.0, top_p=0.5, min_p=0.0, seed=seed).sample(logits)[0] for seed in range(3000)}
    assert len(wide) > 1000
    kept = np.sort(logits)[::-1]
    share = np.exp(kept - kept[0]) / np.exp(kept - kept[0]).sum()
    limit = kept[int((np.cumsum(share) < 0.5).sum())]
    assert min(logits[list(wide)]) >= limit


@pytest.mark.parametrize("given", [{"temperature": "1"}, {"temperature": True}, {"top_p": None}, {"min_p": "x"}])
def test_what_is_no_number_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(given))} must be a number"):
        Sampler(**given)


def test_a_random_seed_survives_json() -> None:
    assert all(Sampler().seed < 2**53 for _ in range(50))
