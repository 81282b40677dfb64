"""Parsing of completions: any cut of the stream, damaged markup, hostile text, and the way back from rendering."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from ds4.chat import (
    Completion,
    CompletionParser,
    Content,
    Event,
    Finish,
    Reasoning,
    ToolCall,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    collect,
    parse_completion,
    render_tool_calls,
)
from hypothesis import given, settings
from hypothesis import strategies as st

D = "｜DSML｜"
SCHEMA = {
    "type": "object",
    "properties": {
        "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
        "mode": {"enum": ["fast", "slow"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "label": {"type": ["string", "null"]},
        "n": {"type": "integer"},
        "where": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("f", "get_time")]


def invoke(name: str, *parameters: str, marker: str = D) -> str:
    return f'<{marker}invoke name="{name}">\n' + "\n".join(parameters) + f"\n</{marker}invoke>"


def parameter(name: str, value: str, string: bool | None = True, *, marker: str = D) -> str:
    flag = "" if string is None else f' string="{str(string).lower()}"'
    return f'<{marker}parameter name="{name}"{flag}>{value}</{marker}parameter>'


def block(*invokes: str, marker: str = D, name: str = "tool_calls") -> str:
    return f"<{marker}{name}>\n" + "\n".join(invokes) + f"\n</{marker}{name}>"


def events_of(
    pieces: Iterable[str | bytes], mode: str, tools: Any = TOOLS, reason: str = "stop", **options: Any
) -> list[Event]:
    parser = CompletionParser(mode, tools, **options)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish(reason)


def joined(events: Sequence[Event]) -> tuple[Any, ...]:
    """Everything that must not depend on how the text was cut."""
    completion = collect(events)
    pieces: dict[int, str] = {}
    for event in events:
        if isinstance(event, ToolCallArguments):
            pieces[event.index] = pieces.get(event.index, "") + event.text
    for call in completion.tool_calls:
        assert pieces[call.index] == call.arguments, "the pieces joined must be the arguments"
        assert json.loads(call.arguments) == call.value
    starts = [event for event in events if isinstance(event, ToolCallStart)]
    assert [s.index for s in starts] == [c.index for c in completion.tool_calls] == list(range(len(starts)))
    assert isinstance(events[-1], Finish)
    return completion.reasoning, completion.content, starts, completion.tool_calls, completion.finish


def parse(text: str, mode: str = "chat", tools: Any = TOOLS, reason: str = "stop", **options: Any) -> Completion:
    """Parse in one piece, and check that every cut in two and the cuts at each byte and character agree."""
    whole = events_of([text], mode, tools, reason, **options)
    expected = joined(whole)
    raw = text.encode()
    assert joined(events_of([raw[i : i + 1] for i in range(len(raw))], mode, tools, reason, **options)) == expected
    assert joined(events_of(list(text), mode, tools, reason, **options)) == expected
    for i in range(1, len(text)):
        assert joined(events_of([text[:i], text[i:]], mode, tools, reason, **options)) == expected, i
    return collect(whole)


def calls_of(completion: Completion) -> list[tuple[str, Any]]:
    return [(call.name, call.value) for call in completion.tool_calls if call.complete]


def reason_of(completion: Completion) -> str:
    assert completion.finish is not None
    return completion.finish.reason


GOOD = block(invoke("f", parameter("a", "x<y"), parameter("n", "3", False)), invoke("get_time", ""))
GOOD_CALLS = [("f", {"a": "x<y", "n": 3}), ("get_time", {})]


# Well-formed completions


def test_reasoning_content_and_calls() -> None:
    c = parse(f"think a bit</think>Let me see.\n\n{GOOD}", "thinking")
    assert (c.reasoning, c.content) == ("think a bit", "Let me see.")
    assert calls_of(c) == GOOD_CALLS
    assert [call.arguments for call in c.tool_calls] == ['{"a": "x<y", "n": 3}', "{}"]
    assert c.finish == Finish("tool_calls")


@pytest.mark.parametrize(
    ("text", "mode", "reasoning", "content"),
    [
        ("hello", "chat", "", "hello"),
        ("", "chat", "", ""),
        ("", "thinking", "", ""),
        ("r</think>c", "thinking", "r", "c"),
        ("</think>c", "thinking", "", "c"),
        ("<think>r</think>c", "thinking", "r", "c"),
        ("<thin", "thinking", "<thin", ""),
        ("a<think>b</think></think>c", "thinking", "a<think>b", "</think>c"),
        ("never closed", "thinking", "never closed", ""),
        ("no </think> here", "chat", "", "no </think> here"),
        ("a < b << c </", "chat", "", "a < b << c </"),
        ("line\n\n", "chat", "", "line\n\n"),
        ("a\n\n\n\nb", "chat", "", "a\n\n\n\nb"),
    ],
)
def test_text_without_calls(text: str, mode: str, reasoning: str, content: str) -> None:
    for tools in (None, TOOLS):
        c = parse(text, mode, tools)
        assert (c.reasoning, c.content, c.finish) == (reasoning, content, Finish("stop"))


def test_content_may_be_empty_and_only_the_separator_is_taken() -> None:
    assert parse(f"\n\n{GOOD}").content == ""
    assert parse(GOOD).content == ""
    assert parse(f"a\n\n\n{GOOD}").content == "a\n"


def test_finish_reasons() -> None:
    assert reason_of(parse(f"x\n\n{GOOD}", reason="length")) == "length"
    assert reason_of(parse(f"x\n\n{GOOD}", reason="stop")) == "tool_calls"
    assert reason_of(parse("x", reason="cancelled")) == "cancelled"


def test_generation_may_stop_when_the_block_closes() -> None:
    parser = CompletionParser("chat", TOOLS)
    parser.feed("x\n\n" + GOOD[:-1])
    assert not parser.should_stop
    parser.feed(GOOD[-1])
    assert parser.should_stop


HEAD = f'\n\n<{D}tool_calls>\n<{D}invoke name="f">\n<{D}parameter name="a" string="'


def test_phases_follow_the_text() -> None:
    parser = CompletionParser("thinking", TOOLS)
    seen = [parser.phase]
    for piece in (
        "r</think>",
        f'c\n\n<{D}tool_calls>\n<{D}invoke name="f">',
        f'<{D}parameter name="a" string="true">',
        f'v</{D}parameter><{D}parameter name="b" string="false">',
        f"1</{D}parameter>",
        f"</{D}invoke></{D}tool_calls>",
    ):
        parser.feed(piece)
        seen.append(parser.phase)
    assert seen == ["reasoning", "content", "structure", "string", "json", "structure", "content"]


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        (f"c\n\n<{D}", "structure"),
        (f"<{D}tool_ca", "structure"),
        ("c <", "content"),
        ("c\n\n", "content"),
        (f"\n\n<{D}tool_calls>", "structure"),
        (f"{HEAD}true", "structure"),
        (f'{HEAD}true">', "string"),
        (f'{HEAD}true">a < b', "string"),
        (f'{HEAD}true">a <', "string"),
        (f'{HEAD}true">a </', "structure"),
        (f'{HEAD}true">a </div', "string"),
        (f'{HEAD}true">a </{D}par', "structure"),
        (f'{HEAD}true">a &lt', "string"),
        (f'{HEAD}false">', "json"),
        (f'{HEAD}false">{{"a', "json string"),
        (f'{HEAD}false">{{"a\\"', "json string"),
        (f'{HEAD}false">{{"a\\\\"', "json"),
        (f'{HEAD}false">{{"a": 1', "json"),
        (f'{HEAD}false">["x", "<', "json string"),
        (f'{HEAD}false">["x", "</', "structure"),
        (f'{HEAD}false">[1]</{D}parameter>', "structure"),
        (f'{HEAD}false">"x</{D}parameter>\n<{D}parameter name="b" string="false">1', "json"),
    ],
)
def test_phases_inside_values(text: str, phase: str) -> None:
    """However the text arrives."""
    whole = CompletionParser("chat", TOOLS)
    whole.feed(text)
    pieces = CompletionParser("chat", TOOLS)
    for char in text:
        pieces.feed(char)
    assert whole.phase == pieces.phase == phase


def test_parsers_are_independent_and_end_once() -> None:
    first, second = CompletionParser("chat", TOOLS), CompletionParser("chat", TOOLS)
    first.feed(f"\n\n<{D}tool_calls>\n<{D}inv")
    assert second.feed("plain ") == [Content("plain ")]
    second.finish()
    with pytest.raises(ValueError, match="finished"):
        second.feed("more")
    with pytest.raises(ValueError, match="finished"):
        second.finish()
    with pytest.raises(ValueError, match="'fast'"):
        CompletionParser("fast")
    with pytest.raises(ValueError, match=r"tools\[0\]"):
        CompletionParser("chat", [{"name": "f"}])


# Streaming


def test_a_long_string_argument_arrives_steadily() -> None:
    """Twenty thousand characters, a few at a time: the client must not see silence until the closing tag."""
    value = "0123456789 <&> \n" * 1250
    text = f"\n\n{block(invoke('f', parameter('a', value)))}"
    parser = CompletionParser("chat", TOOLS)
    sizes = []
    pieces = []
    for i in range(0, len(text), 8):
        new = [e.text for e in parser.feed(text[i : i + 8]) if isinstance(e, ToolCallArguments)]
        pieces += new
        sizes.append(sum(map(len, new)))
    pieces += [e.text for e in parser.finish() if isinstance(e, ToolCallArguments)]
    assert json.loads("".join(pieces)) == {"a": value}
    body = sizes[20:-20]
    assert max(body) < 100
    assert all(sum(body[i : i + 4]) > 0 for i in range(len(body) - 4))


def test_no_fragment_of_the_start_marker_leaks() -> None:
    """Cut at each byte, nothing of the marker is ever content, and nothing is emitted and taken back."""
    raw = f"Plain prefix.\n\n{GOOD}".encode()
    for cut in range(len(raw)):
        parser = CompletionParser("chat", TOOLS)
        events = parser.feed(raw[:cut]) + parser.feed(raw[cut:])
        assert "".join(e.text for e in events if isinstance(e, Content)) == "Plain prefix."


def test_text_that_only_begins_like_markup_is_content() -> None:
    for text in ("a <", "a <｜", f"a <{D}tool_ca b", "<tool_call", "</", "x\n\n<", f"<{D}tool_calls x"):
        c = parse(text + " end")
        assert c.content == text + " end"


def test_markup_cut_off_at_the_end_is_not_content() -> None:
    c = parse(f"Done.\n\n<{D}tool_ca", reason="length")
    assert (c.content, c.tool_calls, reason_of(c)) == ("Done.", [], "length")


# Without tools nothing is parsed


def test_markup_is_content_when_no_tools_are_declared() -> None:
    text = f"x\n\n{GOOD}\n<tool_calls>"
    for tools in (None, []):
        c = parse(text, tools=tools)
        assert (c.content, c.tool_calls, c.finish) == (text, [], Finish("stop"))
        assert CompletionParser("chat", tools).feed(text) == [Content(text)]


# Other spellings


@pytest.mark.parametrize("marker", [D, "DSML｜", "｜｜DSML｜｜", ""])
@pytest.mark.parametrize("name", ["tool_calls", "toolcalls", "function_calls"])
@pytest.mark.parametrize("before", ["", "\n\n", "\n", "Hm. "])
def test_other_spellings_are_accepted(marker: str, name: str, before: str) -> None:
    call = invoke("f", parameter("a", "x<y", marker=marker), parameter("n", "3", False, marker=marker), marker=marker)
    c = parse(before + block(call, marker=marker, name=name))
    assert calls_of(c) == [("f", {"a": "x<y", "n": 3})]
    assert c.content == before.removesuffix("\n\n")
    assert reason_of(c) == "tool_calls"


@pytest.mark.parametrize("marker", [D, "DSML｜", ""])
@pytest.mark.parametrize("tail", ["", f"\n</{D}tool_calls>", "\n</tool_calls>"])
def test_calls_without_the_opening_of_the_block(marker: str, tail: str) -> None:
    two = "\n".join(invoke("f", parameter("a", v, marker=marker), marker=marker) for v in ("x", "y"))
    c = parse(f"So:\n\n{two}{tail}")
    assert calls_of(c) == [("f", {"a": "x"}), ("f", {"a": "y"})]
    assert c.content == "So:"


@pytest.mark.parametrize("marker", ["DSML｜", ""])
@pytest.mark.parametrize(
    "damage",
    [
        lambda t: t.replace('name="f"', 'name="undeclared"'),
        lambda t: t[: t.index("</")],
        lambda t: t[: t.rindex("</", 0, t.rindex("</"))],
        lambda t: t.replace("\n<", "\nso <", 2),
        lambda t: t.replace('name="a"', ""),
        lambda t: t.replace('name="b"', 'name="a"'),
    ],
)
def test_recovered_calls_must_be_whole_and_declared(marker: str, damage: Any) -> None:
    text = damage(
        block(
            invoke("f", parameter("a", "x", marker=marker), parameter("b", "y", marker=marker), marker=marker),
            marker=marker,
        )
    )
    c = parse(f"Use {text}")
    assert c.tool_calls == []
    assert reason_of(c) == "stop"
    if marker == "":
        assert c.content == f"Use {text}"


def test_markup_in_prose_stays_text() -> None:
    text = "Write <tool_calls> and then <invoke name=\"...\">, or <parameter name='x'>; close with </invoke>."
    assert parse(text).content == text


def test_text_follows_a_recovered_call() -> None:
    c = parse(invoke("f", parameter("a", "x", marker=""), marker="") + '\nDone <invoke name="f"> it.')
    assert calls_of(c) == [("f", {"a": "x"})]
    assert c.content == '\nDone <invoke name="f"> it.'


# Damage inside a block in the trained spelling


def test_text_between_the_tags_is_ignored() -> None:
    text = "x\n\n" + GOOD.replace("\n<", "\njunk < > <b> </ <", 2).replace(
        "</｜DSML｜invoke>", "hm</｜DSML｜invoke>", 1
    )
    c = parse(text)
    assert calls_of(c) == GOOD_CALLS
    assert c.content == "x"
    assert c.finish is not None
    assert any("ignored" in note for note in c.finish.notes)


def test_stray_closing_tags_are_ignored() -> None:
    strays = f"</{D}parameter></{D}invoke>\n</{D}tool_calls>"
    assert calls_of(parse(f"\n\n{GOOD}{strays}{strays}")) == GOOD_CALLS
    assert parse(f"\n\n{GOOD}{strays}").content == ""
    assert parse(f"Hello{strays} you").content == "Hello\n you"
    inner = GOOD.replace(f"</{D}invoke>\n", f"</{D}invoke>\n</{D}invoke></{D}parameter>\n", 1)
    assert calls_of(parse(f"\n\n{inner}")) == GOOD_CALLS


def test_text_behind_the_block_is_content() -> None:
    c = parse(f"a\n\n{GOOD}\n\nand more")
    assert (c.content, calls_of(c)) == ("a\n\nand more", GOOD_CALLS)
    assert parse(f"a\n\n{GOOD}\n \n").content == "a"


def test_a_second_block_goes_on_counting() -> None:
    c = parse(f"\n\n{GOOD}\n\n{GOOD}")
    assert calls_of(c) == GOOD_CALLS * 2
    assert [call.index for call in c.tool_calls] == [0, 1, 2, 3]


def test_undeclared_tools_are_reported() -> None:
    events = events_of([f"\n\n{block(invoke('nope', parameter('a', '1')))}"], "chat")
    assert ToolCallStart(0, "nope", declared=False) in events


@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("kind", ["string", "json", "unknown", "nested"])
def test_a_call_that_is_cut_off_ends_with_an_error(kind: str, reason: str) -> None:
    """The arguments sent so far become valid JSON, and the call is marked as not to be carried out."""
    opening = {
        "string": f'<{D}parameter name="a" string="true">half a val</{D}par',
        "json": f'<{D}parameter name="a" string="false">[1, 2',
        "unknown": f'<{D}parameter name="a">  ',
        "nested": f'<{D}parameter name="a"><{D}parameter name="b" string="true">x',
    }[kind]
    value = {"string": "half a val", "json": None, "unknown": "", "nested": {"b": "x"}}[kind]
    c = parse(f'\n\n<{D}tool_calls>\n{invoke("f")}\n<{D}invoke name="f">\n{opening}', reason=reason)
    first, second = c.tool_calls
    assert first.complete
    assert second.error is not None
    assert reason in second.error
    assert second.value == {"a": value}
    assert c.content == ""
    assert reason_of(c) == ("tool_calls" if reason == "stop" else "length")


def test_a_block_cut_off_behind_a_call_keeps_the_call() -> None:
    assert calls_of(parse(f"\n\n{GOOD.removesuffix(f'</{D}tool_calls>')}")) == GOOD_CALLS


def test_a_call_that_only_its_block_or_successor_ends_is_an_error() -> None:
    open_call = f'<{D}invoke name="f">\n{parameter("a", "x")}\n'
    c = parse(f"\n\n<{D}tool_calls>\n{open_call}{open_call}</{D}tool_calls>")
    assert [call.complete for call in c.tool_calls] == [False, False]
    assert reason_of(c) == "stop"


def test_a_parameter_given_twice_is_an_error() -> None:
    c = parse(f"\n\n{block(invoke('f', parameter('a', 'x'), parameter('a', 'y'), parameter('b', 'z')), invoke('f'))}")
    assert c.tool_calls[0].error == "the parameter 'a' is given twice"
    assert c.tool_calls[0].value == {"a": "x"}
    assert calls_of(c) == [("f", {})]


def test_nested_parameters_make_an_object() -> None:
    inner = f"\n{parameter('city', 'Rome')}\n{parameter('zip', '7', False)}\n"
    c = parse(f"\n\n{block(invoke('f', parameter('where', inner, None), parameter('n', '1', False)))}")
    assert calls_of(c) == [("f", {"where": {"city": "Rome", "zip": 7}, "n": 1})]


def test_a_parameter_without_the_string_attribute_is_text() -> None:
    c = parse(f"\n\n{block(invoke('f', parameter('a', ' 12 <b>', None), parameter('b', '', None)))}")
    assert calls_of(c) == [("f", {"a": " 12 <b>", "b": ""})]


@pytest.mark.parametrize("space", [4000, 4090, 4096, 5000])
def test_long_space_before_a_nested_parameter_does_not_stall(space: int) -> None:
    """What looks like a nested parameter too far behind the tag is text; it must not wait for ever."""
    inner = " " * space + f'<{D}parameter name="b" string="true">x'
    text = f"\n\n{block(invoke('f', parameter('a', inner, None)))}"
    expected = joined(events_of([text], "chat"))
    assert joined(events_of(list(text), "chat")) == expected
    assert expected[3][0].complete or expected[3][0].value == {"a": {"b": "x"}}


@pytest.mark.parametrize("depth", [3, 16, 17, 200])
def test_nesting_is_limited(depth: int) -> None:
    opening = "".join(f'<{D}parameter name="p{i}">' for i in range(depth))
    text = f'\n\n<{D}tool_calls>\n<{D}invoke name="f">{opening}x' + f"</{D}parameter>" * depth
    c = collect(events_of([text + f"</{D}invoke></{D}tool_calls>"], "chat"))
    assert len(c.tool_calls) == 1
    value: Any = json.loads(c.tool_calls[0].arguments)
    levels = 0
    while isinstance(value, dict):
        value = next(iter(value.values()))
        levels += 1
    assert levels == min(depth, 17)  # the arguments and at most 16 parameters in parameters


# Values


@pytest.mark.parametrize("value", ["Tense", '{"a":1,}', "", "NaN", "-Infinity", "1e999", "[" * 500 + "]" * 500, "tru"])
def test_values_that_are_not_json_become_strings(value: str) -> None:
    c = collect(events_of([f"\n\n{block(invoke('f', parameter('x', value, False)))}"], "chat"))
    assert calls_of(c) == [("f", {"x": value})]
    assert c.finish is not None
    assert "is not JSON" in c.finish.notes[0]


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        ("unit", "celsius", "celsius"),
        ("unit", "\ncelsius ", "celsius"),
        ("unit", '"celsius"', "celsius"),
        ("unit", "12", "12"),
        ("unit", '{"a": 1}', '{"a": 1}'),
        ("unit", "null", None),
        ("mode", "fast", "fast"),
        ("mode", "true", "true"),
        ("note", "5", "5"),
        ("note", "null", None),
        ("label", "[1]", "[1]"),
        ("n", "12", 12),
        ("unknown", "12", 12),
        ("where", '{"city": 5}', {"city": 5}),
    ],
)
def test_the_schema_decides_about_unquoted_strings(name: str, raw: str, expected: Any) -> None:
    c = parse(f"\n\n{block(invoke('f', parameter(name, raw, False)))}")
    assert calls_of(c) == [("f", {name: expected})]


def test_the_schema_of_nested_parameters_is_found() -> None:
    c = parse(f"\n\n{block(invoke('f', parameter('where', parameter('city', '5', False), None)))}")
    assert calls_of(c) == [("f", {"where": {"city": "5"}})]


def test_json_values_are_passed_on_as_written() -> None:
    raw = '{"big": 123456789012345678901234567890, "f": 1.50, "s": "\\ud83d"}'
    c = parse(f"\n\n{block(invoke('f', parameter('x', f' {raw} ', False)))}")
    assert c.tool_calls[0].arguments == f'{{"x": {raw}}}'


def test_strange_schemas_do_no_harm() -> None:
    for schema in (None, 5, [], {"properties": 3}, {"properties": {"x": {"type": {}}}}, {"properties": {"x": True}}):
        tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        assert calls_of(parse(f"\n\n{block(invoke('f', parameter('x', '1', False)))}", tools=tools)) == [
            ("f", {"x": 1})
        ]


# Reasoning


def test_markup_quoted_in_reasoning_is_not_a_call() -> None:
    quote = f"I could write\n\n{GOOD}\n\nbut no"
    c = parse(f"{quote}</think>answer", "thinking")
    assert (c.reasoning, c.content, c.tool_calls) == (quote, "answer", [])
    c = parse(f"{quote}</think>\n\n{GOOD}", "thinking")
    assert (c.reasoning, calls_of(c)) == (quote, GOOD_CALLS)


@pytest.mark.parametrize("tail", ["", "</think>", " more", f"\n\n<{D}tool_calls>"])
def test_an_unfinished_quotation_does_not_swallow_the_end_of_reasoning(tail: str) -> None:
    opening = f'see <{D}tool_calls>\n<{D}invoke name="f">\n<{D}parameter name="a" string="true">x{tail}'
    c = parse(f"{opening}</think>c", "thinking")
    head, _, rest = f"{opening}</think>c".partition("</think>")
    assert (c.reasoning, c.content) == (head, rest)


def test_a_block_closes_forgotten_reasoning_when_the_turn_ends_with_it() -> None:
    c = parse(f"I need it.\n\n{GOOD}\n", "thinking")
    assert (c.reasoning, c.content, calls_of(c)) == ("I need it.", "", GOOD_CALLS)
    assert reason_of(c) == "tool_calls"
    c = parse(f"Like this:\n\n{GOOD}\n\n{GOOD}", "thinking")
    assert (c.reasoning, calls_of(c)) == (f"Like this:\n\n{GOOD}", GOOD_CALLS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GOOD, "length"),
        (GOOD + "\nHm", "stop"),
        (GOOD.removesuffix(">"), "stop"),
        (GOOD.replace('"get_time"', '"other"'), "stop"),
        (GOOD.replace("\n<", "\nx<", 1), "stop"),
        (block(), "stop"),
        (block(invoke("f", marker=""), marker=""), "stop"),
        (GOOD.replace("tool_calls", "function_calls"), "stop"),
    ],
)
def test_forgotten_reasoning_otherwise_stays_reasoning(text: str, reason: str) -> None:
    c = parse(f"I think\n\n{text}", "thinking", reason=reason)
    assert (c.reasoning, c.content, c.tool_calls) == (f"I think\n\n{text}", "", [])
    assert reason_of(c) == reason


# Limits


@pytest.mark.parametrize(
    "body",
    [
        f'<{D}invoke name="f"><{D}parameter name="a" string="true">' + "x" * 500,
        f'<{D}invoke name="f"><{D}parameter name="a" string="false">' + "[" * 500,
        f'<{D}invoke name="f">' + f"</{D}parameter>" * 50,
        "junk" * 200,
        "\n" * 500,
        f'<{D}invoke name="{"x" * 500}',
    ],
)
def test_a_block_that_never_closes_ends_at_its_limit(body: str) -> None:
    text = f"Hi\n\n<{D}tool_calls>\n{body}"
    c = parse(text, reason="stop", max_block=200)
    assert c.content == "Hi"
    assert calls_of(c) == []
    assert reason_of(c) == "length"
    parser = CompletionParser("chat", TOOLS, max_block=200)
    parser.feed(text)
    assert parser.should_stop
    assert parser.feed("and more") == []


def test_a_recovered_block_beyond_the_limit_is_text() -> None:
    text = f'<invoke name="f"><parameter name="a">{"x" * 300}</parameter></invoke>'
    c = parse(text, max_block=200)
    assert (c.content, c.tool_calls) == (text, [])


def test_long_degenerate_texts_stay_linear() -> None:
    """A quadratic parser would run into the suite's timeout here."""
    opening = f'\n\n<{D}tool_calls>\n<{D}invoke name="f">\n<{D}parameter name="a"'
    n = 20_000
    for text in (
        f'{opening} string="true">&{"amp;" * n}',
        f"{opening}>{' ' * n}",
        f'{opening} string="false">{"[" * n}',
        "<" * n,
        "<tool_calls>" * (n // 10),
        '<invoke name="f"><parameter name="a">' * (n // 30),
    ):
        assert joined(events_of(list(text), "chat")) == joined(events_of([text], "chat"))


# Hostile text and round trips

PIECES = [
    *("<think>", "</think>", "\n", "\n\n", "<", ">", "&", "&lt;", f"&lt;/{D}parameter>", f"&amp;lt;/{D}parameter>"),
    *(f"<{D}tool_calls>", f"</{D}tool_calls>", f'<{D}invoke name="f">', f"</{D}invoke>", f"</{D}parameter>"),
    *(f'<{D}parameter name="a" string="true">', f'<{D}parameter name="b" string="false">', f'<{D}parameter name="c">'),
    *("<tool_calls>", "</tool_calls>", '<invoke name="f">', "</invoke>", '<parameter name="d">', "</parameter>"),
    *("<DSML｜tool_calls>", f"<｜{D}｜invoke name=", "text", "3", "é", "😀", " ", '"', "toolcalls>", "\x00"),
]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=14),
    st.sampled_from(["chat", "thinking"]),
    st.sampled_from(["stop", "length"]),
    st.sampled_from([1 << 20, 60]),
    st.data(),
)
def test_any_cut_gives_the_same_events(
    pieces: list[str], mode: str, reason: str, max_block: int, data: st.DataObject
) -> None:
    text = "".join(pieces)
    raw = text.encode("utf-8", "replace")
    expected = joined(events_of([raw], mode, TOOLS, reason, max_block=max_block))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
    parts = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert joined(events_of(parts, mode, TOOLS, reason, max_block=max_block)) == expected
    single = [raw[i : i + 1] for i in range(len(raw))]
    assert joined(events_of(single, mode, TOOLS, reason, max_block=max_block)) == expected


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14), st.sampled_from(["chat", "thinking"]))
def test_without_tools_no_character_is_lost(pieces: list[str], mode: str) -> None:
    text = "".join(pieces)
    c = collect(events_of([text], mode, None))
    closing = "</think>" if mode == "thinking" and "</think>" in text else ""
    whole = c.reasoning + closing + c.content
    assert whole == (text.removeprefix("<think>") if mode == "thinking" else text)


