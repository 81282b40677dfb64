"""Fixtures of the grammar tests: the embedded model, and completions that it writes under a constraint."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import ds4
import numpy as np
import pytest
from ds4 import Model, Sampler, Tokenizer
from ds4.chat import render
from ds4.grammar import Constraint, Grammar
from numpy.typing import NDArray


@pytest.fixture(scope="session")
def model() -> Iterator[Model]:
    with ds4.Model.open_embedded() as model:
        yield model


@pytest.fixture(scope="session")
def tokenizer(model: Model) -> Tokenizer:
    return model.tokenizer


@pytest.fixture(scope="session")
def closers(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Tokens with which strings, arrays, objects and parameters end."""
    ends = (b'"', b"}", b"]", b"</")
    return np.array([i == tokenizer.eos_id or tokenizer.token_bytes(i) in ends for i in range(tokenizer.n_vocab)])


@pytest.fixture(scope="session")
def generate(model: Model, tokenizer: Tokenizer, closers: NDArray[np.bool_]) -> Callable[[Grammar, Sampler], bytes]:
    """Let the embedded model write under a constraint until the end of sequence.

    A small model at a high temperature has no reason to end a string or a list; after 150 tokens it is helped.
    """
    prompt = render([{"role": "user", "content": "Answer."}], mode="chat").encode(tokenizer)

    def run(grammar: Grammar, sampler: Sampler) -> bytes:
        constraint = Constraint(tokenizer, grammar)
        ids: list[int] = []
        with model.session(n_ctx=1024) as session:
            session.sync(prompt)
            while not constraint.ended:
                assert len(ids) < 900, tokenizer.decode(ids)
                logits = constraint.mask(session.logits())
                allowed = constraint.allowed()
                if len(ids) >= 150 and (allowed & closers).any():
                    logits[~closers] = -np.inf
                token, _ = sampler.sample(logits)
                assert allowed[token]
                constraint.accept(token)
                ids.append(token)
                session.eval(token)
        assert ids.pop() == tokenizer.eos_id
        return tokenizer.decode_bytes(ids)

    return run
