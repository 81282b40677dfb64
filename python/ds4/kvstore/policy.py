"""When a server should store a session: where a prefill stops for it, and at which lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .records import Reason

__all__ = ["SavePolicy"]


@dataclass(frozen=True, slots=True)
class SavePolicy:
    """The points at which states are worth storing. It limits what is *stored*; what is loaded is never limited by it.

    Attributes
    ----------
    min_tokens : int
        Shorter states are not stored, they are computed as fast.
    cold_max_tokens : int
        A prompt of which nothing was known gets an anchor only up to this length, 0 turns anchors off. A longer one is
        stored at its multiples of `continued_every` and at the end of its session. States of any length are loaded,
        and stay after that.
    continued_every : int
        A growing state is stored whenever it reaches a multiple of this, rounded up to `align`; 0 turns that off.
    align : int
        Positions that anchors and multiples are rounded to.
    trim : int
        Positions at the end of a prompt that an anchor leaves out: clients change the end of a prompt most.
    """

    min_tokens: int = 512
    cold_max_tokens: int = 30_000
    continued_every: int = 10_000
    align: int = 2048
    trim: int = 32

    def __post_init__(self) -> None:
        for name in ("min_tokens", "align"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")
        for name in ("cold_max_tokens", "continued_every", "trim"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")

    @property
    def step(self) -> int:
        """Positions between two continued states: `continued_every`, rounded up; 0 when there are none."""
        return -(-self.continued_every // self.align) * self.align

    def cold_anchor(
        self, tokens: Sequence[int], *, user: int | None = None, assistant: int | None = None
    ) -> int | None:
        """Return where a prefill that reuses nothing should stop for the anchor, or None for nowhere.

        Parameters
        ----------
        tokens : sequence of int
            The prompt.
        user, assistant : int, optional
            Ids of the tokens that begin a turn. What stands before the last user turn before the first answer (system
            text, tools, files) is what other conversations have too.
        """
        n = len(tokens)
        if not self.min_tokens <= n <= self.cold_max_tokens:
            return None
        if user is not None:
            first = next((i for i, t in enumerate(tokens) if t == assistant), n)
            at = next((i for i in range(first - 1, -1, -1) if tokens[i] == user), 0)
            if at >= self.min_tokens:
                return at
        at = (n - self.trim) // self.align * self.align
        return at if at >= self.min_tokens else n

    def next_continued(self, pos: int) -> int | None:
        """Return the next length after `pos` at which a growing state should be stored."""
        if not self.step:
            return None
        at = (pos // self.step + 1) * self.step
        while at < self.min_tokens:
            at += self.step
        return at

    def stops(
        self, tokens: Sequence[int], reused: int, *, user: int | None = None, assistant: int | None = None
    ) -> list[tuple[int, Reason]]:
        """Return the positions at which the prefill of a prompt should stop to store the state, and why.

        Parameters
        ----------
        tokens : sequence of int
            The prompt.
        reused : int
            Positions that the session holds already.
        user, assistant : int, optional
            As in `cold_anchor`.
        """
        out: dict[int, Reason] = {}
        at = self.next_continued(reused)
        while at is not None and at <= len(tokens):
            out[at] = "continued"
            at = self.next_continued(at)
        if reused == 0:
            anchor = self.cold_anchor(tokens, user=user, assistant=assistant)
            if anchor is not None:
                out[anchor] = "cold"
        return sorted(out.items())
