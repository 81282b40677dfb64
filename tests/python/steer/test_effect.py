"""The effect itself: a direction between the tiny model's two styles decides how long its answers are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ds4
import pytest
from ds4.steer import build_directions, read_prompts, sweep
from ds4.steer.build import Component
from ds4.steering import Steering

DATA = Path(__file__).parents[2] / "data" / "steering"


@pytest.fixture(scope="module")
def model() -> Iterator[ds4.Model]:
    with ds4.Model.open_embedded() as model:
        yield model


@pytest.fixture(scope="module")
def steering(model: ds4.Model) -> list[Steering]:
    verbose, terse, plain = (
        [prompt.tokens(model.tokenizer, "chat") for prompt in read_prompts(DATA / f"{name}.jsonl")]
        for name in ("verbose", "terse", "plain")
    )
    components: tuple[Component, ...] = ("ffn_out", "attn_out")
    return [
        Steering.in_place(build_directions(model, verbose, bad, component=component))
        for component in components
        for bad in (terse, plain)
    ]


def test_verbosity_follows_the_scale(model: ds4.Model, steering: list[Steering]) -> None:
    """Held-out questions that ask for detail: longer when the direction is amplified, terse when it is taken out."""
    prompts = read_prompts(DATA / "heldout.jsonl")
    with model.session(n_ctx=512) as session:
        rows = sweep(session, steering, prompts, [-1, -0.5, 0, 0.5, 1], max_tokens=160)
        assert session.pos == 0 and session.steering == ()
    words = [row.words for row in rows]
    assert words == sorted(words, reverse=True), words
    assert words[0] > 2 * words[-1], words
    assert words[2] > 2 * words[-1], words
    # What is asked is still answered, and ended.
    assert min(row.accuracy or 0 for row in rows) >= 0.75, [row.accuracy for row in rows]
    assert min(row.ended for row in rows) >= 0.5, [row.ended for row in rows]
