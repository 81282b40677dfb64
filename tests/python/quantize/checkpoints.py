"""Synthetic checkpoints in the official form, from the seeded weights of the tiny models."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from oracle import tiny_shapes
from support.tiny_tokenizer import tokenizer_document

Arrays = Mapping[str, NDArray[Any]]


def _record(values: NDArray[Any]) -> tuple[str, bytes]:
    """Element type and bytes: matrices as BF16 (the weights are exact in it), vectors as F32, tables as I64."""
    if values.dtype == np.int64:
        return "I64", values.astype("<i8").tobytes()
    if values.ndim < 2:
        return "F32", values.astype("<f4").tobytes()
    return "BF16", (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()


def write_safetensors(path: Path, arrays: Arrays, records: Mapping[str, tuple[str, bytes]] | None = None) -> None:
    """Write a safetensors file; `records` replaces element types and bytes of some tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    payload = []
    position = 0
    for name, values in arrays.items():
        dtype, raw = (records or {}).get(name) or _record(values)
        shape = list(values.shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + len(raw)]}
        payload.append(raw)
        position += len(raw)
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(payload))


def write_checkpoint(
    directory: Path,
    variant: str,
    weights: Arrays,
    *,
    shards: int = 1,
    config: Mapping[str, Any] | None = None,
    records: Mapping[str, tuple[str, bytes]] | None = None,
) -> Path:
    """Write a checkpoint directory; keys of `config` replace those of the variant, None removes them."""
    directory.mkdir(parents=True, exist_ok=True)
    merged = {**tiny_shapes.VARIANTS[variant], **(config or {})}
    (directory / "config.json").write_text(json.dumps({k: v for k, v in merged.items() if v is not None}))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer_document()), encoding="utf-8")
    names = sorted(weights)
    if shards == 1:
        write_safetensors(directory / "model.safetensors", weights, records)
        return directory
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        write_safetensors(directory / file, {n: weights[n] for n in names[i::shards]}, records)
        weight_map |= dict.fromkeys(names[i::shards], file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory
