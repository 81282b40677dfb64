"""Opening the model and the session that the options ask for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ds4 import GGUFFile, Model, Session, WeightDataError

from .memory import available_memory, require_memory
from .settings import Settings
from .terminal import ProgressLine, note

_EMBEDDED_NOTE = (
    "no -m: using the tiny model of the package, a toy of 15 million weights. For the real one get a "
    "DeepSeek V4 Flash GGUF (about 81 GB) and give it with -m FILE"
)


@contextmanager
def opened_model(settings: Settings) -> Iterator[Model]:
    """Open the model; say what a user should know about it, and look through the weights when asked to."""
    backend = "cpu" if settings.cpu else settings.backend
    path: Path
    if settings.model is None:
        path = Model.embedded_path()
        note(_EMBEDDED_NOTE)
    else:
        path = settings.model
    if settings.mtp is not None:
        GGUFFile(settings.mtp).close()  # a fault of the container is told with this file's name
    with Model.open(path, backend=backend, mtp=settings.mtp) as model:
        for warning in model.warnings:
            note(f"warning: {warning}")
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
    plan = model.memory_plan(n_ctx, mtp=settings.draft is not None)
    simulated = settings.simulate_memory
    require_memory(
        plan.weights_bytes,
        plan.total_session_bytes,
        available_memory() if simulated is None else simulated,
        n_ctx=n_ctx,
        force=settings.force_memory,
    )
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
