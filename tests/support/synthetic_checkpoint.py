"""Checkpoints in the released form with random weights, of any registered shape and of any size.

Data comes from a pool of a few million random values of each kind, cut at random places, so that writing is as fast
as the disk; values are distributed as weights are. With `sparse`, files have their full size and no data: enough for
planning, on a disk of any size.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ds4.quantize.hfconfig import read_shape
from ds4.quantize.hftensors import expected_mtp_tensors, expected_tensors
from oracle import tiny_shapes

from .released import QUANTIZATION_CONFIG, encode_fp4, encode_fp8, stored_as

_RELEASED: dict[str, Any] = {"quantization_config": QUANTIZATION_CONFIG, "expert_dtype": "fp4"}
_FLASH: dict[str, Any] = {
    **tiny_shapes.VARIANTS["flash"],
    **_RELEASED,
    "num_hidden_layers": 43,
    "vocab_size": 129280,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "n_routed_experts": 256,
    "moe_intermediate_size": 2048,
    "index_n_heads": 64,
    "index_topk": 512,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
}

CONFIGS: dict[str, dict[str, Any]] = {
    "test-flash": {**tiny_shapes.VARIANTS["flash"], **_RELEASED},
    "test-pro": {**tiny_shapes.VARIANTS["pro"], **_RELEASED},
    "flash-4-layers": {**_FLASH, "num_hidden_layers": 4, "compress_ratios": [0, 0, 4, 128, 0]},
    "flash": _FLASH,
    "pro": {
        **_FLASH,
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "q_lora_rank": 1536,
        "o_groups": 16,
        "n_routed_experts": 384,
        "moe_intermediate_size": 3072,
        "index_topk": 1024,
        "routed_scaling_factor": 2.5,
        "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0],
    },
}
"""config.json of a released checkpoint, by the name of the shape."""

_POOL_ROWS = 2048
_MAX_SHARD_BYTES = 4 << 30

Plan = list[tuple[str, str, tuple[int, ...]]]
"""Name, element type and stored shape of every tensor."""

_ITEM = {"F32": 4, "BF16": 2, "I64": 8, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}


def plan_tensors(config: Mapping[str, Any]) -> Plan:
    """List the tensors of a released checkpoint, scales included."""
    shape = read_shape(config)
    out: Plan = []
    for tensor in [*expected_tensors(shape), *(expected_mtp_tensors(shape) if shape.n_mtp else [])]:
        for name in tensor.sources:
            rows, width = tensor.shape[0], tensor.shape[-1]
            kind = stored_as(name)
            scale = name.removesuffix(".weight") + ".scale"
            if tensor.role == "table":
                out.append((name, "I64", tensor.shape))
            elif tensor.role in ("float", "mixing"):
                out.append((name, "F32", tensor.shape))
            elif kind == "FP8":
                out.append((name, "F8_E4M3", tensor.shape))
                out.append((scale, "F8_E8M0", (-(-rows // 128), -(-width // 128))))
            elif kind == "FP4":
                out.append((name, "I8", (rows, width // 2)))
                out.append((scale, "F8_E8M0", (rows, width // 32)))
            else:
                out.append((name, "BF16", tensor.shape))
    return out


class _Pool:
    """Random bytes of each kind, from which tensors are cut."""

    def __init__(self, config: Mapping[str, Any], seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        values = self._rng.standard_normal((_POOL_ROWS, 1024)) / 64
        bf16 = (values.astype("<f4").view("<u4") >> 16).astype("<u2")
        fp8, fp8_scales = encode_fp8(values)
        fp4, fp4_scales = encode_fp4(values)
        ids = self._rng.integers(0, config["n_routed_experts"], (_POOL_ROWS, 64)).astype("<i8")
        self._bytes = {
            "F32": (1 + values / 8).astype("<f4").tobytes(),
            "BF16": bf16.tobytes(),
            "I64": ids.tobytes(),
            "F8_E4M3": fp8.tobytes(),
            "I8": fp4.tobytes(),
            "F8_E8M0": fp8_scales.tobytes() * 64 + fp4_scales.tobytes(),
        }

    def pieces(self, dtype: str, n_bytes: int) -> Iterator[memoryview]:
        """Bytes of one tensor, from a random element on."""
        pool, item = memoryview(self._bytes[dtype]), _ITEM[dtype]
        at = int(self._rng.integers(0, len(pool) // item)) * item
        while n_bytes:
            piece = pool[at : at + n_bytes]
            yield piece
            n_bytes -= len(piece)
            at = 0


def _shards(tensors: Plan, most: int) -> list[Plan]:
    out: list[Plan] = [[]]
    room = most
    for record in tensors:
        n_bytes = math.prod(record[2]) * _ITEM[record[1]]
        if n_bytes > room and out[-1]:
            out.append([])
            room = most
        out[-1].append(record)
        room -= n_bytes
    return out


def _write_shard(path: Path, tensors: Plan, pool: _Pool | None) -> int:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, dtype, shape in tensors:
        end = position + math.prod(shape) * _ITEM[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    head = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        if pool is None:
            f.truncate(8 + len(head) + position)
        else:
            for _, dtype, shape in tensors:
                for piece in pool.pieces(dtype, math.prod(shape) * _ITEM[dtype]):
                    f.write(piece)
    return position


def write_released_checkpoint(
    directory: Path,
    config: Mapping[str, Any],
    tokenizer_json: str,
    *,
    sparse: bool = False,
    shard_bytes: int = _MAX_SHARD_BYTES,
    seed: int = 1,
    tell: Callable[[str], None] = lambda text: None,
) -> int:
    """Write a checkpoint directory; returns the bytes of its tensors.

    Parameters
    ----------
    tokenizer_json : str
        Text of tokenizer.json; its vocabulary must have the size that `config` gives.
    tell : callable
        Is told each file that is finished.
    """
    os.makedirs(directory, exist_ok=True)
    pool = None if sparse else _Pool(config, seed)
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    (directory / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    shards = _shards(plan_tensors(config), shard_bytes)
    total, weight_map = 0, {}
    for i, tensors in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        total += _write_shard(directory / file, tensors, pool)
        weight_map |= {name: file for name, _, _ in tensors}
        tell(file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return total
