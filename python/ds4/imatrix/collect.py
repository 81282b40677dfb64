"""Measuring importance: prompts run through the engine, each from position 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ds4.importance import Importance
from ds4.model import Model
from ds4.progress import Progress

from .corpus import CorpusPrompt
from .data import Entry, Imatrix

DEFAULT_CONTEXT = 8192
"""Tokens of a prompt that are used, at most."""


def importance_bytes(model: Model, *, mtp: bool) -> int:
    """Return the memory that the statistics of a model take, in bytes, including the copy that is written."""
    s = model.shape
    return 2 * (s.n_layer + mtp) * s.n_expert * (s.n_embd + s.n_ff + 1) * 8


def file_bytes(model: Model, *, mtp: bool) -> int:
    """Return about how large an importance file of a model is, in bytes."""
    s = model.shape
    return 4 * (s.n_layer + mtp) * s.n_expert * (2 * s.n_embd + s.n_ff + 3)


def tokenize_prompts(
    model: Model,
    prompts: Iterable[CorpusPrompt],
    *,
    n_ctx: int,
    skip: int = 0,
    max_prompts: int | None = None,
    max_tokens: int | None = None,
) -> list[NDArray[np.int32]]:
    """Return the tokens of prompts, specials recognised, each cut at `n_ctx` and all of them at `max_tokens`.

    Raises
    ------
    ValueError
        No prompt is left.
    """
    if n_ctx < 1:
        raise ValueError(f"n_ctx must be 1 or more, not {n_ctx}")
    tokenizer = model.tokenizer
    out: list[NDArray[np.int32]] = []
    left = max_tokens
    for i, prompt in enumerate(prompts):
        if len(out) == max_prompts or left == 0:
            break
        if i < skip:
            continue
        ids = tokenizer.encode(prompt.text, specials=True)[: n_ctx if left is None else min(n_ctx, left)]
        out.append(np.array(ids, dtype=np.int32))
        if left is not None:
            left -= len(ids)
    if not out:
        raise ValueError("there are no prompts to measure on")
    return out


def collect_imatrix(
    model: Model,
    prompts: Iterable[CorpusPrompt],
    *,
    n_ctx: int = DEFAULT_CONTEXT,
    skip: int = 0,
    max_prompts: int | None = None,
    max_tokens: int | None = None,
    datasets: Sequence[str] = (),
    threads: int | None = None,
    chunk: int | None = None,
    qat: bool = True,
    activations: Literal["float32", "quantized"] = "quantized",
    mtp: bool | None = None,
    save_every: int = 0,
    save: Callable[[Imatrix], None] | None = None,
    progress: Progress | None = None,
) -> Imatrix:
    """Measure the importance of the inputs of all routed experts.

    For every token and every expert chosen for it the squares of the normalised layer input (gate and up) and of the
    SwiGLU row times the routing weight (down) are added up, in float64. The result depends on the prompts and their
    order alone, not on threads and chunks.

    Parameters
    ----------
    model : Model
        Of any tensor types; measure on the most exact one that you have.
    prompts : iterable of CorpusPrompt
        See `read_prompts`. All of them are tokenized first.
    n_ctx : int
        Tokens of a prompt that are used, at most.
    skip, max_prompts, max_tokens : int
        Leave out the first prompts; most prompts and most tokens to use.
    datasets : sequence of str
        Names of the texts, for the file.
    threads, chunk, qat, activations
        As in `Model.session`.
    mtp : bool, optional
        Also measure the MTP block; when the model has one, if not given.
    save_every : int
        Call `save` with what was gathered after every so many prompts; 0: never.
    save : callable, optional
        Receives an `Imatrix`.
    progress : Progress, optional
        Called with (tokens done, tokens in all, "prompt I of N").

    Returns
    -------
    Imatrix
        Entries `blk.L.ffn_{gate,up,down}_exps.weight`, and `mtp.0....` for the MTP block; gate and up share their
        arrays.

    Raises
    ------
    ValueError
        A parameter is out of range, or there is no prompt.
    WeightDataError
        The model gives values that are not finite.
    MemoryError
        There is not enough memory: see `importance_bytes` and `Model.memory_plan`.
    """
    batches = tokenize_prompts(model, prompts, n_ctx=n_ctx, skip=skip, max_prompts=max_prompts, max_tokens=max_tokens)
    total, done = sum(len(b) for b in batches), 0
    longest = max(len(b) for b in batches)
    with (
        model.session(
            n_ctx=longest,
            threads=threads,
            chunk=chunk,
            qat=qat,
            activations=activations,
            mtp=model.has_mtp if mtp is None else mtp,
        ) as session,
        session.collect_importance() as importance,
    ):
        for i, tokens in enumerate(batches, 1):
            what = f"prompt {i} of {len(batches)}"

            def report(part: int, _: int, done: int = done, what: str = what) -> None:
                if progress is not None:
                    progress(done + part, total, what)

            session.reset()
            session.sync(tokens, progress=report)
            done += len(tokens)
            report(0, 0, done)
            if save is not None and save_every and i % save_every == 0 and i < len(batches):
                save(imatrix_of(importance, n_chunks=i, chunk_size=n_ctx, datasets=datasets))
        return imatrix_of(importance, n_chunks=len(batches), chunk_size=n_ctx, datasets=datasets)


def imatrix_of(
    importance: Importance, *, n_chunks: int = 0, chunk_size: int = 0, datasets: Iterable[str] = ()
) -> Imatrix:
    """Return the statistics of a session as importance data."""
    entries: dict[str, Entry] = {}
    for i in range(importance.n_layer + importance.mtp):
        layer = importance.layer(i)
        prefix = f"blk.{i}" if i < importance.n_layer else "mtp.0"
        counts = layer.counts.astype(np.float64)
        for part in ("gate", "up"):
            entries[f"{prefix}.ffn_{part}_exps.weight"] = Entry(layer.sum_in, counts)
        entries[f"{prefix}.ffn_down_exps.weight"] = Entry(layer.sum_mid, counts)
    return Imatrix(entries, datasets=datasets, n_chunks=n_chunks, chunk_size=chunk_size)
