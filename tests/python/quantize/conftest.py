"""Checkpoints for the conversion tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
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
