"""A session: one timeline of tokens over a model, with its KV cache.

One caller at a time; `cancel` and `close` may be called from other threads. Long calls release the GIL, report
progress about every 50 ms, and end on Ctrl-C, on an exception in the progress function and on `cancel`. However a call
ends, the session stays valid: at worst it stands at the last whole chunk.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ._native import _session
from .costs import CostModel
from .errors import Cancelled, ClosedError, StateError
from .experts import ExpertUse
from .importance import Importance
from .profile import Profile
from .sampling import Sampler, log_softmax
from .session_state import SessionState
from .speculation import Draft, DraftStatistics, Speculator
from .stops import StopStrings
from .token_ids import Tokens, as_ids

if TYPE_CHECKING:
    from .model import Model
    from .tokenizer import Tokenizer

__all__ = ["Finish", "Session", "Step", "TokenLogprob", "Tokens"]

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


class Session(SessionState):
    """One timeline of tokens over a model. Made by `Model.session`.

    The session keeps the weights in memory, also after the model object was closed or dropped. Use it as a context
    manager, or call `close`, to free its KV cache at a definite time.
    """

    def __init__(self, model: Model, native: _session.Session, tokenizer: Callable[[], Tokenizer]) -> None:
        super().__init__(model, native, tokenizer)
        # Stops a generation between two tokens, when no native call is running that could be cancelled.
        self._stop = False
        self._importance: Importance | None = None
        self._profile: Profile | None = None
        self._draft_statistics = DraftStatistics()

    # The timeline

    def sync(self, tokens: Tokens, *, progress: Progress | None = None) -> int:
        """Bring the session to `tokens` and make the logits of the last one ready.

        The session keeps the longest prefix that it can: all it holds, when that is a prefix of `tokens` (nothing is
        computed if they are equal); else it goes back to the newest checkpoint in the common part, or starts again
        without one. Results are those of a new session, bit for bit; after `set_steering` in mid-conversation, of one
        whose steering changed at the same position.

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

    # Speculation

    @property
    def can_draft(self) -> bool:
        """Whether `draft` works: the session was made with `mtp=True`."""
        return self.mtp

    def draft(self, token: int, depth: int, *, margin: float = 0.0, sampler: Sampler | None = None) -> list[int]:
        """Guess what follows `token`, with the MTP block fed with its own output. The session does not move.

        Parameters
        ----------
        token : int
            The token that follows the last position.
        depth : int
            How many guesses at most, 1..7.
        margin : float
            End where the best logit is less than this above the second best; 0: never.
        sampler : Sampler, optional
            What will draw the next tokens: guesses are drawn as it would draw. It does not change. The best tokens are
            guessed when not given.

        Raises
        ------
        StateError
            The session was made without `mtp=True`, or is empty.
        ValueError, Cancelled, SessionBusyError, ClosedError
            As in `eval`.
        """
        native = self._open()
        next_token = int(self._ids(token)[0])
        depth = operator.index(depth)
        if not 1 <= depth <= 7:
            raise ValueError(f"depth must be in 1..7, not {depth}")
        if not 0.0 <= margin < float("inf"):
            raise ValueError(f"margin must be 0 or more and finite, not {margin}")
        if sampler is None:
            return native.draft(next_token, depth, margin, 0.0, 0, 1.0, 0.0, 0)
        s = sampler
        return native.draft(next_token, depth, margin, s.temperature, s.top_k, s.top_p, s.min_p, s.state)

    def eval_ahead(self, token: int, guesses: Tokens, *, progress: Progress | None = None) -> None:
        """Append a token, and compute guesses at what follows it ahead.

        The guesses are no part of the session: its tokens, position, logits and state are those after `token`. When the
        next call of `eval` brings the token that was guessed, its logits are there without computing, and so on; any
        other token gives the guesses up. Results are the same bits either way.

        Parameters
        ----------
        token : int
        guesses : Tokens
            At most 7 ids. Those that do not fit the context or the chunk are left out; and all of them while a tap,
            statistics or times are in use, which are to see the timeline only.
        progress : callable, optional
            As in `eval`.

        Raises
        ------
        ContextFullError, ValueError, Cancelled, SessionBusyError, ClosedError, StateError
            As in `eval`.
        """
        native = self._open()
        ids = self._ids(token)
        if len(guesses):
            ids = np.concatenate([ids, self._ids(guesses)])
        self._changes += 1
        native.eval_ahead(ids, progress)

    @property
    def ahead(self) -> int:
        """How many guesses of `eval_ahead` are ready."""
        return self._open().ahead()

    @property
    def draft_costs(self) -> CostModel:
        """What was measured about guessing, shared by all sessions of the model that are alike in time."""
        return self._model.draft_costs(self._options)

    @property
    def draft_statistics(self) -> DraftStatistics:
        """What speculation did in the last generation with `draft`."""
        return self._draft_statistics

    # Generation

    def generate(
        self,
        *,
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop_tokens: Collection[int] | None = None,
        stop: str | Iterable[str] = (),
        draft: Draft | None = None,
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
        draft : Draft, optional
            Speculate, to be faster: see `ds4.speculation`. Needs a session made with `mtp=True`. What is yielded is the
            same, token by token, as without; `draft_statistics` tells what was won.
        progress : callable, optional
            As in `eval`, for each token.

        Yields
        ------
        Step
            One per token. The last one has `finish` set.

        Raises
        ------
        StateError
            Nothing was evaluated yet, the session was changed during the generation, or `draft` is given and the
            session was made without `mtp=True`.
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
        speculator = None
        if draft is not None:
            if not isinstance(draft, Draft):
                raise TypeError(f"draft must be a Draft, not {type(draft).__name__}")
            if not self.can_draft:
                raise StateError("drafts need a session made with mtp=True")
            speculator = Speculator(self, draft, costs=self.draft_costs)
            self._draft_statistics = speculator.statistics
        tokenizer = self._tokenizer()
        ends = frozenset([tokenizer.eos_id] if stop_tokens is None else map(operator.index, stop_tokens))
        for token in ends:
            if not 0 <= token < self._n_vocab:
                raise ValueError(f"stop token {token} is not in 0..{self._n_vocab - 1}")
        self._stop = False
        return self._steps(tokenizer, max_tokens, sampler or Sampler(), ends, StopStrings(stop), speculator, progress)

    def _steps(
        self,
        tokenizer: Tokenizer,
        max_tokens: int | None,
        sampler: Sampler,
        ends: frozenset[int],
        stops: StopStrings,
        speculator: Speculator | None,
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
                    if speculator is None or n == max_tokens:
                        self.eval(token, progress=progress)
                    else:
                        speculator.eval(token, sampler=sampler, progress=progress)
                    changes = self._changes
                if stops.matched is not None:
                    finish = "stop"
                elif finish is None and n == max_tokens:
                    finish = "length"
            if finish is not None:
                if speculator is not None:
                    speculator.settle()
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

    # Looking inside

    def set_tap(self, tap: Tap | None, *, stages: Collection[str] = ("streams",)) -> None:
        """Have a function called with intermediate values of every later call; None ends it.

        Parameters
        ----------
        tap : callable or None
            Called with (stage, layer, pos, values): `values` is a float32 array of its own, shape (n_rows, width),
            whose rows belong to positions pos, pos + 1, ... What the function raises ends the call at the next
            occasion, and is passed on.
        stages : collection of str
            The values wanted, of every layer: "streams", the residual streams before it (width n_hc * n_embd; layer
            n_layer is the input of the head); "attn_in" and "ffn_in", what is gathered from them, "attn_norm" and
            "ffn_norm", the same after the norm, "attn_out" and "ffn_out", what comes out before steering (n_embd);
            "q" (n_head * head_dim) and "kv" (head_dim), rotated; "router", the scores of the experts (n_expert).

        Raises
        ------
        ValueError
            There is no such stage.
        """
        native = self._open()
        if tap is None:
            native.set_tap(None)
            return
        known = _session.stage_names()
        if isinstance(stages, str) or not set(stages) <= set(known):
            raise ValueError(f"stages are {', '.join(known)}; not {stages!r}")
        if not callable(tap):
            raise TypeError(f"tap must be callable, not {type(tap).__name__}")

        def pass_on(stage: str, layer: int, pos: int, n_rows: int, width: int, data: bytes) -> None:
            values = np.frombuffer(bytearray(data), dtype=np.float32).reshape(n_rows, width)
            tap(stage, layer, pos, values)

        native.set_tap(pass_on, sum(1 << known.index(stage) for stage in set(stages)))

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

    def expert_use(self) -> ExpertUse:
        """Return what streamed experts cost this session since it was made; zeros for a model that does not stream."""
        return ExpertUse(**self._open().expert_use())

    # Life

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native is None

    def close(self) -> None:
        """Free the session. A call that is running is cancelled and waited for. Closing again does nothing."""
        native, self._native = self._native, None
        self._tokenizer = _no_tokenizer  # one that was not built yet would keep the weights
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

    def _ids(self, tokens: int | Tokens) -> NDArray[np.int32]:
        return as_ids(tokens, self._n_vocab)


def _no_tokenizer() -> Tokenizer:
    raise ClosedError("the session is closed")
