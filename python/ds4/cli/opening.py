"""Opening the model and the session that the options ask for."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ds4 import GGUFFile, Model, ReadOptions, Session, WeightDataError
from ds4.budget import ExpertPlan, SessionNeed, expert_plan

from .disk import best_reads
from .memory import available_beside, available_memory, choose_cache, divide_memory, require_memory
from .settings import Settings
from .terminal import ProgressLine, note
from .user import default_in_use
from .warmth import warmed_up

_EMBEDDED_NOTE = (
    "no -m: using the tiny model of the package, a toy of 15 million weights. For the real one get "
    "DeepSeek V4 Flash (ds4 download q2, about 81 GiB), or give a GGUF file with -m FILE"
)


@contextmanager
def opened_model(settings: Settings, *, n_sessions: int = 1, room: int | None = None) -> Iterator[Model]:
    """Open the model; say what a user should know about it, and look through the weights when asked to.

    Parameters
    ----------
    settings : Settings
        What the options say.
    n_sessions : int
        Sessions that an automatic expert cache leaves room for, within an eighth of the memory.
    room : int, optional
        Memory for this model and its sessions, if that is not all there is.

    Raises
    ------
    MemoryRefusedError
        There is no room for the expert cache.
    """
    path = _path(settings)
    if settings.model is None:
        note(_EMBEDDED_NOTE)
    elif default_in_use() == path:
        note(f"no -m: opening the default model, {path}")
    if settings.mtp is not None:
        GGUFFile(settings.mtp).close()  # a fault of the container is told with this file's name
    with open_quietly(path, settings, n_sessions=n_sessions, room=room) as model:
        if settings.draft is not None and not model.has_mtp:
            raise ValueError(f"{path} has no MTP block to draft with: give its file with --mtp, or --mtp-draft off")
        if settings.check:
            line = ProgressLine("checking", "bytes")
            try:
                model.check(progress=line)
            except WeightDataError as error:
                raise ValueError(str(error)) from None  # names the weights, so --check needs no mention
            finally:
                line.finish()
            note("all weights are finite")
        yield model


@contextmanager
def opened_pair(first: Settings, second: Settings) -> Iterator[tuple[Model, Model]]:
    """Open two models as `opened_model` does. Those that stream share the memory: see `divide_memory`."""
    rooms: tuple[int | None, int | None] = (None, None)
    available = _available(first)
    if first.cache is not None and available is not None:
        rooms = divide_memory(available, (_most_memory(first, available), _most_memory(second, available)))
    with opened_model(first, room=rooms[0]) as one, opened_model(second, room=rooms[1]) as other:
        yield one, other


@contextmanager
def open_quietly(path: Path, settings: Settings, *, n_sessions: int = 1, room: int | None = None) -> Iterator[Model]:
    """Open a model as `opened_model` does, without a look at the weights."""
    backend = "cpu" if settings.cpu else settings.backend
    if settings.cache is None:
        with Model.open(path, backend=backend, mtp=settings.mtp) as model:
            _tell_warnings(model)
            yield model
        return
    size, reads = _planned_cache(path, settings, n_sessions, room)
    with Model.open(path, backend=backend, mtp=settings.mtp, expert_cache=size, reads=reads) as model:
        _tell_warnings(model)
        if settings.cold:
            yield model
            return
        with warmed_up(model):
            yield model


def _tell_warnings(model: Model) -> None:
    for warning in model.warnings:
        note(f"warning: {warning}")


def _path(settings: Settings) -> Path:
    return Model.embedded_path() if settings.model is None else settings.model


def _available(settings: Settings) -> int | None:
    return available_memory() if settings.simulate_memory is None else settings.simulate_memory


def _plans(
    path: Path, settings: Settings, available: int | None, n_sessions: int = 1
) -> tuple[ExpertPlan, SessionNeed]:
    """Return what streaming takes and what sessions take, at most an eighth; only heads of files are read."""
    most = None if available is None else available // 8
    with Model.open(path, backend="cpu" if settings.cpu else settings.backend, mtp=settings.mtp) as model:
        need = model.session_need(
            settings.ctx, threads=settings.threads, mtp=settings.draft is not None, most=most, n=n_sessions
        )
    return expert_plan([path] if settings.mtp is None else [path, settings.mtp]), need


def _most_memory(settings: Settings, available: int) -> int:
    """Return what a model that streams takes with one session, if it gets the cache that was asked for."""
    plan, need = _plans(_path(settings), settings, available)
    asked = settings.cache
    cache = min(asked, plan.all_bytes) if isinstance(asked, int) else plan.all_bytes
    return plan.resident_bytes + cache + need.beside(plan, cache)


def _planned_cache(path: Path, settings: Settings, n_sessions: int, room: int | None) -> tuple[int, ReadOptions]:
    """Choose the expert cache and how to read; tell what goes where before anything large is read."""
    asked = settings.cache
    assert asked is not None
    available = _available(settings) if room is None else room
    plan, need = _plans(path, settings, available, n_sessions)
    size, lines = choose_cache(plan, path, asked, available, need, n_ctx=settings.ctx, force=settings.force_memory)
    for line in lines:
        note(line)
    return size, best_reads(path, plan.read_bytes, settings.read_depth)


def check_memory(
    models: Sequence[Model], session_bytes: int, settings: Settings, *, weights_bytes: int, n_ctx: int
) -> None:
    """Check that models and sessions fit into memory.

    Raises
    ------
    MemoryRefusedError
        They do not, and `--force-memory` was not given.
    """
    paths: list[Path] = []
    if len(models) == 1 and not models[0].streams:
        paths = [Path(models[0].path), *([] if settings.mtp is None else [settings.mtp])]
    require_memory(
        weights_bytes,
        session_bytes,
        available_beside(models, settings.simulate_memory),
        n_ctx=n_ctx,
        force=settings.force_memory,
        paths=paths,
    )


@contextmanager
def opened_session(model: Model, settings: Settings, n_ctx: int | None = None) -> Iterator[Session]:
    """Make a session, after checking that model and session fit into memory."""
    with make_session(model, settings, n_ctx or settings.ctx) as session:
        yield session


def make_session(model: Model, settings: Settings, n_ctx: int) -> Session:
    """Make a session of `n_ctx` positions.

    Raises
    ------
    MemoryRefusedError
        Model and session do not fit, and `--force-memory` was not given.
    """
    plan = model.memory_plan(n_ctx, threads=settings.threads, mtp=settings.draft is not None)
    check_memory([model], plan.total_session_bytes, settings, weights_bytes=plan.weights_bytes, n_ctx=n_ctx)
    return model.session(
        n_ctx=n_ctx,
        threads=settings.threads,
        affinity=settings.affinity,
        numa="interleave" if settings.numa == "interleave" else "none",
        qat=not settings.no_qat,
        mtp=settings.draft is not None,
        activations="quantized" if settings.activations == "quantized" else "float32",
    )


def tokenizer_file(settings: Settings) -> Path:
    """Return the file whose tokenizer is meant, without opening it as a model."""
    if settings.model is not None:
        return settings.model
    return Model.embedded_path()


def read_text(path: Path) -> str:
    """Read a text file, or standard input for ``-``.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        It is not UTF-8.
    """
    raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text (byte {error.start})") from None


def check_text(text: str, what: str) -> None:
    """Check that a text from the command line or a terminal was made of whole characters.

    Raises
    ------
    ValueError
        It was not.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"the {what} is not valid UTF-8 text (at character {error.start})") from None
