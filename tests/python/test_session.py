"""A session as Python sees it: the timeline, generation, and calls that end early.

Whether the numbers are right is tested with the model; here every claim compares a session with another one.
"""

from __future__ import annotations

import array
import gc
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest

PROMPT = [1, 17, 300, 4, 4, 99, 256, 31, 8, 120]


@pytest.fixture(scope="module")
def model(flash_gguf: Path) -> Iterator[ds4.Model]:
    with ds4.Model.open(flash_gguf) as model:
        yield model


@pytest.fixture
def session(model: ds4.Model) -> Iterator[ds4.Session]:
    with model.session(n_ctx=64, chunk=4, threads=1) as session:
        yield session


@pytest.fixture
def long_session(model: ds4.Model) -> Iterator[ds4.Session]:
    """A session in which LONG takes seconds: time enough to stop it."""
    with model.session(n_ctx=16_384, chunk=16, threads=1) as session:
        yield session


LONG = [1 + i % 500 for i in range(16_000)]
STOP_S = 0.2
"""A stop must be through within this time. A pulse comes every 50 ms; the rest is for a busy machine."""


def cold(model: ds4.Model, tokens: list[int]) -> np.ndarray:
    with model.session(n_ctx=64, threads=1) as session:
        session.sync(tokens)
        return session.logits()


# The timeline


def test_sync_keeps_a_prefix_and_nothing_else(model: ds4.Model, session: ds4.Session) -> None:
    assert session.sync(PROMPT) == 0
    assert session.tokens == PROMPT
    assert session.pos == len(PROMPT)
    first = session.logits()
    assert session.sync(PROMPT) == len(PROMPT), "equal: nothing is computed"
    np.testing.assert_array_equal(session.logits(), first)
    assert session.sync([*PROMPT, 5, 6]) == len(PROMPT)
    np.testing.assert_array_equal(session.logits(), cold(model, [*PROMPT, 5, 6]))
    assert session.sync([2, *PROMPT]) == 0
    assert session.tokens == [2, *PROMPT]
    np.testing.assert_array_equal(session.logits(), cold(model, [2, *PROMPT]))


def test_eval_appends_one_or_many(model: ds4.Model, session: ds4.Session) -> None:
    session.sync(PROMPT[:3])
    session.eval(PROMPT[3])
    session.eval(PROMPT[4:])
    assert session.tokens == PROMPT
    np.testing.assert_array_equal(session.logits(), cold(model, PROMPT))


