"""A session: one timeline of tokens over a model, with its KV cache.

One caller at a time; `cancel` and `close` may be called from other threads. Long calls release the GIL, report
progress about every 50 ms, and end on Ctrl-C, on an exception in the progress function and on `cancel`. However a call
ends, the session stays valid: at worst it stands at the last whole chunk.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ._native import _session
from .errors import Cancelled, ClosedError, StateError
from .importance import Importance
from .profile import Profile
from .sampling import Sampler, log_softmax
from .stops import StopStrings

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from .model import Model
    from .tokenizer import Tokenizer

__all__ = ["Finish", "Session", "Step", "TokenLogprob", "Tokens"]

Tokens = Sequence[int] | NDArray[Any]
"""Token ids: a list or tuple of int, a numpy integer array of one dimension, or an `array`."""

Progress = Callable[[int, int], object]
"""Called with (tokens done, tokens in all) of the running call."""

Tap = Callable[[str, int, int, NDArray[np.float32]], object]
"""Called with (stage, layer, position of the first row, rows)."""

Finish = Literal["stop", "length", "context"]


@dataclass(frozen=True, slots=True)
class Step:
    """One token of a generation.

    Attributes
    ----------
    token : int
        The token id.
    text : str
        Text that became complete with this token. Bytes of an unfinished character, and text that may be the start of
        a stop string, are held back for a later step; the last step brings what was left.
    logprob : float
        Log-probability of the token under the raw logits.
    pos : int
        Position of the token in the timeline.
    finish : {None, "stop", "length", "context"}
        None but for the last step: a stop token or stop string was met, `max_tokens` is reached, or the context is
        full.
    stop : str or None
        The stop string that was met; None when a stop token was.
    """

    token: int
    text: str
    logprob: float
    pos: int
    finish: Finish | None = None
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A candidate for the next token: its id, raw logit, and log-probability."""

    token: int
    logit: float
    logprob: float


