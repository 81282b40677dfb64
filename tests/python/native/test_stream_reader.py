"""Reads of ranges: the bytes of the file whatever way they come, and an error for everything else."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.native import E_ARGUMENT, E_IO, kernels_module

ds4_kernels = kernels_module()

SIZE = 3_000_011  # the last page is not whole
ALIGN = 4096


def has_uring() -> bool:
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(ALIGN))
        file.flush()
        try:
            ds4_kernels.Reader(file.name, io="io_uring")
        except RuntimeError as error:
            assert "io_uring is not to be had" in error.args[3]
            return False
    return True


IO = [
    pytest.param("io_uring", marks=pytest.mark.skipif(not has_uring(), reason="the system gives no io_uring")),
    "threads",
]


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """On the file system of the tests, and on tmpfs."""
    if request.param == "disk":
        yield tmp_path
        return
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm")
    path = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=IO)
def io(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[True, False], ids=["direct", "cached"])
def direct(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def write(path: Path, seed: int = 1) -> bytes:
    data = np.random.default_rng(seed).integers(0, 256, SIZE, np.uint8).tobytes()
    path.write_bytes(data)
    return data


RANGES = [
    (0, 1),
    (0, ALIGN),
    (1, ALIGN),
    (ALIGN - 1, 2),
    (ALIGN, ALIGN),
    (12_345, 700_001),
    (SIZE - 1, 1),
    (SIZE - ALIGN - 5, ALIGN + 5),
    (0, SIZE),
]


def test_ranges_are_the_bytes_of_the_file(folder: Path, io: str, direct: bool) -> None:
    """Any offset and length, alone and all at once, in pieces of one page and in one piece."""
    data = write(folder / "f")
    for depth, piece in ((1, ALIGN), (3, 16 * ALIGN), (64, 1 << 20)):
        reader = ds4_kernels.Reader(str(folder / "f"), io=io, depth=depth, piece=piece, direct=direct)
        assert reader.io == io
        found = [reader.read([r])[0] for r in RANGES] + reader.read(RANGES)
        assert found == [data[o : o + n] for o, n in RANGES] * 2
        stats = reader.stats()
        assert stats["reads"] == 2 * len(RANGES)
        assert stats["failed"] == 0
        assert stats["bytes"] == 2 * sum(n for _, n in RANGES)
        assert 0 < stats["busy_ns"] <= stats["read_ns"]


def test_a_thousand_reads_at_random(folder: Path, io: str) -> None:
    data = write(folder / "f")
    reader = ds4_kernels.Reader(str(folder / "f"), io=io, depth=7, piece=8 * ALIGN)
    rng = np.random.default_rng(3)
    ranges = [(int(rng.integers(0, SIZE - 60_000)), int(rng.integers(1, 60_000))) for _ in range(1000)]
    assert reader.read(ranges) == [data[o : o + n] for o, n in ranges]


def test_urgent_reads_are_begun_first(tmp_path: Path, io: str) -> None:
    """With one read at a time the order of the ends is the order of the beginnings."""
    write(tmp_path / "f")
    reader = ds4_kernels.Reader(str(tmp_path / "f"), io=io, depth=1)
    reader.set_fault(0, late_us=100_000)  # the first one takes until all have been asked for
    ranges = [(i * ALIGN, 10) for i in range(9)]
    reader.read(ranges, [1, 1, 0] * 3)
    order = [o // ALIGN for o in reader.order]
    expected = [2, 5, 8, 0, 1, 3, 4, 6, 7]
    expected.remove(order[0])  # begun before the others were asked for
    assert order[1:] == expected


def test_guesses_come_last_and_few_at_a_time(tmp_path: Path, io: str) -> None:
    """With four at a time one is a guess; it leaves the others to reads that came after it."""
    write(tmp_path / "f")
    reader = ds4_kernels.Reader(str(tmp_path / "f"), io=io, depth=1)
    reader.set_fault(0, late_us=100_000)
    ranges = [(i * ALIGN, 10) for i in range(9)]
    reader.read(ranges, [2, 1, 0] * 3)
    order = [o // ALIGN for o in reader.order]
    wanted = [2, 5, 8, 1, 4, 7, 0, 3, 6]
    wanted.remove(order[0])
    assert order[1:] == wanted
    reader = ds4_kernels.Reader(str(tmp_path / "f"), io=io, depth=4)
    reader.set_fault(0, late_us=100_000, times=1)
    reader.read(ranges, [2] * 6 + [0] * 3)
    order = [o // ALIGN for o in reader.order]
    if io == "threads":  # the others did not wait for the first guess, the next guesses did
        assert set(order[:3]) == {6, 7, 8}
    assert [o for o in order if o < 6] == list(range(6))


@pytest.mark.parametrize("piece", [ALIGN, 1 << 20])
def test_a_guess_is_withdrawn(tmp_path: Path, io: str, direct: bool, piece: int) -> None:
    """What was withdrawn in time has no result, the others are whole, and no failure is counted."""
    data = write(tmp_path / "f")
    reader = ds4_kernels.Reader(str(tmp_path / "f"), io=io, depth=2, piece=piece, direct=direct)
    seen = []
    for round_ in range(5):
        reader.set_fault(0, late_us=100_000 * (round_ % 2))
        ranges = [(100_000 * i + 7, 50_000) for i in range(8)]
        found = reader.read(ranges, [2, 2, 2, 2, 2, 2, 1, 0], [1, 2, 4, 6, 7])
        whole = [data[o : o + n] for o, n in ranges]
        assert [found[i] for i in (0, 3, 5, 6, 7)] == [whole[i] for i in (0, 3, 5, 6, 7)]
        assert all(found[i] in (None, whole[i]) for i in (1, 2, 4))
        seen.append(found[4])
    assert None in seen
    assert reader.stats()["failed"] == 0
    assert reader.read([(0, SIZE)]) == [data]


def test_a_direct_read_leaves_nothing_in_the_page_cache(tmp_path: Path, io: str, direct: bool) -> None:
    """Without direct reads what was read is dropped again."""
    data = write(tmp_path / "f")
    fd = os.open(tmp_path / "f", os.O_RDWR)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    if cached(tmp_path / "f"):
        pytest.skip("the file system keeps its files in memory")
    reader = ds4_kernels.Reader(str(tmp_path / "f"), io=io, direct=direct)
    assert reader.read([(0, SIZE)]) == [data]
    assert cached(tmp_path / "f") <= SIZE // ALIGN // 20


def cached(path: Path) -> int:
    """How many pages of a file are in memory."""
    import ctypes
    import mmap

    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        array = np.frombuffer(view, np.uint8)
        pages = np.zeros(-(-len(array) // ALIGN), np.uint8)
        address, n = array.ctypes.data, len(array)
        del array
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(n), pages.ctypes.data_as(ctypes.c_void_p)) == 0
    return int((pages & 1).sum())


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"os_errno": errno.EIO}, "Input/output error"),
        ({"os_errno": errno.ENODEV}, "No such device"),
        ({"missing": 1}, "only 49999 bytes came"),
        ({"missing": 30_000}, "only 20000 bytes came"),
        ({"missing": 50_000}, "only 0 bytes came"),
        ({"missing": 99_999}, "only 0 bytes came"),
    ],
)
def test_a_read_is_whole_or_an_error(tmp_path: Path, io: str, direct: bool, fault: dict[str, int], text: str) -> None:
    """The one that was hit says so, with its place; the others and the next ones are whole."""
    data = write(tmp_path / "f")
    reader = ds4_kernels.Reader(str(tmp_path / "f"), io=io, depth=2, piece=ALIGN, direct=direct)
    reader.set_fault(1, **fault)
    ranges = [(100_000 * i + 7, 50_000) for i in range(3)]
    found = reader.read(ranges)
    assert [found[0], found[2]] == [data[o : o + n] for o, n in (ranges[0], ranges[2])]
    code, changed, _, message, offset = found[1]
    assert (code, changed, offset) == (fault.get("os_errno", 0), False, 100_007)
    assert message.startswith(f'cannot read a thing, 50000 bytes at offset 100007 of "{tmp_path}/f"')
    assert message.endswith(text)
    assert reader.stats()["failed"] == 1
    assert reader.read(ranges) == [data[o : o + n] for o, n in ranges]


def test_a_late_read_is_waited_for(tmp_path: Path, io: str) -> None:
    data = write(tmp_path / "f")
    reader = ds4_kernels.Reader(str(tmp_path / "f"), io=io, depth=2, piece=ALIGN)
    reader.set_fault(0, late_us=2_000)
    assert reader.read([(5, 20_000), (50_000, 9)]) == [data[5:20_005], data[50_000:50_009]]


def cut(path: Path) -> None:
    os.truncate(path, 100_000)


def grow(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"more")


def overwrite(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(5_000)
        file.write(b"other")


def replace(path: Path) -> None:
    write(path.with_name("new"), seed=2)
    path.with_name("new").rename(path)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("change", [cut, grow, overwrite, replace, remove])
def test_a_file_that_is_another_one_gives_no_bytes(
    folder: Path, io: str, direct: bool, change: Callable[[Path], None]
) -> None:
    write(folder / "f")
    reader = ds4_kernels.Reader(str(folder / "f"), io=io, direct=direct)
    ranges = [(0, 50_000), (200_000, 100_000)]
    assert all(isinstance(found, bytes) for found in reader.read(ranges))
    change(folder / "f")
    for found, (offset, _) in zip(reader.read(ranges), ranges, strict=True):
        _, changed, _, message, at = found
        assert changed
        assert at == offset
        assert message.endswith("the file was cut, written to, replaced or removed since it was opened")


def test_a_file_that_comes_back_can_be_read_again(tmp_path: Path, io: str) -> None:
    data = write(tmp_path / "f")
    before = os.stat(tmp_path / "f")
    reader = ds4_kernels.Reader(str(tmp_path / "f"), io=io)
    cut(tmp_path / "f")
    assert not isinstance(reader.read([(0, SIZE)])[0], bytes)
    (tmp_path / "f").write_bytes(data)
    os.utime(tmp_path / "f", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert reader.read([(0, SIZE)]) == [data]


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    def refused(path: Path, **options: Any) -> tuple[int, int, int, str]:
        with pytest.raises(RuntimeError) as caught:
            ds4_kernels.Reader(str(path), **options)
        return caught.value.args  # type: ignore[return-value]

    assert refused(tmp_path / "none")[:2] == (E_IO, errno.ENOENT)
    assert refused(tmp_path)[:2] == (E_IO, errno.EISDIR)
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe")[0] == E_IO
    write(tmp_path / "f")
    for options in ({"depth": 0}, {"depth": 1025}, {"piece": 0}, {"piece": 1000}, {"piece": 1 << 31}):
        assert refused(tmp_path / "f", **options)[0] == E_ARGUMENT
        assert refused(tmp_path / "f", io="threads", **options)[0] == E_ARGUMENT


def test_file_systems_without_direct_reads_give_a_notice(tmp_path: Path) -> None:
    """A notice is one line and names the file; reads work all the same."""
    path = Path("/proc/self/cmdline")  # proc has no direct reads
    if not path.exists():
        pytest.skip("no /proc")
    reader = ds4_kernels.Reader(str(path))
    assert not reader.direct
    assert "\n" not in reader.notice
    assert str(path) in reader.notice
    write(tmp_path / "f")
    assert ds4_kernels.Reader(str(tmp_path / "f"), direct=False).notice == ""


def test_the_speed_of_a_disk_is_measured(tmp_path: Path, io: str) -> None:
    write(tmp_path / "f")
    reader = ds4_kernels.Reader(str(tmp_path / "f"), io=io, depth=4)
    assert reader.measure(200_000, 50) > 1e6
    assert reader.stats()["bytes"] == 50 * 200_000
    for bytes_, reads in ((SIZE + 1, 1), (0, 1), (10, 0)):
        with pytest.raises(RuntimeError) as caught:
            reader.measure(bytes_, reads)
        assert caught.value.args[0] == E_ARGUMENT
    reader.set_fault(20, os_errno=errno.EIO)
    with pytest.raises(RuntimeError) as caught:
        reader.measure(200_000, 50)
    assert caught.value.args[:2] == (E_IO, errno.EIO)


def test_a_reader_ends_while_reads_are_waiting(tmp_path: Path, io: str) -> None:
    """Many short lives: nothing hangs and nothing is leaked."""
    data = write(tmp_path / "f")
    before = len(os.listdir("/proc/self/fd"))
    for i in range(50):
        reader = ds4_kernels.Reader(str(tmp_path / "f"), io=io, depth=1 + i % 5)
        if i % 2:
            assert reader.read([(i, 9)]) == [data[i : i + 9]]
        del reader
    assert len(os.listdir("/proc/self/fd")) <= before + 1
