"""Tool calls under a constraint: always read by the parser without error, always as the schemas ask."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from ds4 import Sampler, Tokenizer
from ds4.chat import Completion, CompletionParser, ToolCall, collect, render_tool_calls
from ds4.grammar import Constraint, Grammar

D = "｜DSML｜"


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name, "description": f"about {name}"}
    return {"type": "function", "function": function if parameters is None else {**function, "parameters": parameters}}


SHORT = {"type": "string", "maxLength": 20}
TOOLS = [
    tool(
        "get_weather",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "its name"},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
                "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
                "station": {"type": ["string", "null"], "maxLength": 8},
                "where": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}},
            },
            "required": ["city", "unit"],
        },
    ),
    tool(
        "write",
        {
            "type": "object",
            "properties": {
                "path": {"type": "string", "pattern": "^[a-z/]{1,20}\\.(py|md)$"},
                "when": {"type": "string", "format": "date-time"},
                "mode": {"anyOf": [{"const": "append"}, {"type": "integer"}]},
                "lines": {"type": "array", "items": SHORT, "maxItems": 3},
                "mail": {"type": "string", "format": "email", "maxLength": 20},
                "note": {"allOf": [SHORT, {"minLength": 2}]},
            },
            "required": ["path", "when", "mode", "lines", "mail", "note"],
            "additionalProperties": False,
        },
    ),
    tool("now"),
    tool("none", {"type": "object", "properties": {}, "additionalProperties": False}),
    tool(
        "tree",
        {
            "type": "object",
            "properties": {"deep": {"type": "boolean"}, "root": {"$ref": "#/$defs/node"}},
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {"name": SHORT, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                    "required": ["name"],
                    "additionalProperties": False,
                }
            },
        },
    ),
    tool(
        "extra",
        {"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": {"type": "integer"}},
    ),
    tool('says "hi" & <more>', {"type": "object", "properties": {'k "q" ä': {"enum": ["a", "a<", "</b>", 3]}}}),
]
NAMES = [t["function"]["name"] for t in TOOLS]
CHECKS = {
    t["function"]["name"]: jsonschema_rs.validator_for(
        t["function"].get("parameters", {"type": "object"}), validate_formats=True
    )
    for t in TOOLS
}


def read(text: bytes | str, tools: list[dict[str, Any]] = TOOLS) -> Completion:
    parser = CompletionParser("chat", tools)
    return collect([*parser.feed(text), *parser.finish("stop")])


def assert_good(completion: Completion, text: bytes) -> None:
    assert completion.finish is not None and completion.finish.reason == "tool_calls", text
    assert completion.finish.notes == () and completion.content == "", (completion, text)
    for call in completion.tool_calls:
        assert call.error is None
        assert CHECKS[call.name].is_valid(json.loads(call.arguments)), (call.name, call.arguments)


SAMPLERS = [Sampler.greedy(), *(Sampler(temperature=1.5, min_p=0.0, seed=seed) for seed in range(2))]


@pytest.mark.parametrize("name", NAMES)
def test_a_named_tool(name: str, generate: Callable[[Grammar, Sampler], bytes]) -> None:
    grammar = Grammar.tool_calls(TOOLS, [name], parallel=False)
    for sampler in SAMPLERS:
        text = generate(grammar, sampler.copy())
        completion = read(text)
        assert_good(completion, text)
        assert [call.name for call in completion.tool_calls] == [name]


def test_any_tool_is_required(generate: Callable[[Grammar, Sampler], bytes]) -> None:
    seen = set()
    for seed in range(6):
        text = generate(Grammar.tool_calls(TOOLS), Sampler(temperature=1.5, min_p=0.0, seed=seed))
        completion = read(text)
        assert_good(completion, text)
        seen |= {call.name for call in completion.tool_calls}
    assert len(seen) > 1


def test_random_walks(tokenizer: Tokenizer) -> None:
    """Tokens drawn with no model at all reach places that a model does not."""
    rng = np.random.default_rng(5)
    grammar = Grammar.tool_calls(TOOLS)
    marks = np.array([tokenizer.token_bytes(i)[:1] in b'"}]<>' for i in range(tokenizer.n_vocab)])
    marks[tokenizer.special(D)] = True
    ended = 0
    for _ in range(30):
        constraint = Constraint(tokenizer, grammar)
        ids: list[int] = []
        while not constraint.ended and len(ids) < 400:
            allowed = constraint.allowed()
            ending = allowed & marks
            choice = np.flatnonzero(ending if rng.random() < 0.5 and ending.any() else allowed)
            ids.append(int(choice[rng.integers(len(choice))]))
            constraint.accept(ids[-1])
        if constraint.ended:
            ended += 1
            text = tokenizer.decode_bytes(ids[:-1])
            assert_good(read(text), text)
    assert ended >= 8


# What is and is not in the language


def follow(tokenizer: Tokenizer, grammar: Grammar, ids: list[int]) -> tuple[Constraint, str | None]:
    """Accept ids; returns the constraint and the text up to the refused token, if one is."""
    constraint = Constraint(tokenizer, grammar)
    for n, token in enumerate(ids):
        if not constraint.allowed()[token]:
            return constraint, tokenizer.decode(ids[:n])
        constraint.accept(token)
    return constraint, None


def block(tokenizer: Tokenizer, *calls: tuple[str, dict[str, Any]]) -> list[int]:
    """The tokens of calls as the renderer of prompts writes them."""
    parts = render_tool_calls([ToolCall(name=name, arguments=json.dumps(value)) for name, value in calls])
    ids: list[int] = []
    for part in parts:
        ids += tokenizer.encode(part.text, specials=part.text == D)
    return ids


@pytest.mark.parametrize(
    "calls",
    [
        [("get_weather", {"city": "a</b \n<", "days": 3, "unit": "kelvin", "station": None, "where": {"x": 1e-3}})],
        [("get_weather", {"city": "", "unit": "celsius"})],
        [("get_weather", {"city": 'x" string="false">', "unit": "celsius", "station": "S 1"})],
        [("now", {}), ("none", {}), ("now", {"q": "x", "r": [1, {"a": "</b>"}], "s": "null"})],
        [("tree", {}), ("tree", {"root": {"name": "r", "kids": [{"name": "k"}]}}), ("tree", {"deep": True})],
        [("extra", {}), ("extra", {"a": True, "b": 1, "c": -2}), ("extra", {"z": 0})],
        [('says "hi" & <more>', {'k "q" ä': "</b>"}), ('says "hi" & <more>', {'k "q" ä': 3})],
    ],
)
def test_what_the_renderer_writes_is_in_the_language(
    tokenizer: Tokenizer, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    constraint, refused = follow(tokenizer, Grammar.tool_calls(TOOLS), block(tokenizer, *calls))
    assert refused is None
    assert constraint.may_end and constraint.done
    only = np.flatnonzero(constraint.allowed())
    assert only.tolist() == [tokenizer.eos_id]
    constraint.accept(tokenizer.eos_id)
    assert constraint.ended


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ([("get_weather", {"unit": "kelvin", "city": "x"})], f"<{D}"),  # another order: refused inside the name
        ([("get_weather", {"city": "x"})], "parameter>\n"),  # a required parameter is missing
        ([("get_weather", {"city": "x", "unit": "rankine"})], 'name="unit" string="true">'),
        ([("get_weather", {"city": "x", "days": 15, "unit": "kelvin"})], 'name="days" string="false">1'),
        ([("get_weather", {"city": "x", "days": "3", "unit": "kelvin"})], 'name="days" string="'),
        ([("get_weather", {"city": "x", "unit": "kelvin", "other": 1})], f"<{D}"),
        ([("none", {"a": 1})], 'name="none">\n'),
        ([("extra", {"b": "text"})], 'name="b" string="'),
        ([("elsewhere", {})], "invoke name"),
    ],
)
def test_what_does_not_fit_is_refused(
    tokenizer: Tokenizer, calls: list[tuple[str, dict[str, Any]]], message: str
) -> None:
    _, refused = follow(tokenizer, Grammar.tool_calls(TOOLS), block(tokenizer, *calls))
    assert refused is not None and message in refused[-60:], refused


def test_names_and_parallel(tokenizer: Tokenizer) -> None:
    now, none = ("now", {}), ("none", {})
    assert follow(tokenizer, Grammar.tool_calls(TOOLS, ["none"]), block(tokenizer, none, none))[1] is None
    assert follow(tokenizer, Grammar.tool_calls(TOOLS, ["none"]), block(tokenizer, now))[1] is not None
    assert follow(tokenizer, Grammar.tool_calls(TOOLS, ["none", "now"]), block(tokenizer, now, none))[1] is None
    one = Grammar.tool_calls(TOOLS, parallel=False)
    assert follow(tokenizer, one, block(tokenizer, now))[1] is None
    assert follow(tokenizer, one, block(tokenizer, now, none))[1] is not None


def test_text_never_holds_added_tokens(tokenizer: Tokenizer) -> None:
    """In a value the protocol's token is offered behind `</` only, and no other ever."""
    ids = block(tokenizer, ("get_weather", {"city": "a </b> c", "unit": "kelvin"}))
    constraint = Constraint(tokenizer, Grammar.tool_calls(TOOLS))
    dsml = tokenizer.special(D)
    for n, token in enumerate(ids):
        added = [i for i in np.flatnonzero(constraint.allowed()) if tokenizer.is_special(i)]
        assert added in ([], [dsml])
        if added:
            assert tokenizer.decode_bytes(ids[:n]).endswith((b"<", b"</"))
        constraint.accept(token)


