"""When states are stored."""

from __future__ import annotations

import pytest
from ds4.kvstore import SavePolicy

USER, ASSISTANT = 1001, 1002
POLICY = SavePolicy()


def prompt(n: int, *turns: tuple[int, int]) -> list[int]:
    out = [0] * n
    for at, token in turns:
        out[at] = token
    return out


def test_the_defaults() -> None:
    assert (POLICY.min_tokens, POLICY.cold_max_tokens, POLICY.step) == (512, 30_000, 10_240)


@pytest.mark.parametrize(
    ("n", "anchor"),
    [
        (511, None), (512, 512), (600, 600), (2048, 2048), (2079, 2079), (2080, 2048), (4127, 2048), (4128, 4096),
        (30_000, 28_672), (30_001, None),
    ],
)  # fmt: skip
def test_anchors_of_plain_prompts(n: int, anchor: int | None) -> None:
    assert POLICY.cold_anchor(prompt(n)) == anchor


@pytest.mark.parametrize(
    ("turns", "anchor"),
    [
        ([(700, USER)], 700),  # the system text
        ([(600, USER), (700, USER)], 700),  # files before the question
        ([(600, USER), (700, ASSISTANT), (800, USER)], 600),
        ([(511, USER)], 2048),  # too short to be worth it: the plain rule
        ([(512, USER)], 512),
        ([(10, ASSISTANT), (700, USER)], 2048),
        ([], 2048),
    ],
)
def test_anchors_lie_before_the_last_user_turn_that_nobody_answered(turns: list[tuple[int, int]], anchor: int) -> None:
    assert POLICY.cold_anchor(prompt(3000, *turns), user=USER, assistant=ASSISTANT) == anchor


def test_continued_states_lie_at_multiples() -> None:
    assert [POLICY.next_continued(n) for n in (0, 10_239, 10_240, 20_480)] == [10_240, 10_240, 20_480, 30_720]
    assert SavePolicy(continued_every=0).next_continued(5) is None
    assert SavePolicy(continued_every=10, align=10, min_tokens=35).next_continued(0) == 40


def test_stops_of_a_prefill() -> None:
    assert POLICY.stops(prompt(25_000), 0) == [(10_240, "continued"), (20_480, "continued"), (24_576, "cold")]
    assert POLICY.stops(prompt(25_000), 11_000) == [(20_480, "continued")]
    assert POLICY.stops(prompt(600), 0) == [(600, "cold")]
    assert POLICY.stops(prompt(600), 1) == []
    assert POLICY.stops(prompt(20_480 + 32), 0) == [(10_240, "continued"), (20_480, "cold")]
    assert POLICY.stops(prompt(40_000), 0) == [(n, "continued") for n in (10_240, 20_480, 30_720)]


@pytest.mark.parametrize("field", ["min_tokens", "align", "cold_max_tokens", "continued_every", "trim"])
def test_fields_are_checked(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        SavePolicy(**{field: -1})
