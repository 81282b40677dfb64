"""Routed experts of a GGUF file in either layout (docs/formats.md, expert-adjacent layout).

In the standard layout gate, up and down of a block are three tensors, each with the matrices of all experts one
after the other. In the adjacent layout one tensor of bytes holds a record per expert: its gate, up and down matrix.
The functions here give both the same face: the tensors of the standard layout, by name, and where their bytes lie.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import ModelFileError, listed_faults
from .gguf import GGUFFile, GGUFTensor, TypeInfo, aligned, stripped, type_info

PARTS = ("gate", "up", "down")
"""The matrices of an expert, in the order of a record."""
LAYOUTS = ("standard", "adjacent")
LAYOUT_KEY = "deepseek4.expert_layout"
TYPE_KEYS = tuple(f"{LAYOUT_KEY}.{part}_type" for part in PARTS)
"""Type ids of a part, one for each block of the file: layers ascending, then the MTP block."""
ALIGNMENT_KEY = f"{LAYOUT_KEY}.standard_alignment"
"""`general.alignment` of the standard form of the file; 0 when that has no such key."""
ORDER_KEY = f"{LAYOUT_KEY}.standard_order"
"""Places of gate, up and down of each block in the directory of the standard form."""
LAYOUT_KEYS = (LAYOUT_KEY, *TYPE_KEYS, ALIGNMENT_KEY, ORDER_KEY)

PART_ALIGNMENT = 64
RECORD_ALIGNMENT = 4096
"""A record begins at a multiple of this in the file, and is as long as a multiple of it: what direct reads want."""

_SUFFIX = "ffn_exps.weight"
_NUMBERS = ("embedding_length", "expert_feed_forward_length", "expert_count")
_BLOCK = re.compile(r"(blk|mtp)\.(\d{1,9})\.")
_EXPERTS = re.compile(r"((?:blk|mtp)\.\d{1,9}\.)ffn_(gate|up|down)_exps\.weight")


def expert_name(prefix: str, part: str) -> str:
    """Return the standard name of the experts of a block, `prefix` being "blk.3." or "mtp.0."."""
    return f"{prefix}ffn_{part}_exps.weight"


def record_name(prefix: str) -> str:
    """Return the name of the records of a block."""
    return prefix + _SUFFIX


def expert_part(name: str) -> tuple[str, str] | None:
    """Return (prefix, part) of a tensor of stacked experts by its standard name, or None for another tensor."""
    found = _EXPERTS.fullmatch(name)
    return (found[1], found[2]) if found else None


def block_order(prefixes: Iterable[str]) -> list[str]:
    """Return prefixes in the order of the arrays: layers ascending, then `mtp.*`."""

    def rank(prefix: str) -> tuple[bool, int]:
        found = _BLOCK.fullmatch(prefix)
        assert found is not None, prefix
        return found[1] == "mtp", int(found[2])

    return sorted(set(prefixes), key=rank)


@dataclass(frozen=True, slots=True)
class ExpertRecord:
    """How the matrices of one expert lie in its record.

    Attributes
    ----------
    offsets, sizes : tuple of int
        Place in the record and bytes of gate, up and down.
    n_bytes : int
        Bytes of the record.
    """

    offsets: tuple[int, int, int]
    sizes: tuple[int, int, int]
    n_bytes: int


def expert_record(sizes: Sequence[int]) -> ExpertRecord:
    """Lay out a record from the bytes of its gate, up and down matrix."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(aligned(end, PART_ALIGNMENT))
        end = offsets[-1] + size
    return ExpertRecord(
        (offsets[0], offsets[1], offsets[2]), (sizes[0], sizes[1], sizes[2]), aligned(end, RECORD_ALIGNMENT)
    )


