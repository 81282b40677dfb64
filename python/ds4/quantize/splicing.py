"""Splicing: the routed experts of some layers from a donor file, everything else from a base, no byte recomputed.

The same machinery changes the layout of the experts, with or without a donor.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ds4.errors import DS4Error, listed_faults
from ds4.file_range import FileRange
from ds4.gguf import GGUFFile, stripped
from ds4.gguf_experts import (
    LAYOUT_KEYS,
    PARTS,
    WeightView,
    expert_layout,
    expert_name,
    expert_part,
    standard_alignment,
    standard_tensors,
)
from ds4.gguf_writer import ALIGNMENT, KV, GGUFWriter, check_targets, make_layout
from ds4.progress import Progress

from .layers import format_layers
from .layout import OutputTensor, plan_file
from .registry import check_runs
from .values import same_value, shown_value

_MAX_LAYER = 9999
_COMPARED = ("deepseek4.", "tokenizer.")


class SpliceError(DS4Error, ValueError):
    """Two files that do not go together; the text lists every difference."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file that bytes come from, and its state when the plan was made."""

    file: GGUFFile
    state: tuple[int, int, int, int]

    @property
    def path(self) -> str:
        """Where the file is."""
        return self.file.path

    def open(self) -> int:
        """Return a descriptor for copying; the caller closes it.

        Raises
        ------
        SpliceError
            The file is another one than when the plan was made.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        if _state(os.fstat(fd)) != self.state:
            os.close(fd)
            raise SpliceError(f"{self.path} has changed since the plan was made; start again")
        return fd


@dataclass(frozen=True, slots=True)
class SplicePlan:
    """What a splice will write; nothing has been written yet. Close it when done.

    Attributes
    ----------
    base, donor : Source
        The open sources; donor is None when only the layout changes.
    out : Path
        The file to be written.
    layers : tuple of int
        Layers whose experts come from the donor.
    mtp : bool
        Whether the experts of the MTP block do too.
    layout : str
        "standard" or "adjacent".
    kvs, tensors : tuple
        The directory of the output.
    taken : tuple of (str, str, str)
        Name, type in the base and type in the donor of every tensor that is taken from the donor.
    n_bytes : int
        Size of the output.
    """

    base: Source
    donor: Source | None
    out: Path
    layers: tuple[int, ...]
    mtp: bool
    layout: str
    kvs: tuple[KV, ...]
    tensors: tuple[OutputTensor, ...]
    taken: tuple[tuple[str, str, str], ...]
    n_bytes: int

    @property
    def size_change(self) -> int:
        """Bytes that the output has more than the base."""
        return self.n_bytes - self.base.file.file_bytes

    def check(self, *, force: bool = False) -> None:
        """Check that the plan can be carried out, writing nothing that stays.

        Raises
        ------
        OSError
            The name is taken (and `force` is not set), its directory is missing, or the disk is too full.
        UnsupportedModelError
            ds4 would not run the output; every difference is listed.
        """
        check_targets([(self.out, self.n_bytes)], force=force)
        infos = [t.info for t in self.tensors]
        if any(info.name == "token_embd.weight" for info in infos):  # else the file of an MTP block
            check_runs(self.kvs, infos, what="spliced")

    def close(self) -> None:
        """Close the sources."""
        for source in (self.base, self.donor):
            if source is not None:
                source.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def plan_splice(
    base: str | os.PathLike[str],
    donor: str | os.PathLike[str] | None,
    out: str | os.PathLike[str],
    *,
    layers: Iterable[int] = (),
    mtp: bool = False,
    layout: str | None = None,
    record: bool = False,
) -> SplicePlan:
    """Compare two files and plan their splice. Payloads are not read.

    Parameters
    ----------
    base, donor : path-like
        GGUF files of the same model, each in either layout; without a donor only the layout changes.
    out : path-like
        The file to be written.
    layers : iterable of int
        Layers whose routed experts come from the donor.
    mtp : bool
        Take the experts of the MTP block from the donor too.
    layout : str, optional
        "standard" or "adjacent"; by default that of the base.
    record : bool
        Note the sources in the metadata (`quantize.splice.*`), which is otherwise that of the base byte for byte.

    Raises
    ------
    OSError, ModelFileError
        A file cannot be opened or is damaged.
    SpliceError
        The files do not go together; every difference is listed.
    ValueError
        The layout is unknown, or layers are given without a donor.
    """
    chosen = tuple(sorted(set(layers)))
    if donor is None and (chosen or mtp or record):
        raise ValueError("layers, mtp and record need a donor")
    opened = [_open(base)]
    try:
        if donor is not None:
            opened.append(_open(donor))
        sources = opened[0], (opened[1] if donor is not None else None)
        return _plan(*sources, Path(out), chosen, mtp, layout, record)
    except BaseException:
        for source in opened:
            source.file.close()
        raise


def splice(plan: SplicePlan, *, force: bool = False, progress: Progress | None = None) -> None:
    """Carry out a plan. The output appears complete or not at all.

    An interruption or a full disk leaves finished tensors in `OUT.part`; the same plan goes on behind them, and the
    first call of `progress` says how many bytes those are.

    Raises
    ------
    SpliceError
        A source has changed since the plan was made.
    OSError, UnsupportedModelError
        As `SplicePlan.check`; or reading or writing failed.
    """
    plan.check(force=force)
    sources = [s for s in (plan.base, plan.donor) if s is not None]
    key = repr(("splice", [(os.path.realpath(s.path), s.state) for s in sources], [t[0] for t in plan.taken]))
    infos = [t.info for t in plan.tensors]
    total, done = sum(i.n_bytes for i in infos), 0

    def payloads(opened: list[tuple[int, str]]) -> Iterator[Iterator[FileRange | bytes]]:
        for tensor in plan.tensors:
            yield counted(tensor, opened)

    def counted(tensor: OutputTensor, opened: list[tuple[int, str]]) -> Iterator[FileRange | bytes]:
        nonlocal done
        for piece in tensor.pieces(opened):
            yield piece
            done += piece.n_bytes if isinstance(piece, FileRange) else len(piece)
            if progress is not None:
                progress(done, total, tensor.info.name)

    opened: list[tuple[int, str]] = []
    try:
        for source in sources:
            opened.append((source.open(), source.path))
        with GGUFWriter(plan.out, plan.kvs, infos, force=force, resume_key=key) as writer:
            done = sum(i.n_bytes for i in infos[: writer.n_done])
            if progress is not None:
                progress(done, total, infos[min(writer.n_done, len(infos) - 1)].name)
            writer.write(payloads(opened))
            writer.publish()
    finally:
        for fd, _ in opened:
            os.close(fd)


def _open(path: str | os.PathLike[str]) -> Source:
    before = _state(os.stat(path))
    return Source(GGUFFile(path), before)


def _state(stat: os.stat_result) -> tuple[int, int, int, int]:
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _plan(
    base: Source, donor: Source | None, out: Path, layers: tuple[int, ...], mtp: bool, layout: str | None, record: bool
) -> SplicePlan:
    views = standard_tensors(base.file)
    blocks = _blocks(views)
    faults = _architecture(base)
    taken: dict[str, WeightView] = {}
    if donor is not None:
        theirs = standard_tensors(donor.file)
        faults += _differences(base.file, donor.file, views, theirs)
        wanted = [p for p, layer in blocks.items() if (mtp if layer is None else layer in layers)]
        missing = set(layers) - {layer for layer in blocks.values() if layer is not None}
        if missing:
            here = format_layers(layer for layer in blocks.values() if layer is not None)
            faults.append(
                f"layers {format_layers(missing)} have no routed experts in the base; it has {here or 'none'}"
            )
        if mtp and None not in blocks.values():
            faults.append("the base has no MTP block")
        names = [expert_name(p, part) for p in wanted for part in PARTS]
        taken = {name: theirs[name] for name in names if name in theirs and name in views}
        faults += _pairs({**views, **taken}, wanted)
    if faults:
        what = f"{base.path} and {donor.path} do not go together" if donor else f"{base.path} cannot be rewritten"
        raise SpliceError(f"{what}:{listed_faults(faults)}")
    extra = _provenance(base, donor, layers, mtp) if record and donor is not None else []
    kvs, tensors = plan_file(base.file, layout or expert_layout(base.file), taken, extra)
    return SplicePlan(
        base=base,
        donor=donor,
        out=out,
        layers=layers,
        mtp=mtp,
        layout=layout or expert_layout(base.file),
        kvs=tuple(kvs),
        tensors=tuple(tensors),
        taken=tuple((name, views[name].type, view.type) for name, view in taken.items()),
        n_bytes=make_layout(kvs, [t.info for t in tensors]).n_bytes,
    )


def _blocks(views: Iterable[str]) -> dict[str, int | None]:
    """Prefixes of blocks with routed experts -> number of the layer, or None for the MTP block."""
    names = list(views)
    nextn = {name.split("nextn.")[0] for name in names if ".nextn." in name}
    out: dict[str, int | None] = {}
    for name in names:
        if found := expert_part(name):
            prefix = found[0]
            is_mtp = prefix.startswith("mtp.") or prefix in nextn
            out[prefix] = None if is_mtp else int(prefix.split(".")[1])
    return out


def _architecture(source: Source) -> list[str]:
    found = source.file.metadata.get("general.architecture")
    return [] if found == "deepseek4" else [f"{source.path}: the architecture is {found!r}, not 'deepseek4'"]


def _differences(
    base: GGUFFile, donor: GGUFFile, views: dict[str, WeightView], theirs: dict[str, WeightView]
) -> list[str]:
    """Everything in which the donor is not the base with other types."""
    out = []
    alignments = [standard_alignment(f) or ALIGNMENT for f in (base, donor)]
    if alignments[0] != alignments[1]:
        out.append(f"general.alignment is {alignments[0]} in the base and {alignments[1]} in the donor")
    keys = [k for k in {**dict.fromkeys(base.metadata), **dict.fromkeys(donor.metadata)} if k.startswith(_COMPARED)]
    for key in (k for k in keys if k not in LAYOUT_KEYS):
        if fault := _key_difference(key, base.metadata.get(key), donor.metadata.get(key)):
            out.append(fault)
    for name, view in views.items():
        if name not in theirs:
            out.append(f"tensor {name} is missing in the donor")
        elif stripped(view.ne) != stripped(theirs[name].ne):
            out.append(f"tensor {name} is {list(view.ne)} in the base and {list(theirs[name].ne)} in the donor")
    out += [f"tensor {name} is missing in the base" for name in theirs if name not in views]
    return out


def _key_difference(key: str, ours: Any, theirs: Any) -> str | None:
    for value, where in ((ours, "base"), (theirs, "donor")):
        if value is None:
            return f"metadata {key} is missing in the {where}"
    if isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            return f"metadata {key} has {len(ours)} entries in the base and {len(theirs)} in the donor"
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if not same_value(a, b):
                return f"metadata {key}[{i}] is {shown_value(a)} in the base and {shown_value(b)} in the donor"
        return None
    if same_value(ours, theirs):
        return None
    return f"metadata {key} is {shown_value(ours)} in the base and {shown_value(theirs)} in the donor"


def _pairs(views: dict[str, WeightView], prefixes: Iterable[str]) -> list[str]:
    out = []
    for prefix in prefixes:
        gate, up = (views.get(expert_name(prefix, part)) for part in ("gate", "up"))
        if gate is not None and up is not None and gate.type != up.type:
            out.append(f"{up.name} is {up.type} and its gate is {gate.type}; they must share a type")
    return out


def _provenance(base: Source, donor: Source, layers: tuple[int, ...], mtp: bool) -> list[KV]:
    return [
        KV("quantize.splice.base", "string", os.path.basename(base.path)),
        KV("quantize.splice.donor", "string", os.path.basename(donor.path)),
        KV("quantize.splice.layers", "string", format_layers(layers)),
        KV("quantize.splice.mtp", "bool", mtp),
    ]
