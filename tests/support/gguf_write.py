"""A small GGUF v3 writer for tests, able to write wrong files on purpose.

Plain use::

    write_gguf(path, {"general.architecture": string("deepseek4"), "n": u32(3)}, [tensor_f32("a", array)])

Every part of the file can be overridden: counts and magic (keyword arguments of `build_gguf`), single records
(`Raw` values, `Tensor.record`), offsets, dimensions and type ids (fields of `Tensor`), padding and length.
The order of metadata and tensors is kept; metadata may be a list of pairs so that keys can repeat.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DEFAULT_ALIGNMENT = 32


class ValueType(IntEnum):
    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


class GGMLType(IntEnum):
    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    BF16 = 30
    MXFP4 = 39


BLOCKS: dict[GGMLType, tuple[int, int]] = {
    GGMLType.F32: (1, 4),
    GGMLType.F16: (1, 2),
    GGMLType.Q4_0: (32, 18),
    GGMLType.Q4_1: (32, 20),
    GGMLType.Q5_0: (32, 22),
    GGMLType.Q5_1: (32, 24),
    GGMLType.Q8_0: (32, 34),
    GGMLType.Q2_K: (256, 84),
    GGMLType.Q3_K: (256, 110),
    GGMLType.Q4_K: (256, 144),
    GGMLType.Q5_K: (256, 176),
    GGMLType.Q6_K: (256, 210),
    GGMLType.Q8_K: (256, 292),
    GGMLType.IQ2_XXS: (256, 66),
    GGMLType.I8: (1, 1),
    GGMLType.I16: (1, 2),
    GGMLType.I32: (1, 4),
    GGMLType.I64: (1, 8),
    GGMLType.F64: (1, 8),
    GGMLType.BF16: (1, 2),
    GGMLType.MXFP4: (32, 17),
}
"""Type -> (elements, bytes) of a block."""

_STRUCT = {
    ValueType.U8: "<B",
    ValueType.I8: "<b",
    ValueType.U16: "<H",
    ValueType.I16: "<h",
    ValueType.U32: "<I",
    ValueType.I32: "<i",
    ValueType.F32: "<f",
    ValueType.BOOL: "<B",
    ValueType.U64: "<Q",
    ValueType.I64: "<q",
    ValueType.F64: "<d",
}


# -------------------------------------------------------------------------------------------------------- metadata


@dataclass(frozen=True)
class Value:
    """A metadata value with its explicit type; arrays also have the type of their elements."""

    type: ValueType
    value: Any
    element: ValueType | None = None


@dataclass(frozen=True)
class Raw:
    """A metadata value written as given: type id and payload bytes, neither checked."""

    type_id: int
    payload: bytes


Metadata = Mapping[str, Value | Raw] | Sequence[tuple[str | bytes, Value | Raw]]


def u8(v: int) -> Value:
    return Value(ValueType.U8, v)


def u16(v: int) -> Value:
    return Value(ValueType.U16, v)


def u32(v: int) -> Value:
    return Value(ValueType.U32, v)


def i32(v: int) -> Value:
    return Value(ValueType.I32, v)


def u64(v: int) -> Value:
    return Value(ValueType.U64, v)


def i64(v: int) -> Value:
    return Value(ValueType.I64, v)


def f32(v: float) -> Value:
    return Value(ValueType.F32, v)


def f64(v: float) -> Value:
    return Value(ValueType.F64, v)


def boolean(v: bool) -> Value:
    return Value(ValueType.BOOL, v)


def string(v: str | bytes) -> Value:
    return Value(ValueType.STRING, v)


def array(element: ValueType, values: Iterable[Any]) -> Value:
    """An array; elements of type ARRAY are themselves `array(...)` values."""
    return Value(ValueType.ARRAY, list(values), element)


def pack_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def pack_value(value: Value) -> bytes:
    """The payload of a value, without its type id."""
    if value.type is ValueType.STRING:
        return pack_string(value.value)
    if value.type is not ValueType.ARRAY:
        return struct.pack(_STRUCT[value.type], value.value)
    if value.element is None:
        raise TypeError("an array needs the type of its elements")
    head = struct.pack("<IQ", value.element, len(value.value))
    if value.element is ValueType.ARRAY:
        return head + b"".join(pack_value(v) for v in value.value)
    if value.element is ValueType.STRING:
        return head + b"".join(pack_string(v) for v in value.value)
    code = _STRUCT[value.element][1]
    return head + struct.pack(f"<{len(value.value)}{code}", *value.value)


def pack_kv(key: str | bytes, value: Value | Raw) -> bytes:
    """One whole metadata record."""
    if isinstance(value, Raw):
        return pack_string(key) + struct.pack("<I", value.type_id) + value.payload
    return pack_string(key) + struct.pack("<I", value.type) + pack_value(value)


# --------------------------------------------------------------------------------------------------------- tensors


@dataclass(frozen=True)
class Tensor:
    """A directory entry and its payload.

    ``ne`` starts with the row length, the reverse of a numpy shape. The optional fields replace what a correct
    writer would put into the directory.
    """

    name: str | bytes
    type: int
    ne: tuple[int, ...]
    data: bytes
    offset: int | None = None
    n_dims: int | None = None
    record: bytes | None = None
    """The whole directory record."""

    def pack(self, offset: int) -> bytes:
        if self.record is not None:
            return self.record
        n_dims = len(self.ne) if self.n_dims is None else self.n_dims
        dims = struct.pack(f"<{len(self.ne)}Q", *self.ne)
        where = offset if self.offset is None else self.offset
        return pack_string(self.name) + struct.pack("<I", n_dims) + dims + struct.pack("<IQ", self.type, where)


def payload_bytes(type_: GGMLType, ne: Sequence[int]) -> int:
    elements, size = BLOCKS[type_]
    if ne[0] % elements:
        raise ValueError(f"rows of {ne[0]} are not whole blocks of {type_.name}")
    total = ne[0] // elements * size
    for n in ne[1:]:
        total *= n
    return total


def make_tensor(name: str, type_: GGMLType, shape: Sequence[int], data: bytes | NDArray[Any]) -> Tensor:
    """A correct tensor from a numpy *shape* (outermost dimension first) and encoded data."""
    ne = tuple(reversed(tuple(shape)))
    raw = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
    if len(raw) != payload_bytes(type_, ne):
        raise ValueError(f"{name}: {len(raw)} bytes for {type_.name} {ne}, expected {payload_bytes(type_, ne)}")
    return Tensor(name, type_, ne, raw)


def tensor_f32(name: str, values: NDArray[Any]) -> Tensor:
    return make_tensor(name, GGMLType.F32, values.shape, np.asarray(values, "<f4"))


def tensor_i32(name: str, values: NDArray[Any]) -> Tensor:
    return make_tensor(name, GGMLType.I32, values.shape, np.asarray(values, "<i4"))


# ------------------------------------------------------------------------------------------------------------ file


def aligned(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment


def _pairs(metadata: Metadata) -> list[tuple[str | bytes, Value | Raw]]:
    return list(metadata.items()) if isinstance(metadata, Mapping) else list(metadata)


def _alignment_of(metadata: Metadata) -> int:
    for key, value in _pairs(metadata):
        if key == "general.alignment" and isinstance(value, Value) and value.type is ValueType.U32:
            return int(value.value) or DEFAULT_ALIGNMENT
    return DEFAULT_ALIGNMENT


def build_header(
    metadata: Metadata,
    tensors: Sequence[Tensor],
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_tensors: int | None = None,
    n_kv: int | None = None,
    alignment: int | None = None,
    pad_header: bool = True,
) -> bytes:
    """Everything before the payloads. ``alignment`` is the one *used*; the key is written only if in the metadata."""
    pairs = _pairs(metadata)
    step = _alignment_of(metadata) if alignment is None else alignment
    out = [
        magic,
        struct.pack(
            "<IQQ",
            version,
            len(tensors) if n_tensors is None else n_tensors,
            len(pairs) if n_kv is None else n_kv,
        ),
    ]
    out += [pack_kv(k, v) for k, v in pairs]
    offset = 0
    for tensor in tensors:
        out.append(tensor.pack(offset))
        offset += aligned(len(tensor.data), step)
    head = b"".join(out)
    return head.ljust(aligned(len(head), step), b"\0") if pad_header else head


def build_gguf(metadata: Metadata, tensors: Sequence[Tensor], **overrides: Any) -> bytes:
    """A whole file in memory; keyword arguments as for `build_header`."""
    step = overrides.get("alignment") or _alignment_of(metadata)
    parts = [build_header(metadata, tensors, **overrides)]
    parts += [t.data.ljust(aligned(len(t.data), step), b"\0") for t in tensors]
    return b"".join(parts)


def write_gguf(path: Path, metadata: Metadata, tensors: Sequence[Tensor], **overrides: Any) -> Path:
    """The same, written to a file."""
    step = overrides.get("alignment") or _alignment_of(metadata)
    with open(path, "wb") as f:
        f.write(build_header(metadata, tensors, **overrides))
        for t in tensors:
            f.write(t.data)
            f.write(bytes(aligned(len(t.data), step) - len(t.data)))
    return path


def write_shards(
    folder: Path,
    prefix: str,
    metadata: Mapping[str, Value | Raw],
    tensors: Sequence[Tensor],
    n_shards: int,
    *,
    changes: Mapping[int, Mapping[str, Value | Raw]] | None = None,
) -> list[Path]:
    """Split the tensors evenly over ``n_shards`` files named as llama.cpp does.

    ``changes`` maps a shard (from 0) to metadata that replaces or extends its own, to write inconsistent sets.
    """
    paths, per = [], -(-len(tensors) // n_shards)
    for i in range(n_shards):
        keys: dict[str, Value | Raw] = dict(metadata) if i == 0 else {}
        keys["split.no"] = u16(i)
        keys["split.count"] = u16(n_shards)
        keys["split.tensors.count"] = i32(len(tensors))
        keys.update((changes or {}).get(i, {}))
        path = folder / f"{prefix}-{i + 1:05d}-of-{n_shards:05d}.gguf"
        paths.append(write_gguf(path, keys, tensors[i * per : (i + 1) * per]))
    return paths


def with_fields(tensors: Sequence[Tensor], name: str, **fields: Any) -> list[Tensor]:
    """The same tensors with some fields of one of them replaced."""
    if not any(t.name == name for t in tensors):
        raise KeyError(name)
    return [replace(t, **fields) if t.name == name else t for t in tensors]
