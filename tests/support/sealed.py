"""Stored states with other contents: bodies changed under checksums that fit, as a hostile file could have them."""

from __future__ import annotations

_MASK = (1 << 64) - 1

SNAPSHOT_HEADER, PART_HEADER = 72, 88
"""Bytes before the body of a snapshot, and of rows or a tail. Both end with: bytes of the body, its hash, the hash of
the header before it."""


def with_body(stored: bytes, body: bytes) -> bytes:
    """Return a stored state with another body, sealed anew."""
    size = SNAPSHOT_HEADER if stored.startswith(b"DS4SNAP\n") else PART_HEADER
    head = stored[: size - 24] + len(body).to_bytes(8, "little") + _digest(body)
    return head + _digest(head) + body


def _mix(h: int, v: int) -> int:
    h = ((h ^ v) * 0xBF58476D1CE4E5B9) & _MASK
    h ^= h >> 29
    h = (h * 0x94D049BB133111EB) & _MASK
    return h ^ (h >> 32)


def _digest(data: bytes) -> bytes:
    h = _mix(0x9E3779B97F4A7C15, len(data))
    whole = len(data) // 8 * 8
    for i in range(0, whole, 8):
        h = _mix(h, int.from_bytes(data[i : i + 8], "little"))
    return _mix(h, int.from_bytes(data[whole:], "little")).to_bytes(8, "little")
