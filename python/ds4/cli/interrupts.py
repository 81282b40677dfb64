"""When Ctrl-C stops something, in a conversation: while a reply is made. At other moments it must not end the program.

A handler that raises can do so between any two instructions, also inside the code that deals with an earlier one. So
outside of replies there is a handler that does nothing (the line editor reads Ctrl-C as a key, and asyncio leaves
a handler alone that is not Python's own).
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None]


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


def ctrl_c_raises() -> AbstractContextManager[None]:
    """Let Ctrl-C raise KeyboardInterrupt inside a with block."""
    return _handled_by(signal.default_int_handler)
