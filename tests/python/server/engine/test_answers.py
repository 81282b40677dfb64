"""Answers of the engine: the text is the model's, whoever else is asking."""

from __future__ import annotations

from typing import Any

import ds4
import pytest
from ds4.chat import collect
from ds4.server.contract import Reasoning, Sampling, Started
from support.serving import answers, ask, done, text


@pytest.mark.parametrize("mode", ["chat", "thinking"])
def test_the_answer_is_the_model_s_own(model: ds4.Model, mode: Any) -> None:
    messages = [{"role": "user", "content": "What is 12 + 30?"}]
    with model.session(n_ctx=2048) as session:
        own = collect(model.chat(messages, mode=mode, sampler=ds4.Sampler.greedy(), session=session))
    (events,) = answers(model, ask("What is 12 + 30?", mode=mode))
    assert (text(events, Reasoning), text(events)) == (own.reasoning, own.content)
    assert done(events).finish == "stop"
    assert events[-1] is done(events)


def test_requests_do_not_change_each_other(model: ds4.Model) -> None:
    """Alone, after others and beside others, greedy and drawn: the same."""
    requests = [
        ask("What is 7 + 8?"),
        ask("What is 100 - 58?", sampling=Sampling(temperature=1.0, seed=7)),
        ask("Tell me about Rome.", sampling=Sampling(temperature=0.8, top_p=0.9, seed=8), max_tokens=60),
        ask("What is 7 + 8?", sampling=Sampling(temperature=1.5, seed=9), max_tokens=60),
    ]
    alone = [answers(model, request)[0] for request in requests]
    for together, options in ((False, {}), (True, {}), (True, {"prefill_quantum": 1}), (True, {"max_active": 2})):
        got = answers(model, *requests, *requests[:2], together=together, **options)
        for a, b in zip([*alone, *alone[:2]], got, strict=True):
            assert (text(a, Reasoning), text(a)) == (text(b, Reasoning), text(b))


def test_sizes_are_told(model: ds4.Model) -> None:
    (events,) = answers(model, ask("What is 2 + 2?"))
    started = next(e for e in events if isinstance(e, Started))
    usage = done(events).usage
    assert usage.prompt == started.prompt_tokens == usage.cached + usage.computed
    assert 0 < usage.reasoning < usage.completion
