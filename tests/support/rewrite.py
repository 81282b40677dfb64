"""Files in another expert layout, also wrong ones: written from a plan without asking what the engine says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ds4.gguf import GGUFFile
from ds4.gguf_writer import KV, GGUFWriter, TensorInfo
from ds4.quantize.layout import plan_file

Edit = Callable[[list[KV]], list[KV]]
Rename = Callable[[TensorInfo], TensorInfo]


def rewrite(
    source: Path,
    out: Path,
    layout: str = "adjacent",
    *,
    edit: Edit = lambda kvs: kvs,
    rename: Rename = lambda info: info,
) -> Path:
    """Write `source` in a layout, its metadata changed by `edit` and its directory by `rename`."""
    with GGUFFile(source) as file, open(source, "rb") as f:
        kvs, tensors = plan_file(file, layout)
        with GGUFWriter(out, edit(kvs), [rename(t.info) for t in tensors], force=True) as writer:
            writer.write(t.pieces([(f.fileno(), "source")]) for t in tensors)
            writer.publish()
    return out


def changed(key: str, value: Any, kind: str | None = None) -> Edit:
    """Replace the value of a key, and its type if `kind` is given."""
    return lambda kvs: [KV(kv.key, kind or kv.type, value) if kv.key == key else kv for kv in kvs]


def without(key: str) -> Edit:
    """Leave a key out."""
    return lambda kvs: [kv for kv in kvs if kv.key != key]


def renamed(old: str, **fields: Any) -> Rename:
    """Replace fields of one tensor's record."""
    return lambda info: dataclasses.replace(info, **fields) if info.name == old else info
