"""What is remembered of what the model wrote."""

from __future__ import annotations

import json
import random
from typing import Any

import ds4
import pytest
from ds4.chat import Prompt, ToolCall, parse_completion, render, render_tool_calls
from ds4.chat.protocol import DSML, EOS
from ds4.server.engine.bounded import BoundedDict
from ds4.server.engine.replay import (
    TextCache,
    ToolMemory,
    TurnMemory,
    WrittenTurn,
    call_ids,
    key_of_tokens,
    restore,
    stored_blocks,
    turn_of_blocks,
    written_turn,
)

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BLOCK = "".join(part.text for part in render_tool_calls([ToolCall("f", '{"a": "x", "b": 1}')]))
CALLS = (("id1", "f", '{"a": "x", "b": 1}'),)


def keyed(tokenizer: Any, text: str) -> bytes:
    return key_of_tokens(tokenizer, tokenizer.encode(text, specials=True))


def history(arguments: Any = '{"a": "x", "b": 1}', **members: Any) -> list[dict[str, Any]]:
    call = {"id": "id1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    turn = {"role": "assistant", "content": "c", "tool_calls": [call], **members}
    return [{"role": "user", "content": "q"}, turn, {"role": "tool", "tool_call_id": "id1", "content": "r"}]


# Bounded dictionaries


def test_what_was_not_used_for_longest_goes_first() -> None:
    kept: BoundedDict[str, int] = BoundedDict(10)
    for key in "abc":
        kept.put(key, ord(key), 3)
    assert kept.get("a") == ord("a")
    kept.put("d", 0, 3)
    assert list(kept) == ["c", "a", "d"] and kept.weight == 9
    kept.put("a", 1, 1)
    assert kept.weight == 7 and kept.get("a") == 1
    kept.put("huge", 0, 11)
    assert kept.get("huge") is None and len(kept) == 3
    kept.put("a", 2, 11)
    assert kept.get("a") is None


@pytest.mark.parametrize("seed", range(5))
def test_bounds_hold(seed: int) -> None:
    rng = random.Random(seed)
    kept: BoundedDict[int, int] = BoundedDict(100, 7)
    model: dict[int, int] = {}
    for _ in range(500):
        key, weight = rng.randrange(20), rng.randrange(30)
        kept.put(key, key, weight)
        model[key] = weight
        assert len(kept) <= 7 and kept.weight <= 100
        assert kept.weight == sum(model[k] for k in kept)


def test_a_bound_of_nothing_keeps_nothing() -> None:
    kept: BoundedDict[int, int] = BoundedDict(100, 0)
    kept.put(1, 1, 1)
    assert len(kept) == 0


# Turns with calls


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("content", ["", "Let me see.", "a\n\nb\n"])
def test_a_turn_is_what_was_written(model: ds4.Model, thinking: bool, content: str) -> None:
    """Rendering it in its place gives the bytes that were drawn."""
    text = f"{'why</think>' if thinking else ''}{content}{BLOCK}"
    mode = "thinking" if thinking else "chat"
    found = parse_completion(text, mode, [TOOL])
    turn = written_turn(keyed(model.tokenizer, text), thinking, found.reasoning, found.content, CALLS)
    assert turn == WrittenTurn("why" if thinking else "", content, BLOCK, CALLS)
    assert turn is not None
    messages, blocks, unknown = restore(history(content=content.strip()), {1: turn})
    rendered = render(messages, mode=mode, tools=[TOOL], blocks=blocks)
    assert (keyed(model.tokenizer, text) + b"\xff" + EOS.encode()) in rendered.key() and unknown == 0


def test_what_cannot_be_rendered_again_is_not_remembered(model: ds4.Model) -> None:
    """Markup written as plain text, text behind the block that belongs to nothing, a mark that is echoed."""
    tokenizer = model.tokenizer
    plain = key_of_tokens(tokenizer, tokenizer.encode(BLOCK))  # no special tokens in it
    assert written_turn(plain, False, "", "", CALLS) is None
    assert written_turn(keyed(tokenizer, f"<think>why</think>{BLOCK}"), True, "why", "", CALLS) is None
    assert written_turn(keyed(tokenizer, f"why{BLOCK}"), True, "why", "", CALLS) is None
    assert written_turn(keyed(tokenizer, BLOCK), False, "", "", ()) is None


@pytest.mark.parametrize(
    "arguments", ['{"a":"x","b":1}', '{"b": 1, "a": "x"}', {"a": "x", "b": 1}, '{"a": "x", "b": 1.0}']
)
def test_equal_arguments_in_any_form_are_the_same_call(arguments: Any) -> None:
    turn = WrittenTurn("r", "c", BLOCK, CALLS)
    messages, blocks, unknown = restore(history(arguments), {1: turn})
    assert blocks == {1: BLOCK} and unknown == 0 and messages[1]["reasoning_content"] == "r"


@pytest.mark.parametrize(
    "arguments",
    ['{"a":"y","b":1}', "{}", "not json", None, 5, '{"a": "x", "b": true}', '{"a": "x"}', "[]", '{"a": "x", "b": NaN}'],
)
def test_other_arguments_are_another_call(arguments: Any) -> None:
    messages, blocks, unknown = restore(history(arguments), {1: WrittenTurn("r", "c", BLOCK, CALLS)})
    assert blocks == {} and unknown == 1 and "reasoning_content" not in messages[1]


def test_what_a_client_changed_stays_changed() -> None:
    turn = WrittenTurn("r", "c\n", BLOCK, CALLS)
    for members, content, reasoning in (
        ({"content": "c"}, "c\n", "r"),
        ({"content": None}, "c\n", "r"),
        ({"content": "other"}, "other", "r"),
        ({"content": [{"type": "text", "text": "c"}]}, [{"type": "text", "text": "c"}], "r"),
        ({"reasoning_content": "mine"}, "c\n", "mine"),
    ):
        (_, message, _), blocks, _ = restore(history(**members), {1: turn})
        assert (message["content"], message["reasoning_content"]) == (content, reasoning)
        assert blocks == {1: BLOCK}


@pytest.mark.parametrize(
    "calls", ["x", 5, [5], [{"id": 7, "function": {}}], [{"function": {"name": "f"}}], [{"id": "id1"}], [], None, {}]
)
def test_wrong_calls_are_left_to_the_renderer(calls: Any) -> None:
    message = {"role": "assistant", "content": "c", "tool_calls": calls}
    call_ids(message)
    assert restore([message], {0: WrittenTurn("r", "c", BLOCK, CALLS)})[0] == [message]


def test_all_calls_of_a_turn_share_it_and_go_together() -> None:
    memory = ToolMemory(4, 1 << 20)
    for k in range(3):
        memory.put(WrittenTurn("", "", BLOCK, ((f"{k}a", "f", "{}"), (f"{k}b", "f", "{}"))))
    assert memory.get("0a") is None and memory.get("0b") is None and len(memory) == 4
    assert memory.get("2a") is memory.get("2b")


def test_a_store_gives_turns_back() -> None:
    two = "".join(p.text for p in render_tool_calls([ToolCall("f", '{"a": "x"}'), ToolCall("f", '{"a": "y"}')]))
    calls = (("i", "f", '{"a": "x"}'), ("j", "f", '{"a": "y"}'))
    turn = WrittenTurn("why", "c\n", two, calls)
    found = stored_blocks([turn])
    assert set(found) == {"i", "j", "i#before", "j#before"}
    assert turn_of_blocks(["i", "j"], found, [TOOL]) == turn
    assert turn_of_blocks(["i", "j"], found, []) == turn
    assert turn_of_blocks(["i"], found, [TOOL]) is None
    assert turn_of_blocks(["i", "k"], found, [TOOL]) is None
    assert turn_of_blocks(["i", "j"], {**found, "j": BLOCK}, [TOOL]) is None
    assert turn_of_blocks(["i", "j"], {"i": two, "j": two}, [TOOL]) is None
    assert turn_of_blocks(["i", "j"], {**found, "i#before": "no mark"}, [TOOL]) is None


# Tokens of turns


def odd(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a text, character by character."""
    return [token for char in text for token in tokenizer.encode(char)]


def conversation(*replies: str) -> Prompt:
    messages: list[dict[str, Any]] = []
    for i, reply in enumerate(replies):
        messages += [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": reply}]
    return render([*messages, {"role": "user", "content": "end"}], mode="chat")


def test_turns_keep_their_tokens_in_their_place(model: ds4.Model) -> None:
    tokenizer = model.tokenizer
    cache, memory = TextCache(tokenizer, 1 << 20), TurnMemory(1 << 20)
    canonical = conversation("hello there", "something else", "hello there")
    assert list(cache.encode_prompt(canonical, memory.find(canonical.key()))) == canonical.encode(tokenizer)
    before = conversation().key()  # up to the first reply: ends with the mark that opens it
    before = canonical.key()[: canonical.key().index(b"hello there")]
    memory.put(before, b"hello there", odd(tokenizer, "hello there"))
    ids = list(cache.encode_prompt(canonical, memory.find(canonical.key())))
    assert tokenizer.decode(ids) == canonical.text and ids != canonical.encode(tokenizer)
    first = tokenizer.encode("hello there")
    spelled = odd(tokenizer, "hello there")
    text = canonical.encode(tokenizer)
    at = next(i for i in range(len(text)) if text[i : i + len(first)] == first)
    assert ids == text[:at] + spelled + text[at + len(first) :]  # the third reply, another turn, is not touched
    other = conversation("hello there!", "something else")
    assert memory.find(other.key()) == {}
    edited = render([{"role": "user", "content": "Q0"}, {"role": "assistant", "content": "hello there"},
                     {"role": "user", "content": "end"}], mode="chat")  # fmt: skip
    assert memory.find(edited.key()) == {}


def test_a_turn_of_several_texts_is_replaced_as_a_whole(model: ds4.Model) -> None:
    """A turn with calls: special tokens inside it, as they were drawn."""
    tokenizer = model.tokenizer
    memory, cache = TurnMemory(1 << 20), TextCache(tokenizer, 1 << 20)
    prompt = render(history(), mode="chat", tools=[TOOL])
    key = prompt.key()
    start, end = key.index(b"c\n\n<"), key.index(b"\xff" + EOS.encode())
    drawn: list[int] = []
    for i, piece in enumerate(f"c{BLOCK}".split(DSML)):
        drawn += [tokenizer.special(DSML)] * bool(i) + odd(tokenizer, piece)
    assert key_of_tokens(tokenizer, drawn) == key[start:end]
    memory.put(key[:start], key[start:end], drawn)
    ids = list(cache.encode_prompt(prompt, memory.find(key)))
    assert key_of_tokens(tokenizer, ids) == key
    assert any(ids[i : i + len(drawn)] == drawn for i in range(len(ids)))


def test_the_memory_of_turns_is_bounded(model: ds4.Model) -> None:
    memory = TurnMemory(3000)
    for i in range(100):
        memory.put(b"p%d" % i, b"t", [1] * 100)
    assert len(memory) == 5


def test_a_cached_text_has_the_same_tokens(model: ds4.Model) -> None:
    tokenizer = model.tokenizer
    cache = TextCache(tokenizer, 5000)
    rng = random.Random(1)
    texts = ["".join(rng.choice("ab \n\u00e9\u4e2d") for _ in range(rng.randrange(100))) for _ in range(100)]
    for text in texts * 2:
        assert list(cache.encode(text)) == tokenizer.encode(text)


def test_keys_of_tokens_are_keys_of_prompts(model: ds4.Model) -> None:
    for prompt in (conversation("a", "b\u00e9"), render(history(), mode="thinking", tools=[TOOL], effort="max")):
        assert key_of_tokens(model.tokenizer, prompt.encode(model.tokenizer)) == prompt.key()
    assert json.loads(CALLS[0][2])["b"] == 1
