"""Stop strings in streamed text."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["StopStrings"]


class StopStrings:
    """Passes streamed text on until one of the stop strings is complete.

    Text that might be the beginning of a stop string is held back until that is decided. The result does not depend
    on how the text is cut into pieces: the stop string that is complete first counts, and of several that end at the
    same character the longest.

    Parameters
    ----------
    stops : str or iterable of str
        The stop strings; none may be empty. Without any, all text passes at once.

    Raises
    ------
    ValueError
        A stop string is empty.
    TypeError
        A stop string is no string.

    Attributes
    ----------
    matched : str or None
        The stop string that was found. Text fed afterwards is dropped.
    """

    def __init__(self, stops: str | Iterable[str] = ()) -> None:
        self._stops = (stops,) if isinstance(stops, str) else tuple(stops)
        for stop in self._stops:
            if not isinstance(stop, str):
                raise TypeError(f"a stop string must be str, not {type(stop).__name__}")
            if not stop:
                raise ValueError("a stop string cannot be empty")
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Take more text and return what may be shown now."""
        if self.matched is not None:
            return ""
        text = self._held + text
        found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if found:
            end, _, self.matched = min(found)
            self._held = ""
            return text[: end - len(self.matched)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return the text still held back; no more will come."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest proper prefix of `stop` that `text` ends with."""
    for n in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
