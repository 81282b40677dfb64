"""The tiny Flash-like model with random weights, open, and sessions of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import ds4
import pytest


@pytest.fixture(scope="session")
def model(tiny_gguf: Callable[..., Path]) -> Iterator[ds4.Model]:
    with ds4.Model.open(tiny_gguf("flash", part="main", recipe="f32")) as model:
        yield model


@pytest.fixture
def session(model: ds4.Model) -> Iterator[ds4.Session]:
    with model.session(n_ctx=256, threads=1) as session:
        yield session


TEXT = "In the tool calls there is one and another; the rest is on the street, überall. " * 9


@pytest.fixture
def text() -> str:
    return TEXT


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """Write a file below a folder of the test."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write
