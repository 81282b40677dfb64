"""Fixtures of the engine tests: the tiny variants as open models, each in turn or both at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


@pytest.fixture(scope="module")
def models(tiny_gguf: Callable[..., Path]) -> Iterator[dict[str, ds4.Model]]:
    """Both tiny shapes: every kind of layer, and an MTP block."""
    opened = {variant: ds4.Model.open(tiny_gguf(variant, recipe="q8")) for variant in VARIANTS}
    yield opened
    for model in opened.values():
        model.close()


@pytest.fixture
def flash(models: dict[str, ds4.Model]) -> ds4.Model:
    return models["flash"]
