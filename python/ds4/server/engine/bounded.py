"""A dictionary with a bound on its weight that forgets what was not used for longest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedDict(Generic[K, V]):
    """Values by key; safe to use from several threads.

    Parameters
    ----------
    max_weight : int
        Bound of the sum of the weights. A value that is heavier is not kept at all.
    max_items : int, optional
        Bound of the number of keys.
    """

    def __init__(self, max_weight: int, max_items: int | None = None) -> None:
        self._max_weight = max_weight
        self._max_items = max_items
        self._items: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """Return a value and count it as used, or None."""
        with self._lock:
            found = self._items.get(key)
            if found is None:
                return None
            self._items.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, weight: int) -> None:
        """Keep a value, in place of an older one of that key."""
        with self._lock:
            old = self._items.pop(key, None)
            if old is not None:
                self._weight -= old[1]
            if weight > self._max_weight or self._max_items == 0:
                return
            self._items[key] = (value, weight)
            self._weight += weight
            while self._weight > self._max_weight or (
                self._max_items is not None and len(self._items) > self._max_items
            ):
                _, (_, lost) = self._items.popitem(last=False)
                self._weight -= lost

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[K]:
        with self._lock:
            return iter(list(self._items))

    @property
    def weight(self) -> int:
        """Sum of the weights kept."""
        return self._weight
