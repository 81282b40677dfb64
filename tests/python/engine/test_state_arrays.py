"""States as arrays: what they hold is what a snapshot holds, and loading them gives the bits of going on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import ds4
import numpy as np
import pytest
from ds4.kvstore.dsv4 import Dims, Payload, payload_bytes
from ds4.state_arrays import LayerState, State
from numpy.typing import NDArray
from support.golden import load_golden
from support.sealed import SNAPSHOT_HEADER

CUTS = (1, 3, 4, 5, 8, 11, 64, 126, 127, 128, 129, 132, 200, 256, 290)
EMPTY = np.float32(-1e30)


@pytest.fixture(scope="module")
def tokens(variant: str) -> NDArray[np.int32]:
    return load_golden(variant).prompts[300].tokens


class Snapshot:
    """The arrays of a snapshot, read as docs/formats.md describes it."""

    def __init__(self, session: ds4.Session) -> None:
        self.data = session.snapshot()[SNAPSHOT_HEADER:]
        self.kind = np.dtype("<f2" if session.rows == "f16" else "<f4")
        self.at = 0

    def take(self, rows: int, width: int, kind: np.dtype[Any] | None = None) -> NDArray[Any]:
        kind = self.kind if kind is None else kind
        out = np.frombuffer(self.data, kind, rows * width, self.at).reshape(rows, width)
        self.at += out.nbytes
        return out.astype(np.float32)


def expected_state(session: ds4.Session) -> State:
    shape, n = session.model.shape, session.pos
    source = Snapshot(session)
    source.take(n, 1, np.dtype("<i4"))
    logits = source.take(1, shape.n_vocab, np.dtype("<f4"))[0]
    layers = []
    for ratio in shape.compress_ratio:
        window = source.take(min(n, 127), shape.head_dim)
        if n >= 128:
            window = np.concatenate([np.zeros((1, shape.head_dim), np.float32), window])
        arrays = [window]
        for dim in {0: (), 4: (shape.head_dim, shape.index_dim)}.get(ratio, (shape.head_dim,)):
            c = 2 if ratio == 4 else 1
            arrays.append(source.take(n // ratio, dim))
            held = n % ratio + (4 if ratio == 4 and n >= 4 else 0)
            # Ratio 4: rows 0..3 are the group before, which the first group does not have.
            first = 4 if ratio == 4 and n < 4 else 0
            for fill in (np.float32(0), EMPTY):
                entries = np.full((c * ratio, c * dim), fill)
                entries[first : first + held] = source.take(held, c * dim, np.dtype("<f4"))
                arrays.append(entries)
        layers.append(LayerState(*arrays))
    assert source.at == len(source.data)
    return State(session.tokens, logits, layers)


def assert_equal(a: State, b: State) -> None:
    assert a.tokens == b.tokens
    np.testing.assert_array_equal(a.logits, b.logits)
    for number, (x, y) in enumerate(zip(a.layers, b.layers, strict=True)):
        for field in dataclasses.fields(LayerState):
            name = f"{field.name} of layer {number}"
            np.testing.assert_array_equal(getattr(x, field.name), getattr(y, field.name), name, strict=True)


@pytest.mark.parametrize(("qat", "rows"), [(True, "f16"), (False, "f32")])
def test_a_state_is_what_a_snapshot_holds_and_loads(
    model: ds4.Model, tokens: NDArray[np.int32], qat: bool, rows: Any
) -> None:
    options: dict[str, Any] = {"qat": qat, "rows": rows}
    with model.session(n_ctx=512, chunk=64, **options) as source:
        reference = source.eval_logits(tokens)
    with (
        model.session(n_ctx=512, chunk=50, **options) as walker,
        model.session(n_ctx=400, chunk=17, **options) as other,
    ):
        done = 0
        for cut in CUTS:
            walker.eval(tokens[done:cut])
            done = cut
            state = walker.state()
            assert_equal(state, expected_state(walker))
            other.eval([1, 2, 3])
            other.load_state(state)
            assert other.snapshot() == walker.snapshot(), "every bit of the state"
            rest = min(cut + 40, len(tokens))
            np.testing.assert_array_equal(other.eval_logits(tokens[cut:rest]), reference[cut:rest])
            assert other.rewind(cut) == cut, "a place to go back to"


def test_the_payload_of_another_program_carries_it(model: ds4.Model, tokens: NDArray[np.int32]) -> None:
    shape = model.shape
    dims = Dims(shape.compress_ratio, shape.head_dim, shape.index_dim, shape.window, shape.n_vocab)
    with model.session(n_ctx=512) as a, model.session(n_ctx=512) as b:
        a.sync(tokens[:270])
        state = a.state()
        data = Payload(512, a.chunk, 256, 128, state.tokens, state.logits, state.layers).to_bytes(dims)
        assert len(data) == payload_bytes(dims, 270)
        found = Payload.from_bytes(data, dims)
        b.load_state(State(found.tokens, found.logits, found.layers))
        np.testing.assert_array_equal(a.logits(), b.logits())
        np.testing.assert_array_equal(a.eval_logits(tokens[270:]), b.eval_logits(tokens[270:]))


def test_rows_are_rounded_to_the_row_type(model: ds4.Model, tokens: NDArray[np.int32]) -> None:
    with model.session(n_ctx=128, rows="f32") as exact, model.session(n_ctx=128) as half:
        exact.sync(tokens[:100])
        half.load_state(exact.state())
        for a, b in zip(exact.state().layers, half.state().layers, strict=True):
            np.testing.assert_array_equal(b.window, a.window.astype(np.float16).astype(np.float32))


def test_what_does_not_fit_is_refused_and_changes_nothing(model: ds4.Model, tokens: NDArray[np.int32]) -> None:
    with model.session(n_ctx=64) as a, model.session(n_ctx=64) as b:
        with pytest.raises(ds4.StateError, match="empty"):
            a.state()
        a.sync(tokens[:30])
        state = a.state()
        b.sync([4, 5, 6])
        before = b.snapshot()

        def with_layer(number: int, change: Callable[[LayerState], LayerState]) -> State:
            layers = list(state.layers)
            layers[number] = change(layers[number])
            return dataclasses.replace(state, layers=layers)

        def with_value(name: str, row: int, value: float) -> State:
            def change(layer: LayerState) -> LayerState:
                array = getattr(layer, name).copy()
                array[row, 1] = value
                return dataclasses.replace(layer, **{name: array})

            return with_layer(2, change)

        shapes: list[tuple[State, str]] = [
            (dataclasses.replace(state, tokens=state.tokens[:29]), r"array 0 of layer 0 has the shape \(30, 256\)"),
            (
                dataclasses.replace(state, logits=state.logits[:-1]),
                r"logits has the shape \(511,\)",
            ),
            (dataclasses.replace(state, layers=state.layers[:-1]), "4 layers, the model has 5"),
            (with_layer(2, lambda layer: dataclasses.replace(layer, index_scores=None)), "layer 2 has 6 arrays"),
            (with_layer(2, lambda layer: dataclasses.replace(layer, group=layer.window)), "array 2 of layer 2"),
            (dataclasses.replace(state, tokens=[512, *state.tokens[1:]]), r"tokens\[0\] is 512"),
            (dataclasses.replace(state, tokens=[]), "no tokens"),
        ]
        for bad, message in shapes:
            with pytest.raises(ValueError, match=message):
                b.load_state(bad)
        logits = state.logits.copy()
        logits[7] = np.nan
        for bad, message in (
            (dataclasses.replace(state, logits=logits), "value 7 of the state is nan"),
            (with_value("window", 3, np.inf), "is inf, which a session with F16 rows cannot hold"),
            (with_value("rows", 3, 65505.0), "is 65505"),
            (with_value("index_rows", 0, -np.inf), "is -inf"),
            (with_value("scores", 2, np.nan), "is nan"),
        ):
            with pytest.raises(ds4.SnapshotError, match=message):
                b.load_state(bad)
        assert b.snapshot() == before
        b.load_state(with_value("scores", 7, np.nan))  # an entry that no position has
        np.testing.assert_array_equal(b.logits(), a.logits())
    with model.session(n_ctx=29) as small, pytest.raises(ds4.ContextFullError, match="30 positions"):
        small.load_state(state)
    with model.session(n_ctx=64, mtp=True) as with_mtp, pytest.raises(ds4.StateError, match="rows of that block"):
        with_mtp.load_state(state)
    for call in (with_mtp.state, lambda: with_mtp.load_state(state)):
        with pytest.raises(ds4.ClosedError):
            call()
