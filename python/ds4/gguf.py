"""GGUF files: metadata, tensors, and the block formats of their values.

Reading is lazy: opening maps the file and checks its whole directory, a metadata value is decoded when it is asked
for, and a tensor when its numbers are asked for. A file of another architecture can be read too, as long as it is
a sound GGUF v3 file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._native import _gguf, _quantize
from .errors import ClosedError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = [
    "GGUFFile",
    "GGUFTensor",
    "Metadata",
    "TypeInfo",
    "add_column_squares",
    "dequantize",
    "quantize",
    "type_info",
    "unweighted_blocks",
]

_I32 = 26
_MAX_THREADS = 1024
# Type ids are small; names are looked up by trying them all once.
_MAX_TYPE_ID = 255


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """A tensor type of the format.

    Attributes
    ----------
    id : int
        Number of the type in files.
    name : str
        Its name, such as "Q8_0".
    block_elements, block_bytes : int
        Values in one block, and the bytes that a block takes.
    """

    id: int
    name: str
    block_elements: int
    block_bytes: int

    def n_bytes(self, n: int) -> int:
        """Return the bytes of `n` values.

        Raises
        ------
        ValueError
            `n` is not a whole number of blocks.
        """
        if n < 0 or n % self.block_elements:
            raise ValueError(f"{n} values are not a whole number of {self.name} blocks of {self.block_elements}")
        return n // self.block_elements * self.block_bytes


def type_info(kind: int | str) -> TypeInfo:
    """Return a tensor type by its id or name.

    Raises
    ------
    ValueError
        The format does not define that type.
    """
    if isinstance(kind, str):
        wanted = kind.upper()
        for type_id in range(_MAX_TYPE_ID + 1):
            if _gguf.type_name(type_id) == wanted:
                return type_info(type_id)
        raise ValueError(f"unknown tensor type {kind!r}")
    name = _gguf.type_name(kind) if 0 <= kind < 1 << 32 else None
    if name is None:
        raise ValueError(f"unknown tensor type {kind}")
    block_elements, block_bytes = _gguf.type_block(kind)
    return TypeInfo(kind, name, block_elements, block_bytes)


def stripped(ne: tuple[int, ...]) -> tuple[int, ...]:
    """Return dimensions without the ones at the end; one stays."""
    while len(ne) > 1 and ne[-1] == 1:
        ne = ne[:-1]
    return ne


def aligned(n: int, alignment: int) -> int:
    """Return the next multiple of `alignment` that is `n` or more."""
    return -(-n // alignment) * alignment


def dequantize(kind: int | str, data: ReadableBuffer, n: int | None = None, *, threads: int = 1) -> NDArray[np.float32]:
    """Decode stored values into float32.

    Parameters
    ----------
    kind : int or str
        Tensor type: F32, F16, BF16, Q8_0, Q2_K, Q4_K, IQ2_XXS or MXFP4.
    data : bytes-like
        The stored blocks, one after the other.
    n : int, optional
        Number of values, a whole number of blocks; as many as `data` holds when not given.
    threads : int
        Threads to share the work; the values do not depend on it.

    Returns
    -------
    ndarray of float32, shape (n,)

    Raises
    ------
    ValueError
        The type is unknown, or `data` does not hold that many values.
    UnsupportedModelError
        ds4 cannot decode the type.
    """
    info = type_info(kind)
    stored = np.frombuffer(memoryview(data), dtype=np.uint8)
    if n is None:
        n_blocks, rest = divmod(stored.size, info.block_bytes)
        if rest:
            raise ValueError(f"{stored.size} bytes are not a whole number of {info.name} blocks of {info.block_bytes}")
        n = n_blocks * info.block_elements
    elif stored.size != info.n_bytes(n):
        raise ValueError(f"{n} values of type {info.name} take {info.n_bytes(n)} bytes, not {stored.size}")
    out = np.empty(n, dtype=np.float32)
    _quantize.dequantize(info.id, stored, out, _thread_count(threads))
    return out


def quantize(
    kind: int | str,
    values: ArrayLike,
    importance: ArrayLike | None = None,
    *,
    threads: int = 1,
    first_row: int = 0,
    allow_nonfinite: bool = False,
) -> bytes:
    """Encode rows of values as a tensor type.

    F32, F16, BF16, Q8_0 and MXFP4 round each value to the nearest. Q2_K, Q4_K and IQ2_XXS search for the scales of
    least error, weighted by `importance`; docs/formats.md, "Encoding", says how. A block of 256 columns without a
    positive weight is encoded as if all its weights were one; `unweighted_blocks` counts them.

    Parameters
    ----------
    kind : int or str
        F32, F16, BF16, Q8_0, Q2_K, Q4_K, IQ2_XXS or MXFP4.
    values : array_like of float, shape (..., n)
        Rows of n values, a whole number of blocks each.
    importance : array_like of float, shape (n,), optional
        One weight a column, the same for all rows: 0 to 2^64, in any unit. IQ2_XXS needs it; Q2_K and Q4_K weight by
        size alone without it; the others ignore it.
    threads : int
        Threads to share the rows; the bytes do not depend on it.
    first_row : int
        Number of the first row, for messages.
    allow_nonfinite : bool
        Let F32, F16 and BF16 store NaN and infinity, and F16 and BF16 round large values to infinity.

    Returns
    -------
    bytes
        The stored blocks, row after row.

    Raises
    ------
    UnencodableValueError
        The type cannot hold a value; its row (counted through all leading dimensions) and column are in the error.
    ValueError
        The type is unknown, a row is not a whole number of blocks, IQ2_XXS has no importance, or importance has another
        length, or holds a negative, infinite or NaN weight.
    UnsupportedModelError
        ds4 cannot encode the type.
    """
    info = type_info(kind)
    array = np.ascontiguousarray(values, dtype=np.float32)
    n = array.shape[-1] if array.ndim else 1
    rows = array.reshape(-1, n) if n else array.reshape(0, 0)
    weights = None if importance is None else np.ascontiguousarray(importance, dtype=np.float32)
    if weights is not None and weights.shape != (n,):
        raise ValueError(f"importance has shape {weights.shape}; rows of {n} values need shape ({n},)")
    n_bytes = info.n_bytes(n) * rows.shape[0]
    return _quantize.quantize(info.id, rows, weights, n_bytes, _thread_count(threads), first_row, allow_nonfinite)


def unweighted_blocks(importance: ArrayLike) -> int:
    """Return how many blocks of 256 columns have no positive weight.

    `quantize` encodes such a block of every row as if all its weights were one: a weight of zero for everything says
    nothing, for example because an expert saw no token.

    Parameters
    ----------
    importance : array_like of float, shape (n,)
        As for `quantize`.
    """
    return _quantize.unweighted_blocks(np.ascontiguousarray(importance, dtype=np.float32).reshape(-1))


def add_column_squares(values: ArrayLike, sums: NDArray[np.float32]) -> None:
    """Add the square of each value to the sum of its column, in float32 and row by row.

    Over all rows of a matrix, and from zeros, this is the importance to use where none was measured.

    Parameters
    ----------
    values : array_like of float, shape (rows, n)
        Some rows.
    sums : ndarray of float32, shape (n,)
        Changed in place.
    """
    _quantize.add_column_squares(np.ascontiguousarray(values, dtype=np.float32), sums)


def _thread_count(threads: int) -> int:
    if not 1 <= threads <= _MAX_THREADS:
        raise ValueError(f"threads must be 1 to {_MAX_THREADS}, not {threads}")
    return threads


class Metadata(Mapping[str, Any]):
    """Metadata of a GGUF file as a read-only mapping, each value decoded when it is first asked for.

    Numbers and flags are `int`, `float` and `bool`, texts are `str`, arrays are lists of those. Texts are UTF-8;
    bytes that are not become lone surrogates (the "surrogateescape" handler), so nothing is lost.
    """

    def __init__(self, native: _gguf.File) -> None:
        self._native = native
        self._index = {key: i for i, key in enumerate(native.keys())}
        self._values: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        try:
            return self._values[key]
        except KeyError:
            value = self._native.value(self._index[key])
            return self._values.setdefault(key, value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, key: object) -> bool:
        return key in self._index

    def __repr__(self) -> str:
        return f"<Metadata of {len(self)} records>"

    def count(self, key: str) -> int | None:
        """Return the number of elements of an array without decoding it, or None for a value that is no array.

        Raises
        ------
        KeyError
            There is no such key.
        """
        kind, _, count = self._native.kind(self._index[key])
        return count if kind == _ARRAY else None

    def kind(self, key: str) -> str:
        """Return the stored type of a value: "u32", "string", "[i32]" for an array, and so on.

        Raises
        ------
        KeyError
            There is no such key.
        """
        kind, element, _ = self._native.kind(self._index[key])
        return f"[{_VALUE_NAMES[element]}]" if kind == _ARRAY else _VALUE_NAMES[kind]

    def record(self, key: str) -> bytes:
        """Return the whole record of a key, byte for byte as the file has it.

        Raises
        ------
        KeyError
            There is no such key.
        """
        return self._native.record(self._index[key])


_ARRAY = 9
_VALUE_NAMES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64")


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor of a file.

    Attributes
    ----------
    name : str
        Name in the file.
    type : str
        Name of the tensor type, such as "Q2_K".
    ne : tuple of int
        Dimensions as the file writes them: `ne[0]` is the contiguous one.
    n_bytes, offset : int
        Stored bytes, and their place in the file.
    """

    name: str
    type: str
    ne: tuple[int, ...]
    n_bytes: int
    offset: int
    _native: _gguf.File
    _index: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions in numpy's order, the contiguous one last."""
        return self.ne[::-1]

    @property
    def size(self) -> int:
        """Number of values."""
        n = 1
        for extent in self.ne:
            n *= extent
        return n

    def data(self) -> memoryview:
        """Return the stored bytes as a read-only view into the file, which stays mapped as long as the view lives."""
        return memoryview(self._native.data(self._index))

    def numpy(self) -> NDArray[np.float32] | NDArray[np.int32]:
        """Return the values, decoded.

        Returns
        -------
        ndarray, shape `self.shape`
            A copy: int32 for a tensor of type I32, else float32.

        Raises
        ------
        UnsupportedModelError
            ds4 cannot decode the type.
        """
        if self.type == "I32":
            return np.frombuffer(self.data(), dtype="<i4").astype(np.int32).reshape(self.shape)
        return dequantize(self.type, self.data(), self.size).reshape(self.shape)


