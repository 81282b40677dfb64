"""Hostile and damaged safetensors files: an error with its reason, at once."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ds4.quantize import Checkpoint, CheckpointError
from ds4.quantize.safetensors import SafetensorsFile

from .checkpoints import write_safetensors


def _file(path: Path, header: Any, data: bytes = bytes(64), length: int | None = None) -> Path:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head) if length is None else length) + head + data)
    return path


def _tensor(begin: int, end: int, shape: Any = None, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"{", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 20000, "not JSON"),
        (b'{"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}, "a": 1}', "twice"),
        ({"a": 7}, "not a JSON object"),
        ({"a": _tensor(0, 4, dtype="F7")}, "element type"),
        ({"a": _tensor(0, 4, shape=[-1])}, "shape"),
        ({"a": _tensor(0, 4, shape=[1.0])}, "shape"),
        ({"a": _tensor(0, 4, shape=[True])}, "shape"),
        ({"a": _tensor(0, 4, shape=[1 << 62])}, "shape"),
        ({"a": _tensor(0, 0, shape=[1 << 31, 1 << 31])}, "offsets give 0"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, "data_offsets"),
        ({"a": _tensor(8, 4, shape=[1])}, "data_offsets"),
        ({"a": _tensor(0, 68)}, "truncated"),
        ({"a": _tensor(0, 64), "b": _tensor(60, 64)}, "overlaps"),
        ({"a": _tensor(0, 8, shape=[1])}, "takes 4 bytes"),
    ],
)
def test_damaged_headers(tmp_path: Path, header: Any, reason: str) -> None:
    path = _file(tmp_path / "x.safetensors", header)
    with pytest.raises(CheckpointError, match=reason) as caught:
        SafetensorsFile(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("length", [0xFFFFFFFFFFFFFFFF, 1 << 40, 200])
def test_header_length_is_not_believed(tmp_path: Path, length: int) -> None:
    path = _file(tmp_path / "x.safetensors", {"a": _tensor(0, 64)}, length=length)
    with pytest.raises(CheckpointError, match="header is said to have"):
        SafetensorsFile(path)


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_safetensors(path, {"a": np.zeros((3, 5), np.float32), "b": np.ones(4, np.float32)})
    raw = path.read_bytes()
    for n in range(len(raw)):
        path.write_bytes(raw[:n])
        with pytest.raises(CheckpointError):
            SafetensorsFile(path)


def test_rows_of_every_element_type(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0], [0.25, 96.0], [0.0, -0.5]], np.float32)
    bf16 = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    ids = values.astype(np.int64)
    records = {
        "f32": ("F32", values.tobytes()),
        "f16": ("F16", values.astype("<f2").tobytes()),
        "bf16": ("BF16", bf16),
        "i64": ("I64", ids.astype("<i8").tobytes()),
        "i32": ("I32", ids.astype("<i4").tobytes()),
    }
    path = tmp_path / "model.safetensors"
    write_safetensors(path, dict.fromkeys(records, values), records)
    with Checkpoint(tmp_path) as checkpoint:
        for name, entry in checkpoint.tensors.items():
            wanted = ids if name.startswith("i") else values
            assert entry.n_rows == 3
            np.testing.assert_array_equal(entry.rows(1, 2), wanted[1:])
            np.testing.assert_array_equal(entry.rows(0, 3), wanted)


@pytest.mark.parametrize(
    ("weight_map", "reason"),
    [
        ({"a": "one", "b": "two", "c": "two"}, "disagree"),
        ({"a": "one"}, None),
        ({"a": "one", "b": "../two"}, "not a file name"),
        ({"a": "one", "b": "/etc/passwd"}, "not a file name"),
        ({"a": 5}, "weight_map"),
        ([], "weight_map"),
        ({"b": "one"}, "disagree"),
    ],
)
def test_index_and_shards_must_agree(tmp_path: Path, weight_map: Any, reason: str | None) -> None:
    write_safetensors(tmp_path / "one", {"a": np.zeros(4, np.float32)})
    write_safetensors(tmp_path / "two", {"b": np.zeros(4, np.float32)})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    if reason is None:
        with Checkpoint(tmp_path) as checkpoint:
            assert list(checkpoint.tensors) == ["a"]
        return
    with pytest.raises(CheckpointError, match=reason):
        Checkpoint(tmp_path)


def test_a_name_in_two_shards(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "one", {"a": np.zeros(4, np.float32)})
    write_safetensors(tmp_path / "two", {"a": np.zeros(4, np.float32), "b": np.zeros(4, np.float32)})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "one", "b": "two"}}))
    with pytest.raises(CheckpointError, match="'a' is in"):
        Checkpoint(tmp_path)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Half a gigabyte is read in pieces of four megabytes; the process keeps none of it."""
    path = tmp_path / "model.safetensors"
    header = {"a": {"dtype": "F32", "shape": [131072, 1024], "data_offsets": [0, 1 << 29]}}
    _file(path, header, data=b"")
    with open(path, "r+b") as f:
        f.truncate(path.stat().st_size + (1 << 29))
    script = (
        "import resource, sys\n"
        "from ds4.quantize import Checkpoint\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "with Checkpoint(sys.argv[1]) as checkpoint:\n"
        "    entry = checkpoint.tensors['a']\n"
        "    before = peak()\n"
        "    for first in range(0, entry.n_rows, 1024):\n"
        "        assert entry.rows(first, 1024).shape == (1024, 1024)\n"
        "    print(peak() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 50_000, "KiB more than before"
