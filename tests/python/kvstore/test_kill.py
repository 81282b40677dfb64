"""Processes that die while they save: at random moments, and at each single step."""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ds4.kvstore import KVStore
from ds4.kvstore.files import verify
from support.stored_session import PlainSession

from .conftest import Open
from .stores import files, load

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(not (ROOT / "tests" / "kill_store.py").is_file(), reason="not in a checkout")
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """`tests/kill_store.py --rounds 1000` is the long form."""
    command = [sys.executable, "tests/kill_store.py", "--rounds", "36", "--seed", "3", "--directory", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "36 rounds" in done.stdout
    assert list(tmp_path.iterdir()) == []


class Steps:
    """Counts calls of the system, and dies at one of them; half of what was to be written is written before that."""

    def __init__(self, last: int) -> None:
        self.left = last
        for module, names in (
            (os, ("open", "write", "fsync", "replace", "rename", "unlink", "mkdir")),
            (fcntl, ("flock",)),
        ):
            for name in names:
                setattr(module, name, self.counted(name, getattr(module, name)))

    def counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left <= 0:
                if name == "write":
                    real(args[0], args[1][: len(args[1]) // 2])
                os._exit(99)
            return real(*args, **kwargs)

        return call


def dies_at(step: int, where: Path, budget: int) -> bool:
    """Let a child save over a store and die at a step of it; return whether it came that far."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            logging.disable(logging.CRITICAL)
            Steps(step)
            store = KVStore(where, budget_bytes=budget)
            session = PlainSession(range(60), row_bytes=10)
            store.save(session, b"one two", reason="evict", tool_blocks={"a": "A"})
            store.save(session, b"one two", reason="evict", tool_blocks={"b": "B"})
            load(store, b"one two three")
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 99)
    return code == 99


@pytest.mark.parametrize("budget", [1 << 30, 7000], ids=["roomy", "tight"])
def test_killed_at_each_step(where: Path, open_store: Open, budget: int) -> None:
    """In the tight case the older state has to make room."""
    step, came_far = 1, True
    outcomes = set()
    while came_far:
        with open_store(budget_bytes=budget) as store:
            store.prune(0)
            store.save(PlainSession(range(40), row_bytes=10), b"one", reason="cold")
            store.save(PlainSession(range(100, 140), row_bytes=60), b"other", reason="cold")
            before = files(where)
        came_far = dies_at(step, where, budget)
        step += 1
        for name in files(where):
            verify(where / name)
        if budget > 7000:
            assert before.items() <= files(where).items()
        with open_store(budget_bytes=budget) as store:
            found = load(store, b"one two three")
            outcomes.add((found, load(store, b"other")))
            assert store.stats().put_aside == 0
            assert store.stats().n_bytes <= budget
            assert not list((where / "tmp").iterdir())
            # It can go on from there.
            assert store.save(PlainSession(range(70), row_bytes=10), b"one two three", reason="evict") is not None
            assert load(store, b"one two three") == 70
    assert step > 40
    assert outcomes == ({(40, 40), (60, 40)} if budget > 7000 else {(40, 40), (60, 0)})