@dataclass(frozen=True, slots=True)
class WeightView:
    """A tensor under its standard name, wherever its bytes lie.

    Attributes
    ----------
    name, type : str
        Name in the standard layout, and tensor type.
    ne : tuple of int
        Dimensions in the standard layout, the contiguous one first: (n_in, n_out, n_expert) for experts.
    holder : GGUFTensor
        The tensor of the file that holds the bytes.
    first, stride : int
        Where matrix 0 begins in the holder, and bytes from a matrix to the next.
    matrix_bytes, n_matrices : int
        Bytes of a matrix, and their number: experts, or 1.
    """

    name: str
    type: str
    ne: tuple[int, ...]
    holder: GGUFTensor
    first: int
    stride: int
    matrix_bytes: int
    n_matrices: int

    @property
    def n_bytes(self) -> int:
        """Bytes of the values, padding of records not counted."""
        return self.matrix_bytes * self.n_matrices

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.ne)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of `ne[0]` values."""
        return type_info(self.type).n_bytes(self.ne[0])

    @property
    def contiguous(self) -> bool:
        """Whether the matrices lie one after the other without gaps."""
        return self.stride == self.matrix_bytes or self.n_matrices == 1

    def matrix(self, index: int = 0) -> memoryview:
        """Return the stored bytes of a matrix (of one expert) as a read-only view into the file.

        Raises
        ------
        IndexError
            There is no such matrix.
        """
        return self.holder.data()[self._start(index) :][: self.matrix_bytes]

    def rows(self, index: int, first: int, n: int) -> memoryview:
        """Return the stored bytes of rows `first` to `first + n - 1` of a matrix.

        Raises
        ------
        IndexError
            There is no such matrix, or it does not have those rows.
        """
        row = self.row_bytes
        if first < 0 or n < 0 or (first + n) * row > self.matrix_bytes:
            raise IndexError(f"{self.name}: rows {first}..{first + n - 1} of {self.matrix_bytes // row}")
        return self.matrix(index)[first * row :][: n * row]

    def pieces(self) -> Iterator[memoryview]:
        """Yield the stored bytes in the order of the standard layout, in as few pieces as the file allows."""
        if self.contiguous:
            yield self.holder.data()[self.first :][: self.n_bytes]
            return
        for i in range(self.n_matrices):
            yield self.matrix(i)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield (offset in the file, bytes) of the pieces."""
        start = self.holder.offset + self.first
        if self.contiguous:
            yield start, self.n_bytes
            return
        for i in range(self.n_matrices):
            yield start + i * self.stride, self.matrix_bytes

    def _start(self, index: int) -> int:
        if not 0 <= index < self.n_matrices:
            raise IndexError(f"{self.name}: matrix {index} of {self.n_matrices}")
        return self.first + index * self.stride


def expert_layout(file: GGUFFile) -> str:
    """Return "standard" or "adjacent".

    Raises
    ------
    ModelFileError
        The file names a layout that ds4 does not know.
    """
    value = file.metadata.get(LAYOUT_KEY, LAYOUTS[0])
    if value not in LAYOUTS:
        raise ModelFileError(f"metadata {LAYOUT_KEY} is {value!r}; ds4 knows {' and '.join(LAYOUTS)}", path=file.path)
    return str(value)


def standard_alignment(file: GGUFFile) -> int | None:
    """Return `general.alignment` of the standard form of a file, or None when that has no such key.

    Raises
    ------
    ModelFileError
        As `standard_tensors`.
    """
    if expert_layout(file) == "standard":
        return file.alignment if "general.alignment" in file.metadata else None
    value = _number(file, ALIGNMENT_KEY)
    if value and (value & (value - 1) or not 8 <= value <= 1 << 20):
        raise ModelFileError(f"metadata {ALIGNMENT_KEY} is {value}, no alignment", path=file.path)
    return value or None


def standard_tensors(file: GGUFFile) -> dict[str, WeightView]:
    """Return the tensors of a file as the standard layout has them, whichever layout the file has.

    A program that reads weights through this function need not know the layouts: `pieces` gives the bytes of a
    tensor, `matrix` and `rows` those of one expert.

    Parameters
    ----------
    file : GGUFFile
        Any GGUF file; one without routed experts comes back as it is.

    Returns
    -------
    dict of WeightView
        By standard name, in the order of the standard form.

    Raises
    ------
    ModelFileError
        The file says that its experts lie adjacent and its records do not fit that; every difference is listed.
    """
    if expert_layout(file) == "standard":
        return {t.name: _plain(t) for t in file.tensors.values()}
    return _Adjacent(file).tensors()


