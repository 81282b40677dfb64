"""Checkpoints for the conversion tests, and importance data for the tiny models."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from ds4.imatrix import Entry, Imatrix
from oracle import tiny_shapes

from .checkpoints import write_checkpoint


@pytest.fixture(scope="session")
def flash_weights() -> tiny_shapes.Weights:
    """The weights of the tiny flash model under official names."""
    return tiny_shapes.make_weights(tiny_shapes.VARIANTS["flash"])


@pytest.fixture(scope="session")
def flash_checkpoint(tmp_path_factory: pytest.TempPathFactory, flash_weights: tiny_shapes.Weights) -> Iterator[Path]:
    """A checkpoint directory of the tiny flash model (49 MB). Shared: not to be changed."""
    folder = tmp_path_factory.mktemp("checkpoint")
    yield write_checkpoint(folder / "flash", "flash", flash_weights)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def flash_bf16(tiny_gguf: Callable[..., Path]) -> Path:
    """The tiny flash model as a GGUF file in BF16, with its MTP block (49 MB). Shared: not to be changed."""
    return tiny_gguf("flash", recipe="bf16")


@pytest.fixture
def imatrix() -> Imatrix:
    """Importance of the routed experts of the tiny flash model: 5 layers of 16 experts of 256 x 256."""
    rng = np.random.default_rng(7)
    entries = {}
    for layer in range(5):
        for part in ("gate", "up", "down"):
            counts = rng.integers(1, 50, 16).astype(np.float64)
            sums = rng.lognormal(0, 1.5, (16, 256)) * counts[:, None]
            entries[f"blk.{layer}.ffn_{part}_exps.weight"] = Entry(sums, counts)
    return Imatrix(entries, datasets=["chats.txt"], n_chunks=12, chunk_size=512)
