"""Markdown on a terminal: however the text is cut, the same is shown, and nothing of it is lost."""

from __future__ import annotations

import re

import pytest
from ds4.cli.control import visible
from ds4.cli.markdown import MarkdownStream
from hypothesis import given
from hypothesis import strategies as st


def shown(*pieces: str, ascii_only: bool = True) -> str:
    out: list[str] = []
    stream = MarkdownStream(out.append, ascii_only=ascii_only, width=20)
    for piece in pieces:
        stream.feed(piece)
    stream.finish()
    return "".join(out)


def readable(text: str) -> str:
    """Write attributes as <codes> and </>."""
    return re.sub(r"\x1b\[([0-9;]*)m", lambda m: "</>" if m[1] == "0" else f"<{m[1]}>", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text\n", "plain text\n"),
        ("a **bold** word", "a <1>bold</> word"),
        ("a *slanted* word", "a <3>slanted</> word"),
        ("***both***", "<1;3>both</>"),
        ("call `f(*x)` now", "call <36>f(*x)</> now"),
        ("``a ` b``", "<36>a ` b</>"),
        ("# Head\ntext", "<1;4>Head</>\ntext"),
        ("## Head with `x`\n", "<1>Head with <36>x</><1></>\n"),
        ("#hashtag", "#hashtag"),
        ("- one\n* two\n    - deep\n", "* one\n* two\n    * deep\n"),
        ("-5 degrees", "-5 degrees"),
        ("> said\n>> twice", "<2>| </>said\n<2>| | </>twice"),
        ("---\n", "<2>-------------------</>\n"),
        ("* * *", "<2>-------------------</>"),
        ("2 * 3 * 4", "2 * 3 * 4"),
        ("2*3*4 and snake_case_name", "2*3*4 and snake_case_name"),
        ("**never closed\nnext", "**never closed\nnext"),
        ("a ` alone", "a ` alone"),
        (r"\*not slanted\*", "*not slanted*"),
        (r"C:\new", r"C:\new"),
        ("```py\nx = **y**\n```\nafter", "<2>```py</><36>\nx = **y**\n</><2>```</>\nafter"),
        ("```\nnever closed", "<2>```</><36>\nnever closed</>"),
        ("````\n```\n````\n", "<2>````</><36>\n```\n</><2>````</>\n"),
        ("~~~\n```\n~~~", "<2>~~~</><36>\n```\n</><2>~~~</>"),
        ("1. first\n2. second", "1. first\n2. second"),
        ("", ""),
    ],
)
def test_rendering(text: str, expected: str) -> None:
    assert readable(shown(text)) == expected
    assert readable(shown(*text)) == expected


def test_signs_of_a_terminal_that_has_them() -> None:
    assert "•" in shown("- one", ascii_only=False) and "─" in shown("---", ascii_only=False)


def test_control_characters_are_shown_and_not_sent() -> None:
    """A model may not clear the screen, set the title or write to the clipboard."""
    assert shown("a\x1b[2Jb `\x1b]52;c;x\x07`\r") == "a^[[2Jb \x1b[36m^[]52;c;x^G\x1b[0m^M"
    assert visible("tab\tline\n\x9b1m\x7f") == "tab\tline\n\ufffd1m^?"


def test_text_comes_as_soon_as_it_is_known_what_it_is() -> None:
    out: list[str] = []
    stream = MarkdownStream(out.append)
    seen = []
    for piece in ("Hel", "lo ", "*", "*b", "old", "** ", "x"):
        stream.feed(piece)
        seen.append("".join(out))
        out.clear()
    assert seen == ["Hel", "lo ", "", "", "", "\x1b[1mbold\x1b[0m ", "x"]
    stream.feed("\n**" + "long " * 60)
    assert "**long long" in "".join(out)  # no span holds the text back for ever


MARKS = st.lists(st.sampled_from(["*", "**", "`", "```", "\n", " ", "#", "- ", "> ", "a", "b c", "\\", "---", "~~~"]))


@given(MARKS, st.randoms(use_true_random=False))
def test_the_pieces_do_not_matter(parts: list[str], random: object) -> None:
    text = "".join(parts)
    cuts = sorted(random.sample(range(len(text) + 1), min(5, len(text) + 1)))  # type: ignore[attr-defined]
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = shown(text)
    assert shown(*pieces) == whole == shown(*text)
    # Letters and line ends all arrive, in their order, and no attribute stays on.
    letters = re.sub(r"\x1b\[[0-9;]*m", "", whole)
    assert re.sub(r"[^abc\n]", "", letters) == re.sub(r"[^abc\n]", "", text)
    assert not re.findall(r"\x1b\[([0-9;]*)m", whole) or re.findall(r"\x1b\[([0-9;]*)m", whole)[-1] == "0"
