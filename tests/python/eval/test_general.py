"""The suite "general": its answers, computed once more where a machine can."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import combinations, permutations, product
from pathlib import Path

import pytest
from ds4.eval import Case, open_suite
from ds4.eval.plan import question_text

CASES = {case.id: case for case in open_suite("general").cases}


def group(name: str) -> list[Case]:
    return [case for case in CASES.values() if case.id.startswith(name + "-")]


def test_it_is_balanced() -> None:
    assert {name: len(group(name)) for name in ("science", "maths", "code", "security")} == {
        "science": 20, "maths": 18, "code": 12, "security": 12,
    }  # fmt: skip
    letters = Counter(case.answer for case in group("science"))
    assert len(letters) >= 5 and letters.most_common(1)[0][1] <= 8
    assert sum(case.answer == (0,) for case in group("security")) == 3
    assert all(len(question_text(case)) < 4000 for case in CASES.values())


CHOICES: dict[str, tuple[str, Callable[[], float]]] = {
    "science-01": ("2/7", lambda: 0.4 / 1.4),
    "science-02": ("4.0", lambda: -math.log10(math.sqrt(1e-6 * 0.01))),
    "science-03": ("2/5", lambda: 1 / 2.5),
    "science-04": ("45 %", lambda: (1 - 0.1) / 2 * 100),
    "science-06": ("4 Earth years", lambda: math.sqrt(4**3 / 4)),
    "science-07": ("0.18", lambda: (1 / 16) ** (30 / 48)),
    "science-08": ("0.98 V", lambda: 1.10 - 8.314462 * 298.15 / (2 * 96485.33) * math.log(1 / 0.0001)),
    "science-10": ("0.88 c", lambda: 1.2 / 1.36),
    "science-11": ("6 s", lambda: 6 * 2 / 2),
    "science-13": ("1/16", lambda: 0.5**4),
    "science-15": ("46 %", lambda: 100 * 2 * 0.3 * 0.7 / (1 - 0.09)),
    "science-18": ("-0.48", lambda: math.log10(0.05 / 0.15)),
    "science-20": ("3", lambda: sum(340 / (4 * 0.85) * k < 600 for k in range(1, 99, 2))),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choices_are_the_computed_ones(name: str) -> None:
    case = CASES[name]
    text, compute = CHOICES[name]

    def value(choice: str) -> float:
        number = choice.removeprefix("about ").split()[0]
        return eval(number, {})  # fractions

    nearest = min(case.choices, key=lambda choice: abs(value(choice) - compute()))
    assert nearest == case.choices[ord(case.answer) - ord("A")]
    assert text in nearest


def tilings(n: int) -> int:
    """By filling column after column; a state says which squares of the first open column are taken."""

    @cache
    def fill(column: int, taken: int) -> int:
        if column == n:
            return int(taken == 0)
        if taken == 3:
            return fill(column + 1, 0)
        if taken:
            return fill(column + 1, 3 - taken)  # only a lying tile fits
        return fill(column + 1, 0) + 2 * fill(column + 1, 3)  # standing; two lying ones or a square

    return fill(0, 0)


def grid_paths() -> int:
    @cache
    def ways(x: int, y: int) -> int:
        if min(x, y) < 0 or (x, y) == (4, 4):
            return 0
        return 1 if (x, y) == (0, 0) else ways(x - 1, y) + ways(x, y - 1)

    return ways(8, 8)


def determinant() -> int:
    total = 0
    for p in permutations(range(5)):
        sign = (-1) ** sum(p[i] > p[j] for i, j in combinations(range(5), 2))
        entries = [{0: 3, 1: 1, -1: 2}.get(column - row, 0) for row, column in enumerate(p)]
        total += sign * math.prod(entries)
    return total


def tosses() -> int:
    """From the linear equations of the states, solved backwards: e[k] = 1 + (e[k+1] + e[back]) / 2."""
    pattern = "HTHTH"

    def after(k: int, toss: str) -> int:
        seen = pattern[:k] + toss
        return max(j for j in range(len(seen) + 1) if seen.endswith(pattern[:j]))

    e = [0.0] * 6
    for _ in range(5000):
        e = [1 + (e[after(k, "H")] + e[after(k, "T")]) / 2 for k in range(5)] + [0.0]
    return round(e[0])


def trailing_zeros() -> int:
    def exponent(p: int) -> int:
        return sum(1234 // p**k for k in range(1, 12))

    return min(exponent(2) // 2, exponent(3))


def spanning_trees() -> int:
    """By Kirchhoff's theorem, with whole numbers (Bareiss)."""
    size = 8
    m = [[0] * size for _ in range(size)]
    for a, b in product(range(3), range(3, 8)):
        m[a][a] += 1
        m[b][b] += 1
        m[a][b] = m[b][a] = -1
    m = [row[1:] for row in m[1:]]
    previous = 1
    for k in range(len(m) - 1):
        for i, j in product(range(k + 1, len(m)), repeat=2):
            m[i][j] = (m[i][j] * m[k][k] - m[i][k] * m[k][j]) // previous
        previous = m[k][k]
    return m[-1][-1]


