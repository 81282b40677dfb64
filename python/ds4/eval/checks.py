"""Texts with the answers that the graders must find in them: every branch of the extraction, one line each."""

from __future__ import annotations

from . import extract

# (branch, text, answer) for the letters A to E
LETTERS: tuple[tuple[str, str, str | None], ...] = (
    ("plain", "Answer: B", "B"),
    ("other case and spaces", "so my ANSWER  : C", "C"),
    ("the last of several", "Answer: A\nNo, wait.\nAnswer: D", "D"),
    ("a colon beats a later word", "Answer: B\nI like this answer, E is silly", "B"),
    ("without a colon the first word", "The answer is C, an answer that A lacks", "C"),
    ("bold word", "**Answer**: B", "B"),
    ("bold word and colon", "**Answer:** B", "B"),
    ("bold letter", "Answer: **B**", "B"),
    ("brackets", "Answer: (D)", "D"),
    ("in TeX", "Answer: $\\boxed{\\text{C}}$", "C"),
    ("behind a word", "Answer: option E", "E"),
    ("full-width forms", "Answer：Ｂ", "B"),
    ("small letter alone", "answer: d", "D"),
    ("small letter of an item", "Answer: b) the second", "B"),
    ("a small article is no letter", "Answer: a case for D", "D"),
    ("letters of words do not count", "Answer: Because of ABE, C", "C"),
    ("an abbreviation does not count", "Answer: the D'Arcy law, so B", "B"),
    ("beyond the last choice", "Answer: F, or rather A", "A"),
    ("another word", "My answers: E. The answer: B", "B"),
    ("only another word", "unanswered: A or C", "C"),
    ("other scripts make words", "ответanswer: A, then E", "E"),
    ("no word: the last letter", "It is A or B, probably C.", "C"),
    ("too far away", "Answer: " + "x " * 60 + "A; still, D", "D"),
    ("counted in bytes", "Answer: " + "é" * 48 + " A, else B", "B"),
    ("nothing", "I do not know.", None),
    ("empty", "", None),
)

INTEGERS: tuple[tuple[str, str, str | None], ...] = (
    ("plain", "Answer: 70", "70"),
    ("the last of several", "Answer: 1\nAnswer: 2", "2"),
    ("leading zeros", "Answer: 007", "7"),
    ("zero", "Answer: 000", "0"),
    ("no minus of zero", "Answer: -0", "0"),
    ("minus", "Answer: -12", "-12"),
    ("minus of Unicode", "Answer: −12", "-12"),
    ("dash as minus", "Answer: –12", "-12"),
    ("full-width minus and digits", "Answer：－１２", "-12"),
    ("digits of another script", "Answer: ٣٤", "34"),
    ("a difference is no sign", "It is 12-5", "5"),
    ("a spaced difference is no sign", "It is 12 -5", "5"),
    ("sign behind an equals sign", "3 - 5 = -2", "-2"),
    ("sign behind words", "so it is -7", "-7"),
    ("a spaced difference from a variable", "It is x -5", "5"),
    ("a hyphen is no sign", "It is COVID-19", "19"),
    ("sign in brackets", "(-4)", "-4"),
    ("thousands", "Answer: 1,234,567", "1234567"),
    ("thousands with narrow spaces", "Answer: 1\u202f234\u202f567", "1234567"),
    ("thousands with apostrophes", "Answer: 12'345", "12345"),
    ("thousands in TeX", "Answer: $1{,}024$", "1024"),
    ("thousands with several dots", "Answer: 1.000.000", "1000000"),
    ("a list is no thousand", "Answer: 12,34", "12"),
    ("a fraction is no integer", "Answer: 3.5", "3.5"),
    ("a fraction of nothing", "Answer: 3.00", "3"),
    ("full stop", "Answer: 42.", "42"),
    ("bold", "**Answer:** **42**", "42"),
    ("boxed, no word", "Thus \\boxed{42}", "42"),
    ("without a colon the first word", "The answer is 8; 9 is not", "8"),
    ("no word: the last number", "79 + 0 = 79", "79"),
    ("too far away", "Answer: " + "x " * 90 + "5, or 6", "6"),
    ("a number over the edge", "Answer: " + "x" * 158 + " 123456", "123456"),
    ("many digits", "Answer: " + "9" * 50, "9" * 50),
    ("nothing", "none", None),
    ("empty", "", None),
)

LINES: tuple[tuple[str, str, tuple[int, ...] | None], ...] = (
    ("one", "Answer: 12", (12,)),
    ("several", "Answer: 12, 7 and 9", (7, 9, 12)),
    ("any separators", "Answer: 3;4/5|6", (3, 4, 5, 6)),
    ("range", "Answer: 3-5", (3, 4, 5)),
    ("range with a dash", "Answer: 3–5", (3, 4, 5)),
    ("range in words", "Answer: lines 3 to 5", (3, 4, 5)),
    ("range backwards", "Answer: 5-3", (3, 4, 5)),
    ("none at fault", "Answer: 0", (0,)),
    ("with L", "Answer: L4-L6", (4, 5, 6)),
    ("digits of names do not count", "Answer: 4 (int32)", (4,)),
    ("only that line", "Answer: 4\n12 is fine", (4,)),
    ("the next line", "**Answer:**\n\n14", (14,)),
    ("the last of several", "Answer: 1\nAnswer: 2", (2,)),
    ("greater lines do not count", "Answer: 256, 12, 99999999999999999999", (12,)),
    ("only greater lines", "Answer: 300", None),
    ("a range that ends too far", "Answer: 250-300", None),
    ("no word", "It is line 12", None),
    ("no number", "Answer: none", None),
    ("empty", "", None),
)

PHRASES: tuple[tuple[str, str, str | None], ...] = (
    ("plain", "Answer: Paris", "Paris"),
    ("marks and full stop", "Answer: **Paris**.", "Paris"),
    ("quotes", "Answer: “Paris”", "Paris"),
    ("code", "Answer: `x = 1`", "x = 1"),
    ("boxed", "Answer: \\boxed{12}", "12"),
    ("the next line", "Answer:\nParis", "Paris"),
    ("only that line", "Answer: Paris\nIt is in France", "Paris"),
    ("spaces", "Answer:  a \t b", "a b"),
    ("three dots stay", "Answer: so...", "so..."),
    ("no word: all of it", "Red.", "Red"),
    ("nothing", " **  ** ", None),
    ("empty", "", None),
)


def check_extractors() -> tuple[list[str], int]:
    """Run the checks.

    Returns
    -------
    faults : list of str
        One line for each check that fails.
    n : int
        How many checks there are.
    """
    faults: list[str] = []
    found: list[tuple[str, str, object, object]] = []
    found += [("letter", name, extract.letter(text, 5), right) for name, text, right in LETTERS]
    found += [("integer", name, extract.integer(text), right) for name, text, right in INTEGERS]
    found += [("lines", name, extract.lines(text), right) for name, text, right in LINES]
    found += [("phrase", name, extract.phrase(text), right) for name, text, right in PHRASES]
    for kind, name, given, right in found:
        if given != right:
            faults.append(f"{kind}, {name}: {given!r} was found, {right!r} is right")
    return faults, len(found)
