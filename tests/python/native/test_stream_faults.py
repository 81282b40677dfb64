"""Disks that fail in the middle of a session: the error names the place, and the session goes on as if nothing was."""

from __future__ import annotations

import errno
import re
import threading
from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest
from support.native import E_IO, kernels_module
from support.rewrite import rewrite
from support.tiny_gguf import RECIPES, write_tiny_gguf

ds4_kernels = kernels_module()

CHUNK = 16
TOKENS = [int(t) for t in np.random.default_rng(5).integers(0, 300, 70)]
FAULTS: dict[str, dict[str, int]] = {
    "EIO": {"os_errno": errno.EIO},
    "gone": {"os_errno": errno.ENODEV},
    "short": {"missing": 100},
    "nothing": {"missing": 1 << 40},
}


@pytest.fixture(scope="module")
def standard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("faults") / "standard.gguf", "flash", types=RECIPES["ds4-q2"])


@pytest.fixture(scope="module", params=["standard", "adjacent"])
def path(request: pytest.FixtureRequest, standard: Path) -> Path:
    if request.param == "standard":
        return standard
    out = standard.with_name("adjacent.gguf")
    return out if out.exists() else rewrite(standard, out)


@pytest.fixture(scope="module")
def expected(standard: Path) -> Any:
    return ds4_kernels.FaultySession(ds4_kernels.FaultyModel(str(standard), 0), CHUNK).eval(TOKENS)


def faulty(path: Path, slots: int, **options: Any) -> Any:
    whole = ds4_kernels.FaultyModel(str(path), 1 << 40)
    return ds4_kernels.FaultyModel(str(path), slots * whole.stats()["slot_bytes"], **options)


def reads_of_one(path: Path) -> int:
    return 3 if path.name == "standard.gguf" else 1


def check(error: RuntimeError, path: Path, fault: dict[str, int]) -> None:
    """The message names layer, expert, part and file; in the standard layout the offset is that of the part."""
    status, code, offset, message = error.args
    assert (status, code) == (E_IO, fault.get("os_errno", 0))
    place = r"layer (\d+), expert (\d+) \((gate|up|down)\), (\d+) bytes at offset (\d+) of \"(.*)\""
    found = re.match(rf"cannot read {place}(.*)", message)
    assert found is not None, message
    layer, expert, part, size, at, name, reason = found.groups()
    assert name == str(path)
    assert int(at) == offset
    assert re.fullmatch(r": (only \d+ bytes came|Input/output error|No such device)", reason), message
    if path.name == "standard.gguf":
        with ds4.GGUFFile(path) as file:
            tensor = file.tensors[f"blk.{layer}.ffn_{part}_exps.weight"]
            assert int(size) == tensor.n_bytes // tensor.ne[2]
            assert offset == tensor.offset + int(expert) * int(size)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize(("slots", "io"), [(1, "threads"), (20, "automatic")])
def test_in_the_middle_of_a_prefill(path: Path, expected: Any, slots: int, fault: dict[str, int], io: str) -> None:
    """At any read, of any chunk: the session stays at its last whole chunk, and what comes next has the same bits."""
    model = faulty(path, slots, io=io)
    stopped = set()
    for first in (0, 3, 20, 150 if slots == 1 else 30):
        session = ds4_kernels.FaultySession(model, CHUNK)
        model.set_fault(first * reads_of_one(path), **fault)
        with pytest.raises(RuntimeError) as caught:
            session.eval(TOKENS)
        check(caught.value, path, fault)
        pos = session.pos
        assert pos % CHUNK == 0
        assert pos < len(TOKENS)
        stopped.add(pos)
        with pytest.raises(RuntimeError):
            session.eval(TOKENS[pos:])
        model.heal()
        assert session.pos == pos
        np.testing.assert_array_equal(session.eval(TOKENS[pos:]), expected[pos:])
    assert slots > 1 or len(stopped) > 1
    assert model.stats()["failed_reads"] > 0


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("slots", [1, 12])
def test_in_the_middle_of_an_answer(path: Path, expected: Any, slots: int, fault: dict[str, int]) -> None:
    """Token by token, the disk failing at every second token: each is computed when the disk is back."""
    model = faulty(path, slots)
    session = ds4_kernels.FaultySession(model, CHUNK)
    session.eval(TOKENS[:20])
    failed = 0
    for i in range(20, len(TOKENS)):
        if i % 2:
            model.set_fault(i % 7, **fault)
            try:
                np.testing.assert_array_equal(session.eval([TOKENS[i]])[0], expected[i])
                continue  # all that it needs was there
            except RuntimeError as error:
                check(error, path, fault)
                failed += 1
            finally:
                model.heal()
            assert session.pos == i
        np.testing.assert_array_equal(session.eval([TOKENS[i]])[0], expected[i])
    assert failed > 5


@pytest.mark.parametrize("io", ["automatic", "threads"])
@pytest.mark.parametrize("slots", [1, 3, 14])
def test_reads_in_any_order(path: Path, expected: Any, slots: int, io: str) -> None:
    """Reads that come late, some more than others, change nothing."""
    model = faulty(path, slots, io=io)
    session = ds4_kernels.FaultySession(model, CHUNK)
    model.set_fault(3, every=5, late_us=1500)
    found = [session.eval(TOKENS[:35])] + [session.eval([t]) for t in TOKENS[35:]]
    np.testing.assert_array_equal(np.concatenate(found), expected)


@pytest.mark.parametrize("slots", [1, 10])
def test_several_sessions_at_once(path: Path, expected: Any, slots: int) -> None:
    """A read fails now and then: each session is told of those that it needed, and ends with the same bits."""
    model = faulty(path, slots)
    wrong: list[str] = []
    told = [0, 0, 0]

    def work(number: int, chunk: int) -> None:
        session = ds4_kernels.FaultySession(model, chunk)
        while (pos := session.pos) < len(TOKENS):
            try:
                found = session.eval(TOKENS[pos : pos + chunk])
            except RuntimeError as error:
                told[number] += 1
                if error.args[0] != E_IO or session.pos != pos:
                    wrong.append(f"{chunk=} {pos=} {session.pos=}: {error}")
                    return
                continue
            if not np.array_equal(found, expected[pos : pos + chunk]):
                wrong.append(f"{chunk=} {pos=}: other logits")
                return

    model.set_fault(5, every=331 * reads_of_one(path), os_errno=errno.EIO)
    workers = [threading.Thread(target=work, args=(i, chunk), daemon=True) for i, chunk in enumerate((1, 2, 5))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    assert not wrong
    assert model.stats()["failed_reads"] > 0


@pytest.mark.parametrize("io", ["automatic", "threads"])
def test_thousands_of_evictions(path: Path, expected: Any, io: str) -> None:
    """Random budgets from one slot on, random cuts and late reads, one walk over and over."""
    rng = np.random.default_rng(17)
    evicted = guessed = 0
    for slots in (1, *(int(n) for n in rng.integers(2, 40, 5))):
        model = faulty(path, slots, io=io, depth=int(rng.integers(1, 9)))
        model.set_fault(0, every=11, late_us=300)
        session = ds4_kernels.FaultySession(model, int(rng.integers(1, 40)))
        while (pos := session.pos) < len(TOKENS):
            n = int(rng.integers(1, 12)) if rng.integers(2) else 1
            np.testing.assert_array_equal(session.eval(TOKENS[pos : pos + n]), expected[pos : pos + n])
        stats = model.stats()
        evicted += stats["evicted"]
        guessed += stats["guessed"]
    assert evicted > 2000
    assert guessed > 100
