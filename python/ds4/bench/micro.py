"""The kernels one by one, at the sizes and types of a model: every part of its layers, in several batch sizes.

They run where they run in earnest, between each other, so caches and memory are in the state that they find in a decode
or a prefill.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ds4
from ds4 import BackendUnavailableError, GGUFFile, Session, Shape
from ds4.gguf_experts import expert_part, standard_tensors
from ds4.progress import Progress

VARIANTS = ("base", "avx2", "avx512", "avx512vnni", "dotprod", "i8mm")
BATCHES = (1, 12, 128)
"""Tokens computed together: decode, a short piece, and what a chunk gives many experts."""

_LEAST_TOKENS = 16  # of a run: with batches of one that many calls are timed together


@dataclass(frozen=True, slots=True)
class PartWork:
    """The matrix products of a part, all layers together.

    Attributes
    ----------
    types : tuple of str
        Types of the weights, the largest share first.
    macs : int
        Products of two numbers a token; in the head a call, which computes the last token alone.
    n_bytes : int
        Weights that one token reads.
    """

    types: tuple[str, ...]
    macs: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class PartTime:
    """A part in one batch size under one CPU variant.

    Attributes
    ----------
    variant : str
    batch : int
        Tokens of a call.
    part : str
        Its name in `PhaseProfile.parts`.
    seconds : tuple of float
        Of a call, all layers together; one number a run.
    work : PartWork or None
        None of parts whose cost is not that of matrix products with weights.
    """

    variant: str
    batch: int
    part: str
    seconds: tuple[float, ...]
    work: PartWork | None

    @property
    def median(self) -> float:
        """The median of the runs."""
        return statistics.median(self.seconds)

    @property
    def macs_per_second(self) -> float | None:
        """Products a second; None without work."""
        if self.work is None or not self.median:
            return None
        return self.work.macs * (1 if self.part == "head" else self.batch) / self.median

    @property
    def bytes_per_second(self) -> float | None:
        """Weights read a second with one token; None without work, and with several, which share what they read."""
        if self.work is None or self.batch != 1 or not self.median:
            return None
        return self.work.n_bytes / self.median

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "variant": self.variant, "batch": self.batch, "part": self.part, "seconds": list(self.seconds),
            "types": None if self.work is None else list(self.work.types),
            "macs_per_second": self.macs_per_second, "bytes_per_second": self.bytes_per_second,
        }  # fmt: skip


def available_variants() -> list[str]:
    """Return the CPU variants that this machine can run, the simplest first; the choice in force stays."""
    found, before = [], ds4.cpu_isa()
    for name in VARIANTS:
        try:
            ds4.set_cpu_isa(name)
        except BackendUnavailableError:
            continue
        found.append(name)
    ds4.set_cpu_isa(before)
    return found


def part_work(file: GGUFFile, shape: Shape) -> dict[str, PartWork]:
    """Count the matrix products of the parts that consist of them; weights of the MTP block do not count."""
    macs: dict[str, int] = {}
    n_bytes: dict[str, int] = {}
    types: dict[str, dict[str, int]] = {}
    for view in standard_tensors(file).values():
        part = _part_of(view.name, shape)
        if part is None:
            continue
        share = (shape.n_expert_used, shape.n_expert) if expert_part(view.name) else (1, 1)
        size = view.size * share[0] // share[1]
        macs[part] = macs.get(part, 0) + size
        n_bytes[part] = n_bytes.get(part, 0) + view.n_bytes * share[0] // share[1]
        of = types.setdefault(part, {})
        of[str(view.type)] = of.get(str(view.type), 0) + size
    return {
        part: PartWork(tuple(sorted(types[part], key=lambda t: -types[part][t])), macs[part], n_bytes[part])
        for part in macs
    }


def run_micro(
    make_session: Callable[[], Session],
    work: dict[str, PartWork],
    *,
    variants: Sequence[str],
    batches: Sequence[int] = BATCHES,
    depth: int = 1024,
    reps: int = 3,
    progress: Progress | None = None,
) -> Iterator[PartTime]:
    """Time every part; the CPU variant in force comes back at the end.

    Parameters
    ----------
    make_session : callable
        Makes a session with room for `depth` and the largest batch (16 at least), of whose chunk no batch is larger.
    work : dict of str to PartWork
        From `part_work`.
    variants : sequence of str
        From `available_variants`.
    batches : sequence of int
        Tokens computed together.
    depth : int
        Positions that the context holds before; filled, not computed.
    reps : int
        Timed runs.
    progress : callable, optional
        Called with (runs done, runs in all, variant).

    Yields
    ------
    PartTime
        By variant, batch and part.

    Raises
    ------
    ValueError
        A number is out of its range.
    """
    if reps < 1 or depth < 0 or not batches or min(batches) < 1:
        raise ValueError("reps and batches must be 1 or more, depth 0 or more")
    before = ds4.cpu_isa()
    total, done = len(variants) * len(batches) * (reps + 1), 0
    try:
        for variant in variants:
            ds4.set_cpu_isa(variant)
            with make_session() as session:
                for batch in batches:
                    times: dict[str, list[float]] = {}
                    for run in range(reps + 1):
                        found = _run(session, batch, depth)
                        for part, seconds in found.items() if run else ():  # the first one warms up
                            times.setdefault(part, []).append(seconds)
                        done += 1
                        if progress is not None:
                            progress(done, total, variant)
                    for part, runs in times.items():
                        if any(runs):
                            yield PartTime(variant, batch, part, tuple(runs), work.get(part))
    finally:
        ds4.set_cpu_isa(before)


def _run(session: Session, batch: int, depth: int) -> dict[str, float]:
    """Return the seconds that a call spends in each part, and in all of them as "total"."""
    calls = max(1, _LEAST_TOKENS // batch)
    tokens = np.random.default_rng(batch).integers(0, session.n_vocab, calls * batch, dtype=np.int32)
    if depth:
        session.fill(depth, seed=1)
    else:
        session.reset()
    with session.profile() as profile:
        for i in range(calls):
            session.eval(tokens[i * batch : (i + 1) * batch])
    phase = profile.prefill.plus(profile.decode)
    return {**{part: s / calls for part, s in phase.by_part().items()}, "total": phase.total / calls}


def _part_of(name: str, shape: Shape) -> str | None:
    """Return the part that multiplies with a tensor; None of tables, norms and small things."""
    if name == "output.weight":
        return "head"
    first, _, rest = name.partition(".")
    number, _, tensor = rest.partition(".")
    if first != "blk" or not number.isdigit() or int(number) >= shape.n_layer:
        return None
    return _PARTS.get(tensor)


_PARTS = {
    **dict.fromkeys((f"attn_{name}.weight" for name in ("q_a", "q_b", "kv", "output_a", "output_b")), "projections"),
    **dict.fromkeys(
        (f"{who}_compressor_{name}.weight" for who in ("attn", "indexer") for name in ("kv", "gate")), "compressor"
    ),
    "ffn_gate_inp.weight": "router",
    "ffn_gate_exps.weight": "experts_gate_up",
    "ffn_up_exps.weight": "experts_gate_up",
    "ffn_down_exps.weight": "experts_down",
    **dict.fromkeys((f"ffn_{name}_shexp.weight" for name in ("gate", "up", "down")), "shared"),
}
