"""The effect itself: a direction between the tiny model's two styles decides how long its answers are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ds4
import pytest
from ds4.steer import build_directions, read_prompts, sweep
from ds4.steering import Steering

DATA = Path(__file__).parents[2] / "data" / "steering"


@pytest.fixture(scope="module")
def model() -> Iterator[ds4.Model]:
    with ds4.Model.open_embedded() as model:
        yield model


@pytest.fixture(scope="module")
def steering(model: ds4.Model) -> list[Steering]:
    good, bad = (
        [prompt.tokens(model.tokenizer, "chat") for prompt in read_prompts(DATA / f"{name}.jsonl")]
        for name in ("verbose", "terse")
    )
    return [
        Steering.in_place(build_directions(model, good, bad, component=component, at=at))
        for component in ("ffn_out", "attn_out")
        for at in ("last", "mean")
    ]  # type: ignore[arg-type]


def test_verbosity_follows_the_scale(model: ds4.Model, steering: list[Steering]) -> None:
    """Held-out questions that ask for detail: longer when the direction is amplified, terse when it is taken out."""
    prompts = read_prompts(DATA / "heldout.jsonl")
    with model.session(n_ctx=512) as session:
        rows = sweep(session, steering, prompts, [-1, 0, 0.75, 1], max_tokens=120)
        assert session.pos == 0 and session.steering == ()
    words = [row.words for row in rows]
    assert words == sorted(words, reverse=True), words
    assert words[0] > 2 * words[-1], words
    assert words[1] > 2 * words[-1], words
    # What is asked is still answered.
    assert min(row.accuracy or 0 for row in rows[:3]) >= 0.8, [row.accuracy for row in rows]
    assert (rows[3].accuracy or 0) >= 0.5
    assert min(row.ended for row in rows) >= 0.8
