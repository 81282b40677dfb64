"""A disk that is full, a directory that cannot be written: everything stays as it was, and the reason is told."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ds4.kvstore import KVStore
from support.stored_session import PlainSession

from .conftest import Open
from .stores import files, find, load

TESTS = str(Path(__file__).parents[2])

FULL = """
    import sys, resource
    from pathlib import Path
    sys.path[:0] = [{tests!r}, {here!r}]
    from ds4.kvstore import KVStore
    from support.stored_session import PlainSession
    from stores import files, load
    where = Path(sys.argv[1])
    store = KVStore(where)
    assert store.save(PlainSession(range(100)), b"one", reason="cold") is not None
    if sys.argv[2] == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    before = files(where)
    for size in (0, 2_000_000):  # too large are the rows, then the end of the state
        big = PlainSession(range(1000, 1400), row_bytes=10 if size else 5000, tail_bytes=size)
        assert store.save(big, b"big %d" % size, reason="evict") is None
        print(store.stats().problem)
        assert files(where) == before, "something was left"
        assert not list((where / "tmp").iterdir())
        assert load(store, b"one") == 100
    assert store.save(PlainSession(range(50)), b"small", reason="cold") is not None
    assert load(store, b"small") == 50
    assert store.stats().failed_saves == 2
    store.close()
    again = KVStore(where)
    assert load(again, b"one") == 100 and load(again, b"small") == 50
"""


def run(code: str, *args: object) -> str:
    code = textwrap.dedent(code.format(tests=TESTS, here=str(Path(__file__).parent)))
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount file systems in memory, where that is allowed."""
    points = []

    def mount(options: str) -> Path:
        point = tmp_path / "mount"
        point.mkdir(exist_ok=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip(f"mounting is not allowed: {done.stderr.decode().strip()}")
        points.append(point)
        return point

    yield mount
    for point in points:
        subprocess.run(["umount", "-l", str(point)], check=True)


def test_a_full_disk(mounted: Callable[[str], Path]) -> None:
    out = run(FULL, mounted("size=1500k") / "kv", "disk")
    assert out.count(os.strerror(errno.ENOSPC)) == 2


def test_a_limit_of_file_sizes(where: Path) -> None:
    assert run(FULL, where, "limit").count(os.strerror(errno.EFBIG)) == 2


def test_a_disk_without_a_free_name(mounted: Callable[[str], Path]) -> None:
    """No new file at all, not even an empty one; what is there is used."""
    where = mounted("size=1m,nr_inodes=12") / "kv"
    with KVStore(where) as store:
        n = 0
        while store.save(PlainSession(range(n * 10, n * 10 + 10)), b"key %d" % n, reason="cold") is not None:
            n += 1
        assert 0 < n < 6
        assert os.strerror(errno.ENOSPC) in (store.stats().problem or "")
        assert [load(store, b"key %d" % i) for i in range(n)] == [10] * n


def check_read_only(where: Path, good: dict[str, bytes]) -> None:
    with KVStore(where) as store:
        assert store.read_only
        assert store.stats().read_only
        for _ in range(2):
            assert load(store, b"one two") == 100
        assert store.save(PlainSession(range(10)), b"new", reason="cold") is None
        assert store.stats().problem == "the store is read-only"
        assert store.prune(0) == 0
    assert files(where) == good


def test_a_file_system_mounted_for_reading(mounted: Callable[[str], Path]) -> None:
    """L077; the same for root, whom permissions do not stop."""
    mount = mounted("size=4m")
    with KVStore(mount / "kv") as store:
        store.save(PlainSession(range(100)), b"one", reason="cold")
        store.save(PlainSession(range(50)), b"o", reason="cold")
        good = files(mount / "kv")
    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
    check_read_only(mount / "kv", good)
    with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
        KVStore(mount / "other")


FORBIDDEN = """
    import errno, os, shutil, sys, tempfile
    from pathlib import Path
    sys.path[:0] = [{tests!r}, {here!r}]
    from ds4.kvstore import KVStore
    from support.stored_session import PlainSession
    from stores import files, load
    if os.geteuid() == 0:  # whom permissions do not stop
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    top = Path(tempfile.mkdtemp())
    where = top / "kv"

    def allow(mode):
        for path in (where, where / "tmp", where / "index", where / "quarantine"):
            path.chmod(mode)

    try:
        store = KVStore(where)
        assert store.save(PlainSession(range(100)), b"one two", reason="cold") is not None
        good = files(where)
        allow(0o500)
        # While it is open:
        assert load(store, b"one two") == 100
        assert store.save(PlainSession(range(10)), b"new", reason="cold") is None
        assert os.strerror(errno.EACCES) in store.stats().problem, store.stats().problem
        state = next(where.glob("*.state"))
        state.write_bytes(good[state.name][:-1])
        assert load(store, b"one two") == 0 and load(store, b"one two") == 0
        state.write_bytes(good[state.name])
        assert load(store, b"one two") == 100
        store.close()
        # From the start:
        with KVStore(where) as store:
            assert store.read_only and load(store, b"one two") == 100
            assert store.save(PlainSession(range(10)), b"new", reason="cold") is None
        assert files(where) == good
        # And again:
        allow(0o700)
        with KVStore(where) as store:
            assert load(store, b"one two") == 100
            assert store.save(PlainSession(range(10)), b"new", reason="cold") is not None
    finally:
        allow(0o700)
        shutil.rmtree(top)
"""


def test_a_directory_without_permission() -> None:
    """L077."""
    run(FORBIDDEN)


def test_damage_in_a_store_that_is_only_read(open_store: Open, where: Path) -> None:
    """What cannot be moved away is remembered as damaged, until it is another file."""
    store = open_store()
    entry = store.save(PlainSession(range(100)), b"one", reason="cold")
    assert entry is not None
    path = where / f"{entry.name}.state"
    good = path.read_bytes()
    path.write_bytes(good[:200] + b"?" + good[201:])
    reader = open_store(read_only=True)
    for _ in range(3):
        assert find(reader, b"one") is None
    assert reader.stats().put_aside == 1
    assert path.exists()
    path.unlink()
    path.write_bytes(good)
    assert load(reader, b"one") == 100
