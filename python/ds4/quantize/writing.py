"""Carrying out a plan: the files appear complete and synced, or what is finished is kept for the next attempt."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from ds4.file_range import FileRange
from ds4.gguf_partial import partial_path
from ds4.gguf_writer import GGUFWriter
from ds4.progress import Progress

from .encode import payload
from .plan import FilePlan, Plan, PlanError, TensorPlan
from .recipes import role_of

Tell = Callable[[str], None]
"""Called with a sentence for the user."""


def carry_out(
    plan: Plan,
    *,
    force: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
    tell: Tell | None = None,
) -> None:
    """Write the files of a plan.

    Parameters
    ----------
    plan : Plan
        What to write.
    force : bool
        Replace existing files.
    threads : int, optional
        Threads that encode; one per core unless given. The bytes do not depend on it.
    progress : Progress, optional
        Called with bytes done, bytes of all files, and the tensor at hand.
    tell : callable, optional
        Called with a sentence about an earlier attempt that is continued or thrown away.

    Raises
    ------
    PlanError
        It has no file.
    OSError, UnsupportedModelError
        As `Plan.check`; and a file cannot be read or written. What is finished then is kept (`kept_files`), as after
        an interruption.
    CheckpointError, ModelFileError
        The source is damaged or holds a value that cannot be written; nothing is kept.
    """
    if not plan.files:
        raise PlanError("the plan is for comparing only: it has no file to write")
    plan.check(force=force)
    n_threads = threads or len(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(_writer(plan, file, force, tell)) for file in plan.files]
        count = _Counter(plan, progress)
        stack.callback(count.stop)
        for writer, file in zip(writers, plan.files, strict=True):
            count.skip(file, writer.n_done)
            writer.write(count.watched(t, n_threads) for t in file.tensors)
        for writer in writers:
            writer.publish()


def kept_files(plan: Plan) -> list[Path]:
    """Return where interrupted writes of a plan's files keep their finished tensors."""
    return [part for part in (partial_path(f.path) for f in plan.files) if part.exists()]


def _writer(plan: Plan, file: FilePlan, force: bool, tell: Tell | None) -> GGUFWriter:
    part = partial_path(file.path)
    existed = part.exists() and part.stat().st_size > 0
    if existed and tell is not None:
        tell(f"{part} is left from an earlier run; reading it back")
    writer = GGUFWriter(file.path, file.kvs, file.infos, force=force, resume_key=plan.resume_key())
    if existed and tell is not None:
        if writer.n_done:
            tell(f"continuing after {writer.n_done} of {len(file.tensors)} tensors")
        else:
            tell("it is of other work (other source, options or version of ds4): starting from the beginning")
    return writer


class _Counter:
    """The bytes of all files, counted while they are made."""

    def __init__(self, plan: Plan, progress: Progress | None) -> None:
        self._plan, self._progress = plan, progress
        self._done = 0
        self._total = sum(f.tensor_bytes for f in plan.files)
        tables = [t.source for t in plan.tensors if role_of(t.name) == "experts"]
        self._n_experts = tables[0].n_matrices if tables else 0
        self._current: Generator[bytes | FileRange, None, None] | None = None

    def skip(self, file: FilePlan, n_done: int) -> None:
        """Count what an earlier run finished."""
        self._done += sum(t.n_bytes for t in file.tensors[:n_done])
        if self._progress is not None:
            self._progress(self._done, self._total, file.tensors[min(n_done, len(file.tensors) - 1)].name)

    def stop(self) -> None:
        """End the thread that reads ahead, if writing stopped before a tensor was whole."""
        if self._current is not None:
            self._current.close()

    def watched(self, tensor: TensorPlan, threads: int) -> Iterator[bytes | FileRange]:
        self._current = payload(tensor, self._plan.importance, n_experts=self._n_experts, threads=threads)
        for piece in self._current:
            yield piece
            self._done += piece.n_bytes if isinstance(piece, FileRange) else len(piece)
            if self._progress is not None:
                self._progress(self._done, self._total, tensor.name)
