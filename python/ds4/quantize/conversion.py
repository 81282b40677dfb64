"""Converting an official checkpoint (config.json, tokenizer.json, safetensors) into a GGUF file.

Planning reads the small files and the tensor directory, compares them with what config.json promises, and lists
every difference at once. Converting then streams tensor by tensor: memory stays at a few tens of MiB whatever the
size of the model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ds4.gguf_writer import KV, GGUFWriter, TensorInfo, check_targets, make_layout
from ds4.progress import Progress

from . import hftensors
from .encode import UnencodableValueError, encode, encode_ids
from .hfconfig import ARCHITECTURE, Shape, model_keys, read_shape
from .hftokenizer import tokenizer_keys
from .hfweights import Weight, pair_scales
from .recipes import RECIPES, file_type, type_of
from .registry import check_runs
from .safetensors import Checkpoint, CheckpointError, read_json, shown

_MAX_CONFIG_BYTES = 1024 * 1024
_CHUNK_VALUES = 4 * 1024 * 1024
_FLOAT_TYPES = ("F32", "F16", "BF16", "FP8", "FP4")
_ID_TYPES = ("I64", "I32")
_MAX_LISTED = 30


@dataclass(frozen=True, slots=True)
class FilePlan:
    """One file to be written."""

    path: Path
    kvs: tuple[KV, ...]
    tensors: tuple[hftensors.Tensor, ...]
    infos: tuple[TensorInfo, ...]
    n_bytes: int


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """What a conversion will write; nothing has been written yet. Close the checkpoint when done."""

    checkpoint: Checkpoint
    weights: Mapping[str, Weight]
    """The tensors of the checkpoint by official name, FP8 and FP4 ones together with their scales."""
    shape: Shape
    recipe: str
    files: tuple[FilePlan, ...]
    """The model, then the file of the MTP block when that is asked for."""
    notes: tuple[str, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(f.n_bytes for f in self.files)

    def check(self, *, force: bool = False) -> None:
        """Check that the plan can be carried out, writing nothing that stays.

        Raises
        ------
        OSError
            A name is taken (and `force` is not set), a directory is missing, or a disk is too full.
        UnsupportedModelError
            The shape is not one that ds4 runs; every difference from the nearest one is listed.
        """
        check_targets([(f.path, f.n_bytes) for f in self.files], force=force)
        check_runs(self.files[0].kvs, self.files[0].infos)


def plan_conversion(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    recipe: str,
    mtp_out: str | os.PathLike[str] | None = None,
    name: str | None = None,
) -> ConversionPlan:
    """Read a checkpoint directory and plan its conversion.

    Parameters
    ----------
    source : path-like
        Directory with config.json, tokenizer.json and model.safetensors (or its shards and their index).
    out : path-like
        The GGUF file.
    recipe : str
        A key of `RECIPES`.
    mtp_out : path-like, optional
        A file of its own for the MTP block, which is otherwise part of `out`.
    name : str, optional
        `general.name`; by default the name of the directory.

    Raises
    ------
    OSError
        A file of the checkpoint is missing or unreadable.
    CheckpointError
        The checkpoint is damaged, incomplete, or not DeepSeek V4.
    ValueError
        The recipe is unknown, or there is no MTP block for `mtp_out`.
    """
    if recipe not in RECIPES:
        raise ValueError(f"unknown type {recipe!r}; known: {', '.join(RECIPES)}")
    directory = Path(source)
    if not directory.is_dir():
        what = "a file" if directory.exists() else "missing"
        raise CheckpointError(f"{directory} is {what}; expected a checkpoint directory with config.json")
    config = read_json(directory / "config.json", _MAX_CONFIG_BYTES)
    shape = read_shape(config)
    if mtp_out is not None and Path(mtp_out).absolute() == Path(out).absolute():
        raise ValueError(f"{out} cannot be both the model and the file of the MTP block")
    checkpoint = Checkpoint(directory)
    try:
        weights, faults = pair_scales(checkpoint)
        main, mtp, notes = _match(shape, checkpoint, weights, faults)
        if mtp_out is not None and not mtp:
            raise ValueError(f"{directory} has no MTP block to write to {mtp_out}")
        title = name or directory.absolute().name
        tokenizer = tokenizer_keys(directory, shape)
        inside = main if mtp_out is not None else [*main, *mtp]
        files = [_plan_file(Path(out), _keys(shape, recipe, title) + tokenizer, inside, recipe)]
        if mtp_out is not None:
            files.append(_plan_file(Path(mtp_out), _keys(shape, recipe, f"{title} MTP"), mtp, recipe))
    except BaseException:
        checkpoint.close()
        raise
    return ConversionPlan(checkpoint, weights, shape, recipe, tuple(files), tuple(notes))


def convert(plan: ConversionPlan, *, force: bool = False, progress: Progress | None = None) -> None:
    """Carry out a plan: all files appear complete, or none does.

    Raises
    ------
    CheckpointError
        A tensor holds a value that cannot be written; the message says which and where.
    OSError, UnsupportedModelError
        As `ConversionPlan.check`.
    """
    plan.check(force=force)
    writers = [GGUFWriter(f.path, f.kvs, f.infos, force=force) for f in plan.files]
    done = 0

    def payload(tensor: hftensors.Tensor, info: TensorInfo) -> Iterator[bytes]:
        nonlocal done
        for piece in _encoded(plan, tensor, info):
            yield piece
            done += len(piece)
            if progress is not None:
                progress(done, plan.n_bytes, tensor.name)

    try:
        for writer, file in zip(writers, plan.files, strict=True):
            writer.write(payload(t, i) for t, i in zip(file.tensors, file.infos, strict=True))
        for writer in writers:
            writer.publish()
    finally:
        for writer in writers:
            writer.discard()


def _encoded(plan: ConversionPlan, tensor: hftensors.Tensor, info: TensorInfo) -> Iterator[bytes]:
    for source in tensor.sources:
        entry = plan.weights[source]
        step = max(1, _CHUNK_VALUES // max(1, entry.shape[-1]))
        for first in range(0, entry.n_rows, step):
            rows = entry.rows(first, min(step, entry.n_rows - first))
            try:
                if tensor.role == "table":
                    yield encode_ids(rows, plan.shape.n_expert, first_row=first)
                else:
                    yield encode(info.type, rows, first_row=first)
            except UnencodableValueError as error:
                raise CheckpointError(f"{entry.path}: tensor {shown(source)}, {error}") from None


def _keys(shape: Shape, recipe: str, title: str) -> list[KV]:
    return [
        KV("general.architecture", "string", ARCHITECTURE),
        KV("general.type", "string", "model"),
        KV("general.name", "string", title),
        KV("general.file_type", "u32", file_type(recipe)),
        KV("general.quantization_version", "u32", 2),
        *model_keys(shape),
    ]


def _plan_file(path: Path, kvs: list[KV], tensors: list[hftensors.Tensor], recipe: str) -> FilePlan:
    infos = tuple(TensorInfo(t.name, t.ne, type_of(recipe, t.role)) for t in tensors)
    return FilePlan(path, tuple(kvs), tuple(tensors), infos, make_layout(kvs, infos).n_bytes)


def _match(
    shape: Shape, checkpoint: Checkpoint, weights: Mapping[str, Weight], found_faults: Mapping[str, str]
) -> tuple[list[hftensors.Tensor], list[hftensors.Tensor], list[str]]:
    """Compare the checkpoint with what its config.json promises; returns main tensors, MTP tensors, notes."""
    main = hftensors.expected_tensors(shape)
    has_mtp = any(name.startswith("mtp.") for name in checkpoint.tensors)
    mtp = hftensors.expected_mtp_tensors(shape) if has_mtp else []
    notes, faults = [], [f"{name}: {fault}" for name, fault in found_faults.items()]
    quantized = [name for name, weight in weights.items() if weight.stored in ("FP8", "FP4")]
    if quantized and not shape.fp8:
        what = f"{len(quantized)} tensors are FP8 or FP4, the first {shown(quantized[0])}"
        faults.append(f"{what}, but config.json has no quantization_config")
    if shape.n_mtp > 1:
        faults.append(f"config.json promises {shape.n_mtp} MTP blocks; ds4 knows files with one")
    elif shape.n_mtp and not has_mtp:
        notes.append("the checkpoint has no MTP block, although config.json promises one")
    elif has_mtp and not shape.n_mtp:
        faults.append("the checkpoint has mtp.* tensors, but num_nextn_predict_layers is 0")
    unused = set(weights)
    for tensor in [*main, *mtp]:
        for source in tensor.sources:
            unused.discard(source)
            if source in checkpoint.tensors and source not in weights:
                continue  # among the faults that were found already, or its scales are
            fault = _fault(tensor, weights.get(source))
            if fault:
                faults.append(f"{source}: {fault}")
    for i in range(shape.n_hash_layer):
        bias = f"layers.{i}.ffn.gate.bias"
        if bias in unused:  # published by some writers; a hash-routed layer has no use for it
            unused.discard(bias)
            notes.append(f"{bias} is left out: layer {i} is hash-routed")
    faults += [f"{shown(name)}: not a tensor of this model" for name in sorted(unused)]
    if faults:
        more = len(faults) - _MAX_LISTED
        listed = faults[:_MAX_LISTED] + ([f"and {more} more"] if more > 0 else [])
        raise CheckpointError(f"{checkpoint.directory}: config.json and tensors differ:\n  " + "\n  ".join(listed))
    return main, mtp, notes


def _fault(tensor: hftensors.Tensor, entry: Weight | None) -> str | None:
    if entry is None:
        return "missing"
    if entry.shape != tensor.shape:
        return f"shape {list(entry.shape)}, expected {list(tensor.shape)}"
    wanted = _ID_TYPES if tensor.role == "table" else _FLOAT_TYPES
    if entry.stored not in wanted:
        return f"type {entry.stored}, expected {' or '.join(wanted)}"
    return None
