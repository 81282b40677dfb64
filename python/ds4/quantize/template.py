"""A template: a model file that lends a new one its metadata, its order of tensors, their shapes and their types.

The weights come from another source of the same model. What the two do not agree on is found before anything is
written, all of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ds4.errors import DS4Error, listed_faults
from ds4.gguf import GGUFFile, stripped
from ds4.gguf_experts import standard_tensors
from ds4.gguf_writer import KV
from ds4.tokenizer import Tokenizer

from .hfconfig import ARCHITECTURE
from .recipes import is_mtp
from .sources import Source, SourceTensor, check_model_file, file_records
from .values import same_value, shown_value

_EMBEDDING = "token_embd.weight"
_TOKENIZER = "tokenizer.ggml."
_ONE_TOKENIZER = tuple(_TOKENIZER + key for key in ("model", "tokens", "merges", "bos_token_id", "eos_token_id"))
"""Keys whose values make one tokenizer another; the rest (such as the kinds of tokens) is the template's to say."""


class TemplateError(DS4Error, ValueError):
    """A template and a source that do not go together; the text lists every difference."""


@dataclass(frozen=True, slots=True)
class TemplateTensor:
    """What a template says of a tensor: its dimensions, the contiguous one first, and its type."""

    ne: tuple[int, ...]
    type: str


