"""Drawing tokens from logits.

The arithmetic: divide the logits by the temperature and take p = exp(l - max), so that the best token has p = 1;
drop what is below `min_p`; with `top_k` or `top_p` in use also keep only the `top_k` best and the smallest best set
whose share reaches `top_p`; draw from what is left. The generator is xorshift64*, one step per draw, so a seed gives
the same tokens everywhere as long as the logits are equal.
"""

from __future__ import annotations

import operator
import secrets
from numbers import Real
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._native import _session

__all__ = ["Sampler", "log_softmax"]

_MAX_SEED = (1 << 64) - 1
_MAX_TOP_K = 1024


class Sampler:
    """Parameters of drawing, and the state of its own random generator.

    A sampler used for two generations goes on drawing where it stopped; use `copy` or a new sampler with the same
    seed to repeat. Samplers are not meant to be shared by threads.

    Parameters
    ----------
    temperature : float
        Divides the logits, 0 or more. 0 takes the best token (the lowest id of equals) and draws nothing.
    top_k : int
        Keep only that many best tokens, 0..1024; 0 keeps all.
    top_p : float
        Keep the smallest set of best tokens with at least this share of the probability; 0 < top_p <= 1.
    min_p : float
        Drop tokens whose probability is below this share of the best token's; 0..1.
    seed : int, optional
        Seed of the generator, 0..2^64-1. A random one when not given; it can be read from `seed` to repeat a run.

    Raises
    ------
    ValueError
        A parameter is out of its range.
    TypeError
        A parameter is not a number, or `top_k` or `seed` is not an integer.

    Examples
    --------
    >>> sampler = Sampler(temperature=0.7, top_p=0.95, seed=7)
    >>> token, logprob = sampler.sample(session.logits())
    """

    __slots__ = ("_min_p", "_seed", "_state", "_temperature", "_top_k", "_top_p")

    def __init__(
        self,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.05,
        seed: int | None = None,
    ) -> None:
        numbers: dict[str, object] = {"temperature": temperature, "top_p": top_p, "min_p": min_p}
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"{name} must be a number, not {type(value).__name__}")
        temperature, top_p, min_p = float(temperature), float(top_p), float(min_p)
        # Comparisons are written so that NaN fails them.
        if not 0.0 <= temperature < float("inf"):
            raise ValueError(f"temperature must be 0 or more and finite, not {temperature}")
        top_k = operator.index(top_k)
        if not 0 <= top_k <= _MAX_TOP_K:
            raise ValueError(f"top_k must be in 0..{_MAX_TOP_K} (0 keeps all tokens), not {top_k}")
        if not 0.0 < top_p <= 1.0:
            raise ValueError(f"top_p must be above 0 and at most 1, not {top_p}")
        if not 0.0 <= min_p <= 1.0:
            raise ValueError(f"min_p must be in 0..1, not {min_p}")
        if seed is None:
            seed = secrets.randbits(53)  # survives JSON readers that know doubles only
        seed = operator.index(seed)
        if not 0 <= seed <= _MAX_SEED:
            raise ValueError(f"seed must be in 0..2^64-1, not {seed}")
        self._temperature = temperature
        self._top_k = top_k
        self._top_p = top_p
        self._min_p = min_p
        self._seed = seed
        self._state = seed

    @classmethod
    def greedy(cls) -> Self:
        """Return a sampler that always takes the best token."""
        return cls(temperature=0.0, seed=0)

    @property
    def temperature(self) -> float:
        """The divisor of the logits; 0 is greedy."""
        return self._temperature

    @property
    def top_k(self) -> int:
        """How many best tokens are kept; 0 is all."""
        return self._top_k

    @property
    def top_p(self) -> float:
        """The share of the probability that is kept."""
        return self._top_p

    @property
    def min_p(self) -> float:
        """The least probability that is kept, relative to the best token's."""
        return self._min_p

    @property
    def seed(self) -> int:
        """The seed, also when it was drawn at random."""
        return self._seed

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is always taken."""
        return self._temperature <= 0.0

    def sample(self, logits: ArrayLike) -> tuple[int, float]:
        """Draw one token.

        Parameters
        ----------
        logits : array_like of float32, shape (n_vocab,)
            Raw scores. Scores that are not finite never win.

        Returns
        -------
        token : int
            The token id.
        logprob : float
            Its log-probability under the raw logits (temperature 1, nothing dropped).

        Raises
        ------
        WeightDataError
            No score is finite.
        """
        values = np.ascontiguousarray(logits, dtype=np.float32)
        if values.ndim != 1 or values.size == 0:
            raise ValueError(f"logits must have shape (n_vocab,), not {values.shape}")
        token, logprob, self._state = _session.sample(
            values, self._temperature, self._top_k, self._top_p, self._min_p, self._state
        )
        return token, logprob

    @property
    def state(self) -> int:
        """State of the generator that the next draw uses."""
        return self._state

    def reset(self) -> None:
        """Go back to the seed."""
        self._state = self._seed

    def copy(self) -> Self:
        """Return a sampler that will draw what this one would draw next."""
        other = type(self)(self._temperature, self._top_k, self._top_p, self._min_p, self._seed)
        other._state = self._state
        return other

    def __repr__(self) -> str:
        if self.is_greedy:
            return "Sampler.greedy()"
        return (
            f"Sampler(temperature={self._temperature}, top_k={self._top_k}, top_p={self._top_p}, "
            f"min_p={self._min_p}, seed={self._seed})"
        )


def log_softmax(logits: ArrayLike) -> NDArray[np.float64]:
    """Return log-probabilities along the last axis.

    Parameters
    ----------
    logits : array_like of float, shape (..., n_vocab)
        Raw scores; -inf is allowed.

    Returns
    -------
    ndarray of float64, same shape
    """
    x = np.asarray(logits, dtype=np.float64)
    shifted = x - x.max(axis=-1, keepdims=True)
    out: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return out
