"""Faults that stores of this kind have shown, with real sessions. Others are where their subject is:

L065 in test_damage, L067 and L068 in test_retention, L077 in test_sharing and test_disk_full.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ds4
import numpy as np
import pytest
from ds4.kvstore import KVStore, SavePolicy

from .conftest import Open
from .stores import find, load

FILLER = "The river is long and the store keeps every word of it. "


@pytest.fixture(scope="module")
def model() -> Iterator[ds4.Model]:
    with ds4.Model.open_embedded() as model:
        yield model


def prompt(model: ds4.Model, n: int, first: str = "") -> list[int]:
    return model.tokenizer.encode(first + FILLER * (n // 5))[:n]


def key_of(tokens: list[int]) -> bytes:
    return np.asarray(tokens, dtype="<i4").tobytes()


def answer(session: ds4.Session, n: int = 24) -> list[int]:
    steps = session.generate(max_tokens=n, sampler=ds4.Sampler(temperature=0), stop_tokens=())
    return [step.token for step in steps]


def test_the_same_prompt_again_computes_nothing(store: KVStore, model: ds4.Model) -> None:
    """L070: logits are part of a state. A strict prefix of it is another matter: rewinding is the session's."""
    tokens = prompt(model, 300)
    with model.session(n_ctx=512) as session:
        session.sync(tokens)
        cold = session.logits()
        store.save(session, key_of(tokens), reason="cold")
    with model.session(n_ctx=512) as session:
        assert load(store, key_of(tokens), session) == 300
        assert session.sync(tokens) == 300
        np.testing.assert_array_equal(session.logits(), cold)


def test_hidden_reasoning_is_no_miss(store: KVStore, model: ds4.Model) -> None:
    """L071: the state is stored under the key that the next request will have."""
    with model.session(n_ctx=1024) as session:
        tokens = prompt(model, 200)
        visible = b"question"
        for turn in range(1, 5):
            tokens = [*tokens, *prompt(model, 60, f"reasoning {turn} ")]  # with it, as it was sampled
            visible += b", answer and result %d" % turn  # without, as the client sends it
            session.sync(tokens)
            store.save(session, visible, reason="evict")
            with model.session(n_ctx=1024) as other:
                assert load(store, visible + b", next question", other) == len(tokens)
                assert other.tokens == tokens


def test_the_window_is_stored(store: KVStore, model: ds4.Model) -> None:
    """L073: a prompt longer than the window, another one, and the first again."""
    first, second = prompt(model, 400), prompt(model, 350, "Another beginning. ")
    assert model.shape.window < 350
    with model.session(n_ctx=512) as session:
        answers = []
        for tokens in (first, second, first):
            hit = find(store, key_of(tokens), session)
            if hit is not None:
                with hit:
                    hit.load(session)
            assert (hit is not None) == (len(answers) == 2)
            session.sync(tokens)
            if hit is None:
                store.save(session, key_of(tokens), reason="evict")
            answers.append(answer(session))
    assert answers[0] == answers[2]
    assert answers[0] != answers[1]


@pytest.mark.parametrize("n", [600, 2048])
def test_short_prompts_hit(store: KVStore, model: ds4.Model, n: int) -> None:
    """L074: the policy stores something of every prompt of 512 tokens or more, at the position it names."""
    tokens = prompt(model, n)
    [(stop, reason)] = SavePolicy().stops(tokens, 0)
    assert (stop, reason) == (n, "cold")
    with model.session(n_ctx=4096) as session:
        session.sync(tokens[:stop])
        store.save(session, key_of(tokens[:stop]), reason=reason)
        session.reset()
        assert load(store, key_of(tokens), session) == n
        assert session.sync(tokens) == n


def test_a_restored_state_is_used(open_store: Open, model: ds4.Model) -> None:
    """L076: save, restart, restore, and the same prompt."""
    tokens = prompt(model, 256)
    with open_store() as store, model.session(n_ctx=512) as session:
        session.sync(tokens[:-8])
        store.save(session, key_of(tokens[:-8]), reason="shutdown")
    with open_store() as again, model.session(n_ctx=512) as session:
        assert load(again, key_of(tokens), session) == 248
        assert session.sync(tokens) == 248


def test_a_state_cut_after_lookup_is_a_miss(store: KVStore, model: ds4.Model, where: Path) -> None:
    """L077, with a real session: the caller goes on cold and gets the same logits."""
    tokens = prompt(model, 200)
    with model.session(n_ctx=256) as session:
        session.sync(tokens)
        cold = session.logits()
        store.save(session, key_of(tokens), reason="evict")
        session.reset()
        hit = find(store, key_of(tokens), session)
        assert hit is not None
        for path in where.glob("*.state"):
            path.write_bytes(path.read_bytes()[:-100])
        with hit, pytest.raises(ds4.DS4Error):
            hit.load(session)
        assert find(store, key_of(tokens), session) is None
        assert session.sync(tokens) == 0
        np.testing.assert_array_equal(session.logits(), cold)
