"""When Ctrl-C stops something, in a conversation: while a reply is made. At other moments it must not end the program.

A handler that raises can do so between any two instructions, also inside the code that deals with an earlier one. So
no handler here raises. Outside of replies it does nothing (the line editor reads Ctrl-C as a key, and asyncio leaves
a handler alone that is not Python's own); while a reply is made it notes the wish and cancels the running call, which
then ends in order.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ds4 import Session

Handler = Callable[[int, FrameType | None], None]


class Interruption:
    """Whether Ctrl-C was pressed. Called, it tells."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.requested


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


@contextmanager
def _handled_by(handler: Handler) -> Iterator[None]:
    previous = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def ctrl_c_ignored() -> AbstractContextManager[None]:
    """Ignore Ctrl-C inside a with block."""
    return _handled_by(_ignore)


@contextmanager
def ctrl_c_stops(session: Session) -> Iterator[Interruption]:
    """Let Ctrl-C stop what a session does, inside a with block."""
    interruption = Interruption()

    def stop(number: int, frame: FrameType | None) -> None:
        interruption.requested = True
        session.cancel()

    with _handled_by(stop):
        yield interruption
