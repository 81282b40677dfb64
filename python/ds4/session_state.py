"""What a session is made of, and what can be done with its state as a whole: go back, copy, store.

The calls that move a session token by token are in `ds4.session`.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from ._native import _session
from .errors import ClosedError, StateError
from .state_arrays import State, join_arrays, split_values
from .steering import Steering, as_steering, native_list
from .token_ids import Tokens, as_ids

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from .model import Model
    from .tokenizer import Tokenizer

__all__ = ["SessionState"]


class SessionState:
    """The part of `ds4.Session` that holds the native session, its options and its state as a whole."""

    def __init__(self, model: Model, native: _session.Session, tokenizer: Callable[[], Tokenizer]) -> None:
        self._model = model
        self._native: _session.Session | None = native
        self._tokenizer = tokenizer
        self._options = native.options()
        self._n_vocab = native.n_vocab
        self._steering: tuple[Steering, ...] = ()
        self._pid = os.getpid()
        # Counts changes of the timeline, so that a generation notices when somebody else moved the session.
        self._changes = 0

    # What it is

    @property
    def n_ctx(self) -> int:
        """Positions that the session can hold."""
        return self._options["n_ctx"]

    @property
    def n_vocab(self) -> int:
        """Number of token ids."""
        return self._n_vocab

    @property
    def chunk(self) -> int:
        """Largest number of tokens that are computed together."""
        return self._options["chunk"]

    @property
    def threads(self) -> int:
        """Number of threads that compute."""
        return self._options["threads"]

    @property
    def affinity(self) -> str:
        """Where they run: "none", "auto" or a list of processors."""
        return self._options["affinity"]

    @property
    def numa(self) -> str:
        """How pages are spread over memory nodes: "none" or "interleave"."""
        return "interleave" if self._options["interleave"] else "none"

    @property
    def qat(self) -> bool:
        """Whether the rounding steps of the released model are simulated."""
        return self._options["qat"]

    @property
    def rows(self) -> Literal["f16", "f32"]:
        """Storage format of cache rows."""
        return "f16" if self._options["rows_f16"] else "f32"

    @property
    def activations(self) -> Literal["float32", "quantized"]:
        """How activations meet quantized weights."""
        return "quantized" if self._options["quantized"] else "float32"

    @property
    def mtp(self) -> bool:
        """Whether `mtp_logits` works."""
        return self._options["with_mtp"]

    @property
    def checkpoint_every(self) -> int:
        """Positions between automatic checkpoints; 0 without them."""
        return self._options["checkpoint_every"]

    @property
    def checkpoint_bytes(self) -> int:
        """Memory that checkpoints may take, in bytes."""
        return self._options["checkpoint_bytes"]

    @property
    def n_bytes(self) -> int:
        """Memory held by caches, scratch and the checkpoints of the moment, in bytes."""
        return self._open().n_bytes()

    @property
    def model(self) -> Model:
        """The model."""
        return self._model

    # Going back

    @property
    def checkpoints(self) -> list[int]:
        """Positions that the session can go back to, ascending; besides them position 0 and where it stands."""
        return self._open().checkpoints()

    def checkpoint(self) -> None:
        """Keep the present position as a place to go back to.

        The session also takes checkpoints by itself: every `checkpoint_every` positions, and where a `sync` ended when
        it goes on from there. The newest 16 asked for here are kept, until the session goes back behind them.

        Raises
        ------
        StateError
            Nothing was evaluated yet, or one checkpoint is larger than `checkpoint_bytes`.
        """
        self._open().checkpoint()

    @property
    def steps_back(self) -> int:
        """How many positions `rewind` can take back without a checkpoint, at next to no cost.

        The last 8 that were evaluated; fewer after the session began, or its state was restored, loaded or forked.
        """
        return self._open().steps_back()

    def rewind(self, pos: int) -> int:
        """Go back to `pos`, or to the newest checkpoint before it; what follows is bit-identical.

        Positions that are at most `steps_back` behind are reached exactly, without a checkpoint.

        Parameters
        ----------
        pos : int
            0 to the present position, at which nothing happens.

        Returns
        -------
        int
            Where the session stands now: 0, which is empty, when there is no checkpoint to go to.

        Raises
        ------
        ValueError
            The session does not hold that many positions. It is unchanged.
        """
        native = self._open()
        pos = operator.index(pos)
        if not 0 <= pos <= native.pos():
            raise ValueError(f"pos must be in 0..{native.pos()}, not {pos}")
        self._changes += 1
        return native.rewind(pos)

    def fork(self) -> Self:
        """Return an independent session with the same options, state and checkpoints.

        It has memory and threads of its own, but shares what both hold of checkpoints. A tap, statistics and times
        stay with this one.

        Raises
        ------
        MemoryError
            There is not enough memory.
        """
        native = self._open()
        other = type(self)(self._model, native.fork(), self._tokenizer)
        other._steering = self._steering
        return other

    # Steering

    @property
    def steering(self) -> tuple[Steering, ...]:
        """What the session steers with from now on; empty without steering."""
        return self._steering

    def set_steering(self, steering: Steering | Iterable[Steering] | None) -> None:
        """Steer what is computed from now on, or do so no more.

        What the session holds stays as it was computed, and `sync` keeps it: call `reset` first for results that are
        all of one steering. The session knows how its positions were steered (`steered_prefix`), and so does a stored
        state: it goes back only into a session whose present steering is that of all its positions, or which has the
        same history up to there.

        Parameters
        ----------
        steering : Steering, iterable of Steering, or None
            At most 8. They are subtracted in their order, and all products see the output as it came from the layer.
            None, nothing, and scales of 0 are the same, bit for bit.

        Raises
        ------
        ValueError
            The directions have another shape than the model, or there are too many. The steering is as before.
        """
        native = self._open()
        wanted = as_steering(steering)
        shape = self._model.shape
        for one in wanted:
            d = one.directions
            if (d.n_layer, d.n_embd) != (shape.n_layer, shape.n_embd):
                there, here = f"{d.n_layer} layers of {d.n_embd}", f"{shape.n_layer} of {shape.n_embd}"
                raise ValueError(f"the directions have {there}, the model has {here}")
        native.set_steering(native_list(wanted))
        self._steering = wanted

    @property
    def steered_prefix(self) -> int:
        """Positions, from the first on, that were computed with the present steering; all of them until it changes."""
        return self._open().steering()[1]

    @property
    def steering_key(self) -> bytes:
        """What tells states of different steering apart: empty without steering.

        Sessions of one model with equal keys have the same steering in all their positions and from now on, or the same
        mixture of them.
        """
        native = self._open()
        present, kept, held = native.steering()
        if kept == native.pos():
            return present.to_bytes(8, "little") if present else b""
        return held.to_bytes(8, "little") + present.to_bytes(8, "little")

    # Snapshots

    def snapshot(self) -> bytes:
        """Return the whole state as one byte string, for `restore` of this session or of one like it."""
        return self._open().snapshot()

    def restore(self, snapshot: ReadableBuffer) -> None:
        """Bring back the state of a snapshot; what follows is bit-identical.

        Parameters
        ----------
        snapshot : bytes-like
            From a session of the same model with the same `qat`, `rows`, `activations` and `mtp`, holding at most
            n_ctx positions.

        Raises
        ------
        SnapshotError
            The snapshot is damaged, or of another model or setting. The session is unchanged.
        ContextFullError
            It holds more positions than n_ctx.
        """
        native = self._open()
        data = _bytes_of(snapshot)
        self._changes += 1
        native.restore(data)

    # The state in parts, for storage

    def export_rows(self, start: int, stop: int) -> bytes:
        """Return the rows of the groups that close in positions (start, stop], for `import_state`.

        Rows of closed groups never change: of a timeline that has grown, only the rows behind the last export are new.

        Parameters
        ----------
        start, stop : int
            0 <= start < stop <= the present position.

        Returns
        -------
        bytes
            Names the model, the settings, the range and the tokens that it belongs to, and carries checksums. With
            `qat` a row takes the bits that it really has: FP8 and FP4 codes (docs/formats.md).

        Raises
        ------
        ValueError
            The session does not hold these positions.
        """
        native = self._open()
        start, stop = operator.index(start), operator.index(stop)
        if not 0 <= start < stop <= native.pos():
            raise ValueError(f"start and stop must be 0 <= start < stop <= {native.pos()}, not {start} and {stop}")
        return native.export_rows(start, stop)

    def export_tail(self, at: int | None = None) -> bytes:
        """Return what a position has besides rows of closed groups: window, open groups, logits, MTP streams.

        Parameters
        ----------
        at : int, optional
            A checkpoint; the present position when not given.

        Raises
        ------
        StateError
            There is no checkpoint at that position, or the session is empty.
        """
        native = self._open()
        at = native.pos() if at is None else operator.index(at)
        if not 0 <= at <= native.pos():
            raise ValueError(f"at must be in 0..{native.pos()}, not {at}")
        return native.export_tail(at)

    def import_state(self, tokens: Tokens, rows: Iterable[ReadableBuffer], tail: ReadableBuffer) -> int:
        """Bring the session to the position of `tail`, in place of what it held; what follows is bit-identical.

        Parameters
        ----------
        tokens : Tokens
            The ids of all positions of the parts, at least.
        rows : iterable of bytes-like
            From `export_rows`: consecutive ranges from 0 on that reach the tail's position. The last may go on behind
            it.
        tail : bytes-like
            From `export_tail`.

        Returns
        -------
        int
            The position of the tail, where the session stands now.

        Raises
        ------
        SnapshotError
            A part is damaged or missing, or of another model, other settings or other tokens. The session is unchanged.
        ContextFullError
            The position exceeds n_ctx. The session is unchanged.
        ValueError
            There are too few tokens. The session is unchanged.
        """
        native = self._open()
        ids = as_ids(tokens, self._n_vocab)
        parts, end = [_bytes_of(part) for part in rows], _bytes_of(tail)
        self._changes += 1
        return native.import_state(ids, parts, end)

    def state(self) -> State:
        """Return the state at the present position as float32 arrays, for files of other programs.

        Raises
        ------
        StateError
            Nothing was evaluated yet.
        """
        native = self._open()
        tokens = native.tokens()
        values = np.empty(native.state_floats(), dtype=np.float32)
        native.read_state(values)
        return split_values(self._model.shape, tokens, values)

    def load_state(self, state: State) -> None:
        """Bring the session to a state that is given as arrays, in place of what it held.

        Rows are rounded to the row type of the session; what `state` of a session like this one gave comes back with
        all its bits.

        Parameters
        ----------
        state : State
            The tokens decide the shapes of all arrays; see `ds4.state_arrays`.

        Raises
        ------
        ValueError
            An array has another shape, or a token id is out of range. The session is unchanged.
        SnapshotError
            A value is not finite, or too large for F16 rows. The session is unchanged.
        ContextFullError
            There are more than n_ctx tokens. The session is unchanged.
        StateError
            The session was made with `mtp=True`: the state lacks the rows of that block.
        """
        native = self._open()
        ids = as_ids(state.tokens, self._n_vocab)
        values = join_arrays(self._model.shape, state)
        self._changes += 1
        native.load_state(ids, values)

    def _open(self) -> _session.Session:
        native = self._native
        if native is None:
            raise ClosedError("the session is closed")
        if os.getpid() != self._pid:
            raise StateError("the session belongs to the parent process; open the model again after a fork")
        return native


def _bytes_of(data: ReadableBuffer) -> memoryview:
    view = memoryview(data)
    return view if view.ndim == 1 and view.format == "B" else view.cast("B")
