"""Control characters in text that a model wrote: on a terminal they would be commands."""

from __future__ import annotations

_SIGNS = {code: f"^{chr(code ^ 0x40)}" for code in (*range(32), 127) if chr(code) not in "\n\t"}
_SIGNS |= dict.fromkeys(range(0x80, 0xA0), "\N{REPLACEMENT CHARACTER}")


def visible(text: str) -> str:
    """Return a text whose control characters are shown (``^[`` for escape), but for tab and newline."""
    return text.translate(_SIGNS)
