"""Reading ahead: the same items in the same order, errors in their place, no thread left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from ds4.quantize.prefetch import ahead


def _threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "ds4-read-ahead"]


def test_items_in_order() -> None:
    assert list(ahead(range(1000), 3)) == list(range(1000))
    assert list(ahead([])) == []
    assert not _threads()


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("gone")

    seen = []
    with pytest.raises(OSError, match="gone"):
        for item in ahead(items()):
            seen.append(item)
    assert seen == [1, 2] and not _threads()


def test_it_works_ahead_but_not_far() -> None:
    made = []

    def items() -> Iterator[int]:
        for i in range(100):
            made.append(i)
            yield i

    source = ahead(items(), 2)
    assert next(source) == 0
    end = time.monotonic() + 20
    while len(made) < 4 and time.monotonic() < end:
        time.sleep(0.001)
    time.sleep(0.05)
    assert len(made) == 4  # the first, two that wait, and one in hand
    source.close()
    assert not _threads()


def test_leaving_early_ends_the_thread() -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            while True:
                yield 0
        finally:
            closed.set()

    for _ in ahead(items()):
        break
    end = time.monotonic() + 20
    while _threads() and time.monotonic() < end:
        time.sleep(0.001)
    assert not _threads()
    assert closed.wait(20)