def test_a_closing_tag_in_plain_text_does_not_fit_into_a_value(tokenizer: Tokenizer) -> None:
    """Spelled out without the added token: a reader of the text could not tell it from the tag."""
    for name, key, value in (("get_weather", "city", "x"), ("now", "q", "x"), ("now", "q", ["x"])):
        ids = block(tokenizer, (name, {key: value}))
        start = tokenizer.decode(ids).index("x</" if value == "x" else 'x"')
        before = next(n for n in range(len(ids)) if len(tokenizer.decode(ids[:n])) == start)
        text = f"</{D}parameter>"
        constraint, refused = follow(tokenizer, Grammar.tool_calls(TOOLS), ids[:before] + tokenizer.encode(text))
        assert refused is not None and refused.endswith(text[:-1]), (name, refused)
        constraint.accept(tokenizer.encode(" ")[0])  # the value may go on otherwise


def test_a_closing_tag_as_a_value_of_an_enum(tokenizer: Tokenizer) -> None:
    """Escaped, as the renderer writes it, in a string; in JSON there is no such way."""
    close = f"</{D}parameter>"
    tools = [tool("f", {"properties": {"tag": {"enum": [close, "other", 7]}}, "required": ["tag"]})]
    for value in (close, "other", 7):
        ids = block(tokenizer, ("f", {"tag": value}))
        assert follow(tokenizer, Grammar.tool_calls(tools), ids)[1] is None
        assert read(tokenizer.decode_bytes(ids), tools).tool_calls[0].value == {"tag": value}
    with pytest.raises(ValueError, match=r"schema\.properties\.tag names the text"):
        Grammar.tool_calls([tool("f", {"properties": {"tag": {"enum": [[close]]}}})])


