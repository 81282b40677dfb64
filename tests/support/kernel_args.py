"""The argument records of operations as ctypes structures, read from their one declaration in the C header."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

HEADER = Path(__file__).parents[2] / "src" / "ds4core" / "backend" / "kernel_args.h"

_PLAIN: dict[str, Any] = {
    "uint8_t": ctypes.c_uint8, "uint32_t": ctypes.c_uint32, "int32_t": ctypes.c_int32, "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float, "ds4_address": ctypes.c_uint64,
}  # fmt: skip


def _read(text: str) -> tuple[dict[str, type[ctypes.Structure]], dict[str, int]]:
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    constants = {
        name: int(value)
        for body in re.findall(r"enum\s*\{(.*?)\}", text, flags=re.DOTALL)
        for name, value in re.findall(r"(\w+)\s*=\s*(\d+)", body)
    }
    records: dict[str, type[ctypes.Structure]] = {}
    for name, body in re.findall(r"typedef struct (\w+)\s*\{(.*?)\}\s*\1;", text, flags=re.DOTALL):
        fields = []
        for declaration in filter(None, (part.strip() for part in body.split(";"))):
            kind, _, names = declaration.partition(" ")
            for field in names.split(","):
                found = re.fullmatch(r"(\w+)(?:\[(\w+)\])?", field.strip())
                if not found:
                    raise ValueError(f"{HEADER.name}: {name}: cannot read {declaration!r}")
                base = _PLAIN.get(kind) or records[kind]
                fields.append((found[1], base * constants[found[2]] if found[2] else base))
        records[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return records, constants


_RECORDS, CONSTANTS = _read(HEADER.read_text(encoding="utf-8"))
Ref: Any = _RECORDS["ds4_ref"]
Weight: Any = _RECORDS["ds4_weight"]
Importance: Any = _RECORDS["ds4_importance"]
ExpertPlace: Any = _RECORDS["ds4_expert_place"]
RECORDS = {name.removeprefix("ds4_args_"): record for name, record in _RECORDS.items() if name.startswith("ds4_args_")}
