"""Fixtures of the engine tests: each of the tiny variants in turn, as an open model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ds4
import pytest
from support.golden import VARIANTS


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(variant: str, request: pytest.FixtureRequest) -> Iterator[ds4.Model]:
    path: Path = request.getfixturevalue(f"{variant}_gguf")
    with ds4.Model.open(path) as model:
        yield model