def test_a_parameter_is_not_given_twice(tokenizer: Tokenizer) -> None:
    twice = block(tokenizer, ("now", {"qq": "x", "qr": "y"}))
    text = tokenizer.decode(twice).replace('"qr"', '"qq"')
    ids = tokenizer.encode(text, specials=True)
    _, refused = follow(tokenizer, Grammar.tool_calls(TOOLS), ids)
    assert refused is not None and refused.endswith('parameter name="qq')
    # In the next call it may be given again.
    again = block(tokenizer, ("now", {"qq": "x"}), ("now", {"qq": "x"}))
    assert follow(tokenizer, Grammar.tool_calls(TOOLS), again)[1] is None
    # A declared one is not one of the others.
    declared = tokenizer.decode(block(tokenizer, ("extra", {"b": 1}))).replace('"b"', '"a"')
    assert follow(tokenizer, Grammar.tool_calls(TOOLS), tokenizer.encode(declared, specials=True))[1] is not None


def test_a_number_beyond_a_double_is_not_written(tokenizer: Tokenizer) -> None:
    text = tokenizer.decode(block(tokenizer, ("now", {"q": 1e99}))).replace("1e+99", "1e999")
    assert "1e999" in text
    _, refused = follow(tokenizer, Grammar.tool_calls(TOOLS), tokenizer.encode(text, specials=True))
    assert refused is not None and refused.endswith('string="false">1e99')


