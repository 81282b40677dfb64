"""Tokens computed ahead are no part of a session, and nothing about it shows that they are there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest
from ds4.speculation import Draft, Speculator
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracle import tiny_shapes
from oracle.reference import Model as Reference
from oracle.reference import Session as ReferenceSession
from support.golden import VARIANTS

N_CTX = 320
N_VOCAB = 512


def prompt(n: int, salt: int = 0) -> list[int]:
    return np.random.default_rng([n, salt, 2]).integers(0, N_VOCAB, n).tolist()


def same(session: ds4.Session, plain: ds4.Session) -> None:
    """Everything that can be asked of a session, but for what is ready ahead."""
    assert session.tokens == plain.tokens
    assert session.pos == plain.pos
    np.testing.assert_array_equal(session.logits(), plain.logits())
    assert session.snapshot() == plain.snapshot()
    assert session.export_tail() == plain.export_tail()
    if session.mtp:
        np.testing.assert_array_equal(session.mtp_logits(9), plain.mtp_logits(9))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("settings_", [{"mtp": True}, {"qat": False, "rows": "f32"}, {"activations": "float32"}])
def test_greedy_tokens_are_the_same_with_drafts_that_fail_at_every_position(
    models: dict[str, ds4.Model], variant: str, settings_: dict[str, Any]
) -> None:
    """Hundreds of steps a case: guesses of every number, right up to every place and wrong there."""
    model = models[variant]
    n_steps = 260
    with (
        model.session(n_ctx=N_CTX, threads=1, **settings_) as plain,
        model.session(n_ctx=N_CTX, threads=1, **settings_) as session,
    ):
        plain.sync(prompt(9))
        rows: list[NDArray[np.float32]] = []
        truth: list[int] = []
        for _ in range(n_steps):
            rows.append(plain.logits())
            truth.append(int(rows[-1].argmax()))
            plain.eval(truth[-1])
        n_calls = 0
        at = 0

        def guess(token: int, depth: int) -> list[int]:
            nonlocal n_calls
            right = n_calls % (depth + 1)  # so many are right
            n_calls += 1
            found = truth[at + 1 : at + 1 + depth]
            if right < len(found):
                found[right] = (found[right] + 1 + n_calls) % N_VOCAB
            return found

        for depth in range(1, 6):
            session.reset()
            session.sync(prompt(9))
            speculator = Speculator(session, Draft(depth=depth, auto=False), guess=guess)
            for at in range(n_steps):
                np.testing.assert_array_equal(session.logits(), rows[at])
                speculator.eval(truth[at])
            speculator.settle()
            same(session, plain)
            found = speculator.statistics
            assert [d for d, _ in found.by_depth] == sorted((d for d, _ in found.by_depth), reverse=True)
            assert len(found.by_depth) == depth
            assert 0 < found.accepted < found.drafted
            assert found.verifies + found.accepted + found.plain == n_steps


CALLS = ("ahead", "ahead", "ahead", "take", "take", "miss", "eval", "sync", "rewind", "checkpoint", "fork", "draft")


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_sequence_of_calls_is_that_without_guesses(models: dict[str, ds4.Model], data: st.DataObject) -> None:
    draw = data.draw
    model = models[draw(st.sampled_from(VARIANTS))]
    options: dict[str, Any] = {
        "n_ctx": 200,
        "threads": 1,
        "qat": draw(st.booleans()),
        "rows": draw(st.sampled_from(["f16", "f32"])),
        "mtp": draw(st.booleans()),
        "chunk": draw(st.sampled_from([1, 2, 5, 64])),
        "checkpoint_every": draw(st.sampled_from([0, 1, 4, 30])),
    }
    with model.session(**options) as plain, model.session(**options) as session:
        start = prompt(draw(st.sampled_from([1, 3, 5, 120, 126, 127])), draw(st.integers(0, 3)))
        plain.sync(start)
        session.sync(start)
        pending: list[int] = []
        for _ in range(draw(st.integers(2, 10))):
            pos = plain.pos
            room = 200 - pos
            what = draw(st.sampled_from(CALLS))
            token = draw(st.integers(0, 20))
            if what == "ahead" and room:
                guesses = draw(st.lists(st.integers(0, 20), max_size=7))
                expected = min(len(guesses), options["chunk"] - 1, room - 1)
                if pending and pending[0] == token:
                    pending, expected = pending[1:], len(pending) - 1
                else:
                    pending = guesses[:expected]
                session.eval_ahead(token, guesses)
                plain.eval(token)
                assert session.ahead == expected
            elif what in ("take", "miss") and pending and room:
                token = pending[0] if what == "take" else 21
                pending = pending[1:] if what == "take" else []
                np.testing.assert_array_equal(session.eval_logits(token), plain.eval_logits(token))
                assert session.ahead == len(pending)
            elif what == "eval" and room:
                tokens = draw(st.lists(st.integers(0, 20), min_size=1, max_size=min(room, 9)))
                np.testing.assert_array_equal(session.eval_logits(tokens), plain.eval_logits(tokens))
                for token in tokens:
                    pending = pending[1:] if pending and pending[0] == token else []
            elif what == "sync":
                tokens = plain.tokens[: draw(st.integers(0, pos))]
                tokens = [*tokens, *draw(st.lists(st.integers(0, 20), min_size=1, max_size=5))][:200]
                session.sync(tokens)
                plain.sync(tokens)
                pending = pending[len(tokens) - pos :] if session.ahead else []
            elif what == "rewind" and pos > 1:
                back = draw(st.integers(1, pos))
                at = session.rewind(back)
                plain.sync(plain.tokens[:at]) if at else plain.reset()
                pending = pending if at == pos else []
                if at == 0:
                    session.sync(start)
                    plain.sync(start)
            elif what == "checkpoint":
                session.checkpoint()
                plain.checkpoint()
            elif what == "fork":
                with session.fork() as copy:
                    assert copy.ahead == 0
                    same(copy, plain)
            elif what == "draft" and session.mtp:
                session.draft(token, draw(st.integers(1, 7)))
            assert session.ahead == len(pending)
            same(session, plain)


def test_a_context_that_ends_leaves_guesses_out(flash: ds4.Model) -> None:
    with flash.session(n_ctx=20) as session:
        session.sync(prompt(17))
        session.eval_ahead(1, [2, 3, 4, 5])
        assert (session.pos, session.ahead) == (18, 2)
        session.eval([2, 3])
        assert (session.pos, session.ahead) == (20, 0)
        with pytest.raises(ds4.ContextFullError):
            session.eval_ahead(4, [5])


def test_what_looks_on_sees_the_timeline_only(flash: ds4.Model) -> None:
    with flash.session(n_ctx=64) as session:
        session.sync(prompt(5))
        seen: list[tuple[int, int]] = []
        session.set_tap(lambda stage, layer, pos, values: seen.append((pos, len(values))))
        session.eval_ahead(1, [2, 3])
        assert session.ahead == 0
        assert set(seen) == {(5, 1)}
        session.set_tap(None)
        session.eval_ahead(2, [3, 4])
        assert session.ahead == 2
        session.set_tap(lambda stage, layer, pos, values: seen.append((pos, len(values))))
        session.eval(3)
        assert (7, 1) in seen, "what was ready is computed again when somebody looks"
        session.set_tap(None)
        session.eval_ahead(4, [5])
        with session.profile() as profile, session.collect_importance() as importance:
            session.eval(5)
            session.eval_ahead(6, [7, 8])
            assert importance.layer(0).counts.sum() == 2 * flash.shape.n_expert_used
            assert profile.decode.tokens == 2


def test_a_stopped_batch_leaves_the_session_as_it_was(flash: ds4.Model) -> None:
    with flash.session(n_ctx=64, mtp=True) as session, flash.session(n_ctx=64, mtp=True) as plain:
        for s in (session, plain):
            s.sync(prompt(30))
        native = session._native
        assert native is not None
        calls = 0

        def stop(done: int, total: int) -> None:
            nonlocal calls
            calls += 1
            raise RuntimeError("enough")

        time.sleep(0.06)
        with pytest.raises(RuntimeError, match="enough"):
            session.eval_ahead(1, [2, 3, 4], progress=stop)
        assert calls == 1
        assert session.ahead == 0
        same(session, plain)
        for s in (session, plain):
            s.eval([1, 2, 3])
        same(session, plain)


def test_bad_guesses_are_refused(flash: ds4.Model) -> None:
    with flash.session(n_ctx=64) as session:
        session.sync([1, 2, 3])
        for guesses in ([N_VOCAB], [-1], list(range(8))):
            with pytest.raises(ValueError, match=r"0\.\.511|at most 7"):
                session.eval_ahead(1, guesses)
        with pytest.raises(TypeError):
            session.eval_ahead(1, "ab")  # type: ignore[arg-type]
        assert session.tokens == [1, 2, 3]
        with pytest.raises(ds4.StateError, match="without"):
            session.draft(1, 2)
    for call in (lambda: session.eval_ahead(1, [2]), lambda: session.draft(1, 2), lambda: session.ahead):
        with pytest.raises(ds4.ClosedError):
            call()


# Drafts


def test_drafts_are_those_of_the_reference(models: dict[str, ds4.Model], tiny_gguf: Callable[..., Path]) -> None:
    """Chained: every guess is fed with the block's own streams, as the reference does it."""
    variant = "flash"
    reference = Reference(tiny_shapes.VARIANTS[variant], tiny_shapes.weights_of(variant))
    with (
        ds4.Model.open(tiny_gguf(variant)) as model,
        model.session(n_ctx=160, mtp=True, qat=False, rows="f32", activations="float32") as session,
    ):
        tokens = np.array(prompt(140, 3), np.int64)
        run = ReferenceSession(reference)
        _, streams = run.feed(tokens)
        run.feed_mtp(streams[:-1], tokens[1:], 0)
        session.sync(tokens)
        drafts = session.draft(7, 5)
        x, token = streams[-1:], 7
        for i, draft in enumerate(drafts):
            logits, x = run.feed_mtp(x, np.array([token]), len(tokens) - 1 + i)
            best, second = np.sort(logits[0])[[-1, -2]]
            assert best - second > 1e-3, "another prompt is needed: the two best are too near to tell"
            token = int(logits[0].argmax())
            assert draft == token, f"guess {i}"
        assert len(drafts) == 5
        assert session.draft(7, 5) == drafts, "nothing is left behind"
        assert session.draft(7, 1) == [int(session.mtp_logits(7).argmax())]


