"""Planning a file in one of the two expert layouts: metadata, directory, and where every byte comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ds4.file_range import FileRange
from ds4.gguf import GGUFFile, type_info
from ds4.gguf_experts import (
    ALIGNMENT_KEY,
    LAYOUT_KEY,
    LAYOUT_KEYS,
    LAYOUTS,
    ORDER_KEY,
    PARTS,
    RECORD_ALIGNMENT,
    TYPE_KEYS,
    ExpertRecord,
    WeightView,
    block_order,
    expert_layout,
    expert_name,
    expert_numbers,
    expert_part,
    expert_record,
    record_name,
    standard_alignment,
    standard_tensors,
)
from ds4.gguf_writer import KV, TensorInfo, stored_records

_PIECE = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor in a source file: `source` is 0 for the base and 1 for the donor."""

    view: WeightView
    source: int


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """A tensor to be written and what it is made of: one part, or the three of a block with its record."""

    info: TensorInfo
    parts: tuple[Part, ...]
    record: ExpertRecord | None = None

    def pieces(self, sources: Sequence[tuple[int, str]]) -> Iterator[FileRange | bytes]:
        """Yield the payload, at most 64 MiB at a time.

        Parameters
        ----------
        sources : sequence of (int, str)
            Descriptor and name of the source files.
        """
        for source, offset, n_bytes in self._ranges():
            if source is None:
                yield bytes(n_bytes)
                continue
            fd, name = sources[source]
            for done in range(0, n_bytes, _PIECE):
                yield FileRange(fd, offset + done, min(_PIECE, n_bytes - done), name)

    def _ranges(self) -> Iterator[tuple[int | None, int, int]]:
        """(source, offset, bytes) in order; source None stands for zeros."""
        first = self.parts[0]
        if self.record is None:
            for offset, n_bytes in first.view.ranges():
                yield first.source, offset, n_bytes
            return
        holder = first.view.holder
        if holder.name == self.info.name and all(p.source == first.source for p in self.parts):
            yield first.source, holder.offset, holder.n_bytes  # these very records
            return
        for expert in range(self.info.ne[1]):
            end = 0
            for part, start in zip(self.parts, self.record.offsets, strict=True):
                view = part.view
                if start > end:
                    yield None, 0, start - end
                yield part.source, view.holder.offset + view.first + expert * view.stride, view.matrix_bytes
                end = start + view.matrix_bytes
            if self.record.n_bytes > end:
                yield None, 0, self.record.n_bytes - end


def plan_file(
    base: GGUFFile, layout: str, taken: Mapping[str, WeightView] | None = None, extra: Sequence[KV] = ()
) -> tuple[list[KV], list[OutputTensor]]:
    """Plan a file with the content of `base` in a layout.

    Metadata and directory are those of the base, byte for byte, but for what the layout itself changes.

    Parameters
    ----------
    base : GGUFFile
        Either layout.
    layout : str
        "standard" or "adjacent".
    taken : mapping, optional
        Expert tensors that come from another file, by standard name.
    extra : sequence of KV
        Records to add; one with the key of an existing record replaces it in place.

    Returns
    -------
    (list of KV, list of OutputTensor)

    Raises
    ------
    ModelFileError
        The records of the base are damaged, or its metadata do not say how large experts are.
    ValueError
        The layout is unknown, or it is "adjacent" and the base has no routed experts or not those of its metadata.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"unknown layout {layout!r}; known: {', '.join(LAYOUTS)}")
    views = standard_tensors(base)
    parts = {n: Part(taken[n], 1) if taken and n in taken else Part(v, 0) for n, v in views.items()}
    kvs: list[KV] = list(stored_records(base))
    for kv in extra:
        _set(kvs, kv)
    if layout == "standard":
        if expert_layout(base) == "adjacent":
            kvs = [kv for kv in kvs if kv.key not in LAYOUT_KEYS]
            _set_alignment(kvs, standard_alignment(base))
        return kvs, [OutputTensor(_info(part), (part,)) for part in parts.values()]
    return _adjacent(base, kvs, parts)


def _adjacent(base: GGUFFile, kvs: list[KV], parts: dict[str, Part]) -> tuple[list[KV], list[OutputTensor]]:
    found = {name: block for name in parts if (block := expert_part(name))}
    prefixes = block_order(prefix for prefix, _ in found.values())
    missing = [n for p in prefixes for n in (expert_name(p, part) for part in PARTS) if n not in parts]
    if missing or not prefixes:
        what = ", ".join(missing) if missing else "routed experts"
        raise ValueError(f"{base.path}: experts cannot lie adjacent without {what}")
    n_embd, n_ff, n_expert = expert_numbers(base)
    for name, (_, which) in found.items():
        wanted = (n_ff, n_embd, n_expert) if which == "down" else (n_embd, n_ff, n_expert)
        if parts[name].view.ne != wanted:  # records do not carry dimensions: the metadata must have them
            raise ValueError(f"{base.path}: {name} is {list(parts[name].view.ne)}; by the metadata {list(wanted)}")
    places = {name: i for i, name in enumerate(parts)}
    blocks = {p: [parts[expert_name(p, part)] for part in PARTS] for p in prefixes}
    alignment = max(RECORD_ALIGNMENT, base.alignment)
    values: dict[str, Any] = {
        key: [type_info(blocks[p][i].view.type).id for p in prefixes] for i, key in enumerate(TYPE_KEYS)
    }
    values[ORDER_KEY] = [places[expert_name(p, part)] for p in prefixes for part in PARTS]
    standard = standard_alignment(base)
    if base.metadata.get("general.alignment") != alignment:
        _set_alignment(kvs, alignment)
    _set(kvs, KV(LAYOUT_KEY, "string", "adjacent"))
    for key in TYPE_KEYS:
        _set(kvs, KV(key, "[u32]", values[key]))
    _set(kvs, KV(ALIGNMENT_KEY, "u32", standard or 0))
    _set(kvs, KV(ORDER_KEY, "[u32]", values[ORDER_KEY]))

    records = {p: _record(p, blocks[p]) for p in prefixes}
    if expert_layout(base) == "adjacent":  # records stay where they are
        order = [t.removesuffix("ffn_exps.weight") for t in base.tensors]
        return kvs, [records[p] if p in records else _plain(parts[p]) for p in order]
    out = []
    for name, part in parts.items():
        if name not in found:
            out.append(_plain(part))
        elif places[name] == min(places[expert_name(found[name][0], p)] for p in PARTS):
            out.append(records[found[name][0]])
    return kvs, out


def _record(prefix: str, parts: Sequence[Part]) -> OutputTensor:
    record = expert_record([p.view.matrix_bytes for p in parts])
    info = TensorInfo(record_name(prefix), (record.n_bytes, parts[0].view.n_matrices), "I8")
    return OutputTensor(info, tuple(parts), record)


def _plain(part: Part) -> OutputTensor:
    return OutputTensor(_info(part), (part,))


def _info(part: Part) -> TensorInfo:
    return TensorInfo(part.view.name, part.view.ne, part.view.type)


def _set(kvs: list[KV], kv: KV) -> None:
    """Add a record, or put it in the place of one with its key; one that says the same already stays."""
    for i, old in enumerate(kvs):
        if old.key == kv.key:
            if (old.type, old.value) != (kv.type, kv.value):
                kvs[i] = kv
            return
    kvs.append(kv)


def _set_alignment(kvs: list[KV], alignment: int | None) -> None:
    if alignment is None:
        kvs[:] = [kv for kv in kvs if kv.key != "general.alignment"]
    else:
        _set(kvs, KV("general.alignment", "u32", alignment))
