"""What a process may use: masks, control groups, cores and memory nodes of machines that are folders here."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import native


@pytest.fixture(scope="module")
def ds4_kernels() -> ModuleType:
    return native.kernels_module()


class Tree:
    """The files of /proc and /sys that describe a machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def cores(self, siblings: Iterable[str], name: str = "core_cpus_list") -> None:
        """Processor i shares its core with the processors of siblings[i]."""
        for cpu, text in enumerate(siblings):
            self.write(f"/sys/devices/system/cpu/cpu{cpu}/topology/{name}", text + "\n")

    def group_v2(self, path: str, limits: dict[str, str], mount_root: str = "/", mount: str = "/sys/fs/cgroup") -> None:
        self.write("/proc/self/cgroup", f"0::{path}\n")
        shown = mount.replace(" ", "\\040")
        self.write(
            "/proc/self/mountinfo",
            f"22 1 0:21 / /proc rw - proc proc rw\n31 23 0:28 {mount_root} {shown} rw,nosuid - cgroup2 cgroup2 rw\n",
        )
        for folder, limit in limits.items():
            self.write(f"{mount}{folder}/cpu.max", limit + "\n")

    def group_v1(self, path: str, limits: dict[str, tuple[int, int]], mount_root: str = "/") -> None:
        self.write("/proc/self/cgroup", f"5:memory:/elsewhere\n4:cpu,cpuacct:{path}\n0::/\n")
        self.write(
            "/proc/self/mountinfo",
            "30 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
            f"31 23 0:28 {mount_root} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n",
        )
        for folder, (quota, period) in limits.items():
            self.write(f"/sys/fs/cgroup/cpu,cpuacct{folder}/cpu.cfs_quota_us", f"{quota}\n")
            self.write(f"/sys/fs/cgroup/cpu,cpuacct{folder}/cpu.cfs_period_us", f"{period}\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def read(ds4_kernels: ModuleType, tree: Tree) -> Any:
    return lambda mask: ds4_kernels.read_machine(list(mask), str(tree.root))


def test_without_any_file_every_processor_is_a_core(read: Any) -> None:
    assert read(range(6)) == {
        "cpus": [*range(6)],
        "order": [*range(6)],
        "cores": 6,
        "quota": 0,
        "nodes": [],
        "default_threads": 6,
    }


def test_default_threads_are_at_most_64_and_at_least_1(read: Any) -> None:
    assert read(range(200))["default_threads"] == 64
    assert read([])["default_threads"] == 1


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_second_threads_of_cores_come_last(tree: Tree, read: Any, name: str) -> None:
    tree.cores([f"{i % 4},{i % 4 + 4}" for i in range(8)], name)
    machine = read(range(8))
    assert (machine["cores"], machine["default_threads"]) == (4, 4)
    assert machine["order"] == [0, 1, 2, 3, 4, 5, 6, 7]
    tree.cores([f"{i // 2 * 2}-{i // 2 * 2 + 1}" for i in range(8)], name)
    assert read(range(8))["order"] == [0, 2, 4, 6, 1, 3, 5, 7]


def test_only_the_mask_counts(tree: Tree, read: Any) -> None:
    """A second thread is a whole core for a process that may not use the first one."""
    tree.cores([f"{i // 2 * 2}-{i // 2 * 2 + 1}" for i in range(8)])
    machine = read([7, 1, 3, 6])
    assert machine["cpus"] == [1, 3, 6, 7]
    assert machine["order"] == [1, 3, 6, 7]
    assert machine["cores"] == 3


def test_two_sockets(tree: Tree, read: Any) -> None:
    tree.cores([f"{i % 32},{i % 32 + 32}" for i in range(64)])
    tree.write("/sys/devices/system/node/has_memory", "0-1\n")
    machine = read(range(64))
    assert (machine["cores"], machine["nodes"]) == (32, [0, 1])


@pytest.mark.parametrize(
    ("limit", "quota"),
    [
        ("max 100000", 0),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("10000 100000", 1),
        ("400000", 4),
        ("", 0),
        ("-5 100000", 0),
        ("100000 0", 0),
        ("nonsense 100000", 0),
        ("99999999999999999999999 100000", 8192),
    ],
)
def test_cgroup_v2(tree: Tree, read: Any, limit: str, quota: int) -> None:
    tree.group_v2("/app", {"/app": limit})
    machine = read(range(8))
    assert machine["quota"] == quota
    assert machine["default_threads"] == min(quota or 8, 8)


def test_the_tightest_group_on_the_way_up_counts(tree: Tree, read: Any) -> None:
    tree.group_v2("/a/b/c", {"/a/b/c": "max 100000", "/a/b": "300000 100000", "/a": "500000 100000"})
    assert read(range(8))["quota"] == 3


@pytest.mark.parametrize(
    ("path", "mount_root", "at"),
    [
        ("/", "/", ""),
        ("/docker/f00", "/docker/f00", ""),  # the mount shows the own group, the path is the host's
        ("/docker/f00/sub", "/docker/f00", "/sub"),
        ("/../..", "/", ""),  # the group lies above what the namespace shows
    ],
)
def test_groups_of_containers(tree: Tree, read: Any, path: str, mount_root: str, at: str) -> None:
    tree.group_v2(path, {at: "200000 100000"}, mount_root)
    assert read(range(8))["quota"] == 2


def test_a_mount_point_with_a_blank(tree: Tree, read: Any) -> None:
    tree.group_v2("/app", {"/app": "100000 100000"}, mount="/mnt/my groups")
    assert read(range(8))["quota"] == 1


def test_cgroup_v1(tree: Tree, read: Any) -> None:
    tree.group_v1("/job", {"/job": (250_000, 100_000), "": (-1, 100_000)})
    assert read(range(8))["quota"] == 3
    tree.group_v1("/job", {"/job": (-1, 100_000), "": (-1, 100_000)})
    assert read(range(8))["quota"] == 0
    tree.group_v1("/docker/f00", {"": (50_000, 25_000)}, mount_root="/docker/f00")
    assert read(range(8))["quota"] == 2


def test_damaged_files_limit_nothing(tree: Tree, read: Any) -> None:
    tree.write("/proc/self/cgroup", "garbage\n::\n1:cpu\n" + "x" * 10_000 + "\n")
    tree.write("/proc/self/mountinfo", "no dash here\n - \n1 2 - cgroup2\n")
    tree.cores(["9-1", "", "1,,2", "-", "99999999999", "0-99999"])
    tree.write("/sys/devices/system/node/has_memory", "\n")
    machine = read(range(6))
    assert (machine["quota"], machine["cores"], machine["nodes"]) == (0, 6, [])


def test_this_machine(ds4_kernels: ModuleType) -> None:
    mask = ds4_kernels.affinity_mask()
    assert set(mask) == os.sched_getaffinity(0)
    machine = ds4_kernels.read_machine(mask)
    assert machine["cpus"] == mask
    assert sorted(machine["order"]) == mask
    assert 1 <= machine["default_threads"] <= machine["cores"] <= len(mask)


# Where threads go


def place(ds4_kernels: ModuleType, tree: Tree, affinity: str | None, threads: int, *, numa: bool = False) -> Any:
    return ds4_kernels.choose_placement(affinity, numa, threads, [*range(8)], str(tree.root))


def test_places(ds4_kernels: ModuleType, tree: Tree) -> None:
    tree.cores([f"{i // 2 * 2}-{i // 2 * 2 + 1}" for i in range(8)])
    tree.write("/sys/devices/system/node/has_memory", "0,2\n")
    for nothing in (None, "", "none"):
        assert place(ds4_kernels, tree, nothing, 100) == ([], [])
    assert place(ds4_kernels, tree, "auto", 3) == ([0, 2, 4], [])
    assert place(ds4_kernels, tree, "auto", 5) == ([0, 2, 4, 6, 1], [])
    assert place(ds4_kernels, tree, "5-7,0", 4) == ([5, 6, 7, 0], [])
    assert place(ds4_kernels, tree, "5-7,0", 2) == ([5, 6], [])
    assert place(ds4_kernels, tree, "none", 2, numa=True) == ([], [0, 2])


@pytest.mark.parametrize(
    ("affinity", "threads", "message"),
    [
        ("8", 1, "names processor 8, this process may use 0-7"),
        ("0,9000", 1, "neither none, auto nor a list"),
        ("1,0,1", 3, "names processor 1 twice"),
        ("0-1", 3, r"gives 2 processor\(s\) to 3 threads"),
        ("auto", 9, r"gives 8 processor\(s\) to 9 threads"),
        *((text, 1, "neither none, auto nor a list") for text in ("all", "0-", "-1", "3-1", "0,,1", "0 1", "0x1", ",")),
    ],
)
def test_refused_places(ds4_kernels: ModuleType, tree: Tree, affinity: str, threads: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        place(ds4_kernels, tree, affinity, threads)


def test_interleaving_needs_nodes(ds4_kernels: ModuleType, tree: Tree) -> None:
    with pytest.raises(ValueError, match="needs NUMA support"):
        place(ds4_kernels, tree, "none", 1, numa=True)


def test_threads_run_where_they_are_put(ds4_kernels: ModuleType) -> None:
    """The caller too, between begin and end, and nowhere else."""
    mask = ds4_kernels.affinity_mask()
    chosen = (mask[::-1] * 3)[:3]
    pool = ds4_kernels.ThreadPool(3, cpus=chosen)
    assert ds4_kernels.affinity_mask() == mask
    for (own, cpu, _), wanted in zip(pool.places(), chosen, strict=True):
        assert own == [wanted]
        assert cpu == wanted
    assert ds4_kernels.affinity_mask() == mask
    pool.begin()
    pool.begin()
    assert ds4_kernels.affinity_mask() == chosen[:1]
    pool.end()
    pool.end()
    assert ds4_kernels.affinity_mask() == mask


def test_a_refused_place_changes_nothing(ds4_kernels: ModuleType) -> None:
    mask = ds4_kernels.affinity_mask()
    for cpus in ([4000, mask[0]], [mask[0], 4000]):
        with pytest.raises(RuntimeError, match="refused processor 4000"):
            ds4_kernels.ThreadPool(2, cpus=cpus)
        assert ds4_kernels.affinity_mask() == mask


def test_interleaved_memory_of_threads(ds4_kernels: ModuleType) -> None:
    if ds4_kernels.memory_policy() < 0:
        pytest.skip("this system has no memory policies")
    before = ds4_kernels.memory_policy()
    pool = ds4_kernels.ThreadPool(2, nodes=[0])
    assert [policy for _, _, policy in pool.places()] == [3, 3]
    assert ds4_kernels.memory_policy() == before
    with pytest.raises(RuntimeError, match="refused to interleave memory over nodes 900"):
        ds4_kernels.ThreadPool(2, nodes=[900])
    assert ds4_kernels.memory_policy() == before


# Large memory


def test_areas_are_zero_and_aligned(ds4_kernels: ModuleType) -> None:
    for n_bytes in (0, 1, 4096, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, (6 << 20) + 12_345):
        areas = [ds4_kernels.Area(n_bytes) for _ in range(3)]
        for area in areas:
            assert area.all(0)
            area.fill(255)
        assert all(area.all(255) for area in areas)
        if n_bytes >= 2 << 20:
            assert all(area.address % (2 << 20) == 0 for area in areas)


def test_an_untouched_area_takes_no_memory_and_a_dead_one_leaves_nothing(ds4_kernels: ModuleType) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def mappings() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    before = resident()
    area = ds4_kernels.Area(1 << 30)
    assert resident() - before < 8 << 20
    del area
    places = mappings()
    for _ in range(50):
        ds4_kernels.Area((2 << 20) + 777).fill(1)
    assert mappings() <= places + 2
    assert resident() - before < 16 << 20


def test_an_area_beyond_the_address_space_is_refused(ds4_kernels: ModuleType) -> None:
    for n_bytes in (1 << 62, (1 << 64) - 1):
        with pytest.raises(MemoryError):
            ds4_kernels.Area(n_bytes)
