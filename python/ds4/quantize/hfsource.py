"""An official checkpoint directory as a source: config.json, tokenizer.json and safetensors.

The tensors are compared with what config.json promises, and every difference is listed at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ds4.errors import listed_faults
from ds4.gguf_writer import KV

from . import hftensors
from .hfconfig import ARCHITECTURE, Shape, model_keys, read_shape
from .hftokenizer import tokenizer_keys
from .hfweights import FP4Weight, Weight, pair_scales
from .safetensors import Checkpoint, CheckpointError, read_json, shown

_MAX_CONFIG_BYTES = 1024 * 1024
_FLOAT_TYPES = ("F32", "F16", "BF16", "FP8", "FP4")
_ID_TYPES = ("I64", "I32")
_NEAREST = {"FP8": "BF16", "FP4": "MXFP4", "I64": "I32"}
_PIECE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _CheckpointTensor:
    """A tensor of the model, and the weights of the checkpoint that it is made of: one, or one for each expert."""

    tensor: hftensors.Tensor
    weights: tuple[Weight, ...]

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def ne(self) -> tuple[int, ...]:
        return self.tensor.ne

    @property
    def stored(self) -> str:
        forms = sorted({w.stored for w in self.weights})
        return "/".join(forms)

    @property
    def nearest_type(self) -> str:
        first = self.weights[0].stored
        return _NEAREST.get(first, first)

    @property
    def n_matrices(self) -> int:
        return len(self.weights)

    def rows(self, matrix: int, first: int, count: int) -> NDArray[Any]:
        return self.weights[matrix].rows(first, count)

    def is_stored_as(self, kind: str) -> bool:
        return kind == "MXFP4" and all(isinstance(w, FP4Weight) for w in self.weights)

    def stored_bytes(self) -> Iterator[bytes]:
        for weight in self.weights:
            assert isinstance(weight, FP4Weight)
            step = max(1, _PIECE_BYTES // weight.shape[-1])
            for first in range(0, weight.n_rows, step):
                yield weight.mxfp4(first, min(step, weight.n_rows - first))

    def fault(self, matrix: int, problem: str) -> CheckpointError:
        weight = self.weights[matrix]
        return CheckpointError(f"{weight.path}: tensor {shown(weight.name)}, {problem}")


class CheckpointSource:
    """A checkpoint directory as a source.

    Parameters
    ----------
    directory : path-like
        Directory with config.json, tokenizer.json and model.safetensors (or its shards and their index).

    Attributes
    ----------
    shape : Shape
        What config.json says.
    checkpoint : Checkpoint
        The open files.
    weights : mapping of str to Weight
        Its weights by official name, FP8 and FP4 ones together with their scales.

    Raises
    ------
    OSError
        A file of the checkpoint is missing or unreadable.
    CheckpointError
        The checkpoint is damaged, incomplete, or not DeepSeek V4.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory)
        if not self.path.is_dir():
            what = "a file" if self.path.exists() else "missing"
            raise CheckpointError(f"{self.path} is {what}; expected a checkpoint directory with config.json")
        self.shape = read_shape(read_json(self.path / "config.json", _MAX_CONFIG_BYTES))
        self.n_layer = self.shape.n_layer
        self.title = self.path.absolute().name
        self.checkpoint = Checkpoint(self.path)
        try:
            self.weights, faults = pair_scales(self.checkpoint)
            expected, notes = _match(self.shape, self.checkpoint, self.weights, faults)
            self._tokenizer = tokenizer_keys(self.path, self.shape)
        except BaseException:
            self.checkpoint.close()
            raise
        self.notes = tuple(notes)
        self.tensors = tuple(_CheckpointTensor(t, tuple(self.weights[s] for s in t.sources)) for t in expected)

    def records(self) -> list[KV]:
        """Return the metadata of a model file."""
        return [
            KV("general.architecture", "string", ARCHITECTURE),
            KV("general.type", "string", "model"),
            KV("general.name", "string", self.title),
            *model_keys(self.shape),
            *self._tokenizer,
        ]

    def identity(self) -> list[Any]:
        """Return path, size and time of every file that the weights come from."""
        return ["checkpoint", *[f.identity() for f in self.checkpoint.files]]

    def close(self) -> None:
        """Close the files."""
        self.checkpoint.close()


def _match(
    shape: Shape, checkpoint: Checkpoint, weights: Mapping[str, Weight], found_faults: Mapping[str, str]
) -> tuple[list[hftensors.Tensor], list[str]]:
    """Compare the checkpoint with what its config.json promises; returns the tensors of the file, and notes."""
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
        raise CheckpointError(f"{checkpoint.directory}: config.json and tensors differ:{listed_faults(faults)}")
    return [*main, *mtp], notes


def _fault(tensor: hftensors.Tensor, entry: Weight | None) -> str | None:
    if entry is None:
        return "missing"
    if entry.shape != tensor.shape:
        return f"shape {list(entry.shape)}, expected {list(tensor.shape)}"
    wanted = _ID_TYPES if tensor.role == "table" else _FLOAT_TYPES
    if entry.stored not in wanted:
        return f"type {entry.stored}, expected {' or '.join(wanted)}"
    return None
