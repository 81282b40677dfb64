"""Where the weights of a new file come from: an official checkpoint, or a GGUF file of higher precision.

A source lists its tensors in the order and under the names of the new file. A tensor hands out float32 rows, matrix
by matrix (an expert is a matrix), whatever its stored form; when that form is already the wanted one, it hands out the
stored bytes instead. Files are read, not mapped: memory holds the rows at hand and nothing else.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ds4 import ModelFileError, UnsupportedModelError, gguf
from ds4.file_range import FileRange, file_identity
from ds4.gguf_experts import LAYOUT_KEYS, WeightView, expert_layout, standard_alignment, standard_tensors
from ds4.gguf_writer import KV, stored_records

from .hfconfig import ARCHITECTURE
from .policy import MADE_TYPES
from .recipes import is_mtp

COPIED_BYTES = 64 * 1024 * 1024
"""Bytes that are copied at a time."""
_DROPPED_KEYS = ("quantize.imatrix.", *LAYOUT_KEYS)


class SourceTensor(Protocol):
    """One tensor of a source."""

    @property
    def name(self) -> str:
        """Its name in the new file."""

    @property
    def ne(self) -> tuple[int, ...]:
        """Its dimensions in the new file, the contiguous one first."""

    @property
    def stored(self) -> str:
        """How its values are stored: a GGUF type, or an element type of checkpoints (FP8, FP4, ...)."""

    @property
    def nearest_type(self) -> str:
        """The GGUF type that holds its values with the least change."""

    @property
    def n_matrices(self) -> int:
        """Number of matrices: the experts of a stacked tensor, else 1."""

    def rows(self, matrix: int, first: int, count: int) -> NDArray[Any]:
        """Return rows of a matrix: float32 (or integers, of a table), shape (count, `ne[0]`)."""

    def is_stored_as(self, kind: str) -> bool:
        """Whether `stored_bytes` gives the payload of a tensor of this type."""

    def stored_bytes(self) -> Iterator[bytes | FileRange]:
        """Yield the payload as it is stored."""

    def fault(self, matrix: int, problem: str) -> Exception:
        """Return the error about a value of a matrix; it names the file and the tensor."""


class Source(Protocol):
    """The weights, and what else a new file needs."""

    @property
    def path(self) -> Path:
        """The file or directory."""

    @property
    def n_layer(self) -> int:
        """Layers without the MTP block."""

    @property
    def title(self) -> str:
        """Name of the model."""

    @property
    def tensors(self) -> Sequence[SourceTensor]:
        """The tensors, in the order of the new file."""

    @property
    def notes(self) -> Sequence[str]:
        """What a user should know."""

    def records(self) -> list[KV]:
        """Return the metadata of the new file, without what depends on its types."""

    def identity(self) -> list[Any]:
        """Return what tells this state of the source from any other: files, sizes, times."""

    def close(self) -> None:
        """Close the files."""


def check_model_file(file: gguf.GGUFFile) -> None:
    """Check that a file is a whole one of the family.

    Raises
    ------
    UnsupportedModelError
        It is of another architecture, or one of several parts.
    """
    found = file.metadata.get("general.architecture")
    if found != ARCHITECTURE:
        raise UnsupportedModelError(
            f"general.architecture is {found!r}; ds4 makes files of {ARCHITECTURE!r} (DeepSeek V4)", path=file.path
        )
    n_parts = file.metadata.get("split.count", 1)
    if n_parts != 1:
        raise UnsupportedModelError(
            f"this is one of {n_parts} parts of a model; merge them into one file first", path=file.path
        )


def file_records(file: gguf.GGUFFile) -> list[KV]:
    """Return the metadata of a file in the standard layout, without the provenance of an imatrix."""
    stored = (kv for kv in stored_records(file) if not kv.key.startswith(_DROPPED_KEYS))
    if expert_layout(file) == "standard":
        return list(stored)
    alignment = standard_alignment(file)
    out: list[KV] = [kv for kv in stored if kv.key != "general.alignment"]
    return out if alignment is None else [*out, KV("general.alignment", "u32", alignment)]


def n_rows_of(tensor: SourceTensor) -> int:
    """Return the rows of one matrix of a tensor."""
    return math.prod(tensor.ne[1:]) // tensor.n_matrices


@dataclass(frozen=True, slots=True)
class _FileTensor:
    """A tensor of a GGUF file, wherever its layout puts the bytes."""

    view: WeightView
    file: _GGUFReader

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def ne(self) -> tuple[int, ...]:
        return self.view.ne

    @property
    def stored(self) -> str:
        return self.view.type

    @property
    def nearest_type(self) -> str:
        return self.view.type

    @property
    def n_matrices(self) -> int:
        return self.view.n_matrices

    def rows(self, matrix: int, first: int, count: int) -> NDArray[Any]:
        view, width = self.view, self.ne[0]
        begin = view.holder.offset + view.first + matrix * view.stride + first * view.row_bytes
        raw = self.file.read(begin, count * view.row_bytes)
        if view.type == "I32":
            return np.frombuffer(raw, "<i4").reshape(count, width)
        return gguf.dequantize(view.type, raw, count * width).reshape(count, width)

    def is_stored_as(self, kind: str) -> bool:
        return kind == self.view.type

    def stored_bytes(self) -> Iterator[FileRange]:
        for begin, n_bytes in self.view.ranges():
            for at in range(begin, begin + n_bytes, COPIED_BYTES):
                yield self.file.range(at, min(COPIED_BYTES, begin + n_bytes - at))

    def fault(self, matrix: int, problem: str) -> ModelFileError:
        expert = f", expert {matrix}" if self.n_matrices > 1 else ""
        return ModelFileError(f"tensor {self.name}{expert}, {problem}", path=str(self.file.path))


class _GGUFReader:
    """Bytes of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, begin: int, count: int) -> bytes:
        pieces = []
        while count:
            try:
                piece = os.pread(self._fd, count, begin)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self.path)) from None
            if not piece:
                raise ModelFileError(
                    f"ends at byte {begin}; was it replaced or shortened meanwhile?", path=str(self.path), offset=begin
                )
            pieces.append(piece)
            begin, count = begin + len(piece), count - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def range(self, begin: int, count: int) -> FileRange:
        return FileRange(self._fd, begin, count, str(self.path))

    def identity(self) -> list[Any]:
        return file_identity(self.path, self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class GGUFSource:
    """A GGUF file as a source.

    Parameters
    ----------
    path : path-like
        The file.

    Raises
    ------
    OSError
        It cannot be read.
    ModelFileError
        It is damaged.
    UnsupportedModelError
        It is of another architecture, one of several parts, or holds tensors of types that ds4 cannot read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.notes: tuple[str, ...] = ()
        self._file = gguf.GGUFFile(path)
        try:
            views = self._examine(self._file.metadata)
            self._reader = _GGUFReader(self.path)
        except BaseException:
            self._file.close()
            raise
        self.tensors = tuple(_FileTensor(view, self._reader) for view in views)

    def _examine(self, metadata: gguf.Metadata) -> list[WeightView]:
        check_model_file(self._file)
        views = list(standard_tensors(self._file).values())
        self._check_types(views)
        n_block, n_mtp = (self._count(metadata, key) for key in ("block_count", "nextn_predict_layers"))
        if n_block <= n_mtp:
            raise UnsupportedModelError(
                f"{ARCHITECTURE}.block_count says {n_block} layers, {n_mtp} of them for MTP", path=str(self.path)
            )
        self.n_layer = n_block - n_mtp
        self.title = str(metadata.get("general.name", self.path.stem))
        return views

    def _check_types(self, views: Iterable[WeightView]) -> None:
        unread = [f"{v.name} ({v.type})" for v in views if v.type not in (*MADE_TYPES, "I32")]
        if unread:
            more = f" and {len(unread) - 5} more" if len(unread) > 5 else ""
            raise UnsupportedModelError(
                f"ds4 cannot read the type of {', '.join(unread[:5])}{more}", path=str(self.path)
            )

    def _count(self, metadata: gguf.Metadata, key: str) -> int:
        value = metadata.get(f"{ARCHITECTURE}.{key}", 0)
        if not isinstance(value, int) or not 0 <= value < 1 << 16:
            raise UnsupportedModelError(f"{ARCHITECTURE}.{key} is {value!r}", path=str(self.path))
        return value

    def records(self) -> list[KV]:
        """Return the metadata of the file in the standard layout, without the provenance of an earlier imatrix."""
        return file_records(self._file)

    def identity(self) -> list[Any]:
        """Return path, size and time of the file."""
        return ["gguf", self._reader.identity()]

    def close(self) -> None:
        """Close the file."""
        self._reader.close()
        self._file.close()


def split_mtp(tensors: Iterable[SourceTensor], n_layer: int) -> tuple[list[SourceTensor], list[SourceTensor]]:
    """Return the tensors of a model of `n_layer` layers, and those of its MTP block."""
    main: list[SourceTensor] = []
    mtp: list[SourceTensor] = []
    for tensor in tensors:
        (mtp if is_mtp(tensor.name, n_layer) else main).append(tensor)
    return main, mtp
