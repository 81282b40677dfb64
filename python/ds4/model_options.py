"""Options of models and sessions: what they are when not given, and what is refused before the core sees it."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import Any, SupportsIndex

DEFAULT_N_CTX = 32_768
DEFAULT_CHUNK = 512
STREAMED_CHUNK = 2048  # reads each expert once for more tokens; see `budget.takes_long_chunks`
DEFAULT_CHECKPOINT_EVERY = 1024
DEFAULT_CHECKPOINT_BYTES = 256 << 20
MAX_N_CTX = 1_048_576


def check_range(name: str, value: SupportsIndex, most: int, least: int = 1) -> None:
    """Refuse what is no integer of least..most."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be int, not {type(value).__name__}")
    if not least <= operator.index(value) <= most:
        raise ValueError(f"{name} must be in {least}..{most}, not {value}")


def check_checkpoints(every: int, n_bytes: int) -> None:
    """Refuse what the core cannot take as options of checkpoints."""
    check_range("checkpoint_every", every, MAX_N_CTX, 0)
    check_range("checkpoint_bytes", n_bytes, (1 << 63) - 1, 0)


def places(affinity: str | Sequence[int]) -> tuple[str, int]:
    """Return the text that the core reads, and how many processors it lists (0 for "none" and "auto")."""
    if not isinstance(affinity, str):
        numbers = [operator.index(cpu) for cpu in affinity]
        if not numbers or min(numbers) < 0:
            raise ValueError(f"affinity must name processors, not {affinity!r}")
        return ",".join(map(str, numbers)), len(numbers)
    if not re.fullmatch(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*", affinity):
        return affinity, 0  # the core knows the words and refuses the rest
    ends = [part.split("-") for part in affinity.split(",")]
    return affinity, sum(max(int(end[-1]) - int(end[0]) + 1, 0) for end in ends)


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse what is none of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
