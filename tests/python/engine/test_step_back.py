"""The last positions can be taken back without a checkpoint, with the bits of a session that never held them."""

from __future__ import annotations

import time
from typing import Any

import ds4
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.golden import VARIANTS

N_CTX = 420
N_VOCAB = 512
SLACK = 8


def prompt(n: int, salt: int = 0) -> list[int]:
    return np.random.default_rng([n, salt, 1]).integers(0, N_VOCAB, n).tolist()


def same(session: ds4.Session, cold: ds4.Session, tokens: list[int]) -> None:
    """The session is where one is that computed these tokens only: logits, the whole state, and what follows."""
    cold.sync(tokens)
    assert session.tokens == tokens
    np.testing.assert_array_equal(session.logits(), cold.logits())
    assert session.snapshot() == cold.snapshot()
    if session.mtp:
        np.testing.assert_array_equal(session.mtp_logits(5), cold.mtp_logits(5))


# Lengths around the groups of 4 and 128, the window of 128 and the rings; batches on both sides of the slack.
ENDS = st.sampled_from([3, 4, 7, 8, 11, 12, 127, 128, 129, 131, 132, 135, 136, 137, 143, 255, 256, 257, 263, 264, 300])


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_of_the_last_positions_is_reached_exactly(models: dict[str, ds4.Model], data: st.DataObject) -> None:
    draw = data.draw
    model = models[draw(st.sampled_from(VARIANTS))]
    options: dict[str, Any] = {
        "n_ctx": N_CTX,
        "threads": 1,
        "qat": draw(st.booleans()),
        "rows": draw(st.sampled_from(["f16", "f32"])),
        "mtp": draw(st.booleans()),
        "activations": draw(st.sampled_from(["quantized", "float32"])),
        "checkpoint_bytes": 0,
    }
    with (
        model.session(chunk=64, **options) as cold,
        model.session(chunk=draw(st.sampled_from([1, 2, 8, 9, 64, 256])), **options) as session,
    ):
        tokens = prompt(draw(ENDS), draw(st.integers(0, 3)))
        batch = draw(st.integers(1, min(len(tokens), 40)))
        if len(tokens) > batch:
            session.sync(tokens[:-batch])
        session.eval(tokens[-batch:])
        for _ in range(draw(st.integers(1, 4))):
            steps = min(SLACK, len(tokens))
            assert session.steps_back <= steps
            back = draw(st.integers(0, session.steps_back))
            pos = len(tokens) - back
            assert session.rewind(pos) == pos
            tokens = tokens[:pos]
            if tokens:
                same(session, cold, tokens)
            new = prompt(draw(st.integers(1, 12)), draw(st.integers(4, 9)))[: N_CTX - pos]
            if draw(st.booleans()) and session.mtp and tokens:
                session.mtp_logits(3)  # leaves a row behind the last position
            if draw(st.booleans()):
                session.eval(new)
            else:
                for token in new:
                    session.eval(token)
            tokens = tokens + new
            same(session, cold, tokens)


@pytest.mark.parametrize("n", [8, 9, 100, 128, 129, 260])
def test_the_last_eight_positions_can_be_taken_back(flash: ds4.Model, n: int) -> None:
    tokens = prompt(n)
    with flash.session(n_ctx=N_CTX, checkpoint_bytes=0) as session, flash.session(n_ctx=N_CTX) as cold:
        for back in range(SLACK + 1):
            session.sync(tokens)
            assert session.steps_back == SLACK
            pos = n - back
            assert session.rewind(pos) == pos
            assert session.steps_back == SLACK - back, "the rings hold no more than that"
            if pos:
                same(session, cold, tokens[:pos])
        session.reset()
        session.sync(tokens)
        if n > SLACK:
            assert session.rewind(n - SLACK - 1) == 0


def test_a_prompt_that_leaves_the_last_positions_keeps_all_before(flash: ds4.Model) -> None:
    tokens = prompt(150)
    with flash.session(n_ctx=N_CTX, checkpoint_bytes=0) as session, flash.session(n_ctx=N_CTX) as cold:
        session.sync(tokens)
        assert session.sync([*tokens[:143], 1, 2, 3]) == 143
        same(session, cold, [*tokens[:143], 1, 2, 3])


@pytest.mark.parametrize("n", [1, 2, 8, 9, 30])
def test_a_stopped_call_leaves_the_way_back_open_or_closed(flash: ds4.Model, n: int) -> None:
    """A stopped chunk may use up the slack, and then says so; what can be reached is right."""
    tokens = prompt(140)
    with (
        flash.session(n_ctx=N_CTX, checkpoint_bytes=0, chunk=64) as session,
        flash.session(n_ctx=N_CTX) as cold,
    ):
        session.sync(tokens)

        def stop(stage: str, layer: int, pos: int, values: NDArray[np.float32]) -> None:
            if layer == 4:
                session.cancel()
                time.sleep(0.06)

        session.set_tap(stop)
        with pytest.raises(ds4.Cancelled):
            session.eval(prompt(n, 5))
        session.set_tap(None)
        same(session, cold, tokens)
        assert session.steps_back == (SLACK - n if n <= SLACK else SLACK)
        pos = 140 - session.steps_back
        session.rewind(pos)
        same(session, cold, tokens[:pos])
        session.eval([*tokens[pos:], 7])
        same(session, cold, [*tokens, 7])


def test_a_state_from_elsewhere_has_no_past(flash: ds4.Model) -> None:
    tokens = prompt(60)
    with flash.session(n_ctx=N_CTX, checkpoint_bytes=0) as session, flash.session(n_ctx=N_CTX) as cold:
        session.sync(tokens)
        snapshot = session.snapshot()
        session.restore(snapshot)
        assert session.steps_back == 0
        with session.fork() as copy:
            assert copy.steps_back == 0
            copy.eval([1, 2, 3])
            assert copy.steps_back == 2, "position 60 itself came from elsewhere"
            assert copy.rewind(61) == 61
            same(copy, cold, [*tokens, 1])
            assert copy.rewind(60) == 0
        session.fill(30)
        assert session.steps_back == 0
