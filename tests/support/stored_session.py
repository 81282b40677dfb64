"""A session without a model, for tests of the store: its rows and its end follow from the tokens by a formula."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import ds4


@dataclass(frozen=True)
class PlainModel:
    """Stands for the weights."""

    fingerprint: bytes = b"f" * 16


def stream(seed: bytes, n_bytes: int) -> bytes:
    """Bytes that look random and follow from the seed."""
    return hashlib.shake_128(seed).digest(n_bytes)


class PlainSession:
    """What the store needs of a session, with states of any size."""

    def __init__(
        self,
        tokens: Sequence[int] = (),
        *,
        model: PlainModel | None = None,
        n_ctx: int = 1 << 20,
        row_bytes: int = 8,
        tail_bytes: int = 100,
        qat: bool = True,
    ) -> None:
        self.model = model or PlainModel()
        self.n_ctx, self.qat, self.rows, self.activations, self.mtp = n_ctx, qat, "f16", "quantized", False
        self.row_bytes, self.tail_bytes = row_bytes, tail_bytes
        self.tokens = list(tokens)
        self.exported: list[tuple[int, int]] = []

    def _blob(self, what: bytes, upto: int, n_bytes: int) -> bytes:
        return what + stream(what + repr(self.tokens[:upto]).encode(), n_bytes)

    def export_rows(self, start: int, stop: int) -> bytes:
        self.exported.append((start, stop))
        return self._blob(b"rows %d %d " % (start, stop), stop, (stop - start) * self.row_bytes)

    def export_tail(self, at: int | None = None) -> bytes:
        n = len(self.tokens) if at is None else at
        return self._blob(b"tail %d " % n, n, self.tail_bytes)

    def import_state(self, tokens: Sequence[int], rows: Sequence[bytes], tail: bytes) -> None:
        """Accept exactly what a session with these tokens, whatever the sizes of its rows, would have exported."""
        before = self.tokens
        self.tokens = list(tokens)
        at = 0
        end = b"tail %d " % len(tokens)
        good = bytes(tail) == self._blob(end, len(tokens), len(tail) - len(end))
        for blob in rows:
            head = bytes(blob[:60]).split(b" ")
            start, stop = int(head[1]), int(head[2])
            what = b"rows %d %d " % (start, stop)
            good = good and start == at and bytes(blob) == self._blob(what, stop, len(blob) - len(what))
            at = stop
        if not good or at != len(tokens):
            self.tokens = before
            raise ds4.SnapshotError("these are not the rows and the end of these tokens")