class Session:
    """One timeline of tokens over a model. Made by `Model.session`.

    The session keeps the weights in memory, also after the model object was closed or dropped. Use it as a context
    manager, or call `close`, to free its KV cache at a definite time.
    """

    def __init__(self, model: Model, native: _session.Session, tokenizer: Callable[[], Tokenizer]) -> None:
        self._model = model
        self._native: _session.Session | None = native
        self._tokenizer = tokenizer
        self._options = native.options()
        self._n_vocab = native.n_vocab
        self._pid = os.getpid()
        # Counts changes of the timeline, so that a generation notices when somebody else moved the session.
        self._changes = 0
        # Stops a generation between two tokens, when no native call is running that could be cancelled.
        self._stop = False
        self._importance: Importance | None = None
        self._profile: Profile | None = None

    # The timeline

    def sync(self, tokens: Tokens, *, progress: Progress | None = None) -> int:
        """Bring the session to `tokens` and make the logits of the last one ready.

        When the session holds a prefix of `tokens`, only the rest is computed (nothing, if they are equal); otherwise
        the session starts again.

        Parameters
        ----------
        tokens : Tokens
            Ids in [0, n_vocab); at least one, at most n_ctx.
        progress : callable, optional
            Called with (done, total), in tokens, about every 50 ms. What it raises ends the call and is passed on.

        Returns
        -------
        int
            Number of positions that were kept.

        Raises
        ------
        ValueError
            There is no token, or an id is out of range. The session is unchanged.
        ContextFullError
            There are more than n_ctx tokens. The session is unchanged.
        Cancelled
            `cancel` was called. The session stands at the last whole chunk.
        SessionBusyError, ClosedError, StateError
            Another call is running; the session is closed; the process was forked.
        """
        native = self._open()
        ids = self._ids(tokens)
        self._changes += 1
        return native.sync(ids, progress)

    def eval(self, tokens: int | Tokens, *, progress: Progress | None = None) -> None:
        """Append one or more tokens and make the logits of the last one ready.

        Parameters
        ----------
        tokens : int or Tokens
            Ids in [0, n_vocab); at least one.
        progress : callable, optional
            As in `sync`.

        Raises
        ------
        ContextFullError
            The tokens do not fit into n_ctx. The session is unchanged.
        ValueError, Cancelled, SessionBusyError, ClosedError, StateError
            As in `sync`.
        """
        native = self._open()
        ids = self._ids(tokens)
        self._changes += 1
        native.eval(ids, None, progress)

    def eval_logits(self, tokens: int | Tokens, *, progress: Progress | None = None) -> NDArray[np.float32]:
        """Append tokens and return the logits of every one of them.

        Parameters and exceptions are those of `eval`.

        Returns
        -------
        ndarray of float32, shape (n, n_vocab)
            Row i holds the scores of the token after tokens[i].
        """
        native = self._open()
        ids = self._ids(tokens)
        out = np.empty((len(ids), self._n_vocab), dtype=np.float32)
        self._changes += 1
        native.eval(ids, out.reshape(-1), progress)
        return out

    def reset(self) -> None:
        """Forget everything; the memory is kept for new tokens."""
        native = self._open()
        self._changes += 1
        native.reset()

    @property
    def tokens(self) -> list[int]:
        """The ids held, a copy."""
        return self._open().tokens()

    @property
    def pos(self) -> int:
        """Number of positions held, which is the position of the next token."""
        return self._open().pos()

    # What the model says about the next token

    def logits(self) -> NDArray[np.float32]:
        """Return the raw scores of the next token, a copy.

        Returns
        -------
        ndarray of float32, shape (n_vocab,)

        Raises
        ------
        StateError
            Nothing was evaluated yet.
        """
        out = np.empty(self._n_vocab, dtype=np.float32)
        self._open().logits_into(out)
        return out

    def logits_view(self) -> NDArray[np.float32]:
        """Return the raw scores of the next token without copying them.

        The array is read-only and belongs to the session, which it keeps in memory. Its values are those of `logits`
        only until the session changes; after that they are undefined.

        Raises
        ------
        StateError
            Nothing was evaluated yet.
        """
        return np.frombuffer(memoryview(self._open().logits_view()), dtype=np.float32)

    def logprobs(self, top_k: int = 20) -> list[TokenLogprob]:
        """Return the best candidates for the next token, the best first, of equals the lowest id first.

        Parameters
        ----------
        top_k : int
            How many, 1 or more; at most n_vocab are returned.

        Raises
        ------
        StateError
            Nothing was evaluated yet.
        """
        if top_k < 1:
            raise ValueError(f"top_k must be 1 or more, not {top_k}")
        logits = self.logits()
        logprobs = log_softmax(logits)
        if top_k < logits.size:
            least = np.partition(logits, logits.size - top_k)[logits.size - top_k]
            candidates = np.flatnonzero(logits >= least)
        else:
            candidates = np.arange(logits.size)
        best = candidates[np.lexsort((candidates, -logits[candidates]))][:top_k]
        return [TokenLogprob(int(i), float(logits[i]), float(logprobs[i])) for i in best]

    def mtp_logits(self, next_token: int) -> NDArray[np.float32]:
        """Return the MTP block's scores of the token after `next_token`.

        Parameters
        ----------
        next_token : int
            The token that follows the last position. The session does not move.

        Returns
        -------
        ndarray of float32, shape (n_vocab,)

        Raises
        ------
        StateError
            The session was made without `mtp=True`, or is empty.
        """
        native = self._open()
        token = int(self._ids(next_token)[0])
        out = np.empty(self._n_vocab, dtype=np.float32)
        native.mtp_into(token, out)
        return out

    # Generation

    def generate(
        self,
        *,
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop_tokens: Collection[int] | None = None,
        stop: str | Iterable[str] = (),
        progress: Progress | None = None,
    ) -> Iterator[Step]:
        """Draw tokens one after the other, starting from the logits of the last position.

        Every token that is yielded is in the session already, so iteration may be left at any time and the timeline
        continued. Two are not appended: the stop token, and a token drawn when the context is full.

        Parameters
        ----------
        max_tokens : int, optional
            How many tokens at most; until the context is full when not given.
        sampler : Sampler, optional
            How to draw; `Sampler()` when not given.
        stop_tokens : collection of int, optional
            Ids that end the generation; the tokenizer's end of sequence when not given. An empty collection switches
            that off.
        stop : str or iterable of str
            Strings that end the generation; neither they nor what follows is part of the text.
        progress : callable, optional
            As in `eval`, for each token.

        Yields
        ------
        Step
            One per token. The last one has `finish` set.

        Raises
        ------
        StateError
            Nothing was evaluated yet, or the session was changed during the generation.
        Cancelled
            `cancel` was called, also between two tokens.
        ValueError, SessionBusyError, ClosedError
            As in `eval`.
        """
        native = self._open()
        if max_tokens is not None:
            max_tokens = operator.index(max_tokens)
            if max_tokens < 0:
                raise ValueError(f"max_tokens must be 0 or more, not {max_tokens}")
        if sampler is not None and not isinstance(sampler, Sampler):
            raise TypeError(f"sampler must be a Sampler, not {type(sampler).__name__}")
        if native.pos() == 0:
            raise StateError("nothing was evaluated yet, so there is nothing to generate from")
        tokenizer = self._tokenizer()
        ends = frozenset([tokenizer.eos_id] if stop_tokens is None else map(operator.index, stop_tokens))
        for token in ends:
            if not 0 <= token < self._n_vocab:
                raise ValueError(f"stop token {token} is not in 0..{self._n_vocab - 1}")
        self._stop = False
        return self._steps(tokenizer, max_tokens, sampler or Sampler(), ends, StopStrings(stop), progress)

    def _steps(
        self,
        tokenizer: Tokenizer,
        max_tokens: int | None,
        sampler: Sampler,
        ends: frozenset[int],
        stops: StopStrings,
        progress: Progress | None,
    ) -> Iterator[Step]:
        decoder = tokenizer.stream_decoder()
        changes = self._changes
        n = 0
        finish: Finish | None = None
        while finish is None and n != max_tokens:
            native = self._open()
            if self._changes != changes:
                raise StateError("the session was changed while it was generating")
            if self._stop:
                raise Cancelled("cancelled between two tokens")
            pos = native.pos()
            token, logprob = sampler.sample(self.logits_view())
            n += 1
            text = ""
            if token in ends:
                finish = "stop"
            else:
                text = stops.feed(decoder.feed(token))
                if pos == self.n_ctx:
                    finish = "context"
                else:
                    self.eval(token, progress=progress)
                    changes = self._changes
                if stops.matched is not None:
                    finish = "stop"
                elif finish is None and n == max_tokens:
                    finish = "length"
            if finish is not None:
                text += stops.feed(decoder.flush())
                text += stops.flush()
                if stops.matched is not None:
                    finish = "stop"
            yield Step(token, text, logprob, pos, finish, stops.matched)

    def cancel(self) -> None:
        """Stop the call or generation that is running, from any thread; it raises `Cancelled`.

        Without one, nothing happens: a later call is not affected.
        """
        self._stop = True
        native = self._native
        if native is not None:
            native.cancel()

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
        data = memoryview(snapshot)
        if data.ndim != 1 or data.format != "B":
            data = data.cast("B")
        self._changes += 1
        native.restore(data)

    # Looking inside

    def set_tap(self, tap: Tap | None) -> None:
        """Have a function called with intermediate values of every later call; None ends it.

        Parameters
        ----------
        tap : callable or None
            Called with (stage, layer, pos, values): `values` is a float32 array of its own, shape (n_rows, width),
            whose rows belong to positions pos, pos + 1, ... Stage "streams" gives the residual streams before each
            layer (width n_hc * n_embd); layer n_layer is the input of the head. What the function raises ends the
            call at the next occasion, and is passed on.
        """
        native = self._open()
        if tap is None:
            native.set_tap(None)
            return
        if not callable(tap):
            raise TypeError(f"tap must be callable, not {type(tap).__name__}")

        def pass_on(stage: str, layer: int, pos: int, n_rows: int, width: int, data: bytes) -> None:
            values = np.frombuffer(bytearray(data), dtype=np.float32).reshape(n_rows, width)
            tap(stage, layer, pos, values)

        native.set_tap(pass_on)

    def collect_importance(self) -> Importance:
        """Gather importance statistics of the routed experts, from now to the end of a with block.

        Logits do not change. The sums take n_layer * n_expert * (n_embd + n_ff + 1) * 8 bytes; the MTP block of
        a session made with `mtp=True` counts as one more layer, and is computed whole while they are gathered.

        Raises
        ------
        StateError
            Statistics are being gathered already.
        MemoryError
            There is no room for them.
        """
        self._open()
        if self._importance is not None and self._importance.running:
            raise StateError("this session gathers importance statistics already")
        shape = self._model.shape
        sizes = (shape.n_layer, shape.n_expert, shape.n_embd, shape.n_ff)
        self._importance = Importance(self._open, lambda: self.closed, sizes, self.mtp)
        return self._importance

    def profile(self) -> Profile:
        """Take the time of every part of the computation, from now to the end of a with block.

        Logits do not change. The CPU is as fast as without; a backend that works ahead is made to wait at the end of
        every part, so that its speed should be measured without a profile.

        Examples
        --------
        >>> with session.profile() as profile:
        ...     session.sync(tokens)
        >>> profile.prefill.by_part()["attention"] / profile.prefill.tokens  # seconds a token

        Raises
        ------
        StateError
            Times are being taken already.
        """
        self._open()
        if self._profile is not None and self._profile.running:
            raise StateError("this session takes times already")
        self._profile = Profile(self._open, lambda: self.closed, self._model.shape.n_layer)
        return self._profile

    def fill(self, n: int, *, seed: int = 0) -> None:
        """Hold `n` positions that nobody computed, in place of what the session held: for measurements only.

        Tokens, cache rows and compressor states are pseudo-random finite numbers and all logits are 0. What follows has
        the cost of a context of `n` positions, and no meaning.

        Parameters
        ----------
        n : int
            Positions, 1..n_ctx.
        seed : int
            Of the pseudo-random numbers, 0..2**64 - 1; equal seeds give equal states.

        Raises
        ------
        ValueError
            n is not positive, or the seed is out of range.
        ContextFullError
            n is greater than n_ctx. The session is unchanged.
        """
        native = self._open()
        n, seed = operator.index(n), operator.index(seed)
        if n < 1:
            raise ValueError(f"n must be 1 or more, not {n}")
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed {seed} is not in 0..2**64 - 1")
        self._changes += 1
        native.fill(n, seed)

    def margins(self) -> tuple[float, float]:
        """Return the smallest score gaps at a top-k boundary in the last call, for the indexer and the router.

        A gap near 0 means that rounding could have chosen another row or expert; infinity means that none was cut.
        """
        return self._open().margins()

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
    def n_bytes(self) -> int:
        """Memory held by caches and scratch, in bytes."""
        return self._open().n_bytes()

    @property
    def model(self) -> Model:
        """The model."""
        return self._model

    # Life

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native is None

    def close(self) -> None:
        """Free the session. A call that is running is cancelled and waited for. Closing again does nothing."""
        native, self._native = self._native, None
        self._stop = True
        if native is not None:
            native.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        native = self._native
        state = "closed" if native is None else f"{native.pos()} of {self.n_ctx} positions"
        return f"<Session of {self._model.shape.name}: {state}>"

    def _open(self) -> _session.Session:
        native = self._native
        if native is None:
            raise ClosedError("the session is closed")
        if os.getpid() != self._pid:
            raise StateError("the session belongs to the parent process; open the model again after a fork")
        return native

    def _ids(self, tokens: int | Tokens) -> NDArray[np.int32]:
        return as_ids(tokens, self._n_vocab)


