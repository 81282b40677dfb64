"""Files that try to crash, hang or starve a reader: each is an error that names its reason, at once."""

from __future__ import annotations

import json
import os
import random
import struct
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ds4.quantize import Checkpoint, CheckpointError
from ds4.quantize.hfweights import pair_scales
from ds4.quantize.safetensors import SafetensorsFile
from support.released import encode_fp4, encode_fp8, put

from .checkpoints import write_safetensors


@contextmanager
def _cheap(seconds: float = 2.0, n_bytes: int = 4 << 20) -> Iterator[None]:
    """The block takes little time of the processor and allocates little."""
    tracemalloc.start()
    begin = time.thread_time()
    try:
        yield
        assert time.thread_time() - begin < seconds
        assert tracemalloc.get_traced_memory()[1] < n_bytes
    finally:
        tracemalloc.stop()


def _header(path: Path, header: Any, data: bytes = bytes(64)) -> Path:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)
    return path


def _released(path: Path) -> Path:
    """A file with a tensor of every stored form."""
    rng = np.random.default_rng(5)
    arrays: dict[str, Any] = {"norm.weight": np.ones(96, np.float32), "embed.weight": np.ones((7, 96), np.float32)}
    records: dict[str, Any] = {}
    values = rng.standard_normal((130, 96))
    put(arrays, records, "a.weight", "FP8", *encode_fp8(values))
    put(arrays, records, "e.weight", "FP4", *encode_fp4(values))
    write_safetensors(path, arrays, records)
    return path


