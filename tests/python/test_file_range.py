"""Copying ranges between files: by the kernel, and where it cannot."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ds4 import file_range
from ds4.file_range import FileRange

CONTENT = bytes((i * 31 + (i >> 8)) & 255 for i in range(700_001))


@pytest.fixture
def source(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def fails(code: int) -> Callable[..., int]:
    def call(*args: Any) -> int:
        raise OSError(code, os.strerror(code))

    return call


def copied(tmp_path: Path, piece: FileRange, position: int) -> bytes:
    path = tmp_path / "target"
    path.write_bytes(b"x" * position)
    fd = os.open(path, os.O_RDWR)
    try:
        piece.copy_to(fd, position)
    finally:
        os.close(fd)
    return path.read_bytes()


@pytest.mark.parametrize("unable", [[], ["_copy_file_range"], ["_copy_file_range", "_sendfile"]])
@pytest.mark.parametrize(("offset", "n"), [(0, 700_001), (13, 600_000), (5, 0), (9, 1), (100, 65_536), (100, 65_537)])
def test_every_way_gives_the_bytes(
    tmp_path: Path, source: int, monkeypatch: pytest.MonkeyPatch, unable: list[str], offset: int, n: int
) -> None:
    for name in unable:
        monkeypatch.setattr(file_range, name, fails(errno.EXDEV))
    piece = FileRange(source, offset, n, "source")
    assert copied(tmp_path, piece, 7) == b"x" * 7 + CONTENT[offset : offset + n]
    assert piece.crc32() == zlib.crc32(CONTENT[offset : offset + n])
    assert piece.crc32(5) == zlib.crc32(CONTENT[offset : offset + n], 5)


def test_a_kernel_that_stops_half_way_is_followed_up(
    tmp_path: Path, source: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def once(fd: int, target: int, offset: int, position: int, n: int) -> int:
        calls.append(offset)
        if len(calls) > 1:
            raise OSError(errno.EOPNOTSUPP, "no")
        return os.pwrite(target, os.pread(fd, 1000, offset), position)

    monkeypatch.setattr(file_range, "_copy_file_range", once)
    assert copied(tmp_path, FileRange(source, 3, 300_000, "source"), 2) == b"xx" + CONTENT[3:300_003]
    assert calls == [3, 1003]


@pytest.mark.parametrize("way", ["_copy_file_range", "_sendfile"])
def test_a_full_disk_is_no_reason_to_try_another_way(
    tmp_path: Path, source: int, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(file_range, "_copy_file_range", fails(errno.EXDEV))
    monkeypatch.setattr(file_range, way, fails(errno.ENOSPC))
    with pytest.raises(OSError, match="No space") as caught:
        copied(tmp_path, FileRange(source, 0, 300_000, "source"), 0)
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("n", [1000, 300_000])
def test_a_source_that_became_shorter_is_named(tmp_path: Path, source: int, n: int) -> None:
    piece = FileRange(source, len(CONTENT) - n + 1, n, "the source")
    with pytest.raises(OSError, match=f"shorter than {len(CONTENT) + 1} bytes.*the source"):
        copied(tmp_path, piece, 0)
    with pytest.raises(OSError, match="the source"):
        piece.crc32()
