"""Intermediate values as arrays: the rows that a tap sees, whichever way they are asked for."""

from __future__ import annotations

from collections.abc import Iterator

import ds4
import numpy as np
import pytest

PROMPTS = [[0, 5, 9, 200, 31], [0, 5, 9, 7], [3]]


@pytest.fixture(scope="module")
def model() -> Iterator[ds4.Model]:
    with ds4.Model.open_embedded() as model:
        yield model


@pytest.mark.parametrize("stage", ["ffn_out", "streams", "router"])
def test_last_mean_and_all_are_of_the_same_rows(model: ds4.Model, stage: str) -> None:
    whole = model.activations(PROMPTS, stage, at="all")
    width = {"ffn_out": 256, "streams": 1024, "router": 8}[stage]
    assert [rows.shape for rows in whole] == [(len(p), model.shape.n_layer, width) for p in PROMPTS]
    last = model.activations(PROMPTS, stage)
    assert last.shape == (3, model.shape.n_layer, width) and last.dtype == np.float32
    np.testing.assert_array_equal(last, [rows[-1] for rows in whole])
    mean = model.activations(PROMPTS, stage, at="mean")
    np.testing.assert_allclose(mean[:2], [rows[1:].mean(0) for rows in whole[:2]], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(mean[2], whole[2][0])
    some = model.activations(PROMPTS, stage, layers=[4, 1])
    np.testing.assert_array_equal(some, last[:, [4, 1]])


def test_a_session_and_its_steering(model: ds4.Model) -> None:
    directions = ds4.SteeringDirections(np.random.default_rng(0).standard_normal((5, 256)))
    plain = model.activations(PROMPTS)
    with model.session(n_ctx=32, chunk=2) as session:
        np.testing.assert_array_equal(model.activations(PROMPTS, session=session), plain)
        assert session.tokens == PROMPTS[-1]
        session.set_steering(ds4.Steering(directions))
        steered = model.activations(PROMPTS, session=session)
    np.testing.assert_array_equal(steered[2, 0], plain[2, 0])  # nothing before it was steered
    assert not np.array_equal(steered[:, 1:], plain[:, 1:])


def test_texts_and_the_head_of_the_streams(model: ds4.Model) -> None:
    ids = model.tokenizer.encode("<｜User｜>Hi<｜Assistant｜>", specials=True)
    np.testing.assert_array_equal(model.activations(["<｜User｜>Hi<｜Assistant｜>"]), model.activations([ids]))
    assert model.activations([[1, 2]], "streams", layers=[5]).shape == (1, 1, 1024)


def test_progress(model: ds4.Model) -> None:
    seen: list[tuple[int, int]] = []
    model.activations(PROMPTS, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    with pytest.raises(LookupError), model.session(n_ctx=16) as session:

        def fail(done: int, total: int) -> None:
            raise LookupError

        model.activations(PROMPTS, session=session, progress=fail)


def test_what_is_refused(model: ds4.Model) -> None:
    for prompts in ([], "one text", [[]]):
        with pytest.raises(ValueError):
            model.activations(prompts)
    with pytest.raises(ValueError, match="stages are"):
        model.activations(PROMPTS, "nothing")
    with pytest.raises(ValueError, match=r"0\.\.4"):
        model.activations(PROMPTS, "ffn_out", layers=[5])
    with pytest.raises(ValueError, match=r"0\.\.5"):
        model.activations(PROMPTS, "streams", layers=[-1])
    with pytest.raises(ValueError, match="layers"):
        model.activations(PROMPTS, layers=[])
    with pytest.raises(ValueError, match="last, mean or all"):
        model.activations(PROMPTS, at="first")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="3072"):
        model.activations([[3072]])
    with pytest.raises(ds4.ContextFullError):
        model.activations(PROMPTS, n_ctx=4)
    with (
        ds4.Model.open_embedded() as other,
        other.session(n_ctx=16) as session,
        pytest.raises(ValueError, match="another model"),
    ):
        model.activations(PROMPTS, session=session)
