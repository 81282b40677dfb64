"""Stop strings in streamed text."""

from __future__ import annotations

import pytest
from ds4 import StopStrings
from hypothesis import given
from hypothesis import strategies as st


def run(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    scanner = StopStrings(stops)
    text = "".join(scanner.feed(piece) for piece in pieces) + scanner.flush()
    return text, scanner.matched


def by_definition(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The first end of a stop string counts; of several with this end, the longest."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
def test_the_result_does_not_depend_on_the_pieces(text: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert run(pieces, stops) == by_definition(text, stops)


def test_only_a_possible_beginning_is_held_back() -> None:
    scanner = StopStrings("</end>")
    assert scanner.feed("a < b") == "a < b"
    assert scanner.feed("c</") == "c"
    assert scanner.feed("en") == ""
    assert scanner.feed("x") == "</enx"
    assert scanner.feed("</e") == ""
    assert scanner.flush() == "</e"
    assert scanner.matched is None


def test_nothing_comes_after_a_match() -> None:
    scanner = StopStrings(["STOP", "."])
    assert scanner.feed("one STOP two. three") == "one "
    assert scanner.matched == "STOP"
    assert scanner.feed("more") == ""
    assert scanner.flush() == ""


def test_wrong_stop_strings_are_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])
    with pytest.raises(TypeError, match="int"):
        StopStrings([3])  # type: ignore[list-item]
