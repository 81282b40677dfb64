"""Lists of layers as they are typed: "37-42", "0-2,40"."""

from __future__ import annotations

import re
from collections.abc import Iterable


def parse_layers(text: str) -> tuple[int, ...]:
    """Return the layers of a list such as "37-42" or "0-2,40-42", ascending.

    Raises
    ------
    ValueError
        It is no such list.
    """
    out: set[int] = set()
    for item in text.split(","):
        found = re.fullmatch(r"\s*([0-9]{1,4})\s*(?:-\s*([0-9]{1,4})\s*)?", item)
        if found is None:
            raise ValueError(f"{text!r} is no list of layers; write for example 37-42 or 0-2,40-42")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ValueError(f"{item.strip()}: a range goes from the lower to the higher layer")
        out.update(range(first, last + 1))
    return tuple(sorted(out))


def format_layers(layers: Iterable[int]) -> str:
    """Return layers as `parse_layers` reads them; "" for none."""
    runs: list[list[int]] = []
    for layer in sorted(set(layers)):
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
