"""ds4-tiny, the trained model in the package: right answers, by greedy decoding, through the public interface.

The full measurement on held-out items is training/evaluate.py; here a few of every kind guard the shipped file and
show that settings which change the arithmetic do not break the model.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator

import ds4
import pytest
from ds4.chat import ToolCallEnd, collect

PACKAGE_LIMIT = 12_000_000


@pytest.fixture(scope="module")
def model() -> Iterator[ds4.Model]:
    with ds4.Model.open_embedded() as model:
        yield model


def answer(model: ds4.Model, text: str, mode: str = "thinking", **options: object) -> tuple[str, str]:
    """The content and the finish reason of a greedy answer."""
    with model.session(**{"n_ctx": 1024, **options}) as session:
        messages = [{"role": "user", "content": text}]
        sampler = ds4.Sampler.greedy()
        completion = collect(model.chat(messages, mode=mode, max_tokens=300, sampler=sampler, session=session))
    assert completion.finish is not None
    return completion.content, completion.finish.reason


def sums(n: int, seed: int) -> list[tuple[str, int]]:
    rng = random.Random(seed)
    out = []
    for _ in range(n):
        a, b = rng.randrange(10, 1000), rng.randrange(10, 1000)
        if rng.random() < 0.5:
            out.append((f"What is {a} + {b}?", a + b))
        else:
            out.append((f"What is {max(a, b)} - {min(a, b)}?", abs(a - b)))
    return out


def right(content: str, value: int) -> bool:
    numbers = re.findall(r"-?\d+", content)
    return bool(numbers) and int(numbers[-1]) == value


def test_the_file_is_the_registered_shape_and_small(model: ds4.Model) -> None:
    assert model.shape.name == "ds4-tiny"
    assert model.has_mtp and model.warnings == ()
    assert os.path.getsize(model.path) <= PACKAGE_LIMIT
    model.check()


@pytest.mark.parametrize("mode", ["thinking", "chat"])
def test_arithmetic(model: ds4.Model, mode: str) -> None:
    """Held-out accuracy is about 95 %; 24 of 30 would be far below what chance takes away."""
    results = [(text, *answer(model, text, mode), value) for text, value in sums(30, seed=11)]
    assert all(finish == "stop" for _, _, finish, _ in results), "every answer ends by itself"
    wrong = [(text, content) for text, content, _, value in results if not right(content, value)]
    assert len(wrong) <= 6, wrong


@pytest.mark.parametrize(
    "options",
    [{"qat": False, "rows": "f32"}, {"activations": "quantized"}, {"chunk": 1, "threads": 1}],
    ids=lambda o: ",".join(o),
)
def test_other_arithmetic_of_the_engine_gives_as_good_answers(model: ds4.Model, options: dict[str, object]) -> None:
    wrong = [t for t, value in sums(12, seed=12) if not right(answer(model, t, **options)[0], value)]
    assert len(wrong) <= 3, wrong


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather for a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}


def test_tool_call_and_answer_from_its_result(model: ds4.Model) -> None:
    messages: list[dict[str, object]] = [{"role": "user", "content": "What is the weather in Paris for 3 days?"}]
    events = list(model.chat(messages, mode="chat", tools=[WEATHER], max_tokens=200, sampler=ds4.Sampler.greedy()))
    calls = [e for e in events if isinstance(e, ToolCallEnd)]
    completion = collect(events)
    assert completion.finish is not None and completion.finish.reason == "tool_calls"
    assert [(c.name, c.value, c.error) for c in calls] == [("get_weather", {"city": "Paris", "days": 3}, None)]
    function = {"name": calls[0].name, "arguments": calls[0].arguments}
    messages += [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny, 21 degrees"},
    ]
    reply = collect(model.chat(messages, mode="chat", tools=[WEATHER], max_tokens=200, sampler=ds4.Sampler.greedy()))
    assert reply.finish is not None and reply.finish.reason == "stop"
    assert "21" in reply.content, reply


FACTS = [
    ("The password of the hotel is tiger.", "What is the password of the hotel?", "tiger"),
    ("My dentist lives in Oslo.", "Where does my dentist live?", "Oslo"),
    ("The piano is in the garden.", "Where is the piano?", "garden"),
    ("My teacher comes on Friday.", "When does my teacher come?", "Friday"),
    ("The bicycle is green.", "Which colour is the bicycle?", "green"),
    ("My grandma likes jazz.", "What does my grandma like?", "jazz"),
]


def story(n: int, seed: int) -> str:
    """Sentences without a meaning that matters."""
    rng = random.Random(seed)
    who, did, what = ("man", "king", "child", "farmer", "dog"), ("saw", "followed", "passed"), ("river", "tree", "road")
    return " ".join(f"The old {rng.choice(who)} {rng.choice(did)} the quiet {rng.choice(what)}." for _ in range(n))


@pytest.mark.parametrize(("sentences", "tokens"), [(20, 150), (70, 550), (150, 1200)])
def test_it_recalls_facts_beyond_the_window_and_what_the_indexer_reads_whole(
    model: ds4.Model, sentences: int, tokens: int
) -> None:
    """At most 128 tokens are seen directly, and 128 rows of 4 tokens are chosen by the indexer."""
    wrong = []
    for i, (_, question, value) in enumerate(FACTS):
        told = " ".join(f[0] for f in FACTS)
        text = f"Remember: {told}\n{story(sentences, i)}\n{question}"
        assert len(model.tokenizer.encode(text.split(told)[1])) > tokens
        content = answer(model, text, n_ctx=2048)[0]
        if value not in content:
            wrong.append((question, content))
    assert len(wrong) <= 1, wrong


def test_it_knows_about_ds4(model: ds4.Model) -> None:
    assert "pip install" in answer(model, "How do I install ds4?")[0]
    assert "81 GB" in answer(model, "How do I get the real model?")[0]


def test_the_mtp_block_predicts_what_the_model_says(model: ds4.Model) -> None:
    """A trained block: most of the second-next tokens of greedy answers are its first choice."""
    hits = total = 0
    for text, _ in sums(4, seed=13):
        prompt = f"<｜begin▁of▁sentence｜><｜User｜>{text}<｜Assistant｜><think>"
        with model.session(n_ctx=512, mtp=True) as session:
            session.sync(model.tokenizer.encode(prompt, specials=True))
            said = []
            for _ in range(40):
                said.append(int(session.logits().argmax()))
                if said[-1] == model.tokenizer.eos_id:
                    break
                guess = int(session.mtp_logits(said[-1]).argmax())
                session.eval(said[-1])
                hits += guess == int(session.logits().argmax())
                total += 1
    assert hits >= 0.7 * total, (hits, total)


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ds4.cli.main", *args], capture_output=True, text=True, check=False)


def test_the_program_answers_without_options() -> None:
    done = run("-p", "What is 47 + 58?")
    assert done.returncode == 0, done.stderr
    assert right(done.stdout, 105)
    assert "tiny model" in done.stderr and "-m FILE" in done.stderr
    assert run("-p", "What is 47 + 58?", "-t", "1").stdout == done.stdout, "greedy, so the same every time"
