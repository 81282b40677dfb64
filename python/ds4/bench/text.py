"""A text to measure with, made by rules: the same on every machine, as long as it must be.

It goes through several kinds of writing (prose, talk, arithmetic, code, tables), because a router chooses other experts
for each. It says nothing in particular.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from typing import Protocol

_MASK = (1 << 64) - 1

_PEOPLE = ("Anna", "Bela", "Carl", "Dora", "Emil", "Frieda", "Goran", "Hana", "Ivo", "Jana", "Karim", "Lena", "Milo")
_ROLES = ("the miller", "the old captain", "a teacher", "the clockmaker", "a surveyor", "the baker", "a young clerk")
_PLACES = ("the harbour", "the mill", "the market square", "the upper meadow", "the station", "the library", "the ford")
_THINGS = ("a lantern", "the wooden box", "a bundle of letters", "the brass key", "a map of the river", "two ropes",
           "the ledger", "a basket of pears", "the broken clock", "a sealed jar")  # fmt: skip
_ADJECTIVES = ("quiet", "heavy", "narrow", "pale", "early", "patient", "uneven", "warm", "distant", "careful")
_VERBS = ("carried", "hid", "repaired", "sold", "measured", "forgot", "painted", "counted", "returned", "described")
_TIMES = ("Before sunrise", "In the second week", "At noon", "Towards evening", "When the rain stopped", "Years later")
_REASONS = ("because nobody had asked", "although it was late", "so that the others could sleep", "as was the custom",
            "without a word", "while the bells were ringing")  # fmt: skip
_SUBJECTS = ("water", "iron", "light", "salt", "sound", "wood", "glass", "the wind", "a pendulum", "a lever")
_CLAIMS = ("expands when it is heated", "loses energy at every step", "keeps its shape under a small load",
           "moves faster where the way is narrow", "can be divided into equal parts",
           "returns to where it began")  # fmt: skip
_NAMES = ("count", "total", "rows", "limit", "index", "buffer", "weights", "offset", "state", "result")
_UNITS = ("kg", "m", "litres", "hours", "pieces", "pages")


class Encoder(Protocol):
    """What turns text into tokens; `ds4.Tokenizer` is one."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        ...


class _Dice:
    """Numbers that follow from a seed alone (splitmix64)."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, n: int) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((z ^ (z >> 31)) * n) >> 64

    def of(self, choices: tuple[str, ...]) -> str:
        return choices[self.below(len(choices))]


def paragraphs(seed: int = 1) -> Iterator[str]:
    """Yield paragraphs without end; equal seeds give equal ones."""
    dice = _Dice(seed)
    kinds: tuple[Callable[[_Dice], str], ...] = (_prose, _prose, _talk, _lecture, _arithmetic, _code, _table)
    while True:
        yield kinds[dice.below(len(kinds))](dice)


def text_tokens(tokenizer: Encoder, n: int, *, seed: int = 1) -> list[int]:
    """Return the first `n` tokens of the text; a larger `n` begins with the same ones.

    Parameters
    ----------
    tokenizer : Encoder
    n : int
        0 or more.
    seed : int
        Of the text.
    """
    if n < 0:
        raise ValueError(f"n must be 0 or more, not {n}")
    ids: list[int] = []
    pieces = paragraphs(seed)
    while len(ids) < n:
        ids += tokenizer.encode(next(pieces) + "\n\n")
    return ids[:n]


def text_sha256(seed: int = 1) -> str:
    """Return a name for the text of a seed, which changes when the rules do."""
    return hashlib.sha256("\n\n".join(itertools.islice(paragraphs(seed), 64)).encode()).hexdigest()


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _prose(dice: _Dice) -> str:
    sentences = []
    for _ in range(4 + dice.below(5)):
        who = dice.of(_PEOPLE) if dice.below(2) else dice.of(_ROLES)
        form = dice.below(4)
        if form == 0:
            sentences.append(f"{dice.of(_TIMES)} {who} {dice.of(_VERBS)} {dice.of(_THINGS)} {dice.of(_REASONS)}.")
        elif form == 1:
            sentences.append(f"{_capital(who)} {dice.of(_VERBS)} {dice.of(_THINGS)} near {dice.of(_PLACES)}.")
        elif form == 2:
            a, b = dice.of(_ADJECTIVES), dice.of(_ADJECTIVES)
            sentences.append(f"The way to {dice.of(_PLACES)} was {a}, and the air {b}.")
        else:
            sentences.append(
                f"{_capital(who)} had not been at {dice.of(_PLACES)} for {2 + dice.below(40)} days, "
                f"{dice.of(_REASONS)}."
            )
    return " ".join(sentences)


def _talk(dice: _Dice) -> str:
    one, two = dice.of(_PEOPLE), dice.of(_PEOPLE)
    lines = []
    for i in range(4 + dice.below(4)):
        thing, place = dice.of(_THINGS), dice.of(_PLACES)
        said = (f"Who left {thing} at {place}?", f"I believe it was {dice.of(_ROLES)}.", f"Then bring {thing} here.",
                f"That would take {2 + dice.below(9)} hours.", "Are you sure?", f"Ask at {place}.")  # fmt: skip
        lines.append(f'"{said[dice.below(len(said))]}" said {two if i % 2 else one}.')
    return "\n".join(lines)


def _lecture(dice: _Dice) -> str:
    lines = [f"Section {1 + dice.below(90)}. On {dice.of(_SUBJECTS)}"]
    for i in range(3 + dice.below(3)):
        again = " If so, it is enough to look at the first case." if dice.below(3) == 0 else ""
        lines.append(f"{i + 1}. Observe that {dice.of(_SUBJECTS)} {dice.of(_CLAIMS)}, {dice.of(_REASONS)}.{again}")
    return "\n".join(lines)


def _arithmetic(dice: _Dice) -> str:
    lines = []
    for _ in range(4 + dice.below(6)):
        a, b = 2 + dice.below(98), 2 + dice.below(98)
        lines.append((f"{a} + {b} = {a + b}", f"{a} * {b} = {a * b}", f"{a + b} - {b} = {a}")[dice.below(3)])
    unit = dice.of(_UNITS)
    a, b = 2 + dice.below(30), 2 + dice.below(30)
    lines.append(f"{dice.of(_PEOPLE)} has {a} {unit} and gets {b} more, which makes {a + b} {unit}.")
    return "\n".join(lines)


def _code(dice: _Dice) -> str:
    a, b, c = dice.of(_NAMES), dice.of(_NAMES), dice.of(_NAMES)
    lines = [f"def {a}_of_{b}({c}, step={1 + dice.below(8)}):", f"    {a}_{b} = {dice.below(100)}"]
    for _ in range(2 + dice.below(3)):
        lines += [f"    for i in range({2 + dice.below(30)}):", f"        {a}_{b} += {c}[i * step] * {dice.below(50)}"]
    return "\n".join([*lines, f"    return {a}_{b} if {a}_{b} > {dice.below(1000)} else None"])


def _table(dice: _Dice) -> str:
    lines = ["name,place,amount,unit"]
    for _ in range(4 + dice.below(6)):
        place = dice.of(_PLACES).removeprefix("the ")
        lines.append(f"{dice.of(_PEOPLE)},{place},{dice.below(10000)}.{dice.below(100):02},{dice.of(_UNITS)}")
    return "\n".join(lines)
