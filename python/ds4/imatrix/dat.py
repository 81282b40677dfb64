"""The older form of importance files, .dat: means of squares without token counts.

::

    i32 number of entries
    for each: i32 bytes of the name, name, i32 ncall, i32 number of values, f32 values
    optional: i32 number of chunks, i32 bytes of the dataset's name, name

Little-endian. The mean is value / ncall, or the value itself if ncall is 0. The values of a stack of experts follow
each other expert by expert. We write means with ncall 1; an expert that was never observed has ones.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .atomic import new_file
from .data import Entry
from .errors import ImatrixError
from .names import file_order

if TYPE_CHECKING:
    from .data import Imatrix

_MAX_NAME = 4096
_SMALLEST_ENTRY = 4 + 1 + 4 + 4 + 4


class _Reader:
    """Reads a .dat front to back; every length is checked against what is left of the file."""

    def __init__(self, f: BinaryIO, path: str) -> None:
        self.f, self.path, self.size, self.at = f, path, os.fstat(f.fileno()).st_size, 0
        self.entry: str | None = None

    @property
    def left(self) -> int:
        return self.size - self.at

    def fail(self, message: str, offset: int | None = None) -> ImatrixError:
        where = self.at if offset is None else offset
        return ImatrixError(f"{message}; this is not a sound .dat importance file", path=self.path, entry=self.entry,
                            offset=where)  # fmt: skip

    def take(self, n: int, what: str) -> bytes:
        if n > self.left:
            raise self.fail(f"{what} needs {n} bytes but {self.left} are left: the file is cut short")
        raw = self.f.read(n)
        if len(raw) != n:
            raise self.fail(f"the file became shorter while it was read, at {what}")
        self.at += n
        return raw

    def i32(self, what: str) -> int:
        return int(struct.unpack("<i", self.take(4, what))[0])


def read_dat(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a .dat file; return the arguments of `Imatrix`. Entries are not divided yet.

    Raises
    ------
    OSError, ImatrixError
        As `Imatrix.read`.
    """
    with open(path, "rb") as f:
        reader = _Reader(f, os.fsdecode(path))
        entries: dict[str, Entry] = {}
        n = reader.i32("the number of entries")
        if n < 1 or n > reader.left // _SMALLEST_ENTRY:
            raise ImatrixError(
                f"neither GGUF nor .dat: it would hold {n} entries in {reader.size} bytes", path=reader.path, offset=0
            )
        for i in range(n):
            reader.entry = None
            name, entry = _read_entry(reader, i, entries)
            entries[name] = share_inputs(entry, name, entries)
        reader.entry = None
        n_chunks, datasets = _read_tail(reader) if reader.left else (0, ())
    return {
        "entries": entries,
        "source": reader.path,
        "datasets": datasets,
        "n_chunks": n_chunks,
        "counted": False,
    }


def _read_entry(reader: _Reader, i: int, known: dict[str, Entry]) -> tuple[str, Entry]:
    start = reader.at
    length = reader.i32(f"the name's length of entry {i}")
    if not 1 <= length <= _MAX_NAME:
        raise reader.fail(f"entry {i} has a name of {length} bytes; allowed are 1 to {_MAX_NAME}", start)
    try:
        name = reader.take(length, f"the name of entry {i}").decode("utf-8")
    except UnicodeDecodeError:
        raise reader.fail(f"the name of entry {i} is not UTF-8", start) from None
    reader.entry = name
    if name in known:
        raise reader.fail("it occurs twice", start)
    n_calls, n_values = reader.i32("the number of calls"), reader.i32("the number of values")
    if n_calls < 0 or n_values < 1:
        raise reader.fail(f"it says {n_calls} calls and {n_values} values", reader.at - 8)
    begin = reader.at
    values = np.frombuffer(reader.take(4 * n_values, f"{n_values} values"), dtype="<f4").astype(np.float32, copy=False)
    check_values(values, reader.path, name, begin)
    return name, Entry(values.reshape(1, -1), np.array([float(n_calls or 1)]), divided=False)


def check_values(values: NDArray[np.float32], path: str, entry: str, begin: int) -> None:
    """Check that values are finite and not negative.

    Raises
    ------
    ImatrixError
        One is not; the error names the first.
    """
    if values.min() >= 0 and values.max() < np.inf:  # a NaN fails both
        return
    flat = values.reshape(-1)
    i = int(np.argmin((flat >= 0) & (flat < np.inf)))
    raise ImatrixError(
        f"value {i} is {flat[i]}; sums of squares are finite and not negative", path=path, entry=entry,
        offset=begin + 4 * i,
    )  # fmt: skip


def share_inputs(entry: Entry, name: str, known: Mapping[str, Entry]) -> Entry:
    """Return an up projection's entry as the gate's, which came before, if it is the same: both see the same inputs."""
    gate = known.get(name.replace("ffn_up_", "ffn_gate_")) if "ffn_up_" in name else None
    if gate is None or gate.divided != entry.divided or not np.array_equal(gate.counts, entry.counts):
        return entry
    return gate if np.array_equal(gate.sums, entry.sums) else entry


def _read_tail(reader: _Reader) -> tuple[int, tuple[str, ...]]:
    start = reader.at
    n_chunks, length = reader.i32("the number of chunks"), reader.i32("the length of the dataset's name")
    if n_chunks < 0 or length < 0:
        raise reader.fail(f"it says {n_chunks} chunks and a dataset name of {length} bytes", start)
    raw = reader.take(length, "the dataset's name")
    if reader.left:
        raise reader.fail(f"{reader.left} bytes follow after its end")
    return n_chunks, ((raw.decode("utf-8", "surrogateescape"),) if raw else ())


def write_dat(imatrix: Imatrix, path: Path, force: bool) -> None:
    """Write a .dat file: routed experts first, by layer in the order gate, up, down.

    Raises
    ------
    OSError, ImatrixError
        As `Imatrix.write`.
    """
    names = sorted(imatrix.entries, key=file_order)
    for name in names:
        if not 1 <= len(name.encode("utf-8", "surrogateescape")) <= _MAX_NAME:
            raise ImatrixError(f"a .dat holds names of 1 to {_MAX_NAME} bytes", path=str(path), entry=name)
    with new_file(path, force) as f:
        f.write(struct.pack("<i", len(names)))
        for name in names:
            raw = name.encode("utf-8", "surrogateescape")
            entry = imatrix.entries[name]
            f.write(struct.pack("<i", len(raw)) + raw + struct.pack("<ii", 1, entry.sums.size))
            for row in _means(entry, name, path):
                f.write(row.astype("<f4", copy=False).tobytes())
        dataset = imatrix.dataset.encode("utf-8", "surrogateescape")
        f.write(struct.pack("<ii", min(imatrix.n_chunks, 2**31 - 1), len(dataset)) + dataset)


def _means(entry: Entry, name: str, path: Path) -> Iterator[NDArray[np.float32]]:
    for matrix in range(entry.n_matrices):
        row = entry.mean(matrix)
        if not np.isfinite(row).all():
            raise ImatrixError(
                f"the mean of matrix {matrix} is not finite or does not fit float32", path=str(path), entry=name
            )
        yield row