@pytest.mark.parametrize("raw", [b"\xff" * 8, b"\xff" * 24, struct.pack("<Q", 1 << 40) + bytes(16)])
def test_a_giant_header_length(tmp_path: Path, raw: bytes) -> None:
    """L001, L002: a length near 2^64 or of a terabyte in a file of a few bytes; nothing is allocated for it."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    with (
        _cheap(),
        pytest.raises(CheckpointError, match=rf"header is said to have \d+ bytes, but {len(raw) - 8} follow"),
    ):
        SafetensorsFile(path)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"dtype": "F32", "shape": [16], "data_offsets": [1 << 40, (1 << 40) + 64]}, ("'a'", "truncated")),
        ({"dtype": "F32", "shape": [16], "data_offsets": [1, 65]}, ("'a'", "truncated")),
        ({"dtype": "F32", "shape": [16], "data_offsets": [(1 << 64) - 16, (1 << 64) + 48]}, ("'a'", "pair of offsets")),
        ({"dtype": "F32", "shape": [16], "data_offsets": [64, 0]}, ("'a'", "not in order")),
        ({"dtype": "F32", "shape": [1 << 31, 1 << 31], "data_offsets": [0, 0]}, ("'a'", "takes 18446744073709551616")),
        ({"dtype": "F32", "shape": [4, (1 << 60) + 1], "data_offsets": [0, 16]}, ("'a'", "offsets give 16")),
        ({"dtype": "F32", "shape": [(1 << 42) + 1], "data_offsets": [0, 64]}, ("'a'", "offsets give 64")),
        ({"dtype": [], "shape": [16], "data_offsets": [0, 64]}, ("'a'", "element type")),
        ({"dtype": "F32", "shape": [1] * 9, "data_offsets": [0, 4]}, ("'a'", "at most 8 sizes")),
    ],
)
def test_places_and_sizes(tmp_path: Path, record: Any, words: tuple[str, ...]) -> None:
    """L005, L007: a tensor outside the file, by far or by one byte; a shape whose product wraps around 2^64."""
    path = _header(tmp_path / "x.safetensors", {"a": record})
    with _cheap(), pytest.raises(CheckpointError) as caught:
        SafetensorsFile(path)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("lost", [1, 4096, 0.5])
def test_a_download_that_was_cut(tmp_path: Path, lost: float) -> None:
    """L008: the message names the tensor, where it ends, and how long the file is."""
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": np.zeros((4, 8), np.float32), "b": np.zeros((64, 64), np.float32)})
    size = path.stat().st_size
    left = size - int(lost if lost >= 1 else size * lost)
    os.truncate(path, left)
    with pytest.raises(CheckpointError, match=f"'b': .* end at byte {size} of the file, which has {left} bytes"):
        Checkpoint(tmp_path)


def test_headers_that_take_long_to_check(tmp_path: Path) -> None:
    """L013: a product of many large sizes, many names of which the last two are equal, brackets in brackets."""
    long_shape = {"a": {"dtype": "F32", "shape": [(1 << 61) - 1] * 300_000, "data_offsets": [0, 0]}}
    record = b'{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    names = b"{" + b",".join(b'"%d":%s' % (min(i, 49_998), record) for i in range(50_000)) + b"}"
    deep = b'{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"
    long_number = b'{"a":{"dtype":"F32","shape":[' + b"9" * 1_000_000 + b'],"data_offsets":[0,0]}}'
    for header, reason in ((long_shape, "sizes"), (names, "twice"), (deep, "not JSON"), (long_number, "not JSON")):
        path = _header(tmp_path / "x.safetensors", header)
        begin = time.thread_time()
        with pytest.raises(CheckpointError, match=reason):
            SafetensorsFile(path)
        assert time.thread_time() - begin < 5


def _read_everything(folder: Path) -> None:
    with Checkpoint(folder) as checkpoint:
        weights, faults = pair_scales(checkpoint)
        for weight in weights.values():
            if weight.stored in ("FP8", "FP4", "BF16", "F32", "F16", "I64", "I32"):
                with np.errstate(all="ignore"):
                    weight.rows(0, weight.n_rows)
        assert all(isinstance(fault, str) for fault in faults.values())


@pytest.mark.parametrize("seed", range(4))
def test_changed_bytes_never_crash_the_reader(tmp_path: Path, seed: int) -> None:
    """Bytes of the header changed at random: the file is still read, or there is a `CheckpointError`."""
    path = _released(tmp_path / "model.safetensors")
    raw = path.read_bytes()
    end = 8 + struct.unpack("<Q", raw[:8])[0]
    rng = random.Random(seed)
    refused = 0
    for _ in range(400):
        changed = bytearray(raw)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(end)
            changed[at] = rng.choice((rng.randrange(256), ord(rng.choice('0123456789[]{},":-e.'))))
        path.write_bytes(changed)
        try:
            _read_everything(tmp_path)
        except CheckpointError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 200


def test_every_truncation_of_a_released_file(tmp_path: Path) -> None:
    path = _released(tmp_path / "model.safetensors")
    raw = path.read_bytes()
    end = 8 + struct.unpack("<Q", raw[:8])[0]
    for n in (*range(0, end, 7), *range(end - 3, end + 3), *range(end, len(raw), 997), len(raw) - 1):
        path.write_bytes(raw[:n])
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            _read_everything(tmp_path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    """Reading goes on through the same descriptor, and what is gone is an error, not a fault of the process."""
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": np.ones((4096, 8), np.float32)})
    with Checkpoint(tmp_path) as checkpoint:
        entry = checkpoint.tensors["a"]
        os.truncate(path, entry.begin + 1000 * 16)
        assert entry.rows(0, 500).all()
        with pytest.raises(CheckpointError, match=f"model.safetensors: ends at byte {entry.begin + 16000}"):
            entry.rows(0, 4096)


def test_a_file_that_is_replaced_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": np.ones((64, 8), np.float32)})
    with Checkpoint(tmp_path) as checkpoint:
        write_safetensors(tmp_path / "other", {"a": np.zeros((64, 8), np.float32)})
        os.replace(tmp_path / "other", path)
        assert checkpoint.tensors["a"].rows(0, 64).all()


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_a_fifo_is_refused_without_waiting(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    caught: list[BaseException] = []

    def run() -> None:
        try:
            Checkpoint(tmp_path)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "waits for a writer"
    assert isinstance(caught[0], CheckpointError) and "not a regular file" in str(caught[0])


def _index(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_all_missing_shards_are_named(tmp_path: Path) -> None:
    shards = {f"t{i}": f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)}
    write_safetensors(tmp_path / shards["t2"], {"t2": np.zeros(4, np.float32)})
    _index(tmp_path, shards)
    with pytest.raises(FileNotFoundError, match="2 of 3 shards are missing") as caught:
        Checkpoint(tmp_path)
    assert shards["t1"] in str(caught.value) and shards["t3"] in str(caught.value)
    assert shards["t2"] not in str(caught.value)


@pytest.mark.parametrize("shard", ["a\0b", "\ud800", "", ".", "..", "x/y", "/etc/passwd"])
def test_shard_names_that_are_no_file_names(tmp_path: Path, shard: str) -> None:
    _index(tmp_path, {"a": shard})
    with pytest.raises(CheckpointError, match="is not a file name in this directory"):
        Checkpoint(tmp_path)


def test_threads_may_read_the_same_file(tmp_path: Path) -> None:
    values = np.arange(200_000, dtype=np.float32).reshape(-1, 10)
    write_safetensors(tmp_path / "model.safetensors", {"a": values}, {"a": ("F32", values.tobytes())})
    faults: list[int] = []
    with Checkpoint(tmp_path) as checkpoint:
        entry = checkpoint.tensors["a"]

        def run(seed: int) -> None:
            rng = random.Random(seed)
            for _ in range(300):
                first = rng.randrange(19_000)
                if not np.array_equal(entry.rows(first, 1000), values[first : first + 1000]):
                    faults.append(first)

        threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not faults


def test_shards_without_their_index(tmp_path: Path) -> None:
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json is missing; it names the shards"):
        Checkpoint(tmp_path)
