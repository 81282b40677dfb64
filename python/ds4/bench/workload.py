"""What is measured: prefill of a prompt, or decode of tokens, at a context depth."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_FORM = re.compile(r"(pp|tg)([0-9]{1,9})(?:@([0-9]{1,9}))?")
MAX_CONTEXT = 1_048_576


@dataclass(frozen=True, slots=True)
class Workload:
    """One test.

    Attributes
    ----------
    kind : {"pp", "tg"}
        Prefill of a prompt, or decode token by token.
    n : int
        Tokens whose computation is timed.
    depth : int
        Positions that the context holds before, filled without computing them (`Session.fill`).
    """

    kind: Literal["pp", "tg"]
    n: int
    depth: int = 0

    @property
    def name(self) -> str:
        """The test as it is written: "pp512", "tg32@16384"."""
        return f"{self.kind}{self.n}" + (f"@{self.depth}" if self.depth else "")

    @property
    def n_ctx(self) -> int:
        """Positions that a session needs."""
        return self.depth + self.n

    @property
    def is_decode(self) -> bool:
        """Whether tokens are computed one by one."""
        return self.kind == "tg"


def parse_workloads(text: str) -> list[Workload]:
    """Read a list of tests: "pp512,tg32,tg32@16384".

    Raises
    ------
    ValueError
        A name has another form, a test has no tokens or more than a context can hold, or one is named twice.
    """
    found: list[Workload] = []
    for word in text.split(","):
        form = _FORM.fullmatch(word.strip())
        if form is None:
            raise ValueError(
                f"{word.strip()!r} is no test: write ppN for a prefill of N tokens, tgN for N decoded ones, and @DEPTH "
                "behind it for a context that holds DEPTH positions before, as in pp512,tg32,tg32@16384"
            )
        workload = Workload("pp" if form[1] == "pp" else "tg", int(form[2]), int(form[3] or 0))
        if workload.n < 1:
            raise ValueError(f"{workload.name} has no tokens to compute")
        if workload.n_ctx > MAX_CONTEXT:
            raise ValueError(f"{workload.name} needs {workload.n_ctx} positions; a context has at most {MAX_CONTEXT}")
        if workload in found:
            raise ValueError(f"{workload.name} is named twice")
        found.append(workload)
    return found
