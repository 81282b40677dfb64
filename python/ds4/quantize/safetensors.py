"""Reading safetensors checkpoints: one file, or shards listed by an index.

The header is checked whole before any tensor is handed out: its length, every shape, every pair of offsets, and
overlaps. Data is read with `pread` into fresh arrays, not mapped: memory holds what was asked for and no more,
whatever the size of the model, and a file that is shortened meanwhile is an error instead of a fault. Files of other
people are input: sizes are compared by subtraction, names are quoted and cut in messages.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ds4.file_range import file_identity

ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Bytes of one element of the element types that the format defines and that fill whole bytes."""

MAX_HEADER_BYTES = 100 * 1000 * 1000
_MAX_DIMENSIONS = 8
_MAX_SHARDS = 10_000
_READ_BYTES = 1 << 30
"""At most this much in one call: Linux reads no more than 2 GiB at a time."""
_MAX_INDEX_BYTES = 64 * 1024 * 1024


class CheckpointError(ValueError):
    """A checkpoint directory is damaged, incomplete or of a kind that ds4 does not read."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file as its header describes it: where it lies and what it holds."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    """Offset of the first byte, from the start of the file."""
    n_bytes: int
    file: SafetensorsFile

    def rows(self, first: int, count: int) -> NDArray[Any]:
        """Return rows of a tensor seen as a matrix of its last dimension, as float32 or as integers.

        The result is a fresh array: F32, F16 and BF16 become float32, I32 and I64 stay what they are.
        """
        kinds = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}
        if self.dtype not in kinds:
            raise CheckpointError(f"{shown(self.name)} has the element type {self.dtype}, which ds4 cannot read")
        values = self.raw_rows(first, count).view(kinds[self.dtype])
        if self.dtype == "BF16":
            wide = values.astype(np.uint32)
            wide <<= 16
            return wide.view(np.float32)
        return values.astype(np.float32) if self.dtype == "F16" else values

    def raw_rows(self, first: int, count: int) -> NDArray[np.uint8]:
        """Return the bytes of rows as they are stored, in a fresh array of shape (count, bytes of a row)."""
        row_bytes = (self.shape[-1] if self.shape else 1) * ITEM_BYTES[self.dtype]
        return self.file.read(self.begin + first * row_bytes, count * row_bytes).reshape(count, row_bytes)

    @property
    def stored(self) -> str:
        """The word for how the values are stored: the element type."""
        return self.dtype

    @property
    def path(self) -> Path:
        """The file that holds the tensor."""
        return self.file.path

    @property
    def n_rows(self) -> int:
        """Number of rows as `rows` counts them."""
        return math.prod(self.shape[:-1])


class SafetensorsFile:
    """One open safetensors file with a checked header.

    Parameters
    ----------
    path : path-like
        The file.

    Raises
    ------
    OSError
        The file cannot be opened or is not a regular file.
    CheckpointError
        The header is damaged; the message says where.
    """

    _fd = -1

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._fd, self.n_bytes = _open_regular(self.path)
        try:
            self.tensors: dict[str, TensorEntry] = self._read_header()
        except BaseException:
            self.close()
            raise

    def _read_header(self) -> dict[str, TensorEntry]:
        if self.n_bytes < 8:
            raise CheckpointError(f"{self.path}: {self.n_bytes} bytes, too short for a safetensors file")
        n_header = int.from_bytes(self.read(0, 8).tobytes(), "little")
        if n_header > min(MAX_HEADER_BYTES, self.n_bytes - 8):
            raise CheckpointError(
                f"{self.path}: the header is said to have {n_header} bytes, but {self.n_bytes - 8} follow "
                f"and at most {MAX_HEADER_BYTES} are allowed"
            )
        header = self._parse(self.read(8, n_header).tobytes())
        self.data_begin = 8 + n_header
        tensors = {name: self._entry(name, record) for name, record in header.items() if name != "__metadata__"}
        self._check_layout(tensors)
        return tensors

    def _parse(self, raw: bytes) -> dict[str, Any]:
        def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            out = dict(pairs)
            if len(out) != len(pairs):
                twice = Counter(k for k, _ in pairs).most_common(1)[0][0]
                raise CheckpointError(f"{self.path}: the header names {shown(twice)} twice")
            return out

        try:
            header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
        except CheckpointError:
            raise
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.path}: the header is not JSON: {error}") from None
        if not isinstance(header, dict):
            raise CheckpointError(f"{self.path}: the header is not a JSON object")
        return header

    def _entry(self, name: str, record: Any) -> TensorEntry:
        where = f"{self.path}: tensor {shown(name)}"
        if not isinstance(record, dict):
            raise CheckpointError(f"{where}: its record is not a JSON object")
        dtype, shape, offsets = record.get("dtype"), record.get("shape"), record.get("data_offsets")
        if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
            raise CheckpointError(f"{where}: unknown element type {shown(str(dtype))}")
        if not _is_counts(shape) or len(shape) > _MAX_DIMENSIONS:
            raise CheckpointError(
                f"{where}: shape {shown(str(shape))} is not a list of at most {_MAX_DIMENSIONS} sizes"
            )
        if not _is_counts(offsets) or len(offsets) != 2:
            raise CheckpointError(f"{where}: data_offsets {shown(str(offsets))} is not a pair of offsets")
        begin, end = offsets
        available = self.n_bytes - self.data_begin
        if not begin <= end <= available:
            raise CheckpointError(
                f"{where}: data_offsets [{begin}, {end}] end at byte {self.data_begin + end} of the file, which has "
                f"{self.n_bytes} bytes; is it truncated?"
                if begin <= end
                else f"{where}: data_offsets [{begin}, {end}] are not in order"
            )
        wanted = math.prod(shape) * ITEM_BYTES[dtype]
        if end - begin != wanted:
            raise CheckpointError(f"{where}: {dtype} {list(shape)} takes {wanted} bytes, offsets give {end - begin}")
        return TensorEntry(name, dtype, tuple(shape), self.data_begin + begin, wanted, self)

    def _check_layout(self, tensors: dict[str, TensorEntry]) -> None:
        end, previous = self.data_begin, None
        for entry in sorted(tensors.values(), key=lambda e: (e.begin, e.n_bytes)):
            if entry.begin < end:
                raise CheckpointError(
                    f"{self.path}: tensor {shown(entry.name)} at {entry.begin} overlaps "
                    f"{shown(previous or 'the header')}, which ends at {end}"
                )
            end, previous = entry.begin + entry.n_bytes, entry.name

    def read(self, begin: int, count: int) -> NDArray[np.uint8]:
        """Return `count` bytes from position `begin`, in a fresh array. Threads may read at the same time.

        Raises
        ------
        OSError
            The file cannot be read.
        CheckpointError
            The range does not lie inside the file, or the file was shortened since it was opened.
        """
        if not 0 <= begin <= self.n_bytes or not 0 <= count <= self.n_bytes - begin:
            raise CheckpointError(f"{self.path}: {count} bytes from {begin} on do not lie in {self.n_bytes} bytes")
        out = np.empty(count, np.uint8)
        done = 0
        while done < count:
            try:
                n = os.preadv(self._fd, [out[done : done + _READ_BYTES].data], begin + done)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self.path)) from None
            if n == 0:
                raise CheckpointError(
                    f"{self.path}: ends at byte {begin + done}, but had {self.n_bytes} bytes when it was opened; "
                    "was it replaced or shortened meanwhile?"
                )
            done += n
        return out

    def identity(self) -> list[str | int]:
        """Return path, size and time of the last change."""
        return file_identity(self.path, self._fd)

    def close(self) -> None:
        """Close the file; arrays that were read stay valid."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class Checkpoint:
    """The tensors of a checkpoint directory: `model.safetensors`, or the shards of its index.

    Raises
    ------
    OSError
        A file is missing or unreadable.
    CheckpointError
        A file is damaged, or index and shards disagree.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self.files: list[SafetensorsFile] = []
        self.tensors: dict[str, TensorEntry] = {}
        try:
            index = self.directory / "model.safetensors.index.json"
            single = self.directory / "model.safetensors"
            if index.exists():
                self._open_shards(index)
            elif not single.exists() and any(self.directory.glob("*.safetensors")):
                raise CheckpointError(f"{index} is missing; it names the shards: is the download complete?")
            else:
                self._add(single)
        except BaseException:
            self.close()
            raise

    def _add(self, path: Path) -> SafetensorsFile:
        file = SafetensorsFile(path)
        self.files.append(file)
        for name, entry in file.tensors.items():
            if name in self.tensors:
                raise CheckpointError(f"tensor {shown(name)} is in {self.tensors[name].file.path} and in {path}")
            self.tensors[name] = entry
        return file

    def _open_shards(self, index: Path) -> None:
        content = read_json(index, _MAX_INDEX_BYTES)
        weight_map = content.get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
            raise CheckpointError(f"{index}: no weight_map from tensor names to files")
        by_shard: dict[str, set[str]] = {}
        for name, shard in weight_map.items():
            by_shard.setdefault(shard, set()).add(name)
        shards = sorted(by_shard)
        if len(shards) > _MAX_SHARDS:
            raise CheckpointError(f"{index}: {len(shards)} shards; at most {_MAX_SHARDS} are read")
        for shard in shards:
            if not _is_file_name(shard):
                raise CheckpointError(f"{index}: {shown(shard)} is not a file name in this directory")
        missing = [shard for shard in shards if not (self.directory / shard).exists()]
        if missing:
            raise FileNotFoundError(
                errno.ENOENT,
                f"{len(missing)} of {len(shards)} shards are missing ({listed(missing)}); is the download complete?",
                str(index),
            )
        for shard in shards:
            found = set(self._add(self.directory / shard).tensors)
            wanted = by_shard[shard]
            if found != wanted:
                name = min(found ^ wanted)
                place = "the shard lacks it" if name in wanted else "the index does not list it there"
                raise CheckpointError(f"{index} and {shard} disagree about tensor {shown(name)}: {place}")

    def __iter__(self) -> Iterator[TensorEntry]:
        return iter(self.tensors.values())

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            file.close()


def read_json(path: Path, max_bytes: int) -> dict[str, Any]:
    """Read a JSON object from a file of at most `max_bytes`.

    Raises
    ------
    OSError
        The file cannot be read.
    CheckpointError
        It is too large, not JSON, or not an object.
    """
    fd, _ = _open_regular(path)
    with open(fd, "rb") as f:
        raw = f.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise CheckpointError(f"{path}: larger than {max_bytes} bytes")
    try:
        content = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return content


def shown(text: str) -> str:
    """Quote a text that comes from a file, escaped and cut, for a message."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


def listed(names: list[str], most: int = 8) -> str:
    """Join names from a file for a message: the first few, and how many more there are."""
    text = ", ".join(shown(name) for name in names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


def _open_regular(path: Path) -> tuple[int, int]:
    """Open a regular file for reading, without waiting at a FIFO; returns the descriptor and the size."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        os.close(fd)
        raise CheckpointError(f"{path}: not a regular file")
    return fd, info.st_size


def _is_file_name(name: str) -> bool:
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return name == os.path.basename(name) and name not in ("", ".", "..") and "\0" not in name


def _is_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 62 for v in value)
