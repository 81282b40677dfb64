"""The newer form of importance files: a GGUF file with sums of squares and counts.

`general.type` is "imatrix". Each entry is two F32 tensors: NAME.in_sum2, ne [n_columns, n_matrices], and NAME.counts,
ne [1, n_matrices]. `imatrix.datasets`, `imatrix.chunk_count` and `imatrix.chunk_size` say where it comes from.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ds4.errors import ModelFileError
from ds4.gguf import GGUFFile, GGUFTensor
from ds4.gguf_writer import KV, GGUFWriter, TensorInfo, check_targets, make_layout

from .dat import check_values, share_inputs
from .data import Entry
from .errors import ImatrixError

if TYPE_CHECKING:
    from .data import Imatrix

_SUMS, _COUNTS = ".in_sum2", ".counts"
_MAX_NAME = 63 - len(_SUMS)


def read_container(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a GGUF importance file; return the arguments of `Imatrix`.

    Raises
    ------
    OSError, ImatrixError
        As `Imatrix.read`.
    """
    name = os.fsdecode(path)
    try:
        file = GGUFFile(path)
    except ModelFileError as error:
        raise ImatrixError(f"a GGUF file, but no sound one: {error}", path=name, offset=error.offset) from None
    with file:
        kind = file.metadata.get("general.type")
        if kind != "imatrix":
            what = file.metadata.get("general.architecture")
            raise ImatrixError(
                f"a GGUF file of {f'a model ({what})' if what else f'type {kind!r}'}, not of importance data "
                "(general.type is not 'imatrix')",
                path=name,
            )
        entries: dict[str, Entry] = {}
        for entry in _names(file, name):
            entries[entry] = share_inputs(_read_entry(entry, file, name), entry, entries)
        datasets = file.metadata.get("imatrix.datasets", [])
        if not isinstance(datasets, list) or not all(isinstance(d, str) for d in datasets):
            raise ImatrixError("imatrix.datasets is not a list of texts", path=name)
        return {
            "entries": entries,
            "source": name,
            "datasets": datasets,
            "n_chunks": _count(file, "imatrix.chunk_count", name),
            "chunk_size": _count(file, "imatrix.chunk_size", name),
            "counted": True,
        }


def _count(file: GGUFFile, key: str, path: str) -> int:
    value = file.metadata.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ImatrixError(f"{key} is {value!r}, not a count", path=path)
    return value


def _names(file: GGUFFile, path: str) -> list[str]:
    names = []
    for name, tensor in file.tensors.items():
        base, other = name, ""
        if name.endswith(_SUMS):
            base, other = name.removesuffix(_SUMS), _COUNTS
            names.append(base)
        elif name.endswith(_COUNTS):
            base, other = name.removesuffix(_COUNTS), _SUMS
        if not other or not base:
            raise ImatrixError(f"tensors end in {_SUMS} or {_COUNTS}", path=path, entry=name, offset=tensor.offset)
        if base + other not in file.tensors:
            raise ImatrixError(f"{other.removeprefix('.')} is missing", path=path, entry=base, offset=tensor.offset)
        if tensor.type != "F32":
            raise ImatrixError(f"{name} is {tensor.type}, not F32", path=path, entry=base, offset=tensor.offset)
    if not names:
        raise ImatrixError("it holds no entries", path=path)
    return names


def _values(tensor: GGUFTensor, path: str, entry: str) -> NDArray[np.float32]:
    values = np.frombuffer(tensor.data(), dtype="<f4").astype(np.float32)
    check_values(values, path, entry, tensor.offset)
    return values


def _read_entry(name: str, file: GGUFFile, path: str) -> Entry:
    sums, counts = file.tensors[name + _SUMS], file.tensors[name + _COUNTS]
    n_columns, n_matrices = sums.ne[0], sums.size // sums.ne[0]
    if counts.size != n_matrices:
        raise ImatrixError(
            f"{n_matrices} matrices but {counts.size} counts", path=path, entry=name, offset=counts.offset
        )
    return Entry(
        _values(sums, path, name).reshape(n_matrices, n_columns), _values(counts, path, name).astype(np.float64)
    )


def write_container(imatrix: Imatrix, path: Path, force: bool) -> None:
    """Write a GGUF importance file.

    Raises
    ------
    OSError, ImatrixError
        As `Imatrix.write`.
    """
    infos = []
    for name, entry in imatrix.entries.items():
        if len(name.encode("utf-8", "surrogateescape")) > _MAX_NAME:
            raise ImatrixError(f"its GGUF form holds names of at most {_MAX_NAME} bytes", path=str(path), entry=name)
        if not entry.divided:
            raise ImatrixError(
                f"its {entry.sums.size} values are of an unknown number of experts: read the .dat with n_experts",
                path=imatrix.source or None,
                entry=name,
            )
        infos.append(TensorInfo(name + _SUMS, (entry.n_columns, entry.n_matrices), "F32"))
        infos.append(TensorInfo(name + _COUNTS, (1, entry.n_matrices), "F32"))
    kvs = [
        KV("general.type", "string", "imatrix"),
        KV("imatrix.datasets", "[string]", list(imatrix.datasets)),
        KV("imatrix.chunk_count", "u32", min(imatrix.n_chunks, 2**32 - 1)),
        KV("imatrix.chunk_size", "u32", min(imatrix.chunk_size, 2**32 - 1)),
    ]
    check_targets([(path, make_layout(kvs, infos).n_bytes)], force=force)
    with GGUFWriter(path, kvs, infos, force=force) as writer:
        writer.write(_payloads(imatrix, path))
        writer.publish()


def _payloads(imatrix: Imatrix, path: Path) -> Iterator[Iterator[bytes]]:
    for name, entry in imatrix.entries.items():
        for values in (entry.sums, entry.counts):
            yield _rows(values, name, path)


def _rows(values: NDArray[Any], name: str, path: Path) -> Iterator[bytes]:
    for row in values:
        with np.errstate(over="ignore"):
            stored = np.asarray(row).astype("<f4")
        if not np.isfinite(stored).all():
            raise ImatrixError("a sum is not finite or does not fit float32", path=str(path), entry=name)
        yield stored.tobytes()
