"""Reading ahead: a thread makes the next items of an iterator while the caller works on the last one."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from queue import Empty, Full, Queue
from typing import TypeVar

T = TypeVar("T")

_WAIT = 0.1


class _End:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def ahead(items: Iterable[T], depth: int = 1) -> Generator[T, None, None]:
    """Yield the items of an iterable, which runs in a thread of its own, at most `depth` and one items ahead.

    What the iterable raises is raised here, in its place. Leaving the iterator early ends the thread before the next
    item.
    """
    queue: Queue[T | _End] = Queue(depth)
    stop = threading.Event()

    def put(item: T | _End) -> None:
        while not stop.is_set():
            try:
                queue.put(item, timeout=_WAIT)
                return
            except Full:
                continue

    def run() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                put(item)
                if stop.is_set():
                    return
        except BaseException as e:
            error = e
        put(_End(error))

    worker = threading.Thread(target=run, name="ds4-read-ahead", daemon=True)
    worker.start()
    try:
        while True:
            try:
                item = queue.get(timeout=_WAIT)  # a wait without end would hold Ctrl-C back on some systems
            except Empty:
                continue
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        stop.set()
        worker.join()