def as_ids(tokens: int | Tokens, n_vocab: int) -> NDArray[np.int32]:
    """Return token ids as a contiguous int32 array of one dimension, each checked to be in [0, n_vocab).

    Raises
    ------
    ValueError
        There is no token, or an id is out of range; the text names its index.
    TypeError
        Something is no integer.
    """
    if isinstance(tokens, (bool, str, bytes, bytearray)) or not (
        hasattr(tokens, "__len__") or isinstance(tokens, (int, np.integer))
    ):
        raise TypeError(f"tokens must be a sequence of int, not {type(tokens).__name__}")
    if isinstance(tokens, (int, np.integer)):
        tokens = (int(tokens),)
    found = np.asarray(tokens)
    if found.ndim != 1:
        raise TypeError(f"tokens must be one sequence of int, not an array of shape {found.shape}")
    if found.size == 0:
        raise ValueError("there are no tokens; at least one is needed")
    if found.dtype.kind not in "iu":
        # Also reached by integers too large for any dtype, which are ids out of range.
        for i, token in enumerate(tokens):
            if isinstance(token, (bool, np.bool_)) or not isinstance(token, (int, np.integer)):
                raise TypeError(f"tokens[{i}] must be int, not {type(token).__name__}")
            if not 0 <= token < n_vocab:
                raise ValueError(f"tokens[{i}] is {token}, which is not in 0..{n_vocab - 1}")
        found = np.array([int(token) for token in tokens])
    bad = np.flatnonzero((found < 0) | (found >= n_vocab))
    if bad.size:
        raise ValueError(f"tokens[{bad[0]}] is {found[bad[0]]}, which is not in 0..{n_vocab - 1}")
    return np.ascontiguousarray(found, dtype=np.int32)