def largest_prime_factor(n: int) -> int:
    p = 2
    while p * p <= n:
        n, p = (n // p, p) if n % p == 0 else (n, p + 1)
    return n


def sequence() -> int:
    """a(n) from the powers of the matrix ((4, -1), (1, 0))."""
    a, b, c, d = 1, 0, 0, 1
    for _ in range(50):
        a, b, c, d = 4 * a - c, 4 * b - d, a, b
    return (c * 2 + d * 1) % 1000


def totient_sum() -> int:
    return sum(d * sum(math.gcd(d, k) == 1 for k in range(1, d + 1)) for d in range(1, 721) if 720 % d == 0)


def long_cycles() -> int:
    return sum(all(p[i] != i and p[p[i]] != i for i in range(7)) for p in permutations(range(7)))


def sparse_subsets() -> int:
    some = (s for s in range(1 << 15) if not s & s >> 1)
    return sum(sum(i for i in range(1, 16) if s >> (i - 1) & 1) % 2 == 0 for s in some)


MATHS: dict[str, Callable[[], int]] = {
    "maths-01": lambda: sum(math.gcd(n, 6) == 1 for n in range(1, 2001)),
    "maths-02": lambda: (7**2026 + 11**2026) % 100,
    "maths-03": lambda: sum(map(int, str(9**20))),
    "maths-04": lambda: tilings(12),
    "maths-05": grid_paths,
    "maths-06": lambda: sum(
        n % 3 == 0 for n in range(10000, 100000) if list(s := str(n)) == sorted(set(s)) and "0" not in s
    ),
    "maths-07": lambda: min(n for n in range(1, 3466) if all(n % m == r for m, r in ((5, 3), (7, 4), (9, 5), (11, 6)))),
    "maths-08": determinant,
    "maths-09": sparse_subsets,
    "maths-10": long_cycles,
    "maths-11": lambda: largest_prime_factor(2**30 - 1),
    "maths-12": totient_sum,
    "maths-13": tosses,
    "maths-14": lambda: sum(x * x + y * y + z * z == 89 for x, y, z in product(range(-9, 10), repeat=3)),
    "maths-15": trailing_zeros,
    "maths-16": spanning_trees,
    "maths-17": sequence,
    "maths-18": lambda: sum("".join(bits).count("01") == 3 for bits in product("01", repeat=14)),
}


def test_every_mathematical_question_is_computed() -> None:
    assert MATHS.keys() == {case.id for case in group("maths")}


@pytest.mark.parametrize("name", MATHS)
def test_mathematical_answers(name: str) -> None:
    assert CASES[name].answer == str(MATHS[name]())


def compiled(case: Case, folder: Path, *options: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    assert case.code is not None
    source = folder / "code.c"
    source.write_text(case.code)
    out = folder / "out"
    subprocess.run([compiler, "-std=gnu11", "-w", *options, str(source), "-o", str(out)], check=True, timeout=60)
    return out


@pytest.mark.parametrize("case", group("code"), ids=lambda case: case.id)
def test_programs_print_the_answers(case: Case, tmp_path: Path) -> None:
    assert case.code is not None and case.question is not None
    python = "Python" in case.question
    command = [sys.executable, "-I", "-c", case.code] if python else [str(compiled(case, tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == case.expected


@pytest.mark.parametrize("case", group("security"), ids=lambda case: case.id)
def test_functions_compile_and_lines_exist(case: Case, tmp_path: Path) -> None:
    assert case.code is not None
    compiled(case, tmp_path, "-c")
    lines = case.code.splitlines()
    assert case.answer == (0,) or all(lines[n - 1].strip() not in ("", "{", "}") for n in case.answer)
