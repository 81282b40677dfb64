"""A short form of the soak run; the long one is `python -m support.server_soak`."""

from __future__ import annotations

import sys

import pytest
from support.server_soak import LIMIT_MIB, run

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def test_memory_stays_flat_over_many_small_requests() -> None:
    """Nothing is left over of answers, refusals and clients that left, and nothing unexpected came."""
    growth, wrong = run(270, report=lambda line: None)
    assert not wrong
    assert growth < LIMIT_MIB
