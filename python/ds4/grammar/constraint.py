"""Following one completion: which tokens may come next."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ds4.errors import DS4Error

from .compile import reason, vocabulary
from .guard import Guard

if TYPE_CHECKING:
    from ds4.tokenizer import Tokenizer

    from .grammar import Grammar


class ConstraintError(DS4Error, RuntimeError):
    """A constraint cannot go on: the text has met a limit of the grammar's machinery, or a dead end."""


class Constraint:
    """Holds one completion to a grammar, from its first token on.

    Added tokens are never allowed inside text, only where the grammar's tags have theirs, and the end of sequence where
    the text is complete. Made in a fraction of a millisecond once a grammar has been used with a tokenizer. One thread
    at a time.

    Parameters
    ----------
    tokenizer : Tokenizer
    grammar : Grammar

    Raises
    ------
    ValueError
        The grammar is too large for the tokenizer's vocabulary.

    Examples
    --------
    >>> constraint = Constraint(model.tokenizer, Grammar.json_schema(schema))
    >>> while not constraint.ended:
    ...     token, _ = sampler.sample(constraint.mask(session.logits()))
    ...     constraint.accept(token)
    ...     session.eval(token)
    """

    def __init__(self, tokenizer: Tokenizer, grammar: Grammar) -> None:
        self._vocabulary = vocabulary(tokenizer)
        self._tokenizer = tokenizer
        self._matcher = self._vocabulary.matcher(grammar.source)
        self._guard = Guard(self._vocabulary.guard, grammar.kind)
        self._allowed: NDArray[np.bool_] | None = None
        self._ended = False

    @property
    def may_end(self) -> bool:
        """Whether the text is complete, so that the end of sequence is allowed."""
        return not self._ended and bool(self._matcher.is_accepting())

    @property
    def done(self) -> bool:
        """Whether the text is complete and can only end."""
        return self._ended or (bool(self._matcher.is_stopped()) and not self._matcher.is_error())

    @property
    def ended(self) -> bool:
        """Whether the end of sequence was accepted."""
        return self._ended

    def allowed(self) -> NDArray[np.bool_]:
        """Return which tokens may come next.

        Returns
        -------
        ndarray of bool, shape (n_vocab,)
            Read-only.

        Raises
        ------
        ValueError
            The completion has ended.
        ConstraintError
            No token can come next.
        """
        if self._allowed is None:
            self._allowed = self._compute()
            self._allowed.flags.writeable = False
        return self._allowed

    def mask(self, logits: ArrayLike) -> NDArray[np.float32]:
        """Return a copy of logits in which the tokens that are not allowed have -inf.

        Parameters
        ----------
        logits : array_like of float, shape (n_vocab,)

        Returns
        -------
        ndarray of float32, shape (n_vocab,)

        Raises
        ------
        ValueError
            The shape is another, or the completion has ended.
        ConstraintError
            No token can come next.
        """
        values = np.asarray(logits, np.float32)
        if values.shape != (self._vocabulary.n_vocab,):
            raise ValueError(f"logits must have shape ({self._vocabulary.n_vocab},), not {values.shape}")
        return np.where(self.allowed(), values, np.float32(-np.inf))

    def accept(self, token: SupportsIndex) -> None:
        """Go on by one token.

        Raises
        ------
        ValueError
            The token is not allowed, or the completion has ended. The constraint is unchanged.
        ConstraintError
            As in `allowed`.
        """
        i = operator.index(token)
        allowed = self.allowed()
        if not 0 <= i < allowed.size:
            raise ValueError(f"token id {i} is not in the vocabulary of {allowed.size} tokens")
        if not allowed[i]:
            raise ValueError(f"token {i} ({self._tokenizer.piece(i)!r}) is not allowed here")
        if not self._matcher.consume_token(i):
            raise ConstraintError(f"the constraint cannot go on: {reason(self._matcher.get_error())}")
        self._allowed = None
        if i == self._vocabulary.eos_id:
            self._ended = True
        elif i in self._vocabulary.specials:
            self._guard.special()
        else:
            self._guard.text(self._vocabulary.tokens[i])

    def _compute(self) -> NDArray[np.bool_]:
        if self._ended:
            raise ValueError("the completion has ended")
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise ConstraintError(f"the constraint cannot go on: {reason(self._matcher.get_error())}")
        allowed = np.unpackbits(bits, count=self._vocabulary.n_vocab, bitorder="little").view(np.bool_)
        for ids in self._guard.forbidden():
            allowed[ids] = False
        if not allowed.any():
            raise ConstraintError("the constraint has led to a dead end: no token can come next")
        too_long = self._guard.too_long()
        return self._without(allowed, too_long) if too_long else allowed

    def _without(self, allowed: NDArray[np.bool_], too_long: list[NDArray[np.int64]]) -> NDArray[np.bool_]:
        """Take away what makes a number too long, as far as something is left."""
        for ids in (np.concatenate(too_long), self._guard.zeros()):
            shorter = allowed.copy()
            shorter[ids] = False
            if shorter.any():
                return shorter
        return allowed