def test_a_margin_ends_the_guesses(flash: ds4.Model) -> None:
    with flash.session(n_ctx=64, mtp=True) as session:
        session.sync(prompt(20))
        all_of_them = session.draft(7, 7)
        assert len(all_of_them) == 7
        best = np.sort(session.mtp_logits(7))
        lead = float(best[-1] - best[-2])
        assert session.draft(7, 7, margin=lead * 1.01) == []
        assert session.draft(7, 7, margin=lead * 0.99)[:1] == all_of_them[:1]
        for bad in (float("nan"), float("inf"), -1.0):
            with pytest.raises(ValueError, match="margin"):
                session.draft(7, 7, margin=bad)
        for depth in (0, 8):
            with pytest.raises(ValueError, match="depth"):
                session.draft(7, depth)


def test_guesses_are_drawn_as_the_sampler_would(flash: ds4.Model) -> None:
    with flash.session(n_ctx=64, mtp=True) as session:
        session.sync(prompt(20))
        for seed in range(20):
            sampler = ds4.Sampler(temperature=2.0, seed=seed, min_p=0.0)
            expected, _ = sampler.copy().sample(session.mtp_logits(7))
            assert session.draft(7, 1, sampler=sampler) == [expected]
            assert sampler.state == seed, "it is not used up"


@pytest.mark.parametrize(
    ("options", "message"),
    [({"depth": 0}, "depth"), ({"depth": 6}, "depth"), ({"depth": True}, "depth"), ({"margin": -0.1}, "margin"),
     ({"margin": float("nan")}, "margin")],
)  # fmt: skip
def test_settings_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Draft(**options)