def test_one_of_several_sets_of_parameters_is_required(tokenizer: Tokenizer) -> None:
    schema = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "url": {"type": "string"}, "n": {"type": "integer"}},
        "anyOf": [{"required": ["path"]}, {"required": ["url"], "properties": {"key": {"type": "string"}}}],
    }
    grammar = Grammar.tool_calls([tool("get", schema)])
    good = [{"path": "x"}, {"url": "y", "n": 1}, {"path": "x", "url": "y"}, {"url": "y", "key": "z"}]
    for value in good:
        assert follow(tokenizer, grammar, block(tokenizer, ("get", value)))[1] is None, value
    for value in ({}, {"n": 1}):
        assert follow(tokenizer, grammar, block(tokenizer, ("get", value)))[1] is not None, value


# Tools that cannot be used


@pytest.mark.parametrize(
    ("tools", "names", "message"),
    [
        ([], None, "no tools"),
        (TOOLS, [], "no tool is named"),
        (TOOLS, ["other"], "no tool named 'other'; declared: "),
        ([tool("a"), tool("a")], None, "same name"),
        ([tool(f"t{i}") for i in range(513)], None, "513 tools"),
        ([tool(f"t{i}", {"enum": ["x" * 100_000]}) for i in range(22)], None, "characters as JSON"),
        ([{"type": "function"}], None, r"tools\[0\]"),
        ([tool("a", {"type": "string"})], None, r"'a'.*schema\.type must be 'object'"),
        ([tool("a", {"oneOf": [{"type": "object"}]})], None, r"'a'.*schema\.oneOf"),
        ([tool("a", {"minProperties": 1})], None, r"'a'.*schema\.minProperties"),
        ([tool("a", {"properties": {"x": {"not": {}}}})], None, r"'a'.*schema\.properties\.x: .*not"),
        ([tool("a", {"properties": {"x": False}, "required": ["x"]})], None, r"'a'.*nothing satisfies"),
        (
            [tool("a", {"properties": {}, "required": ["x"], "additionalProperties": False})],
            None,
            r"'a'.*nothing satisfies",
        ),
        ([tool("a", {"properties": {"x" * 300: {}}})], None, r"'a'.*256 characters"),
        (
            [tool("a", {"properties": {"x": {"type": "string", "minLength": 3, "maxLength": 2}}})],
            None,
            r"'a'.*\.x: .*minL",
        ),
        ([tool("n" * 300)], None, r"256 characters"),
        ([tool("a", 5)], None, r"'a'.*must be an object"),
        ([tool("a\ud800")], None, r"U\+D800"),
        ([tool("a", {"properties": {"x": {"$ref": "#/x"}}})], None, r"'a'.*nothing stands there"),
    ],
)
def test_refused_with_the_part_named(tools: Any, names: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Grammar.tool_calls(tools, names)


def test_tools_that_are_not_named_are_not_read() -> None:
    """A tool whose schema cannot be enforced does no harm while another is asked for."""
    tools = [tool("good"), tool("bad", {"properties": {"x": {"not": {}}}})]
    Grammar.tool_calls(tools, ["good"])
    with pytest.raises(ValueError, match="bad"):
        Grammar.tool_calls(tools)


def test_many_tools(tokenizer: Tokenizer) -> None:
    """As an agent brings them."""
    properties = {f"p{i}": {"type": "string"} if i % 2 else {"type": "array", "items": SHORT} for i in range(12)}
    tools = [tool(f"tool_{i}", {"type": "object", "properties": properties, "required": ["p1"]}) for i in range(60)]
    grammar = Grammar.tool_calls(tools)
    calls = [(f"tool_{i}", {"p0": ["x"], "p1": "y", "p11": "z"}) for i in (0, 59, 7)]
    assert follow(tokenizer, grammar, block(tokenizer, *calls))[1] is None
