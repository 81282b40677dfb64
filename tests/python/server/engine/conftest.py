"""The model that the engine is tested with."""

from __future__ import annotations

from collections.abc import Iterator

import ds4
import pytest


@pytest.fixture(scope="session")
def model() -> Iterator[ds4.Model]:
    with ds4.Model.open_embedded() as model:
        yield model
