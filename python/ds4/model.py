"""A model: the weights of one GGUF file, bound and checked, shared by any number of sessions."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from ._native import _model, _session
from .activations import At, activations
from .budget import SessionNeed, available_memory, cache_beside, expert_plan, parse_size, takes_long_chunks
from .chat import CompletionParser, Event, render
from .costs import CostModel
from .errors import ClosedError
from .experts import ReadOptions
from .gguf import GGUFFile, Metadata, encode_path
from .model_experts import ModelExperts, measure_reads
from .model_options import (
    DEFAULT_CHECKPOINT_BYTES,
    DEFAULT_CHECKPOINT_EVERY,
    DEFAULT_CHUNK,
    DEFAULT_N_CTX,
    MAX_N_CTX,
    STREAMED_CHUNK,
    check_checkpoints,
    check_choice,
    check_range,
    places,
)
from .mtp_pair import check_pair
from .sampling import Sampler
from .session import Progress, Session
from .shapes import MemoryPlan, Shape
from .token_ids import Tokens
from .tokenizer import Tokenizer

__all__ = ["MemoryPlan", "Model", "Shape", "diagnose", "measure_reads"]

_EMBEDDED = "ds4-tiny.gguf"


class _LazyTokenizer:
    """Builds the tokenizer once; shared by a model and its sessions, so that it outlives `Model.close`."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata: Metadata | None = metadata
        self._tokenizer: Tokenizer | None = None
        self._lock = Lock()

    def __call__(self) -> Tokenizer:
        with self._lock:
            if self._tokenizer is None:
                assert self._metadata is not None
                self._tokenizer = Tokenizer.from_gguf_metadata(self._metadata)
                self._metadata = None
            return self._tokenizer


