"""Which session a prompt goes on from."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from ds4.server.engine.pool import Placement, Pool, Slot, common_prefix
from support.scripted import ScriptedModel, turns


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel(turns("x"))


def prompt(*parts: tuple[int, int]) -> array[int]:
    """Tokens: so many of each."""
    return array("i", [token for token, n in parts for _ in range(n)])


def work(pool: Pool, tokens: array[int], *, answer: int = 5, checkpoints: tuple[int, ...] = ()) -> Placement:
    """Take a session for a prompt, compute the prompt and an answer there, and give it back."""
    placement = pool.take(tokens, object())
    slot: Slot = placement.slot
    session: Any = slot.session
    session.rewind(placement.kept)
    for at in (*checkpoints, len(tokens)):
        session.eval(list(tokens[session.pos : at]))
        session.checkpoint()
    session.eval([900] * answer)
    slot.tokens, slot.turn = array("i", session.tokens), len(tokens)
    pool.free(slot)
    return placement


def test_common_prefixes() -> None:
    a = array("i", [1, 2, 3])
    for b, n in (([], 0), ([1], 1), ([1, 2, 3], 3), ([1, 2, 3, 4], 3), ([1, 9, 3], 1), ([9], 0)):
        assert common_prefix(a, array("i", b)) == common_prefix(array("i", b), a) == n


def test_what_goes_on_goes_on_in_place(model: ScriptedModel) -> None:
    pool = Pool(model.session, 4)
    a = prompt((1, 20))
    first = work(pool, a)
    assert (first.source, first.kept) == ("cold", 0)
    second = work(pool, prompt((1, 20), (900, 5), (2, 10)))
    assert (second.source, second.kept, second.slot) == ("live", 25, first.slot)
    assert len(pool.slots) == 1


def test_another_answer_to_the_same_prompt_goes_back_in_place(model: ScriptedModel) -> None:
    pool = Pool(model.session, 4)
    first = work(pool, prompt((1, 20)))
    again = work(pool, prompt((1, 20)))
    assert (again.source, again.kept, again.slot) == ("rewind", 20, first.slot)


def test_a_conversation_that_left_earlier_gets_a_copy(model: ScriptedModel) -> None:
    pool = Pool(model.session, 2)
    a = work(pool, prompt((1, 20), (2, 20)), checkpoints=(20,))
    b = work(pool, prompt((1, 20), (3, 20)))
    assert (b.source, b.kept, b.common) == ("fork", 20, 20)
    assert b.slot is not a.slot and len(pool.slots) == 2 and a.slot.tokens[:40] == prompt((1, 20), (2, 20))
    assert b.replaced is None


def test_a_copy_takes_the_place_of_what_was_not_used_for_longest(model: ScriptedModel) -> None:
    pool = Pool(model.session, 3)
    old, newer = work(pool, prompt((5, 20))), work(pool, prompt((6, 20)))
    work(pool, prompt((1, 20), (2, 20)), checkpoints=(20,))
    work(pool, prompt((5, 20)))
    copy = work(pool, prompt((1, 20), (3, 20)))
    assert copy.source == "fork" and copy.replaced is newer.slot
    assert old.slot in pool.slots and newer.slot not in pool.slots and len(pool.slots) == 3


def test_with_one_session_all_goes_back_in_place(model: ScriptedModel) -> None:
    pool = Pool(model.session, 1)
    work(pool, prompt((1, 20), (2, 20)), checkpoints=(20,))
    other = work(pool, prompt((1, 20), (3, 20)))
    assert (other.source, other.kept) == ("rewind", 20)
    assert work(pool, prompt((4, 20))).source == "cold"


def test_a_new_prompt_takes_an_empty_session_then_a_new_one_then_the_oldest(model: ScriptedModel) -> None:
    pool = Pool(model.session, 2)
    one = work(pool, prompt((1, 20)))
    one.slot.session.reset()
    one.slot.tokens = array("i")
    assert work(pool, prompt((2, 20))).slot is one.slot
    two = work(pool, prompt((3, 20)))
    assert two.slot is not one.slot
    work(pool, prompt((2, 20)))
    assert work(pool, prompt((4, 20))).slot is two.slot


def test_the_session_with_most_of_the_prompt_is_taken(model: ScriptedModel) -> None:
    pool = Pool(model.session, 4)
    work(pool, prompt((1, 20)))
    pool.slots.append(Slot(model.session()))
    more = pool.slots[-1]
    more.session.eval(list(prompt((1, 30))))
    more.tokens = array("i", more.session.tokens)
    assert pool.take(prompt((1, 40)), object()).slot is more


def test_a_busy_session_is_copied_and_never_taken(model: ScriptedModel) -> None:
    pool = Pool(model.session, 2)
    a = work(pool, prompt((1, 20)))
    a.slot.owner = object()
    b = pool.take(prompt((1, 20), (2, 5)), object())
    assert b.source == "fork" and b.kept == 20 and b.slot is not a.slot


def test_a_session_where_another_thread_works_is_left_alone(model: ScriptedModel) -> None:
    pool = Pool(model.session, 2)
    a = work(pool, prompt((1, 20)))
    a.slot.owner, a.slot.parked = object(), True
    b = pool.take(prompt((1, 20), (2, 5)), object())
    assert (b.source, b.kept) == ("cold", 0) and b.slot is not a.slot


def test_without_memory_for_a_copy_the_session_itself_goes_back(
    model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(model.session, 2)
    a = work(pool, prompt((1, 20), (2, 20)), checkpoints=(20,))

    def fork() -> None:
        raise MemoryError

    monkeypatch.setattr(a.slot.session, "fork", fork)
    b = pool.take(prompt((1, 20), (3, 20)), object())
    assert (b.source, b.kept, b.slot) == ("rewind", 20, a.slot)


def test_a_prompt_that_leaves_a_few_tokens_before_the_end_goes_back_in_place(model: ScriptedModel) -> None:
    """Without a checkpoint there: the last positions of a session are still in its cache."""
    pool = Pool(model.session, 2)
    first = work(pool, prompt((1, 20), (2, 20)), answer=12)
    session: Any = first.slot.session
    session.n_steps_back = 8
    tokens = array("i", session.tokens)
    assert first.slot.reachable(44) == 44 and first.slot.reachable(43) == 40
    assert first.slot.reachable(44, copied=True) == 40, "a copy has no past"
    assert first.slot.reachable(len(tokens)) == len(tokens)
    again = work(pool, tokens[:45] + prompt((3, 5)))
    assert (again.source, again.kept, again.slot, again.common) == ("rewind", 45, first.slot, 45)
    assert len(pool.slots) == 1


def test_a_copy_of_a_busy_session_goes_back_to_a_checkpoint(model: ScriptedModel) -> None:
    pool = Pool(model.session, 2)
    first = work(pool, prompt((1, 20), (2, 20)), checkpoints=(20,), answer=4)
    session: Any = first.slot.session
    session.n_steps_back = 8
    first.slot.owner = object()
    copy = pool.take(array("i", session.tokens[:42]) + prompt((3, 5)), object())
    assert (copy.source, copy.kept, copy.common) == ("fork", 40, 42)


def test_nothing_is_kept_of_a_session_that_shares_nothing(model: ScriptedModel) -> None:
    pool = Pool(model.session, 1)
    first = work(pool, prompt((1, 2)), answer=2)
    session: Any = first.slot.session
    session.n_steps_back = 4
    assert first.slot.reachable(0) == 0
    assert work(pool, prompt((2, 5))).source == "cold"


def test_a_broken_session_is_closed(model: ScriptedModel) -> None:
    pool = Pool(model.session, 2)
    a = pool.take(prompt((1, 20)), object())
    a.slot.broken = True
    pool.free(a.slot)
    assert pool.slots == [] and a.slot.session.closed
    assert pool.size() == (0, 0)
