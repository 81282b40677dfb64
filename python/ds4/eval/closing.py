"""Closing the reasoning before the budget is spent, so that tokens are left for the answer.

In the last `soft` tokens of the budget the end of the reasoning is taken as soon as it is among the `rank` most likely
tokens; in the last `hard` tokens it is taken whatever its rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

Manner = Literal["natural", "soft_forced", "hard_forced"]

SOFT_TOKENS = 1024
HARD_TOKENS = 512
RANK = 3


@dataclass(frozen=True, slots=True)
class Closed:
    """How a reasoning ended.

    Attributes
    ----------
    manner : {"natural", "soft_forced", "hard_forced"}
        By the model's own choice, or by force in one of the two parts.
    index : int
        Number of tokens generated before the closing one.
    remaining : int
        Tokens of the budget that were left for it and what follows.
    rank : int
        Its place among all tokens by their logits, from 1; of equal ones the lower id comes first.
    """

    manner: Manner
    index: int
    remaining: int
    rank: int


@dataclass(frozen=True, slots=True)
class Closing:
    """The limits for one budget.

    Attributes
    ----------
    budget, soft, hard, rank : int
        0 <= hard <= soft <= budget, and rank is 1 or more.
    """

    budget: int
    soft: int
    hard: int
    rank: int

    @classmethod
    def for_budget(cls, budget: int, soft: int | None = None, hard: int | None = None, rank: int = RANK) -> Self:
        """Choose the limits that are not given.

        Raises
        ------
        ValueError
            Limits contradict each other or the budget.
        """
        if soft is None:
            soft = max(min(SOFT_TOKENS, budget // 2), hard or 0)
        if hard is None:
            hard = min(HARD_TOKENS, budget // 4, soft)
        if not 0 <= hard <= soft:
            raise ValueError(f"the hard limit of {hard} tokens must not be above the soft one of {soft}, nor below 0")
        if soft >= budget > 1:
            raise ValueError(f"the soft limit of {soft} tokens leaves nothing to think of a budget of {budget}")
        if rank < 1:
            raise ValueError(f"the rank must be 1 or more, not {rank}")
        return cls(budget, soft, hard, rank)

    def decide(self, logits: NDArray[np.float32], drawn: int, close: int, index: int) -> Closed | None:
        """Tell whether the reasoning ends with this token, and why.

        Parameters
        ----------
        logits : ndarray of float32, shape (n_vocab,)
        drawn : int
            The token that the sampler drew.
        close : int
            The token that ends the reasoning.
        index : int
            Tokens generated so far.
        """
        remaining = self.budget - index
        if drawn == close:
            return Closed("natural", index, remaining, rank_of(logits, close))
        if remaining <= self.hard:
            return Closed("hard_forced", index, remaining, rank_of(logits, close))
        if remaining <= self.soft:
            rank = rank_of(logits, close)
            if rank <= self.rank:
                return Closed("soft_forced", index, remaining, rank)
        return None


def rank_of(logits: NDArray[np.float32], token: int) -> int:
    """Return the place of a token in the order of the logits, from 1; scores that are not finite come last."""
    scores = np.where(np.isfinite(logits), logits, -np.inf)
    own = scores[token]
    return 1 + int(np.count_nonzero(scores > own)) + int(np.count_nonzero(scores[:token] == own))