@dataclass(frozen=True, slots=True)
class Template:
    """The directory of a model file, in the standard layout whatever layout it has.

    Attributes
    ----------
    path : Path
        The file.
    records : tuple of KV
        Its metadata, to be written byte for byte; without the provenance of an imatrix, and without what only the
        layout of adjacent experts needs.
    tensors : mapping of str to TemplateTensor
        Its tensors by name, in order.
    """

    path: Path
    records: tuple[KV, ...]
    tensors: Mapping[str, TemplateTensor]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read the directory of a file; its payloads are not looked at.

        Raises
        ------
        OSError
            It cannot be read.
        ModelFileError
            It is damaged.
        UnsupportedModelError
            It is of another architecture, or one of several parts.
        """
        with GGUFFile(path) as file:
            check_model_file(file)
            tensors = {name: TemplateTensor(v.ne, v.type) for name, v in standard_tensors(file).items()}
            return cls(Path(path), tuple(file_records(file)), tensors)

    @property
    def mtp_names(self) -> frozenset[str]:
        """The tensors of its MTP block, in ds4's form (`mtp.0.*`) or llama.cpp's (`blk.N.*` with `nextn`)."""
        nextn = tuple({name.split("nextn.")[0] for name in self.tensors if ".nextn." in name})
        return frozenset(n for n in self.tensors if n.startswith("mtp.") or (nextn and n.startswith(nextn)))

    @property
    def file_type(self) -> int | None:
        """Its `general.file_type`, if it has one."""
        return next((kv.value for kv in self.records if kv.key == "general.file_type"), None)


def match(template: Template, source: Source, *, mtp_apart: bool = False) -> tuple[list[SourceTensor], list[str]]:
    """Compare a template with a source.

    A block that the template does not have is left out: the MTP block of the source, or, of a template that is the
    file of an MTP block, the model.

    Parameters
    ----------
    template : Template
        What the new file is to look like.
    source : Source
        Where the weights come from.
    mtp_apart : bool
        The MTP block goes to a file of its own, so it is kept even if the template has none.

    Returns
    -------
    (list of SourceTensor, list of str)
        The tensors of the source in the template's order, and notes for the user.

    Raises
    ------
    TemplateError
        They are not of the same model; every difference is listed.
    """
    theirs = {kv.key: kv.value for kv in template.records}
    ours = {kv.key: kv.value for kv in source.records()}
    faults = [
        fault
        for key, value in ours.items()
        if key.startswith(f"{ARCHITECTURE}.") and key in theirs
        if (fault := _value_fault(key, theirs[key], value, source.n_layer))
    ]
    if _EMBEDDING in template.tensors:
        faults += _tokenizer_faults(theirs, ours)
    by_name = {t.name: t for t in source.tensors}
    mtp = {name for name in by_name if is_mtp(name, source.n_layer)}
    left_out, notes = set[str](), []
    mtp_names = template.mtp_names
    if mtp and not mtp_names and not mtp_apart:
        left_out = mtp
        notes.append(f"{template.path} has no MTP block; that of the source is left out (--mtp-out writes it)")
    elif mtp_names and len(mtp_names) == len(template.tensors) and len(mtp) < len(by_name):
        left_out = set(by_name) - mtp
        notes.append(f"{template.path} is the file of an MTP block; only that is written")
    extra = set(template.tensors) - set(by_name)
    if mtp_names and mtp_names <= extra:
        extra -= mtp_names
        faults.append(_mtp_fault(mtp_names, bool(mtp)))
        left_out |= mtp
    for name, tensor in template.tensors.items():
        if name in extra:
            faults.append(f"tensor {name} is in the template and not in the source")
        elif name in by_name and stripped(by_name[name].ne) != stripped(tensor.ne):
            faults.append(
                f"tensor {name} is {list(tensor.ne)} in the template and {list(by_name[name].ne)} in the source"
            )
    missing = [n for n in by_name if n not in template.tensors and n not in left_out]
    apart = [n for n in missing if mtp_apart and not mtp_names and n in mtp]
    faults += [f"tensor {n} is in the source and not in the template" for n in missing if n not in apart]
    if faults:
        raise TemplateError(
            f"the template {template.path} and {source.path} do not go together:{listed_faults(faults)}"
        )
    return [by_name[n] for n in (*template.tensors, *apart)], notes


def _mtp_fault(names: frozenset[str], in_source: bool) -> str:
    first = min(names)
    if not in_source:
        return f"the template has an MTP block ({first}, ...) and the source has none"
    return (
        f"the MTP block of the template is in another form than the source's ({first}, ...); take a template without "
        "it, and --mtp-out for a file of its own"
    )


def _tokenizer_faults(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    tokens = _TOKENIZER + "tokens"
    if tokens not in ours:
        return []
    if tokens not in theirs:
        return ["the template has no tokenizer"]
    faults = [
        f"{fault}: the tokenizer of another model"
        for key in _ONE_TOKENIZER
        if key in theirs and key in ours and (fault := _value_fault(key, theirs[key], ours[key]))
    ]
    if not faults and any(theirs.get(k) != v for k, v in ours.items() if k.startswith(_TOKENIZER)):
        try:
            Tokenizer.from_gguf_metadata(theirs)
        except (ValueError, TypeError) as error:
            faults.append(f"the tokenizer of the template cannot be used: {error}")
    return faults


def _value_fault(key: str, theirs: Any, ours: Any, n_layer: int | None = None) -> str | None:
    """Compare two values of a key; of a list for layers (`n_layer`) the layers, and one number stands for all."""
    if not isinstance(theirs, list | tuple) and not isinstance(ours, list | tuple):
        if same_value(theirs, ours):
            return None
        return f"metadata {key} is {shown_value(theirs)} in the template and {shown_value(ours)} in the source"
    if n_layer is not None:
        theirs, ours = (list(v) if isinstance(v, list | tuple) else [v] * n_layer for v in (theirs, ours))
        if len(theirs) >= n_layer <= len(ours):
            theirs, ours = theirs[:n_layer], ours[:n_layer]  # what follows is about MTP layers
    if not isinstance(theirs, list | tuple) or not isinstance(ours, list | tuple):
        return f"metadata {key} is {shown_value(theirs)} in the template and {shown_value(ours)} in the source"
    if len(theirs) != len(ours):
        return f"metadata {key} has {len(theirs)} entries in the template and {len(ours)} in the source"
    for i, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        if not same_value(a, b):
            return f"metadata {key}[{i}] is {shown_value(a)} in the template and {shown_value(b)} in the source"
    return None
