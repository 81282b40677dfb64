"""Speculation with the trained model: the same tokens as without, from the same distribution, told in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import ds4
import numpy as np
import pytest
from ds4.chat import render
from ds4.costs import CostModel
from hypothesis import given, settings
from hypothesis import strategies as st

QUESTIONS = ("What is the capital of Italy?", "Compute 17 + 25.", "Tell me about the sea.", "Repeat: one two three")


@pytest.fixture(scope="module")
def model() -> Iterator[ds4.Model]:
    with ds4.Model.open_embedded() as model:
        yield model


def prompt_of(model: ds4.Model, question: str) -> list[int]:
    return list(render([{"role": "user", "content": question}], mode="chat").encode(model.tokenizer))


def steps(session: ds4.Session, n: int, draft: ds4.Draft | None, sampler: ds4.Sampler) -> list[tuple[object, ...]]:
    found = session.generate(max_tokens=n, sampler=sampler, stop_tokens=[], draft=draft)
    return [(s.token, s.text, s.logprob, s.pos, s.finish) for s in found]


@pytest.mark.parametrize("question", QUESTIONS)
def test_greedy_generations_are_the_same(model: ds4.Model, question: str) -> None:
    tokens = prompt_of(model, question)
    with model.session(n_ctx=512, mtp=True, threads=1) as session:
        session.sync(tokens)
        expected = steps(session, 150, None, ds4.Sampler.greedy())
        state = session.snapshot()
        drafts = [ds4.Draft(depth=d, auto=False) for d in range(1, 6)]
        for draft in (*drafts, ds4.Draft(depth=3, margin=2.0, auto=False), ds4.Draft()):
            session.sync(tokens)
            assert steps(session, 150, draft, ds4.Sampler.greedy()) == expected
            assert session.snapshot() == state
            found = session.draft_statistics
            assert found.verifies + found.accepted + found.plain == 149, "the last token is not followed by a guess"
            if not draft.auto:
                assert found.accepted > 0


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 40]),
    top_p=st.sampled_from([0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05]),
    depth=st.integers(1, 5),
    question=st.sampled_from(QUESTIONS),
)
def test_a_seed_gives_the_tokens_that_it_gives_without(
    model: ds4.Model, seed: int, temperature: float, top_k: int, top_p: float, min_p: float, depth: int, question: str
) -> None:
    def sampler() -> ds4.Sampler:
        return ds4.Sampler(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)

    tokens = prompt_of(model, question)
    with model.session(n_ctx=256, mtp=True, threads=1) as session:
        session.sync(tokens)
        expected = steps(session, 60, None, sampler())
        session.sync(tokens)
        assert steps(session, 60, ds4.Draft(depth=depth, auto=False), sampler()) == expected


def chi_square(counts: Counter[int], probabilities: np.ndarray, n: int) -> tuple[float, int]:
    """Statistic and degrees of freedom; tokens that are expected less than 8 times are taken together."""
    expected = probabilities * n
    common = np.flatnonzero(expected >= 8)
    seen = np.array([counts[int(i)] for i in common], float)
    want = expected[common]
    rest = n - want.sum()
    if rest >= 8:
        seen, want = np.append(seen, n - seen.sum()), np.append(want, rest)
    return float(((seen - want) ** 2 / want).sum()), len(want) - 1


def test_sampled_tokens_follow_the_distribution_of_the_model(model: ds4.Model) -> None:
    """The first tokens of many seeds, each against the probabilities that the model gives there (L083)."""
    n = 2000
    tokens = prompt_of(model, "Tell me something.")
    temperature = 1.6
    with model.session(n_ctx=128, mtp=True, threads=1) as session:

        def probabilities(prefix: list[int]) -> np.ndarray:
            session.sync([*tokens, *prefix])
            scores = session.logits().astype(np.float64) / temperature
            p = np.exp(scores - scores.max())
            out: np.ndarray = p / p.sum()
            return out

        drawn: list[list[int]] = []
        accepted = 0
        for seed in range(1, n + 1):
            session.sync(tokens)
            sampler = ds4.Sampler(temperature=temperature, min_p=0.0, seed=seed * 0x9E3779B97F4A7C15 % 2**64)
            found = session.generate(
                max_tokens=3, sampler=sampler, stop_tokens=[], draft=ds4.Draft(depth=2, auto=False)
            )
            drawn.append([s.token for s in found])
            accepted += session.draft_statistics.accepted
        assert accepted > 100, "tokens came from guesses too"
        first = Counter(d[0] for d in drawn)
        checks = [(first, probabilities([]), n)]
        for token, count in first.most_common(2):
            following = [d for d in drawn if d[0] == token]
            checks.append((Counter(d[1] for d in following), probabilities([token]), count))
            pair = Counter(d[1] for d in following).most_common(1)[0]
            third = Counter(d[2] for d in following if d[1] == pair[0])
            checks.append((third, probabilities([token, pair[0]]), pair[1]))
    n_tested = 0
    for counts, expected, total in checks:
        statistic, freedom = chi_square(counts, expected, total)
        if freedom < 1:
            continue
        n_tested += 1
        assert statistic < freedom + 4.5 * np.sqrt(2 * freedom) + 8, f"{statistic:.1f} of {freedom} degrees"
    assert n_tested >= 3


def test_a_generation_may_be_left_at_any_token(model: ds4.Model) -> None:
    tokens = prompt_of(model, QUESTIONS[0])
    with model.session(n_ctx=256, mtp=True) as session, model.session(n_ctx=256, mtp=True) as plain:
        for n in range(1, 12):
            session.sync(tokens)
            seen = []
            for step in session.generate(sampler=ds4.Sampler.greedy(), stop_tokens=[], draft=ds4.Draft(5, auto=False)):
                seen.append(step.token)
                assert session.tokens == [*tokens, *seen]
                if len(seen) == n:
                    break
            plain.sync([*tokens, *seen])
            assert session.snapshot() == plain.snapshot()
            np.testing.assert_array_equal(session.logits(), plain.logits())


def test_stops_are_met_in_the_middle_of_a_batch(model: ds4.Model) -> None:
    tokens = prompt_of(model, QUESTIONS[2])
    with model.session(n_ctx=256, mtp=True) as session:
        for options in ({"stop": ["e"]}, {"stop": [" the"]}, {}, {"max_tokens": 4}, {"max_tokens": 1}):
            found = []
            for draft in (None, ds4.Draft(4, auto=False)):
                session.sync(tokens)
                all_steps = list(session.generate(sampler=ds4.Sampler.greedy(), draft=draft, **options))
                found.append(([(s.token, s.text, s.finish, s.stop) for s in all_steps], session.snapshot()))
            assert found[0] == found[1]


def test_a_context_that_ends_in_a_batch(model: ds4.Model) -> None:
    tokens = prompt_of(model, QUESTIONS[2])
    n_ctx = len(tokens) + 9
    for draft in (None, ds4.Draft(5, auto=False)):
        with model.session(n_ctx=n_ctx, mtp=True) as session:
            session.sync(tokens)
            found = list(session.generate(sampler=ds4.Sampler.greedy(), stop_tokens=[], draft=draft))
            assert (len(found), found[-1].finish, session.pos) == (10, "context", n_ctx)


def test_a_session_that_cannot_draft_says_so(model: ds4.Model) -> None:
    with model.session(n_ctx=64) as session:
        session.sync([1, 2, 3])
        assert not session.can_draft
        with pytest.raises(ds4.StateError, match="mtp=True"):
            session.generate(draft=ds4.Draft())
        with pytest.raises(TypeError, match="must be a Draft"):
            session.generate(draft=3)  # type: ignore[arg-type]


def test_what_was_won_is_told(model: ds4.Model) -> None:
    with model.session(n_ctx=256, mtp=True) as session:
        session.sync(prompt_of(model, QUESTIONS[0]))
        assert session.draft_statistics.verifies == 0
        list(session.generate(max_tokens=40, sampler=ds4.Sampler.greedy(), draft=ds4.Draft(2, auto=False)))
        found = session.draft_statistics
        assert 0 < found.acceptance <= 1
        assert found.tokens_per_verify > 1
        assert found.draft_seconds > 0
        assert found.verify_seconds > 0
        total = ds4.DraftStatistics()
        total.add(found)
        total.add(found)
        assert total.accepted == 2 * found.accepted
        assert total.by_depth == [(2 * a, 2 * b) for a, b in found.by_depth]


def test_costs_are_known_to_the_next_generation(model: ds4.Model) -> None:
    costs = CostModel()
    chooser = costs.chooser()
    for _ in range(8):  # so many tokens alone come first
        assert chooser.choose(5) == 0
        chooser.plain(1.0)
    for _ in range(6):
        chooser.batch(1, 1, 1, 1, 1.3)
    for _ in range(8):
        chooser.plain(1.0)
    assert costs.cost(1) == pytest.approx(1.3)
    assert costs.cost(2) == pytest.approx(1.6)
    assert costs.pays(1) > 1.3
    assert chooser.choose(5) > 0


def test_costs_are_known_to_the_next_session() -> None:
    """Of one model: another answer, another conversation or a fork does not find out again."""
    greedy = ds4.Sampler.greedy()
    with ds4.Model.open_embedded() as model, model.session(n_ctx=256, mtp=True, threads=1) as first:
        first.sync(prompt_of(model, QUESTIONS[0]))
        list(first.generate(max_tokens=60, sampler=greedy, stop_tokens=[], draft=ds4.Draft()))
        found = first.draft_costs
        assert first.draft_statistics.verifies > 0
        assert found.known(1)
        with first.fork() as copy:
            assert copy.draft_costs is found
        with model.session(n_ctx=128, threads=1) as second, model.session(n_ctx=128, threads=2) as other:
            assert second.draft_costs is found
            assert other.draft_costs is not found, "batches of more threads cost something else"
    with ds4.Model.open_embedded() as again, again.session(n_ctx=16, threads=1) as session:
        assert session.draft_costs is not found