def test_eval_logits_has_a_row_per_token(session: ds4.Session) -> None:
    rows = session.eval_logits(PROMPT)
    assert rows.shape == (len(PROMPT), session.n_vocab)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows[-1], session.logits())
    session.reset()
    session.sync(PROMPT[:4])
    np.testing.assert_allclose(rows[3], session.logits(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "convert",
    [
        list,
        tuple,
        lambda t: array.array("i", t),
        lambda t: array.array("q", t),
        lambda t: np.array(t, dtype=np.int64),
        lambda t: np.array(t, dtype=np.uint16),
        lambda t: np.repeat(np.array(t, dtype=np.int32), 2)[::2],
        lambda t: [np.int64(i) for i in t],
    ],
)
def test_token_ids_come_in_many_forms(session: ds4.Session, convert: Callable[[list[int]], Any]) -> None:
    session.sync(convert(PROMPT))
    assert session.tokens == PROMPT


@pytest.mark.parametrize(
    ("tokens", "kind", "message"),
    [
        ([], ValueError, "at least one"),
        ([1, 2, 512], ValueError, r"tokens\[2\] is 512, which is not in 0\.\.511"),
        ([1, -1, 600], ValueError, r"tokens\[1\] is -1"),
        ([1, 2**31], ValueError, r"tokens\[1\] is 2147483648"),
        ([1, 2**70], ValueError, r"tokens\[1\]"),
        (np.array([3, 2**40]), ValueError, r"tokens\[1\]"),
        ([1, 2.0], TypeError, r"tokens\[1\] must be int, not float|tokens\[0\]"),
        ([1, "2"], TypeError, r"tokens\[1\]|tokens\[0\]"),
        ([1, None], TypeError, r"tokens\[1\] must be int, not NoneType"),
        (np.array([0.5]), TypeError, "int"),
        (np.array([[1, 2]]), TypeError, "shape"),
        ("text", TypeError, "str"),
        (b"text", TypeError, "bytes"),
        (True, TypeError, "bool"),
    ],
)
def test_wrong_token_ids_are_named_and_change_nothing(
    session: ds4.Session, tokens: Any, kind: type[Exception], message: str
) -> None:
    session.sync(PROMPT)
    before = session.logits()
    for call in (session.sync, session.eval, session.eval_logits):
        with pytest.raises(kind, match=message):
            call(tokens)
    assert session.tokens == PROMPT
    np.testing.assert_array_equal(session.logits(), before)


def test_what_does_not_fit_is_refused_and_changes_nothing(session: ds4.Session) -> None:
    session.sync(PROMPT)
    for call in (
        lambda: session.sync([1] * 65),
        lambda: session.eval([1] * 55),
        lambda: session.eval_logits([1] * 55),
    ):
        with pytest.raises(ds4.ContextFullError, match="64"):
            call()
        assert session.tokens == PROMPT
    session.eval([1] * 54)
    assert session.pos == session.n_ctx == 64
    with pytest.raises(ds4.ContextFullError):
        session.eval(1)


def test_an_empty_session_has_no_logits(session: ds4.Session) -> None:
    uses = [session.logits, session.logits_view, session.logprobs, session.generate]
    for use in uses:
        with pytest.raises(ds4.StateError):
            use()
    session.sync(PROMPT)
    session.reset()
    assert (session.pos, session.tokens) == (0, [])
    for use in uses:
        with pytest.raises(ds4.StateError):
            use()


# What the model says


def test_the_view_is_read_only_and_keeps_the_session(model: ds4.Model) -> None:
    session = model.session(n_ctx=16)
    session.sync([1, 2])
    copy, view = session.logits(), session.logits_view()
    assert (view.dtype, view.shape, view.flags.writeable) == (np.float32, (512,), False)
    session.close()
    del session
    gc.collect()
    np.testing.assert_array_equal(view, copy)
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_logprobs_are_sorted_with_the_lowest_id_first(session: ds4.Session) -> None:
    session.sync(PROMPT)
    logits, logprobs = session.logits(), ds4.log_softmax(session.logits())
    best = session.logprobs(5)
    assert [t.token for t in best] == list(np.argsort(-logits, kind="stable")[:5])
    for t in best:
        assert t.logit == logits[t.token]
        assert t.logprob == pytest.approx(logprobs[t.token])
    assert len(session.logprobs(10_000)) == 512
    with pytest.raises(ValueError, match="top_k"):
        session.logprobs(0)


def test_mtp_logits_need_a_session_that_keeps_them(model: ds4.Model, session: ds4.Session) -> None:
    session.sync(PROMPT)
    with pytest.raises(ds4.StateError):
        session.mtp_logits(5)
    assert model.has_mtp
    with model.session(n_ctx=64, mtp=True) as other:
        with pytest.raises(ds4.StateError):
            other.mtp_logits(5)
        other.sync(PROMPT)
        logits = other.mtp_logits(5)
        assert logits.shape == (512,)
        assert np.isfinite(logits).all()
        assert other.pos == len(PROMPT), "the session does not move"
        with pytest.raises(ValueError, match="512"):
            other.mtp_logits(512)


def test_a_tap_sees_the_streams(model: ds4.Model, session: ds4.Session) -> None:
    seen: list[tuple[str, int, int, np.ndarray]] = []
    session.set_tap(lambda stage, layer, pos, values: seen.append((stage, layer, pos, values)))
    session.sync(PROMPT[:6])
    session.set_tap(None)
    session.eval(1)
    layers = model.shape.n_layer + 1
    assert [(s, layer, pos) for s, layer, pos, _ in seen] == [
        ("streams", layer, pos) for pos in (0, 4) for layer in range(layers)
    ]
    assert {v.shape for *_, v in seen} == {(4, 4 * 256), (2, 4 * 256)}
    assert seen[0][3].flags.writeable, "a copy of its own"
    indexer, router = session.margins()
    assert indexer >= 0
    assert router >= 0


def test_what_a_tap_raises_is_passed_on(session: ds4.Session) -> None:
    def fail(stage: str, layer: int, pos: int, values: np.ndarray) -> None:
        raise LookupError("seen enough")

    session.set_tap(fail)
    with pytest.raises(LookupError, match="seen enough"):
        session.sync(PROMPT)
    session.set_tap(None)
    session.sync(PROMPT)
    with pytest.raises(TypeError, match="callable"):
        session.set_tap(3)  # type: ignore[arg-type]


# Generation


def generated(session: ds4.Session, **options: Any) -> list[ds4.Step]:
    return list(session.generate(**{"stop_tokens": (), "sampler": ds4.Sampler.greedy(), **options}))


def test_generation_is_eval_in_a_loop(session: ds4.Session) -> None:
    session.sync(PROMPT)
    by_hand = []
    for _ in range(8):
        by_hand.append(int(session.logits().argmax()))
        session.eval(by_hand[-1])
    after = session.logits()
    session.reset()
    session.sync(PROMPT)
    steps = generated(session, max_tokens=8)
    assert [s.token for s in steps] == by_hand
    assert [s.pos for s in steps] == list(range(len(PROMPT), len(PROMPT) + 8))
    assert [s.finish for s in steps] == [None] * 7 + ["length"]
    assert session.tokens == PROMPT + by_hand, "every token is in the session"
    np.testing.assert_array_equal(session.logits(), after)


def test_text_is_whole_characters(model: ds4.Model, session: ds4.Session) -> None:
    """The pieces joined are the text of all tokens, whatever bytes a random model picks."""
    for seed in range(5):
        session.reset()
        session.sync(PROMPT)
        steps = generated(session, max_tokens=20, sampler=ds4.Sampler(temperature=3.0, min_p=0.0, seed=seed))
        assert "".join(s.text for s in steps) == model.tokenizer.decode([s.token for s in steps])


def test_equal_seeds_give_equal_tokens_also_after_a_kept_prefix(model: ds4.Model, session: ds4.Session) -> None:
    def run(seed: int) -> list[int]:
        session.sync(PROMPT)
        return [s.token for s in generated(session, max_tokens=10, sampler=ds4.Sampler(temperature=2.0, seed=seed))]

    first = run(7)
    assert run(7) == first
    assert run(8) != first
    session.sync(PROMPT[:5])
    session.sync(PROMPT)
    assert run(7) == first


def test_a_stop_token_ends_and_is_not_appended(session: ds4.Session) -> None:
    session.sync(PROMPT)
    tokens = [s.token for s in generated(session, max_tokens=8)]
    session.sync(PROMPT)
    steps = generated(session, max_tokens=8, stop_tokens={tokens[3]})
    n = tokens.index(tokens[3]) + 1
    assert [s.token for s in steps] == tokens[:n]
    assert steps[-1].finish == "stop"
    assert steps[-1].stop is None
    assert session.tokens == PROMPT + tokens[: n - 1]


def test_the_end_of_sequence_is_the_default_stop_token(model: ds4.Model, session: ds4.Session) -> None:
    class Eos(ds4.Sampler):
        """Draws the end of sequence at the third token."""

        def sample(self, logits: Any) -> tuple[int, float]:
            n = session.pos - len(PROMPT)
            return (model.tokenizer.eos_id if n == 2 else 50), -1.0

    session.sync(PROMPT)
    steps = list(session.generate(max_tokens=9, sampler=Eos(seed=1)))
    assert [s.finish for s in steps] == [None, None, "stop"]
    assert steps[-1].text == ""
    session.sync(PROMPT)
    assert len(list(session.generate(max_tokens=9, sampler=Eos(seed=1), stop_tokens=()))) > 3


def test_a_stop_string_ends_and_is_cut_off(model: ds4.Model, session: ds4.Session) -> None:
    class Text(ds4.Sampler):
        """Draws the tokens of a given text."""

        def sample(self, logits: Any) -> tuple[int, float]:
            ids = model.tokenizer.encode("one two STOP three")
            return ids[session.pos - len(PROMPT)], -1.0

    session.sync(PROMPT)
    steps = list(session.generate(sampler=Text(seed=1), stop=["never", "STOP"]))
    assert "".join(s.text for s in steps) == "one two "
    assert (steps[-1].finish, steps[-1].stop) == ("stop", "STOP")
    assert model.tokenizer.decode(session.tokens[len(PROMPT) :]).endswith("STOP"), "the timeline holds what was drawn"
    session.sync(PROMPT)
    n = len(model.tokenizer.encode("one two STO"))
    steps = list(session.generate(max_tokens=n, sampler=Text(seed=1), stop="STOP"))
    assert "".join(s.text for s in steps).startswith("one two STO"), "what was held back comes with the last step"


def test_a_full_context_ends_the_generation(session: ds4.Session) -> None:
    session.sync(PROMPT)
    steps = generated(session)
    assert steps[-1].finish == "context"
    assert len(steps) == 64 - len(PROMPT) + 1, "the last token is drawn, but there is no room for it"
    assert session.pos == 64
    assert [s.finish for s in generated(session)] == ["context"]


def test_a_generation_may_be_left_at_any_time(model: ds4.Model, session: ds4.Session) -> None:
    session.sync(PROMPT)
    for step in session.generate(sampler=ds4.Sampler.greedy(), stop_tokens=()):
        if step.pos == len(PROMPT) + 2:
            break
    assert session.pos == len(PROMPT) + 3
    rest = generated(session, max_tokens=3)
    session.sync(PROMPT)
    whole = generated(session, max_tokens=6)
    assert [s.token for s in rest] == [s.token for s in whole[3:]]


def test_zero_tokens_are_no_steps(session: ds4.Session) -> None:
    session.sync(PROMPT)
    assert generated(session, max_tokens=0) == []
    with pytest.raises(ValueError, match="max_tokens"):
        session.generate(max_tokens=-1)


def test_a_session_that_was_moved_ends_the_generation(session: ds4.Session) -> None:
    session.sync(PROMPT)
    steps = session.generate(sampler=ds4.Sampler.greedy(), stop_tokens=())
    next(steps)
    session.eval(5)
    with pytest.raises(ds4.StateError, match="changed"):
        next(steps)
    session.eval(6)


def test_cancel_between_two_tokens_ends_the_generation(session: ds4.Session) -> None:
    session.sync(PROMPT)
    steps = session.generate(sampler=ds4.Sampler.greedy(), stop_tokens=())
    next(steps)
    session.cancel()
    with pytest.raises(ds4.Cancelled):
        next(steps)
    assert len(generated(session, max_tokens=3)) == 3, "the next one is not affected"


# Snapshots


def test_a_snapshot_brings_back_the_same_bits(model: ds4.Model, session: ds4.Session) -> None:
    session.sync(PROMPT)
    snapshot = session.snapshot()
    logits = session.logits()
    first = [(s.token, s.logprob) for s in generated(session, max_tokens=6)]
    session.restore(snapshot)
    assert session.tokens == PROMPT
    np.testing.assert_array_equal(session.logits(), logits)
    assert [(s.token, s.logprob) for s in generated(session, max_tokens=6)] == first
    for form in (bytearray(snapshot), memoryview(snapshot), np.frombuffer(snapshot, dtype=np.uint8)):
        with model.session(n_ctx=64, chunk=16) as other:
            other.restore(form)
            assert [(s.token, s.logprob) for s in generated(other, max_tokens=6)] == first


def test_a_bad_snapshot_is_refused_and_changes_nothing(model: ds4.Model, session: ds4.Session) -> None:
    session.sync(PROMPT)
    snapshot, logits = session.snapshot(), session.logits()
    flipped = bytearray(snapshot)
    flipped[len(flipped) // 2] ^= 1
    for bad in (b"", b"x", snapshot[:-1], snapshot + b"x", bytes(flipped), bytes(len(snapshot))):
        with pytest.raises(ds4.SnapshotError):
            session.restore(bad)
        assert session.tokens == PROMPT
        np.testing.assert_array_equal(session.logits(), logits)
    with pytest.raises(TypeError):
        session.restore("text")  # type: ignore[arg-type]
    with model.session(n_ctx=64, qat=False) as other, pytest.raises(ds4.SnapshotError):
        other.restore(snapshot)


# Calls that end early


def assert_quick(attempt: Callable[[], float], limit: float = STOP_S, tries: int = 4) -> None:
    """Assert that an attempt takes at most `limit` seconds; a busy machine gets a few tries."""
    took = []
    while len(took) < tries:
        took.append(attempt())
        if took[-1] < limit:
            return
    raise AssertionError(f"took {took} s, more than {limit} s each time")


def usable_after_stop(session: ds4.Session) -> None:
    """The session stands at a whole chunk of LONG and goes on as if it had not been stopped."""
    pos = session.pos
    assert 0 <= pos < len(LONG)
    assert session.tokens == LONG[:pos]
    assert session.sync(LONG[: pos + 3]) == pos
    assert session.pos == pos + 3
    assert np.isfinite(session.logits()).all()


def test_an_exception_in_the_progress_function_stops_a_prefill(long_session: ds4.Session) -> None:
    def attempt() -> float:
        calls: list[tuple[int, int]] = []
        raised = 0.0

        def progress(done: int, total: int) -> None:
            nonlocal raised
            calls.append((done, total))
            if len(calls) == 3:
                raised = time.monotonic()
                raise LookupError("enough")

        with pytest.raises(LookupError, match="enough"):
            long_session.sync(LONG, progress=progress)
        took = time.monotonic() - raised
        assert len(calls) == 3
        assert all(0 <= done <= total <= len(LONG) for done, total in calls)
        usable_after_stop(long_session)
        return took

    assert_quick(attempt)


def test_cancel_from_another_thread_stops_a_prefill(long_session: ds4.Session) -> None:
    def attempt() -> float:
        asked = 0.0

        def cancel() -> None:
            nonlocal asked
            asked = time.monotonic()
            long_session.cancel()

        long_session.reset()
        timer = threading.Timer(0.2, cancel)
        timer.start()
        with pytest.raises(ds4.Cancelled):
            long_session.sync(LONG)
        took = time.monotonic() - asked
        timer.join()
        usable_after_stop(long_session)
        return took

    assert_quick(attempt)


def test_cancel_from_the_progress_function_stops_a_prefill(long_session: ds4.Session) -> None:
    with pytest.raises(ds4.Cancelled):
        long_session.sync(LONG, progress=lambda done, total: long_session.cancel())
    assert long_session.pos % long_session.chunk == 0, "the last whole chunk"
    usable_after_stop(long_session)


def test_a_cancel_without_a_call_affects_no_later_one(session: ds4.Session) -> None:
    session.cancel()
    session.sync(PROMPT)
    session.cancel()
    session.eval(1)
    session.cancel()
    assert len(generated(session, max_tokens=2)) == 2


INTERRUPTED = """
import sys, time, ds4
with ds4.Model.open(sys.argv[1]) as model, model.session(n_ctx=16384, chunk=16, threads=1) as session:
    tokens = [1 + i % 500 for i in range(16000)]
    try:
        session.sync(tokens, progress=lambda done, total: print("running", flush=True))
        print("not stopped")
    except KeyboardInterrupt:
        pos = session.pos
        session.eval([7, 8])
        print("stopped", pos < 16000 and session.pos == pos + 2, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of another kind")
def test_ctrl_c_stops_a_prefill(flash_gguf: Path) -> None:
    """A real SIGINT to a process of its own, whose session works afterwards."""

    def attempt() -> float:
        process = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, str(flash_gguf)], stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert process.stdout is not None
        with process, process.stdout as out:
            assert out.readline() == "running\n"
            asked = time.monotonic()
            process.send_signal(signal.SIGINT)
            line = next(line for line in out if line != "running\n")
            took = time.monotonic() - asked
            assert line == "stopped True\n"
        assert process.returncode == 0
        return took

    assert_quick(attempt, STOP_S + 0.2)  # includes two tokens and a print


def test_a_busy_session_turns_others_away(long_session: ds4.Session) -> None:
    """Neither another thread nor the progress function gets in; both are told at once."""
    inside = threading.Event()
    release = threading.Event()
    errors: list[BaseException] = []

    def progress(done: int, total: int) -> None:
        try:
            long_session.eval(1)
        except ds4.SessionBusyError as error:
            errors.append(error)
        inside.set()
        release.wait(30)

    def work() -> None:
        try:
            long_session.sync(LONG, progress=progress)
        except ds4.Cancelled as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(30)
    calls: list[Callable[[], object]] = [
        lambda: long_session.sync([1]),
        lambda: long_session.eval(1),
        lambda: long_session.eval_logits(1),
        lambda: long_session.logits(),
        lambda: long_session.logits_view(),
        lambda: long_session.reset(),
        lambda: long_session.snapshot(),
        lambda: long_session.restore(b"x"),
        lambda: long_session.tokens,
        lambda: long_session.set_tap(None),
        lambda: long_session.margins(),
    ]
    for call in calls:
        with pytest.raises(ds4.SessionBusyError):
            call()
    long_session.cancel()
    release.set()
    thread.join(30)
    assert [type(e) for e in errors] == [ds4.SessionBusyError, ds4.Cancelled]
    usable_after_stop(long_session)


def test_closing_a_busy_session_cancels_and_waits(model: ds4.Model) -> None:
    def attempt() -> float:
        session = model.session(n_ctx=len(LONG), chunk=16, threads=1)
        running = threading.Event()
        ended: list[BaseException | None] = []

        def work() -> None:
            try:
                session.sync(LONG, progress=lambda done, total: running.set())
                ended.append(None)
            except ds4.Cancelled as error:
                ended.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        assert running.wait(30)
        asked = time.monotonic()
        session.close()
        took = time.monotonic() - asked
        thread.join(30)
        assert [type(e) for e in ended] == [ds4.Cancelled]
        return took

    assert_quick(attempt)


def test_a_session_may_be_closed_from_its_own_progress_function(long_session: ds4.Session) -> None:
    """It cannot wait for itself; the call ends, and the memory goes with it."""
    with pytest.raises(ds4.Cancelled):
        long_session.sync(LONG, progress=lambda done, total: long_session.close())
    assert long_session.closed


def test_a_closed_session_says_so(model: ds4.Model) -> None:
    session = model.session(n_ctx=16)
    session.sync([1, 2])
    steps = session.generate(stop_tokens=())
    next(steps)
    session.close()
    session.close()
    session.cancel()
    uses: list[Callable[[], object]] = [
        lambda: session.sync([1]),
        lambda: session.eval(1),
        lambda: session.eval_logits(1),
        lambda: session.logits(),
        lambda: session.logits_view(),
        lambda: session.logprobs(),
        lambda: session.mtp_logits(1),
        lambda: session.generate(),
        lambda: next(steps),
        lambda: session.snapshot(),
        lambda: session.restore(b""),
        lambda: session.reset(),
        lambda: session.tokens,
        lambda: session.pos,
        lambda: session.margins(),
        lambda: session.set_tap(None),
        lambda: session.n_bytes,
    ]
    for use in uses:
        with pytest.raises(ds4.ClosedError):
            use()
    assert session.closed
    assert "closed" in repr(session)


def test_an_exception_leaves_no_trace_of_the_progress_function(session: ds4.Session) -> None:
    """The function is dropped with the call, so that a closure does not keep things alive."""

    class Witness:
        pass

    witness = Witness()
    alive = weakref.ref(witness)
    session.sync(PROMPT, progress=lambda done, total, w=witness: None)  # type: ignore[misc]
    del witness
    gc.collect()
    assert alive() is None


def test_arguments_of_another_kind_are_refused(model: ds4.Model) -> None:
    with model.session(n_ctx=np.int64(64)) as session:  # type: ignore[arg-type]
        for tokens in (None, (i for i in range(3)), {"a": 1}.values()):
            with pytest.raises(TypeError, match=r"sequence of int|must be int"):
                session.sync(tokens)  # type: ignore[arg-type]
        session.sync([1, 2])
        with pytest.raises(TypeError):
            session.generate(max_tokens=2.5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="sampler must be a Sampler, not str"):
            session.generate(sampler="greedy")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="stop token 99999"):
            session.generate(stop_tokens=[99999])
