"""The head of a GGUF file that is not all there: enough to say what an unfinished download will be.

The engine's reader refuses such a file, rightly. This reader only ever looks at the first bytes, believes no count
that they cannot hold, and gives up (None) on anything odd.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

from ds4.gguf import type_info

_MAX_HEAD = 256 * 1024 * 1024
_FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MAX_TENSORS = 1 << 20  # no model comes near; a damaged head does
_STRING, _ARRAY = 8, 9
_SHOWN_KEYS = ("general.architecture", "general.name", "general.alignment")


class _CutShortError(Exception):
    """The head itself is not complete, or makes no sense."""


class _Cursor:
    def __init__(self, raw: bytes) -> None:
        self.raw = memoryview(raw)
        self.pos = 0

    def take(self, n: int) -> memoryview:
        if n > len(self.raw) - self.pos:
            raise _CutShortError
        self.pos += n
        return self.raw[self.pos - n : self.pos]

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        return bytes(self.take(self.number("Q"))).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        """Read a value; arrays are skipped and give None."""
        if kind in _FIXED:
            return self.number(_FIXED[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY or depth > 3:
            raise _CutShortError
        element, count = self.number("I"), self.number("Q")
        if element in _FIXED:
            self.take(count * struct.calcsize("<" + _FIXED[element]))
        elif count > len(self.raw) - self.pos:
            raise _CutShortError
        else:
            for _ in range(count):
                self.value(element, depth + 1)
        return None


def head_facts(path: Path, *, whole: bool = False) -> dict[str, Any] | None:
    """Return what the head of an incomplete file tells, in the form of `facts.file_facts`, or None.

    Parameters
    ----------
    whole : bool
        Also of a file that is all there; otherwise that gives None.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    with open(path, "rb") as f:
        raw = f.read(_MAX_HEAD)
        f.seek(0, 2)
        file_bytes = f.tell()
    cursor = _Cursor(raw)
    keys: dict[str, Any] = {}
    facts: dict[str, Any] = {"file": str(path), "file_bytes": file_bytes, "loads": False, "needed_bytes": None}
    facts |= {"n_tensors": None, "n_parameters": None, "architecture": "unknown", "name": ""}
    try:
        if bytes(cursor.take(4)) != b"GGUF":
            return None
        facts["version"], n_tensors, n_kv = cursor.number("I"), cursor.number("Q"), cursor.number("Q")
        facts["n_tensors"] = n_tensors if n_tensors <= _MAX_TENSORS else None
        if facts["version"] != 3:
            return None
        for _ in range(n_kv):
            key = cursor.text()
            value = cursor.value(cursor.number("I"))
            if key in _SHOWN_KEYS:
                keys[key] = value
                facts["architecture"] = str(keys.get("general.architecture", "unknown"))
                facts["name"] = str(keys.get("general.name", ""))
        n_values, end = _tensors(cursor, n_tensors)
    except (_CutShortError, ValueError):
        # Where the head is cut what was read until then is still true.
        return facts if facts["architecture"] != "unknown" else None
    alignment = keys.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 1 << 20:
        return None
    needed = -(-cursor.pos // alignment) * alignment + end
    if needed <= file_bytes and not whole:
        return None  # all is there: the fault is another one
    return facts | {"n_parameters": n_values, "needed_bytes": needed}


def _tensors(cursor: _Cursor, n: int) -> tuple[int | None, int]:
    """Read the tensor records; returns the number of values and the end of the data, relative to its start.

    The number is None for a file with adjacent experts, whose records are bytes here.
    """
    n_values = end = 0
    records = False
    for _ in range(n):
        records |= cursor.text().endswith(".ffn_exps.weight")
        n_dims = cursor.number("I")
        if not 1 <= n_dims <= 4:
            raise _CutShortError
        size = math.prod(cursor.number("Q") for _ in range(n_dims))
        kind, offset = cursor.number("I"), cursor.number("Q")
        n_values += size
        end = max(end, offset + type_info(kind).n_bytes(size))
    return None if records else n_values, end
