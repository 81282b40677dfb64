"""Steering in the graph: what it computes, that nothing else changes, and that states know how they were steered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ds4
import numpy as np
import pytest
from ds4.steering import MAX_DIRECTIONS, Steering, SteeringDirections
from numpy.typing import NDArray
from support.golden import load_golden

Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def tiny() -> Iterator[ds4.Model]:
    with ds4.Model.open_embedded() as model:
        yield model


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    return [int(t) for t in np.random.default_rng(1).integers(0, 400, 200)]


def random_directions(model: ds4.Model, seed: int = 0) -> SteeringDirections:
    rng = np.random.default_rng(seed)
    return SteeringDirections(rng.standard_normal((model.shape.n_layer, model.shape.n_embd)))


def logits_of(model: ds4.Model, tokens: list[int], *steering: Steering, **options: Any) -> Floats:
    with model.session(n_ctx=256, **options) as session:
        session.set_steering(steering)
        return session.eval_logits(tokens)


# ---------------------------------------------------------------------------------------- what it computes


def test_without_scale_not_a_bit_changes(model: ds4.Model, variant: str) -> None:
    tokens = load_golden(variant).prompts[300].tokens[:140].tolist()
    d = random_directions(model)
    nothing = SteeringDirections(np.zeros((model.shape.n_layer, model.shape.n_embd)))
    plain = logits_of(model, tokens)
    for steering in [(Steering(d, 0.0, 0.0),), (Steering(d, -0.0),), (Steering(nothing, 1.0, 1.0),), ()]:
        np.testing.assert_array_equal(logits_of(model, tokens, *steering), plain)
    steered = logits_of(model, tokens, Steering(d, 1.0, 0.5))
    assert not np.array_equal(steered, plain)
    # Chunks, threads and instruction sets change nothing of it.
    for chunk, threads in [(1, 1), (7, 2), (64, 1)]:
        again = logits_of(model, tokens, Steering(d, 1.0, 0.5), chunk=chunk, threads=threads)
        np.testing.assert_array_equal(again, steered, err_msg=f"chunk {chunk}, {threads} threads")
    seen = []
    try:
        for isa in ("base", "avx2", "avx512", "avx512vnni"):
            try:
                ds4.set_cpu_isa(isa)
            except ds4.BackendUnavailableError:
                continue
            seen.append(isa)
            np.testing.assert_array_equal(
                logits_of(model, tokens[:20], Steering(d, 1.0, 0.5)), steered[:20], err_msg=isa
            )
    finally:
        ds4.set_cpu_isa("auto")
    assert "base" in seen


def stages(model: ds4.Model, tokens: list[int], *steering: Steering) -> dict[tuple[str, int], Floats]:
    """The stages of one chunk."""
    seen: dict[tuple[str, int], Floats] = {}
    with model.session(n_ctx=256, chunk=256, checkpoint_every=0) as session:
        session.set_steering(steering)
        session.set_tap(
            lambda stage, layer, pos, values: seen.__setitem__((stage, layer), values),
            stages=("streams", "attn_out", "ffn_out", "attn_in"),
        )
        session.eval(tokens)
    return seen


@pytest.mark.parametrize("site", ["ffn", "attn"])
def test_streams_against_numpy(tiny: ds4.Model, tokens: list[int], site: str) -> None:
    """A direction in layer 1 alone: all before is the same, and what reaches the streams is -scale (d . y) d.

    hc_post multiplies it by one factor a position and stream, which a second direction gives: it is the same for both.
    """
    both = [random_directions(tiny, seed).only([1]) for seed in (1, 2)]
    scale = {"ffn": (0.7, 0.0), "attn": (0.0, 0.7)}[site]
    plain = stages(tiny, tokens[:40])
    y = plain[f"{site}_out", 1].astype(np.float64)
    n_hc = tiny.shape.n_hc
    seen = "streams" if site == "ffn" else "attn_in"  # attention is followed by the FFN of its layer
    found, expected = [], []
    for d in both:
        steered = stages(tiny, tokens[:40], Steering(d, *scale))
        np.testing.assert_array_equal(steered["streams", 1], plain["streams", 1])
        np.testing.assert_array_equal(steered[f"{site}_out", 1], plain[f"{site}_out", 1], err_msg="before steering")
        row = d.values[1].astype(np.float64)
        expected.append(-0.7 * (y @ row)[:, None] * row)
        if seen == "streams":
            change = (steered["streams", 2].astype(np.float64) - plain["streams", 2]).reshape(40, n_hc, -1)
            found.append(change)
    if site == "attn":
        assert not np.array_equal(steered["ffn_out", 1], plain["ffn_out", 1])
        return
    factor = (found[0] * expected[0][:, None, :]).sum(-1) / (expected[0] ** 2).sum(-1)[:, None]
    assert np.all((factor > 0) & (factor < 2.001)), "2 sigmoid"
    for change, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(change, factor[:, :, None] * wanted[:, None, :], atol=3e-6 * np.abs(y).max())


def test_unit_vectors_are_kept_bit_for_bit(tiny: ds4.Model, tokens: list[int]) -> None:
    """Twice the scale is another thing; directions made of the unit vectors of others are the same."""
    d = random_directions(tiny).only([0])
    one, two = (logits_of(tiny, tokens[:30], Steering(d, ffn=s)) for s in (1.0, 2.0))
    assert not np.allclose(one, two, atol=1e-3)
    plain = logits_of(tiny, tokens[:30])
    assert np.abs(one - plain).max() > 1e-3
    same = SteeringDirections(d.values)
    np.testing.assert_array_equal(logits_of(tiny, tokens[:30], Steering(same, ffn=1.0)), one)


def test_several_directions_are_a_sum(tiny: ds4.Model, tokens: list[int]) -> None:
    """L098: twice at half the scale is once at the whole within rounding; the order is the order given."""
    a, b = random_directions(tiny, 1), random_directions(tiny, 2)
    # Without the rounding steps, which magnify differences.
    exact: dict[str, Any] = {"qat": False, "rows": "f32", "activations": "float32"}
    once = logits_of(tiny, tokens[:60], Steering(a, 1.0, 0.5), **exact)
    twice = logits_of(tiny, tokens[:60], Steering(a, 0.5, 0.25), Steering(a, 0.5, 0.25), **exact)
    plain = logits_of(tiny, tokens[:60], **exact)
    assert np.abs(once - twice).max() < 1e-3 * np.abs(once - plain).max()
    once = logits_of(tiny, tokens[:60], Steering(a, 1.0, 0.5))
    both = logits_of(tiny, tokens[:60], Steering(a, 1.0), Steering(b, -1.0))
    np.testing.assert_array_equal(both, logits_of(tiny, tokens[:60], Steering(a, 1.0), Steering(b, -1.0)))
    zero = logits_of(tiny, tokens[:60], Steering(b, 0.0), Steering(a, 1.0, 0.5))
    np.testing.assert_array_equal(zero, once)
    assert not np.array_equal(both, once)


def test_drafts_of_mtp_are_not_steered(tiny: ds4.Model, tokens: list[int]) -> None:
    if not tiny.has_mtp:
        pytest.skip("the model has no MTP block")
    d = random_directions(tiny)
    with tiny.session(n_ctx=64, mtp=True) as session:
        session.eval(tokens[:20])
        plain = session.mtp_logits(3)
        session.set_steering(Steering(d, 1.0, 1.0))
        np.testing.assert_array_equal(session.mtp_logits(3), plain)


@pytest.mark.parametrize("scale", [101.0, -101.0, 1e30, float("inf"), float("nan")])
def test_scales_have_limits(tiny: ds4.Model, scale: float) -> None:
    with pytest.raises(ValueError, match="scale"):
        Steering(random_directions(tiny), ffn=scale)
    with pytest.raises(ValueError, match="scale"):
        Steering(random_directions(tiny), 0.0, scale)
    values = random_directions(tiny).values
    with tiny.session(n_ctx=32) as session, pytest.raises(ValueError, match="scale"):
        session._open().set_steering([(values, scale, 0.0)])


def test_the_strongest_scales_leave_finite_logits(tiny: ds4.Model, tokens: list[int]) -> None:
    for scale in (100.0, -100.0):
        assert np.isfinite(logits_of(tiny, tokens[:40], Steering(random_directions(tiny), scale, scale))).all()


def test_wrong_directions_leave_the_steering_as_it_was(tiny: ds4.Model, tokens: list[int]) -> None:
    good = Steering(random_directions(tiny))
    n_layer, n_embd = tiny.shape.n_layer, tiny.shape.n_embd
    with tiny.session(n_ctx=64) as session:
        session.set_steering(good)
        for shape in [(n_layer + 1, n_embd), (n_layer, n_embd - 1)]:
            with pytest.raises(ValueError, match="layers of"):
                session.set_steering(Steering(SteeringDirections(np.ones(shape))))
            with pytest.raises(ValueError, match="the model has"):
                session._open().set_steering([(np.zeros(shape, np.float32), 1.0, 0.0)])
        with pytest.raises(ValueError, match="at most 8"):
            session.set_steering([good] * (MAX_DIRECTIONS + 1))
        with pytest.raises(ValueError, match="at most 8"):
            session._open().set_steering([(good.directions.values, 1.0, 0.0)] * (MAX_DIRECTIONS + 1))
        for bad in (np.nan, np.inf, 2.0):
            values = np.array(good.directions.values)
            values[2, 5] = bad
            with pytest.raises(ValueError, match="value 5 of layer 2"):
                session._open().set_steering([(values, 1.0, 0.0)])
        with pytest.raises(TypeError, match="Steering"):
            session.set_steering([3])  # type: ignore[list-item]
        assert session.steering == (good,)
        np.testing.assert_array_equal(session.eval_logits(tokens[:20]), logits_of(tiny, tokens[:20], good))


# ---------------------------------------------------------------------------------------- in mid-conversation


def test_guesses_that_were_computed_before_a_change_are_dropped(tiny: ds4.Model, tokens: list[int]) -> None:
    d = Steering(random_directions(tiny))
    with tiny.session(n_ctx=64) as session:
        session.eval(tokens[:10])
        session.eval_ahead(tokens[10], tokens[11:14])
        assert session.ahead == 3
        session.set_steering(d)
        assert session.ahead == 0
        session.eval(tokens[11:20])
        steered = session.logits()
    with tiny.session(n_ctx=64) as session:
        session.eval(tokens[:11])
        session.set_steering(d)
        session.eval(tokens[11:20])
        np.testing.assert_array_equal(session.logits(), steered)


def test_a_change_keeps_what_is_held(tiny: ds4.Model, tokens: list[int]) -> None:
    d = Steering(random_directions(tiny))
    with tiny.session(n_ctx=256) as session, tiny.session(n_ctx=256, chunk=9) as other:
        session.sync(tokens[:50])
        session.set_steering(d)
        assert session.sync(tokens[:80]) == 50, "KV is not touched"
        other.eval(tokens[:50])
        other.set_steering(d)
        steered = other.eval_logits(tokens[50:80])
        np.testing.assert_array_equal(session.logits(), steered[-1])
        session.set_steering(d.times(-1.0))
        assert session.sync(tokens[:100]) == 80
        session.set_steering(None)
        session.rewind(0)
        np.testing.assert_array_equal(session.eval_logits(tokens[:60]), logits_of(tiny, tokens[:60]))
    assert not np.array_equal(steered, logits_of(tiny, tokens[:80])[50:])


def test_the_session_knows_how_its_positions_were_steered(tiny: ds4.Model, tokens: list[int]) -> None:
    d, e = Steering(random_directions(tiny, 1)), Steering(random_directions(tiny, 2))
    with tiny.session(n_ctx=256, checkpoint_every=10) as session:
        assert (session.steering_key, session.steered_prefix) == (b"", 0)
        session.set_steering(d)
        key = session.steering_key
        assert len(key) == 8
        session.eval(tokens[:40])
        assert (session.steering_key, session.steered_prefix) == (key, 40)
        session.set_steering(e)
        assert session.steered_prefix == 0
        assert session.steering_key not in (b"", key)
        session.set_steering(d)
        assert (session.steering_key, session.steered_prefix) == (key, 40)
        session.set_steering(None)
        session.eval(tokens[40:60])
        mixed = session.steering_key
        assert mixed not in (b"", key)
        session.set_steering(d)
        assert session.steered_prefix == 40
        assert session.steering_key not in (b"", key, mixed)
        assert session.rewind(45) == 40
        assert (session.steering_key, session.steered_prefix) == (key, 40)
        with session.fork() as copy:
            assert copy.steering == (d,)
            assert copy.steering_key == key
            np.testing.assert_array_equal(copy.eval_logits(tokens[40:70]), logits_of(tiny, tokens[:70], d)[40:])
        session.set_steering(None)
        assert session.steered_prefix == 0
        session.reset()
        assert session.steering_key == b""
    with tiny.session(n_ctx=256) as other:
        other.set_steering([d, e])
        ordered = other.steering_key
        other.set_steering([e, d])
        assert other.steering_key != ordered, "the order is part of it"
        other.set_steering([Steering(e.directions, 0.0), d])
        assert other.steering_key == key, "what does nothing is no part of it"
        other.set_steering(d.times(0.5))
        assert other.steering_key != key


def snapshot(session: ds4.Session) -> Callable[[ds4.Session], object]:
    data = session.snapshot()
    return lambda other: other.restore(data)


def parts(session: ds4.Session) -> Callable[[ds4.Session], object]:
    n, tokens = session.pos, session.tokens
    rows, tail = [session.export_rows(0, 10), session.export_rows(10, n)], session.export_tail()
    return lambda other: other.import_state(tokens, rows, tail)


@pytest.mark.parametrize("store", [snapshot, parts])
def test_states_of_other_steering_are_refused(
    tiny: ds4.Model, tokens: list[int], store: Callable[[ds4.Session], Callable[[ds4.Session], object]]
) -> None:
    d, e = Steering(random_directions(tiny, 1)), Steering(random_directions(tiny, 2))
    states = {}
    for name, steering in {"none": None, "d": d, "e": e, "half": d.times(0.5)}.items():
        with tiny.session(n_ctx=64) as session:
            session.set_steering(steering)
            session.eval(tokens[:30])
            states[name] = (steering, store(session))
    with tiny.session(n_ctx=64) as session:
        for here, (steering, _) in states.items():
            for there, (_, load) in states.items():
                session.reset()
                session.set_steering(steering)
                session.eval(tokens[:7])
                if here == there:
                    load(session)
                    assert session.steered_prefix == 30
                    np.testing.assert_array_equal(
                        session.eval_logits(tokens[30:50]),
                        logits_of(tiny, tokens[:50], *[s for s in [steering] if s])[30:],
                    )
                    continue
                with pytest.raises(ds4.SnapshotError, match="with" if there != "none" else "without steering"):
                    load(session)
                assert session.tokens == tokens[:7], "unchanged"


@pytest.mark.parametrize("store", [snapshot, parts])
def test_a_mixed_state_goes_back_only_where_it_came_from(
    tiny: ds4.Model, tokens: list[int], store: Callable[[ds4.Session], Callable[[ds4.Session], object]]
) -> None:
    d = Steering(random_directions(tiny))
    with tiny.session(n_ctx=64) as session, tiny.session(n_ctx=64) as other:
        session.eval(tokens[:20])
        session.set_steering(d)
        session.eval(tokens[20:30])
        load = store(session)
        expected = session.eval_logits(tokens[30:40])
        load(session)
        assert session.pos == 30
        np.testing.assert_array_equal(session.eval_logits(tokens[30:40]), expected)
        for steering in (None, d):
            other.reset()
            other.set_steering(steering)
            with pytest.raises(ds4.SnapshotError, match="steering"):
                load(other)
        # One that steered at the same position has the same history.
        other.set_steering(None)
        other.eval(tokens[:20])
        other.set_steering(d)
        other.eval(tokens[20:35])
        load(other)
        np.testing.assert_array_equal(other.eval_logits(tokens[30:40]), expected)
        other.reset()
        other.set_steering(None)
        other.eval(tokens[:19])
        other.set_steering(d)
        other.eval(tokens[19:35])
        with pytest.raises(ds4.SnapshotError, match="steering"):
            load(other)


def test_rows_and_tail_of_different_steering_are_no_state(tiny: ds4.Model, tokens: list[int]) -> None:
    d = Steering(random_directions(tiny))
    with tiny.session(n_ctx=64) as session:
        session.eval(tokens[:30])
        rows = session.export_rows(0, 30)
        session.reset()
        session.set_steering(d)
        session.eval(tokens[:30])
        tail = session.export_tail()
        with pytest.raises(ds4.SnapshotError, match=r"rows\[0\] was made with other steering"):
            session.import_state(tokens[:30], [rows], tail)


def test_an_empty_state_is_of_any_steering(tiny: ds4.Model) -> None:
    with tiny.session(n_ctx=64) as session:
        session.set_steering(Steering(random_directions(tiny)))
        empty = session.snapshot()
        session.set_steering(None)
        session.restore(empty)


def test_arrays_of_a_state_cannot_say_how_it_was_steered(tiny: ds4.Model, tokens: list[int]) -> None:
    d = Steering(random_directions(tiny))
    with tiny.session(n_ctx=64) as session:
        session.eval(tokens[:20])
        state = session.state()
        session.set_steering(d)
        with pytest.raises(ds4.StateError, match="steer"):
            session.load_state(state)
        session.eval(tokens[20:24])
        with pytest.raises(ds4.StateError, match="steering"):
            session.state()
        session.set_steering(None)
        session.load_state(state)
        assert session.steering_key == b""


def test_memory_of_directions_is_counted(tiny: ds4.Model) -> None:
    with tiny.session(n_ctx=64) as session:
        before = session.n_bytes
        session.set_steering(Steering(random_directions(tiny)))
        assert session.n_bytes - before == tiny.shape.n_layer * tiny.shape.n_embd * 4
        session.set_steering(None)
        assert session.n_bytes == before


# ---------------------------------------------------------------------------------------- stages


def test_stages_of_a_tap(tiny: ds4.Model, tokens: list[int]) -> None:
    shape = tiny.shape
    widths = {
        "streams": shape.n_hc * shape.n_embd, "attn_in": shape.n_embd, "attn_norm": shape.n_embd,
        "q": shape.n_head * shape.head_dim, "kv": shape.head_dim, "attn_out": shape.n_embd, "ffn_in": shape.n_embd,
        "ffn_norm": shape.n_embd, "router": shape.n_expert, "ffn_out": shape.n_embd,
    }  # fmt: skip
    with tiny.session(n_ctx=64, chunk=16) as session:
        seen: list[tuple[str, int, int]] = []

        def tap(stage: str, layer: int, pos: int, values: Floats) -> None:
            seen.append((stage, layer, pos))
            assert values.shape == (10 if pos == 0 else 1, widths[stage])
            assert np.isfinite(values).all()

        session.set_tap(tap, stages=set(widths))
        plain = session.eval_logits(tokens[:10])
        session.eval(tokens[10])
        once = [(stage, layer) for layer in range(shape.n_layer) for stage in widths] + [("streams", shape.n_layer)]
        assert seen == [(*x, pos) for pos in (0, 10) for x in once]
        for wrong in ({"nothing"}, "streams"):
            with pytest.raises(ValueError, match="attn_out"):
                session.set_tap(tap, stages=wrong)
        session.set_tap(tap, stages=["q"])
        session.set_tap(None)
        session.reset()
        np.testing.assert_array_equal(session.eval_logits(tokens[:10]), plain)
    np.testing.assert_array_equal(plain, logits_of(tiny, tokens[:10]))