class Model(ModelExperts):
    """The weights of one GGUF file. Open one with `Model.open` or `Model.open_embedded`.

    A model is immutable and may be used from many threads. Sessions keep the weights they need, so closing a model
    ends only the use of this object.

    Examples
    --------
    >>> with Model.open("flash.gguf") as model, model.session(n_ctx=32_768) as session:
    ...     session.sync(model.tokenizer.encode("Why is the sky blue?"))
    ...     for step in session.generate(max_tokens=64):
    ...         print(step.text, end="")
    """

    def __init__(self, native: _model.Model, path: str) -> None:
        self._native: _model.Model | None = native
        self._path = path
        self._shape = Shape(**native.shape())
        self._metadata: Metadata | None = Metadata(native.gguf())
        self._tokenizer: _LazyTokenizer | None = _LazyTokenizer(self._metadata)
        self._draft_costs: dict[tuple[Any, ...], CostModel] = {}
        self._warnings: tuple[str, ...] = ()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        backend: str = "auto",
        mtp: str | os.PathLike[str] | None = None,
        expert_cache: int | str | None = None,
        reads: ReadOptions | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Open a model file. The weights are mapped, not read, unless its experts are streamed.

        Parameters
        ----------
        path : path-like
            A GGUF file.
        backend : str
            "auto" (the CPU), "cpu", "cuda", "hip", "metal", or a name that `ds4.load_backend` gave; `ds4.backends`
            lists them. A device with memory of its own gets a copy of the weights.
        mtp : path-like, optional
            A file with the MTP block, when that is not part of the model file.
        expert_cache : int or str, optional
            Stream the routed experts: they stay in the file and are read when they are needed, into a cache of this
            size that all sessions share; all other weights are copied to memory. For models that are larger than the
            memory. Results do not change by a bit. Bytes, a size such as "24GiB", "auto" for what the memory has room
            for beside the other weights and one session of 32,768 positions, or "off".
        reads : ReadOptions, optional
            How streamed experts are read.
        progress : callable, optional
            Called with the bytes sent to a device with memory of its own, and with those to send.

        Raises
        ------
        OSError
            A file cannot be opened or is no regular file.
        ModelFileError
            It is damaged, cut short, or no GGUF v3 file; the error tells where.
        UnsupportedModelError
            It is a sound file of a model that ds4 does not run; the text lists every difference.
        BackendUnavailableError
            This build or machine has no such backend; the text says why.
        ValueError
            The backend's name is unknown, or the expert cache holds no expert; the text names the smallest size.
        MemoryError
            There is no memory for the expert cache or for the other weights.
        DeviceMemoryError
            The device has no room for them; nothing was allocated.
        """
        if "\0" in backend:
            raise ValueError("a backend's name holds no NUL")
        shown = os.fsdecode(path)
        native = _model.Model(
            encode_path(path),
            shown,
            backend,
            None if mtp is None else encode_path(mtp),
            cls._cache_bytes(expert_cache, path, mtp, backend),
            *(reads or ReadOptions()).numbers(),
            guess=reads is None or reads.guess,
            progress=progress,
        )
        model = cls(native, shown)
        if mtp is not None:
            model._warnings = check_pair(model.metadata, shown, mtp)
        return model

    @classmethod
    def _cache_bytes(
        cls,
        asked: int | str | None,
        path: str | os.PathLike[str],
        mtp: str | os.PathLike[str] | None,
        backend: str,
    ) -> int:
        """Return the size of the expert cache, 0 for none."""
        if asked is None or asked == "off":
            return 0
        if asked == "auto":
            with cls.open(path, backend=backend, mtp=mtp) as model:  # nothing is read but its head
                need = model.session_need()
            plan = expert_plan([path] if mtp is None else [path, mtp])
            return cache_beside(plan, available_memory(), need)
        size = parse_size(asked) if isinstance(asked, str) else asked
        check_range("expert_cache", size, (1 << 63) - 1)
        return size

    @staticmethod
    def embedded_path() -> Path:
        """Return the path of the small model that comes with the package.

        Raises
        ------
        FileNotFoundError
            This installation has none.
        """
        path = Path(__file__).parent / "models" / _EMBEDDED
        if not path.is_file():
            raise FileNotFoundError(f"this installation of ds4 has no embedded model ({path} is missing)")
        return path

    @classmethod
    def open_embedded(cls, *, backend: str = "auto") -> Self:
        """Open the small model that comes with the package; exceptions are those of `open`."""
        return cls.open(cls.embedded_path(), backend=backend)

    # What it is

    @property
    def path(self) -> str:
        """The path that was opened."""
        return self._path

    @property
    def shape(self) -> Shape:
        """The numbers of the architecture."""
        return self._shape

    @property
    def metadata(self) -> Metadata:
        """Metadata of the file."""
        self._open()
        assert self._metadata is not None
        return self._metadata

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, built from the file when it is first asked for.

        Raises
        ------
        ValueError
            The file holds no token table, or one that is not DeepSeek V4's.
        """
        self._open()
        assert self._tokenizer is not None
        return self._tokenizer()

    @property
    def has_mtp(self) -> bool:
        """Whether an MTP block is loaded."""
        return self._open().has_mtp()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the load, such as tensors that nobody needs, or an MTP file that names another model."""
        return (*self._open().warnings(), *self._warnings)

    @property
    def backend(self) -> str:
        """Name of the backend in use."""
        return self._open().backend()

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that identify the metadata, the directory and the first 64 bytes of every tensor."""
        return self._open().fingerprint()

    # What it does

    def session(
        self,
        *,
        n_ctx: int = DEFAULT_N_CTX,
        chunk: int | None = None,
        threads: int | None = None,
        qat: bool = True,
        activations: Literal["float32", "quantized"] = "quantized",
        rows: Literal["f16", "f32"] = "f16",
        mtp: bool = False,
        affinity: str | Sequence[int] = "none",
        numa: Literal["none", "interleave"] = "none",
        checkpoint_every: int = DEFAULT_CHECKPOINT_EVERY,
        checkpoint_bytes: int = DEFAULT_CHECKPOINT_BYTES,
    ) -> Session:
        """Make a session, an empty timeline.

        Parameters
        ----------
        n_ctx : int
            Positions that it can hold, 1..1048576. Memory grows with it: see `memory_plan`.
        chunk : int, optional
            Largest number of tokens computed together, 1..4096. When not given 512, or 2048 if experts are streamed, do
            not all fit the cache, and the work space that this takes more is at most a quarter of the cache.
        threads : int, optional
            Threads that compute, 1..256. When not given, one a physical core that this process may use, not more than
            its control groups grant and at most 64; with a list as `affinity`, one a processor of it.
        qat : bool
            Simulate the rounding steps that the released model was trained with. False computes as transformers does.
        activations : {"float32", "quantized"}
            "quantized" rounds activations to 8 bits, once a row, where they meet quantized weights: several times
            faster, a little less exact (docs/formats.md, activation formats). "float32" leaves them as they are.
        rows : {"f16", "f32"}
            Storage format of cache rows.
        mtp : bool
            Also keep what `Session.mtp_logits` needs.
        affinity : {"none", "auto"} or str or sequence of int
            Where threads run: where the system likes, one on each core, or thread i on the i-th of these processors
            ("0-3,8" or numbers). The calling thread is the first one, while it computes.
        numa : {"none", "interleave"}
            "interleave" spreads the pages of the file and of the session over all memory nodes as they are first
            touched. Pages of the file that are in memory already stay where they are.
        checkpoint_every : int
            Positions between automatic checkpoints, to which the session can go back; 0: none. With a longer `chunk`,
            one a chunk.
        checkpoint_bytes : int
            Memory that all checkpoints of the session may take; 0: none at all. When it is full, every second automatic
            one is dropped, and their distance doubles.

        Raises
        ------
        ValueError
            A parameter is out of its range, `mtp` is asked of a model without an MTP block, or `affinity` names a
            processor that this process may not use, or fewer than `threads`.
        BackendUnavailableError
            `numa` on a system without memory nodes, or the system refuses a place.
        MemoryError
            There is not enough memory.
        """
        native = self._open()
        check_range("n_ctx", n_ctx, MAX_N_CTX)
        if chunk is not None:
            check_range("chunk", chunk, 4096)
        cpus, n_places = places(affinity)
        if threads is None and n_places:
            threads = n_places
        if threads is not None:
            check_range("threads", threads, 256)
        check_choice("numa", numa, ("none", "interleave"))
        check_choice("activations", activations, ("float32", "quantized"))
        check_choice("rows", rows, ("f16", "f32"))
        check_checkpoints(checkpoint_every, checkpoint_bytes)
        if chunk is None and native.streams():
            n = _session.default_threads() if threads is None else threads
            chunk = self._chunk(n_ctx, rows == "f16", bool(mtp), n, checkpoint_every, checkpoint_bytes)
        if mtp and not native.has_mtp():
            raise ValueError("mtp=True, but the model has no MTP block; give its file to Model.open")
        inner = _session.Session(
            native,
            n_ctx,
            chunk,
            threads,
            bool(qat),
            rows == "f16",
            activations == "quantized",
            bool(mtp),
            cpus,
            numa == "interleave",
            checkpoint_every,
            checkpoint_bytes,
        )
        assert self._tokenizer is not None
        return Session(self, inner, self._tokenizer)

    def memory_plan(
        self,
        n_ctx: int = DEFAULT_N_CTX,
        *,
        chunk: int | None = None,
        threads: int | None = None,
        rows: Literal["f16", "f32"] = "f16",
        mtp: bool = False,
        checkpoint_every: int = DEFAULT_CHECKPOINT_EVERY,
        checkpoint_bytes: int = DEFAULT_CHECKPOINT_BYTES,
    ) -> MemoryPlan:
        """Return the memory that a session with these settings takes at most, without making one."""
        native = self._open()
        check_range("n_ctx", n_ctx, MAX_N_CTX)
        if chunk is not None:
            check_range("chunk", chunk, 4096)
        check_choice("rows", rows, ("f16", "f32"))
        if threads is None:
            threads = _session.default_threads()
        check_range("threads", threads, 256)
        check_checkpoints(checkpoint_every, checkpoint_bytes)
        if chunk is None:
            chunk = self._chunk(n_ctx, rows == "f16", bool(mtp), threads, checkpoint_every, checkpoint_bytes)
        plan = native.memory(n_ctx, chunk, rows == "f16", bool(mtp), threads, checkpoint_every, checkpoint_bytes)
        if native.streams():
            stats = native.expert_stats()
            plan["weights_bytes"] = stats["resident_bytes"] + stats["n_slots"] * stats["slot_bytes"]
        else:
            info = native.gguf().info()
            plan["weights_bytes"] = info["file_bytes"] - info["data_offset"]
        return MemoryPlan(**plan)

    def session_need(
        self,
        n_ctx: int = DEFAULT_N_CTX,
        *,
        threads: int | None = None,
        mtp: bool = False,
        most: int | None = None,
        n: int = 1,
    ) -> SessionNeed:
        """Return what sessions would take if the experts were streamed, to choose the size of their cache.

        Parameters
        ----------
        n_ctx, threads, mtp
            As of `memory_plan`.
        most : int, optional
            Bytes that more than one session may take.
        n : int
            Number of sessions.
        """
        short, long = (
            self.memory_plan(n_ctx, chunk=chunk, threads=threads, mtp=mtp).total_session_bytes
            for chunk in (DEFAULT_CHUNK, STREAMED_CHUNK)
        )
        limit = n * long if most is None else most
        return SessionNeed(max(short, min(n * short, limit)), max(long, min(n * long, limit)), long - short)

    def _chunk(self, n_ctx: int, *other: Any) -> int:
        """Return the chunk of a session that was not given one; `other` as the core takes it."""
        native = self._open()
        if not native.streams():
            return DEFAULT_CHUNK
        stats = native.expert_stats()
        short, long = (
            MemoryPlan(**native.memory(n_ctx, chunk, *other), weights_bytes=0).total_session_bytes
            for chunk in (DEFAULT_CHUNK, STREAMED_CHUNK)
        )
        whole, cache = (stats["slot_bytes"] * stats[name] for name in ("n_experts", "n_slots"))
        return STREAMED_CHUNK if takes_long_chunks(whole, cache, long - short) else DEFAULT_CHUNK

    def check(self, *, progress: Progress | None = None) -> None:
        """Decode every weight and look for values that are not finite. Reads the whole file.

        Parameters
        ----------
        progress : callable, optional
            Called with (done, total), in bytes, about every 50 ms. What it raises ends the check and is passed on.

        Raises
        ------
        WeightDataError
            A weight is NaN or infinite; the text names the first tensors, rows and columns.
        """
        self._open().check(progress)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        mode: Literal["thinking", "chat"] = "thinking",
        tools: Sequence[Mapping[str, Any]] | None = None,
        effort: Literal["high", "max"] | None = None,
        max_tokens: int | None = None,
        sampler: Sampler | None = None,
        stop: str | Iterable[str] = (),
        session: Session | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Event]:
        """Answer a conversation, as a stream of parsed events.

        Parameters
        ----------
        messages : sequence of mappings
            In the chat-completions form: dictionaries with `role` and `content`; see `ds4.chat.check_messages`.
        mode : {"thinking", "chat"}
            Whether the answer begins with reasoning.
        tools : sequence of mappings, optional
            Tools in the form `{"type": "function", "function": {...}}`.
        effort : {None, "high", "max"}
            "max" asks for the longest reasoning.
        max_tokens : int, optional
            How many tokens at most; until the context is full when not given.
        sampler : Sampler, optional
            How to draw; `Sampler()` when not given.
        stop : str or iterable of str
            Strings that end the answer.
        session : Session, optional
            A session of this model, which is brought to the prompt and keeps what it has of it: give the same one for
            every turn. Without one, a session is made for this answer and closed with it.
        progress : callable, optional
            As in `Session.sync`, for the prompt and for each token.

        Yields
        ------
        Event
            `ds4.chat.Reasoning`, `Content`, `ToolCallStart`, `ToolCallArguments` and `ToolCallEnd` as they become
            certain, and `Finish` as the last; `ds4.chat.collect` adds them up. The finish reason is "stop",
            "tool_calls", "length" or "context".

        Raises
        ------
        ValueError, TypeError
            A message, a tool or an option is not acceptable.
        ContextFullError
            The prompt does not fit the session.

        Examples
        --------
        >>> for event in model.chat([{"role": "user", "content": "Why is the sky blue?"}]):
        ...     if isinstance(event, ds4.chat.Content):
        ...         print(event.text, end="")
        """
        self._open()
        prompt = render(messages, mode=mode, tools=tools, effort=effort).encode(self.tokenizer)
        parser = CompletionParser(mode, tools)
        if session is not None and session.model is not self:
            raise ValueError("the session belongs to another model")
        return self._answer(prompt, parser, max_tokens, sampler, stop, session, progress)

    def _answer(
        self,
        prompt: list[int],
        parser: CompletionParser,
        max_tokens: int | None,
        sampler: Sampler | None,
        stop: str | Iterable[str],
        given: Session | None,
        progress: Progress | None,
    ) -> Iterator[Event]:
        if given is None:
            room = DEFAULT_N_CTX if max_tokens is None else max_tokens
            session = self.session(n_ctx=min(len(prompt) + room, MAX_N_CTX))
        else:
            session = given
        try:
            session.sync(prompt, progress=progress)
            reason = "length"
            for step in session.generate(max_tokens=max_tokens, sampler=sampler, stop=stop, progress=progress):
                yield from parser.feed(step.text)
                if step.finish is not None:
                    reason = step.finish
                elif parser.should_stop:
                    reason = "stop"
                    break
            yield from parser.finish(reason)
        finally:
            if given is None:
                session.close()

    def activations(
        self,
        prompts: Sequence[Tokens | str],
        stage: str = "ffn_out",
        *,
        layers: Collection[int] | None = None,
        at: At = "last",
        session: Session | None = None,
        n_ctx: int | None = None,
        threads: int | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> Any:
        """Return intermediate values of prompts.

        Parameters
        ----------
        prompts : sequence of Tokens or str
            Each is computed from position 0. Of a text the special tokens are recognised.
        stage : str
            What to look at, one of the stages of `Session.set_tap`: "streams", "attn_out", "ffn_out" and others.
        layers : collection of int, optional
            All layers when not given. Of the streams, layer n_layer is what goes into the head.
        at : {"last", "mean", "all"}
            Of each prompt its last position, the mean over all but the first (of a prompt of one, that one), or all.
        session : Session, optional
            A session of this model to compute in, with its options and steering; it ends at the last prompt.
        n_ctx, threads : int, optional
            Of the session that is made without one: what the longest prompt needs; as in `session`.
        progress : callable, optional
            Called with (prompts done, prompts in all).

        Returns
        -------
        ndarray of float32, shape (n_prompts, n_layers, width)
            With at="all" a list of arrays, shape (n_tokens, n_layers, width).

        Raises
        ------
        ValueError
            There is no prompt, no such stage or layer, or a token is out of range.
        ContextFullError
            A prompt does not fit the session.
        """
        if isinstance(prompts, str) or not len(prompts):
            raise ValueError("a sequence of prompts is wanted")
        ids = [self.tokenizer.encode(p, specials=True) if isinstance(p, str) else p for p in prompts]
        if session is not None and session.model is not self:
            raise ValueError("the session belongs to another model")
        room = max(len(tokens) for tokens in ids) if n_ctx is None else n_ctx
        used = self.session(n_ctx=max(room, 1), threads=threads) if session is None else session
        try:
            found = activations(used, ids, stage, layers, at, progress)
        finally:
            if session is None:
                used.close()
        return found if at == "all" else np.stack(found)

    def draft_costs(self, options: Mapping[str, Any]) -> CostModel:
        """Return what sessions with these settings measure about guessing tokens: one session tells the next.

        Parameters
        ----------
        options : mapping
            Settings of a session, as the native one gives them.
        """
        alike = tuple(options[name] for name in ("threads", "affinity", "interleave", "quantized", "qat"))
        found = self._draft_costs.get(alike)
        return self._draft_costs.setdefault(alike, CostModel()) if found is None else found

    # Life

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native is None

    def close(self) -> None:
        """End the use of this object. The weights stay until the last session is closed. Closing twice is fine."""
        self._native = self._metadata = self._tokenizer = None  # metadata of the file hold it open

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Model {self._shape.name} {self._path!r}{' (closed)' if self.closed else ''}>"

    def _open(self) -> _model.Model:
        if self._native is None:
            raise ClosedError(f"the model {self._path} is closed")
        return self._native


def diagnose(file: GGUFFile) -> tuple[str, str]:
    """Compare a file with the shapes that ds4 runs, without opening it as a model.

    Parameters
    ----------
    file : GGUFFile
        An open file; only its directory is looked at.

    Returns
    -------
    name : str
        The recognised shape, or the nearest one.
    report : str
        One line per difference; empty when the file would load.

    Raises
    ------
    UnsupportedModelError
        The file is of another family, so that there is nothing to compare.
    """
    shape, report = _model.diagnose(file.native)
    return str(shape["name"]), report
