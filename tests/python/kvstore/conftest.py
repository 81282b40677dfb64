"""Stores in fresh directories."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ds4.kvstore import KVStore

Open = Callable[..., KVStore]


@pytest.fixture
def where(tmp_path: Path) -> Iterator[Path]:
    """In memory, where there is such a file system: thousands of small files that each wait for a disk take minutes."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path / "kv"
        return
    with tempfile.TemporaryDirectory(prefix="ds4-test-kv-", dir="/dev/shm") as directory:
        yield Path(directory) / "kv"


@pytest.fixture
def open_store(where: Path) -> Iterator[Open]:
    """Open a store in the same directory as often as wanted; all are closed in the end."""
    stores = []

    def make(**options: Any) -> KVStore:
        stores.append(KVStore(options.pop("directory", where), **options))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def store(open_store: Open) -> KVStore:
    return open_store()