def _tensors(native: _gguf.File) -> dict[str, GGUFTensor]:
    out = {}
    for i, (name, kind, ne, n_bytes, offset) in enumerate(native.tensors()):
        out[name] = GGUFTensor(name, _gguf.type_name(kind) or str(kind), ne, n_bytes, offset, native, i)
    return out


class GGUFFile:
    """An open GGUF v3 file.

    Parameters
    ----------
    path : path-like
        The file. It is mapped, not read; its directory is checked whole before anything is handed out.

    Raises
    ------
    OSError
        The file cannot be opened or is no regular file.
    ModelFileError
        It is damaged, cut short, or no GGUF v3 file; the error tells where.

    Examples
    --------
    >>> with GGUFFile("model.gguf") as file:
    ...     print(file.metadata["general.architecture"], len(file.tensors))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._native: _gguf.File | None = _gguf.File(encode_path(path), os.fsdecode(self._path))
        self._metadata: Metadata | None = None
        self._tensors: dict[str, GGUFTensor] | None = None

    @property
    def path(self) -> str:
        """The path that was opened."""
        return self._path

    @property
    def metadata(self) -> Metadata:
        """The metadata."""
        native = self.native
        if self._metadata is None:
            self._metadata = Metadata(native)
        return self._metadata

    @property
    def tensors(self) -> Mapping[str, GGUFTensor]:
        """The tensors by name, in file order."""
        native = self.native
        if self._tensors is None:
            self._tensors = _tensors(native)
        return self._tensors

    @property
    def version(self) -> int:
        """Version of the container format."""
        return self.native.info()["version"]

    @property
    def alignment(self) -> int:
        """Alignment of tensor data, in bytes."""
        return self.native.info()["alignment"]

    @property
    def file_bytes(self) -> int:
        """Size of the file."""
        return self.native.info()["file_bytes"]

    @property
    def data_offset(self) -> int:
        """Where tensor data begins, in bytes from the start of the file."""
        return self.native.info()["data_offset"]

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native is None

    def close(self) -> None:
        """Close the file. Views and tensors that are still held keep it mapped until they are gone."""
        self._native = self._metadata = self._tensors = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<GGUFFile {self._path!r}{' (closed)' if self.closed else ''}>"

    @property
    def native(self) -> _gguf.File:
        """The native object, for the modules of this floor."""
        if self._native is None:
            raise ClosedError(f"the file {self._path} is closed")
        return self._native


def encode_path(path: str | os.PathLike[str]) -> bytes:
    """Return a path as the operating system's bytes.

    Raises
    ------
    ValueError
        The path holds a NUL character.
    """
    text = os.fsencode(path)
    if b"\0" in text:
        raise ValueError("a path cannot hold a NUL character")
    return text
