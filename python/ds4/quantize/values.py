"""Metadata values of two files side by side: whether they say the same, and how they read in a message."""

from __future__ import annotations

import math
from typing import Any

_SHOWN = 60


def same_value(a: Any, b: Any) -> bool:
    """Whether two values that are no lists are equal: numbers whatever their width, as far as a float32 tells."""
    if float in (type(a), type(b)) and {type(a), type(b)} <= {float, int}:
        return math.isclose(a, b, rel_tol=1e-6) or (math.isnan(a) and math.isnan(b))
    return type(a) is type(b) and bool(a == b)


def shown_value(value: Any) -> str:
    """Return a value as a message shows it: quoted and escaped, and cut when it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
