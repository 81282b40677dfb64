"""Going back in a timeline: whatever the way to a list of tokens, the bits are those of a new session."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
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


def prompt(n: int, salt: int = 0) -> list[int]:
    return np.random.default_rng([n, salt]).integers(0, N_VOCAB, n).tolist()


def cold_logits(model: ds4.Model, tokens: list[int]) -> NDArray[np.float32]:
    with model.session(n_ctx=N_CTX, threads=1, checkpoint_bytes=0) as session:
        session.sync(tokens)
        return session.logits()


def cancel_at(session: ds4.Session, pos: int) -> None:
    """Have the call stopped in the chunk that holds this position, after some of its layers."""

    def tap(stage: str, layer: int, first: int, values: NDArray[np.float32]) -> None:
        if first <= pos < first + len(values) and layer == 3:
            session.cancel()
            time.sleep(0.06)  # a session asks whether to go on at most every 50 ms

    session.set_tap(tap)


# Any sequence of calls

CALLS = ("sync", "sync", "sync prefix", "eval", "rewind", "checkpoint", "cancel", "fork")


class Walk:
    """A session that is driven at random, beside what it should hold."""

    def __init__(self, session: ds4.Session, cold: ds4.Session) -> None:
        self.session, self.cold = session, cold
        self.tokens: list[int] = []

    def check(self) -> None:
        session, cold = self.session, self.cold
        assert session.tokens == self.tokens
        places = session.checkpoints
        assert places == sorted(set(places))
        assert all(0 < place <= len(self.tokens) for place in places)
        if not self.tokens:
            with pytest.raises(ds4.StateError):
                session.logits()
            return
        cold.sync(self.tokens)
        np.testing.assert_array_equal(session.logits(), cold.logits())
        if session.mtp:
            np.testing.assert_array_equal(session.mtp_logits(5), cold.mtp_logits(5))

    def reachable(self, pos: int) -> int:
        """The position that the session can go back to."""
        if len(self.tokens) - pos <= self.session.steps_back:
            return pos
        return max(place for place in [0, *self.session.checkpoints, len(self.tokens)] if place <= pos)

    def sync(self, tokens: list[int], *, cancel: int | None = None) -> None:
        common = sum(
            1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(self.tokens, tokens, strict=False))
        )
        kept = self.reachable(common)
        if cancel is None:
            assert self.session.sync(tokens) == kept
            self.tokens = tokens
            return
        cancel_at(self.session, cancel)
        try:
            self.session.sync(tokens)
        except ds4.Cancelled:
            assert kept <= self.session.pos <= cancel
        self.session.set_tap(None)
        self.tokens = tokens[: self.session.pos]


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_way_to_a_list_of_tokens_gives_the_bits_of_a_new_session(
    models: dict[str, ds4.Model], data: st.DataObject
) -> None:
    draw = data.draw
    model = models[draw(st.sampled_from(VARIANTS))]
    options: dict[str, Any] = {
        "n_ctx": N_CTX,
        "threads": 1,
        "qat": draw(st.booleans()),
        "rows": draw(st.sampled_from(["f16", "f32"])),
        "mtp": draw(st.booleans()),
        "activations": draw(st.sampled_from(["quantized", "float32"])),
    }
    chunk = draw(st.sampled_from([1, 3, 17, 50, 256]))
    every = draw(st.sampled_from([0, 1, 4, 30, 64, 100]))
    budget = draw(st.sampled_from([0, 3 << 20, 8 << 20, 64 << 20]))
    lengths = st.integers(1, 12 if chunk < 4 else 150)
    with (
        model.session(chunk=64, checkpoint_bytes=0, **options) as cold,
        ExitStack() as forks,
    ):
        session = forks.enter_context(
            model.session(chunk=chunk, checkpoint_every=every, checkpoint_bytes=budget, **options)
        )
        walk = Walk(session, cold)
        for _ in range(draw(st.integers(2, 7))):
            held = len(walk.tokens)
            what = draw(st.sampled_from(CALLS))
            new = prompt(draw(lengths), draw(st.integers(0, 3)))
            if what in ("sync", "cancel"):
                kept = draw(st.integers(0, held))
                tokens = (walk.tokens[:kept] + new)[:N_CTX]
                cancel = draw(st.integers(min(kept, len(tokens) - 1), len(tokens) - 1)) if what == "cancel" else None
                walk.sync(tokens, cancel=cancel)
            elif what == "sync prefix" and held:
                walk.sync(walk.tokens[: draw(st.integers(1, held))])
            elif what == "eval" and held < N_CTX:
                tokens = new[: N_CTX - held]
                session.eval(tokens)
                walk.tokens = walk.tokens + tokens
            elif what == "rewind":
                pos = draw(st.integers(0, held))
                to = walk.reachable(pos)
                assert session.rewind(pos) == to
                walk.tokens = walk.tokens[:to]
            elif what == "checkpoint":
                if held and budget:
                    session.checkpoint()
                    assert held in session.checkpoints
                else:
                    with pytest.raises(ds4.StateError, match=r"empty session|takes \d+ bytes; checkpoint_bytes is 0"):
                        session.checkpoint()
            elif what == "fork":
                # Go on with the copy; now and then with the original, after the copy went another way.
                copy = forks.enter_context(session.fork())
                assert copy.checkpoints == session.checkpoints
                if draw(st.booleans()):
                    copy.sync(new)
                else:
                    session.sync(new)
                    session, walk.session = copy, copy
            walk.check()
            assert session.n_bytes <= model.memory_plan(
                N_CTX, chunk=chunk, threads=session.threads, rows=options["rows"], mtp=options["mtp"],
                checkpoint_every=every, checkpoint_bytes=budget,
            ).total_session_bytes  # fmt: skip


# What going back costs


def test_asking_again_computes_nothing(flash: ds4.Model) -> None:
    tokens = prompt(150)
    with flash.session(n_ctx=N_CTX) as session:
        session.sync(tokens)
        first = session.logits()
        list(session.generate(max_tokens=20, stop_tokens=[]))
        assert session.pos == 170
        assert session.sync(tokens) == 150
        np.testing.assert_array_equal(session.logits(), first)
        for token in (3, 4, 5):
            session.eval(token)
        assert session.sync(tokens) == 150, "and once more"


def test_another_answer_to_a_turn_keeps_the_turn(flash: ds4.Model) -> None:
    """What agents do: the answer comes back in another form, followed by the next question."""
    tokens = prompt(140)
    with flash.session(n_ctx=N_CTX) as session:
        for turn in range(4):
            session.sync(tokens)
            session.eval(prompt(17, turn))
            after = tokens + prompt(11, turn + 10)
            assert session.sync(after) == len(tokens)
            np.testing.assert_array_equal(session.logits(), cold_logits(flash, after))
            tokens = after


@pytest.mark.parametrize(("every", "chunk"), [(64, 16), (64, 50), (64, 64), (32, 100)])
def test_a_prefix_costs_at_most_one_interval(flash: ds4.Model, every: int, chunk: int) -> None:
    tokens = prompt(400)
    interval = max(every, chunk)
    with flash.session(n_ctx=N_CTX, checkpoint_every=every, chunk=chunk) as session:
        for cut in (399, 350, 321, 320, 319, 200, 65, 64, 63, 1):
            session.sync(tokens)
            kept = session.sync(tokens[:cut])
            assert 0 <= cut - kept < interval
            np.testing.assert_array_equal(session.logits(), cold_logits(flash, tokens[:cut]))


def test_decoding_takes_checkpoints_too(flash: ds4.Model) -> None:
    with flash.session(n_ctx=N_CTX, checkpoint_every=10) as session:
        session.sync(prompt(7))
        for token in prompt(30, 1):
            session.eval(token)
        assert session.checkpoints == [7, 10, 20, 30]
        assert session.rewind(28) == 20
        assert session.checkpoints == [7, 10, 20]


def test_chunks_do_not_get_shorter_than_asked_for(flash: ds4.Model) -> None:
    """A chunk that is longer than the distance of checkpoints keeps its length but for the last one."""
    with flash.session(n_ctx=N_CTX, checkpoint_every=10, chunk=100) as session:
        ends: list[int] = []
        session.set_tap(lambda stage, layer, pos, values: ends.append(pos + len(values)) if layer == 0 else None)
        session.sync(prompt(345))
        assert ends == [100, 200, 300, 340, 345]
        assert session.checkpoints == [100, 200, 300, 340]


# Budget


def tail_bytes(model: ds4.Model, tokens: list[int]) -> int:
    with model.session(n_ctx=len(tokens)) as session:
        session.sync(tokens)
        before = session.n_bytes
        session.checkpoint()
        return session.n_bytes - before


def test_a_full_budget_doubles_the_distance(flash: ds4.Model) -> None:
    one = tail_bytes(flash, prompt(128))
    with flash.session(n_ctx=2048, checkpoint_every=128, checkpoint_bytes=4 * one) as session:
        empty = session.n_bytes
        seen = []
        for i in range(12):
            session.eval(prompt(128, i))
            seen.append(session.checkpoints)
            assert session.n_bytes - empty <= 4 * one
        assert seen[3] == [128, 256, 384, 512]
        assert seen[4] == [256, 512]
        assert seen[7] == [256, 512, 768, 1024]
        assert seen[9] == [512, 1024]
        assert seen[11] == [512, 1024, 1536]
        # Back at the start there is room for the distance that was asked for.
        assert session.rewind(700) == 512
        for i in range(3):
            session.eval(prompt(128, i))
        assert session.checkpoints == [512, 640, 768, 896]


def test_the_newest_of_each_kind_are_kept(flash: ds4.Model) -> None:
    with flash.session(n_ctx=N_CTX, checkpoint_every=0) as session:
        for i in range(40):
            session.eval(i)
            session.checkpoint()
            session.checkpoint()  # at the same place: once
        assert session.checkpoints == list(range(25, 41))
        assert session.rewind(30) == 30
        assert session.checkpoints == list(range(25, 31))
        session.reset()
        assert session.checkpoints == []
        for i in range(1, 40):
            session.sync(list(range(i)))
        assert session.checkpoints == list(range(31, 39)), "ends of turns"


def test_a_turn_takes_half_of_the_budget_and_one_by_hand_all(flash: ds4.Model) -> None:
    tokens = prompt(400)
    one = tail_bytes(flash, tokens[:384])  # at multiples of 128 no group is open, and all are this large
    with flash.session(n_ctx=N_CTX, checkpoint_every=64, checkpoint_bytes=4 * one) as session:
        for end in (128, 256, 384):
            session.sync(tokens[:end])
        session.eval(tokens[384])
        assert len(session.checkpoints) <= 4
        assert 384 in session.checkpoints
        for end in (390, 391, 392):
            session.sync(tokens[:end])
            session.checkpoint()
        assert {390, 391, 392} >= set(session.checkpoints) - {384, 256, 128, 320}
        assert 392 in session.checkpoints
    with flash.session(n_ctx=N_CTX, checkpoint_bytes=one // 2) as session:
        session.sync(tokens)
        session.eval(1)
        assert session.checkpoints == []
        with pytest.raises(ds4.StateError, match=rf"takes \d+ bytes; checkpoint_bytes is {one // 2}"):
            session.checkpoint()


# What ends checkpoints


def test_what_replaces_the_timeline_ends_its_checkpoints(flash: ds4.Model) -> None:
    with flash.session(n_ctx=N_CTX, checkpoint_every=16) as session, flash.session(n_ctx=N_CTX) as other:
        other.sync(prompt(20, 9))
        snapshot = other.snapshot()
        for replace in (
            session.reset,
            lambda: session.restore(snapshot),
            lambda: session.fill(10),
            lambda: session.sync([7, 8]),
        ):
            session.sync(prompt(60))
            assert session.checkpoints[-1] == 48
            replace()
            assert session.checkpoints == []
        session.restore(snapshot)
        session.eval([1, 2, 3])
        assert session.sync([*prompt(20, 9), 4]) == 20, "where a snapshot ended is a place to go back to"


def test_a_stopped_recomputation_leaves_a_valid_session(flash: ds4.Model) -> None:
    tokens = prompt(300)
    other = tokens[:200] + prompt(200, 1)
    with flash.session(n_ctx=N_CTX, checkpoint_every=64, chunk=32) as session:
        session.sync(tokens)
        cancel_at(session, 290)
        with pytest.raises(ds4.Cancelled):
            session.sync(other)
        session.set_tap(None)
        assert session.tokens == other[:288]
        np.testing.assert_array_equal(session.logits(), cold_logits(flash, other[:288]))
        assert session.sync(tokens) == 192
        np.testing.assert_array_equal(session.logits(), cold_logits(flash, tokens))


def test_a_generation_notices_that_the_session_went_back(flash: ds4.Model) -> None:
    with flash.session(n_ctx=N_CTX, checkpoint_every=4) as session:
        session.sync(prompt(9))
        steps = session.generate(max_tokens=5, stop_tokens=[])
        next(steps)
        assert session.rewind(8) == 8
        with pytest.raises(ds4.StateError, match="was changed"):
            next(steps)


def test_statistics_and_profiles_do_not_see_checkpoints(flash: ds4.Model) -> None:
    tokens = prompt(200)
    sums = []
    for every in (0, 7, 64):
        with flash.session(n_ctx=N_CTX, checkpoint_every=every, mtp=True) as session:
            with session.collect_importance() as importance, session.profile() as profile:
                session.sync(tokens)
                session.eval(tokens[:3])
                sums.append([importance.layer(i) for i in range(flash.shape.n_layer + 1)])
            assert profile.prefill.tokens + profile.decode.tokens == 203
    for i, expected in enumerate(sums[0]):
        for found in (sums[1][i], sums[2][i]):
            np.testing.assert_array_equal(found.sum_in, expected.sum_in)
            np.testing.assert_array_equal(found.sum_mid, expected.sum_mid)
            np.testing.assert_array_equal(found.counts, expected.counts)


# Copies


def test_a_fork_goes_its_own_way(flash: ds4.Model) -> None:
    tokens = prompt(200)
    with flash.session(n_ctx=N_CTX, mtp=True, checkpoint_every=64, chunk=64, threads=2) as session:
        session.sync(tokens)
        session.checkpoint()
        with session.fork() as copy:
            assert (copy.tokens, copy.checkpoints, copy.margins()) == (tokens, [64, 128, 192, 200], session.margins())
            assert (copy.n_ctx, copy.threads, copy.mtp, copy.model) == (N_CTX, 2, True, flash)
            assert copy.snapshot() == session.snapshot()
            a = [step.token for step in copy.generate(max_tokens=12, sampler=ds4.Sampler(seed=1), stop_tokens=[])]
            b = [step.token for step in session.generate(max_tokens=12, sampler=ds4.Sampler(seed=1), stop_tokens=[])]
            assert a == b
            assert copy.snapshot() == session.snapshot()
            copy.eval(1)
            session.eval(2)
            copy.sync(tokens[:100])
            assert session.tokens == [*tokens, *b, 2]
            assert session.checkpoints == [64, 128, 192, 200]
            session.close()
            np.testing.assert_array_equal(copy.logits(), cold_logits(flash, tokens[:100]))
            copy.sync(tokens)
            np.testing.assert_array_equal(copy.logits(), cold_logits(flash, tokens))
            with pytest.raises(ds4.ClosedError):
                session.fork()


def test_a_fork_leaves_taps_and_statistics(flash: ds4.Model) -> None:
    with flash.session(n_ctx=64) as session, session.fork() as empty:
        assert empty.pos == 0
        seen: list[int] = []
        session.set_tap(lambda stage, layer, pos, values: seen.append(pos))
        with session.collect_importance() as importance, session.fork() as copy:
            copy.eval([1, 2, 3])
            assert seen == []
            assert importance.layer(0).counts.sum() == 0
            with copy.collect_importance() as own:
                copy.eval([1, 2])
                assert own.layer(0).counts.sum() == 2 * flash.shape.n_expert_used


def test_forks_run_beside_each_other(flash: ds4.Model) -> None:
    tokens = prompt(120)
    with flash.session(n_ctx=N_CTX, threads=1) as session, ExitStack() as forks:
        session.sync(tokens)
        copies = [forks.enter_context(session.fork()) for _ in range(4)]
        ends = [prompt(60, salt) for salt in range(4)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda pair: pair[0].eval(pair[1]), zip(copies, ends, strict=True)))
        for copy, end in zip(copies, ends, strict=True):
            np.testing.assert_array_equal(copy.logits(), cold_logits(flash, tokens + end))


# Bad input


def test_positions_that_do_not_exist_are_refused(flash: ds4.Model) -> None:
    with flash.session(n_ctx=64) as session:
        with pytest.raises(ds4.StateError, match="empty session"):
            session.checkpoint()
        assert session.rewind(0) == 0
        session.sync(prompt(20))
        session.checkpoint()
        before = session.logits()
        for pos in (21, 2**40, -1):
            with pytest.raises(ValueError, match=r"pos must be in 0\.\.20"):
                session.rewind(pos)
        with pytest.raises(TypeError):
            session.rewind(1.5)  # type: ignore[arg-type]
        assert session.rewind(20) == 20
        assert session.checkpoints == [20]
        np.testing.assert_array_equal(session.logits(), before)
        assert session.rewind(11) == 0
        assert session.pos == 0
    for call in (session.checkpoint, lambda: session.rewind(0), lambda: session.checkpoints):
        with pytest.raises(ds4.ClosedError):
            call()


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"checkpoint_every": -1}, ValueError, r"checkpoint_every must be in 0\.\.1048576, not -1"),
        ({"checkpoint_every": 1048577}, ValueError, "checkpoint_every"),
        ({"checkpoint_every": 1.0}, TypeError, "checkpoint_every must be int"),
        ({"checkpoint_bytes": -1}, ValueError, "checkpoint_bytes must be in 0"),
        ({"checkpoint_bytes": 2**63}, ValueError, "checkpoint_bytes"),
        ({"checkpoint_bytes": True}, TypeError, "checkpoint_bytes must be int"),
    ],
)
def test_options_out_of_range_are_refused(
    flash: ds4.Model, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    for call in (flash.session, flash.memory_plan):
        with pytest.raises(kind, match=message):
            call(**options)