class _Adjacent:
    """Reads the records of one file, collecting what is wrong with them."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.faults: list[str] = []
        named = [t.name.removesuffix(_SUFFIX) for t in file.tensors.values() if t.name.endswith(_SUFFIX)]
        self.prefixes = block_order(p for p in named if _BLOCK.fullmatch(p))

    def tensors(self) -> dict[str, WeightView]:
        file = self.file
        if file.alignment % RECORD_ALIGNMENT:
            self.faults.append(f"general.alignment is {file.alignment}; records need {RECORD_ALIGNMENT}")
        if not self.prefixes:
            self.faults.append(f"no tensor is named blk.*.{_SUFFIX}")
        self.faults += [f"{t} stands beside records of its block" for t in file.tensors if expert_part(t)]
        views = self._views()
        order = self._order() if not self.faults else []
        if self.faults:
            raise ModelFileError(f"damaged expert records:{listed_faults(self.faults)}", path=file.path)
        placed = dict(zip(order, (v for block in views for v in block), strict=True))
        records = {record_name(p) for p in self.prefixes}
        others = (_plain(t) for t in file.tensors.values() if t.name not in records)
        total = len(file.tensors) + 2 * len(self.prefixes)
        out = (placed[i] if i in placed else next(others) for i in range(total))
        return {view.name: view for view in out}

    def _views(self) -> list[list[WeightView]]:
        file, views = self.file, []
        try:
            n_embd, n_ff, n_expert = expert_numbers(file)
            types = [self._types(key) for key in TYPE_KEYS]
        except ModelFileError as error:
            self.faults.append(str(error.args[0]))
            return []
        for prefix, *kinds in zip(self.prefixes, *types, strict=True):
            try:
                infos = [type_info(kind) for kind in kinds]
                views.append(self._block(prefix, infos, n_embd, n_ff, n_expert))
            except ValueError as error:
                self.faults.append(f"{record_name(prefix)}: {error}")
        return views

    def _block(self, prefix: str, infos: list[TypeInfo], n_embd: int, n_ff: int, n_expert: int) -> list[WeightView]:
        holder = self.file.tensors[record_name(prefix)]
        dims = {"gate": (n_embd, n_ff), "up": (n_embd, n_ff), "down": (n_ff, n_embd)}
        sizes = [info.n_bytes(dims[part][0]) * dims[part][1] for part, info in zip(PARTS, infos, strict=True)]
        record = expert_record(sizes)
        wanted = (record.n_bytes, n_expert)
        if holder.type != "I8" or stripped(holder.ne) != stripped(wanted):
            raise ValueError(f"{holder.type} {list(holder.ne)}, wanted I8 {list(wanted)}")
        return [
            WeightView(
                expert_name(prefix, part),
                info.name,
                (*dims[part], n_expert),
                holder,
                offset,
                record.n_bytes,
                n,
                n_expert,
            )
            for part, info, offset, n in zip(PARTS, infos, record.offsets, record.sizes, strict=True)
        ]

    def _types(self, key: str) -> list[int]:
        return self._array(key, len(self.prefixes))

    def _array(self, key: str, n: int) -> list[int]:
        if key not in self.file.metadata:
            raise ModelFileError(f"metadata {key} is missing")
        value: Any = self.file.metadata[key] if self.file.metadata.count(key) == n else None
        if not isinstance(value, list) or not all(type(v) is int for v in value):
            raise ModelFileError(f"metadata {key} is not an array of {n} numbers")
        return value

    def _order(self) -> list[int]:
        try:
            order = self._array(ORDER_KEY, len(PARTS) * len(self.prefixes))
        except ModelFileError as error:
            self.faults.append(str(error.args[0]))
            return []
        total = len(self.file.tensors) + 2 * len(self.prefixes)
        if len(set(order)) != len(order) or not all(0 <= place < total for place in order):
            self.faults.append(f"metadata {ORDER_KEY} does not name {len(order)} places among {total}")
        return order


def _plain(tensor: GGUFTensor) -> WeightView:
    n = math.prod(tensor.ne[2:])
    size = tensor.n_bytes // n
    return WeightView(tensor.name, tensor.type, tensor.ne, tensor, 0, size, size, n)


def expert_numbers(file: GGUFFile) -> tuple[int, int, int]:
    """Return width of the model, width of an expert and number of experts, as the metadata says.

    Raises
    ------
    ModelFileError
        A number is missing.
    """
    embd, ff, n = (_number(file, f"deepseek4.{key}") for key in _NUMBERS)
    return embd, ff, n


def _number(file: GGUFFile, key: str) -> int:
    value = file.metadata.get(key)
    if isinstance(value, float) and value.is_integer():  # writers differ
        value = int(value)
    if type(value) is not int or value < 0:
        raise ModelFileError(f"metadata {key} is {'missing' if value is None else 'no count'}", path=file.path)
    return value
