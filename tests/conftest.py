"""Fixtures for all tests: golden data and GGUF files of the tiny models.

The files are made once per run, below pytest's temporary folder, and removed at its end.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from support.golden import VARIANTS, Golden, load_golden
from support.tiny_gguf import RECIPES, write_tiny_gguf


@pytest.fixture(scope="session")
def golden() -> Mapping[str, Golden]:
    """Variant -> golden data."""
    return {variant: load_golden(variant) for variant in VARIANTS}


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Path]]:
    """``tiny_gguf(variant, dialect="ds4", part="all", recipe="f32")`` -> path of a file with those contents.

    Files are shared between tests: copy before writing. `support.tiny_gguf` explains the arguments.
    """
    folder = tmp_path_factory.mktemp("tiny")

    def make(variant: str, *, dialect: str = "ds4", part: str = "", recipe: str = "f32") -> Path:
        part = part or ("all" if dialect == "ds4" else "main")
        path = folder / f"{variant}-{dialect}-{part}-{recipe}.gguf"
        if not path.exists():
            draft = path.with_suffix(".draft")
            write_tiny_gguf(draft, variant, dialect=dialect, part=part, types=RECIPES[recipe]).rename(path)
        return path

    yield make
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def flash_gguf(tiny_gguf: Callable[..., Path]) -> Path:
    """The tiny flash model in F32, ds4 layout, with its MTP block (97 MB)."""
    return tiny_gguf("flash")


@pytest.fixture(scope="session")
def pro_gguf(tiny_gguf: Callable[..., Path]) -> Path:
    """The tiny pro model in F32, ds4 layout, with its MTP block (142 MB)."""
    return tiny_gguf("pro")
