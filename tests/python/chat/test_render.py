"""Prompt rendering against the published encoder's output, and the frame that user text cannot leave."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from ds4.chat import render

DATA = Path(__file__).parents[2] / "data"
VECTORS: list[dict[str, Any]] = json.loads((DATA / "prompt_vectors.json").read_text(encoding="utf-8"))["vectors"]


def render_vector(vector: dict[str, Any], **more: Any) -> Any:
    options = dict(vector["options"])
    effort = options.pop("reasoning_effort", None)
    return render(vector["messages"], mode=vector["mode"], effort=effort, **options, **more)


@pytest.mark.parametrize("vector", VECTORS, ids=[v["id"] for v in VECTORS])
def test_prompt_equals_the_published_encoder(vector: dict[str, Any]) -> None:
    """Every documented case, byte for byte; the digests are of the published encoder's output."""
    text = render_vector(vector).text
    assert hashlib.sha256(text.encode()).hexdigest() == vector["sha256"]
