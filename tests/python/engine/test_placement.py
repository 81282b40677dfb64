"""Threads of a session: how many, where they run, what an idle one costs; and what memory it takes."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import ds4
import numpy as np
import pytest
from ds4.model import Model

CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model.open(Model.embedded_path()) as opened:
        yield opened


def test_default_threads_stay_within_the_mask(model: Model) -> None:
    with model.session(n_ctx=16) as session:
        assert 1 <= session.threads <= min(len(CPUS), 64)
        assert (session.affinity, session.numa) == ("none", "none")
    code = (
        "import os, ds4; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "model = ds4.Model.open(ds4.Model.embedded_path())\n"
        "print(model.session(n_ctx=16).threads)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"1\n"


@pytest.mark.parametrize("threads", [0, -1, 257, 10**30])
def test_wrong_numbers_of_threads(model: Model, threads: int) -> None:
    with pytest.raises(ValueError, match=r"threads must be in 1\.\.256"):
        model.session(n_ctx=16, threads=threads)
    with pytest.raises(ValueError, match=r"threads must be in 1\.\.256"):
        model.memory_plan(16, threads=threads)


@pytest.mark.parametrize("threads", ["2", 2.0, True])
def test_threads_of_a_wrong_type(model: Model, threads: object) -> None:
    with pytest.raises(TypeError, match="threads must be int"):
        model.session(n_ctx=16, threads=threads)  # type: ignore[arg-type]


def test_places_do_not_change_a_bit_and_bind_the_caller_only_while_it_computes(model: Model) -> None:
    tokens = model.tokenizer.encode("Where does this run? " * 20)
    with model.session(n_ctx=256, threads=1) as session:
        session.sync(tokens)
        expected = session.logits().copy()
    first, count = CPUS[0], len(CPUS)
    for affinity, threads in (("auto", count), (str(first), None), ([first], None), (CPUS, None), ("none", 3)):
        with model.session(n_ctx=256, threads=threads, affinity=affinity) as session:
            if threads is None:
                assert session.threads == (count if affinity is CPUS else 1)
            seen: list[set[int]] = []
            session.sync(tokens, progress=lambda *_, seen=seen: seen.append(os.sched_getaffinity(0)))  # type: ignore[misc]
            np.testing.assert_array_equal(session.logits(), expected)
            assert os.sched_getaffinity(0) == set(CPUS)
            if affinity != "none":
                assert all(len(mask) == 1 for mask in seen)


def test_the_caller_is_free_after_a_call_that_failed(model: Model) -> None:
    class StopError(Exception):
        pass

    def stop(*_: object) -> None:
        raise StopError

    with model.session(n_ctx=2048, threads=1, affinity=[CPUS[0]]) as session:
        for _ in range(3):
            with contextlib.suppress(StopError):
                session.sync(range(5, 1500), progress=stop)
            assert os.sched_getaffinity(0) == set(CPUS)
            session.reset()


@pytest.mark.parametrize(
    ("affinity", "threads", "message"),
    [
        ("4000", None, "names processor 4000, this process may use"),
        ([4000], None, "names processor 4000"),
        (str(CPUS[0]), 2, r"gives 1 processor\(s\) to 2 threads"),
        ([CPUS[0]] * 2, 2, "twice"),
        ([], None, "must name processors"),
        ([-1], None, "must name processors"),
        ("everywhere", None, "neither none, auto nor a list"),
        ("0,", 1, "neither none, auto nor a list"),
        ("0\0", 1, "NUL"),
    ],
)
def test_refused_places(model: Model, affinity: str | list[int], threads: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.session(n_ctx=16, threads=threads, affinity=affinity)


def test_interleaving(model: Model) -> None:
    with pytest.raises(ValueError, match="numa must be one of none, interleave"):
        model.session(n_ctx=16, numa="all")  # type: ignore[arg-type]
    if not Path("/sys/devices/system/node/has_memory").exists():
        with pytest.raises(ds4.BackendUnavailableError, match="NUMA"):
            model.session(n_ctx=16, numa="interleave")
        return
    with model.session(n_ctx=16, numa="interleave", threads=2) as session:
        session.sync([5, 6, 7])
        assert session.numa == "interleave"


def test_an_idle_session_takes_no_cpu(model: Model) -> None:
    with model.session(n_ctx=64, threads=4) as session:
        session.sync(range(5, 40))
        time.sleep(0.05)
        before = resource.getrusage(resource.RUSAGE_SELF)
        time.sleep(0.5)
        after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 0.01


@pytest.mark.parametrize("activations", ["float32", "quantized"])
def test_the_memory_plan_bounds_what_a_session_takes(model: Model, activations: str) -> None:
    """Resident memory that is not the file's, before and after a chunk of 4096 tokens."""
    code = f"""
import ds4, re
def own():
    return 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1])
model = ds4.Model.open(ds4.Model.embedded_path())
tokens = [5 + i % 200 for i in range(4096)]
with model.session(n_ctx=64, chunk=8, threads=2, activations={activations!r}) as small:
    small.sync(tokens[:16])
before = own()
session = model.session(n_ctx=4224, chunk=4096, threads=2, activations={activations!r})
session.sync(tokens)
session.eval([5, 6])
print(own() - before, model.memory_plan(4224, chunk=4096, threads=2).total_session_bytes)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    taken, planned = map(int, done.stdout.split())
    assert taken <= planned + (4 << 20)  # the allocator's own slack