def test_broken_utf8_is_replaced() -> None:
    c = collect(events_of([b"a\xff", b"\xe4\xbd", b"b\xe4\xb8"], "chat"))
    assert c.content == b"a\xff\xe4\xbdb\xe4\xb8".decode("utf-8", "replace")


MARKUP_TEXT = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=5).map("".join)
NO_SURROGATES = MARKUP_TEXT.filter(lambda s: not any("\ud800" <= c <= "\udfff" for c in s))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), NO_SURROGATES),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NO_SURROGATES, inner, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.dictionaries(NO_SURROGATES, JSON, max_size=4), min_size=1, max_size=3))
def test_arguments_survive_rendering_and_parsing(arguments: list[dict[str, Any]]) -> None:
    """Types, order and every character, markup and escapes inside values and names included."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    text = "".join(p.text for p in render_tool_calls([ToolCall("f", json.dumps(a)) for a in arguments]))
    c = collect(events_of([text[:7], text[7:]], "chat", tools))
    assert [call.error for call in c.tool_calls] == [None] * len(arguments)
    expected = [json.dumps(a) for a in arguments]
    assert [json.dumps(call.value) for call in c.tool_calls] == expected
    assert [json.dumps(json.loads(call.arguments)) for call in c.tool_calls] == expected


def test_typed_arguments_survive() -> None:
    arguments = {"end": f"a</{D}parameter>b", "n": 1.5, "z": None, "t": True, "o": {"k": {}}, "e": {}, "s": "12"}
    text = "".join(p.text for p in render_tool_calls([ToolCall("f", json.dumps(arguments))]))
    assert text.count('string="true"') == 2
    assert calls_of(parse(text)) == [("f", arguments)]


def test_one_piece_and_stream_are_the_same_path() -> None:
    assert parse_completion(f"r</think>\n\n{GOOD}", "thinking", TOOLS) == parse(f"r</think>\n\n{GOOD}", "thinking")
    assert parse_completion("r", "thinking", TOOLS, reason="length").finish == Finish("length")


def test_events_come_in_the_order_of_the_text() -> None:
    kinds = [type(e) for e in events_of([f"r</think>c\n\n{GOOD}"], "thinking")]
    call = [ToolCallStart, ToolCallArguments, ToolCallEnd]
    assert kinds == [Reasoning, Content, *call, *call, Finish]
