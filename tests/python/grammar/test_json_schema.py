"""JSON by schema: what the embedded model writes is valid whatever the schema and the temperature."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest
from ds4 import Sampler, Tokenizer
from ds4.chat.jsontext import loads
from ds4.grammar import Constraint, Grammar

NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
    },
    "required": ["value"],
    "additionalProperties": False,
}
TEXT = {"type": "string", "maxLength": 12}
SCHEMAS: dict[str, dict[str, Any]] = {
    "any object": {"type": "object"},
    "flat": {
        "type": "object",
        "properties": {
            "name": TEXT,
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "ok": {"type": "boolean"},
        },
        "required": ["name", "age", "ok"],
        "additionalProperties": False,
    },
    "optional": {"type": "object", "properties": {"a": TEXT, "b": {"type": "null"}}, "additionalProperties": False},
    "open": {"type": "object", "properties": {"a": {"type": "number"}}, "additionalProperties": {"type": "integer"}},
    "array": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 5},
    "tuple": {"type": "array", "prefixItems": [{"type": "integer"}, TEXT], "items": False, "minItems": 2},
    "enum": {"enum": ["a", 'say "hi"\n', 7, None, {"k": [1.5]}]},
    "any of": {"anyOf": [{"type": "integer"}, {"type": "array", "items": TEXT, "maxItems": 2}]},
    "one of": {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}, "x": TEXT}, "required": ["kind", "x"]},
            {"type": "object", "properties": {"kind": {"const": "b"}, "y": TEXT}, "required": ["kind", "y"]},
        ]
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": TEXT}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]},
        ]
    },
    "recursive": {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
    "strings": {
        "type": "array",
        "prefixItems": [
            {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,4}$"},
            {"type": "string", "format": "date-time"},
            {"type": "string", "format": "uuid"},
            {"type": "string", "minLength": 3, "maxLength": 5},
        ],
        "items": False,
        "minItems": 4,
    },
    "numbers": {
        "type": "array",
        "prefixItems": [
            {"type": "integer", "minimum": -3, "maximum": 3},
            {"type": "integer", "multipleOf": 7},
            {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        ],
        "items": False,
        "minItems": 3,
    },
    "other scripts": {
        "type": "object",
        "properties": {"größe": {"enum": ["日本", "é", "😀"]}},
        "required": ["größe"],
        "additionalProperties": False,
    },
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_the_model_writes_satisfies_the_schema(name: str, generate: Callable[[Grammar, Sampler], bytes]) -> None:
    schema = SCHEMAS[name]
    grammar = Grammar.json_schema(schema)
    check = jsonschema_rs.validator_for(schema, validate_formats=True)
    samplers = [Sampler.greedy(), *(Sampler(temperature=1.5, min_p=0.0, seed=seed) for seed in range(3))]
    for sampler in samplers:
        text = generate(grammar, sampler).decode()
        assert check.is_valid(loads(text)), (sampler, text)


def test_any_object_at_any_temperature(generate: Callable[[Grammar, Sampler], bytes]) -> None:
    for seed in range(4):
        text = generate(Grammar.json_object(), Sampler(temperature=1.5, min_p=0.0, seed=seed)).decode()
        assert isinstance(loads(text), dict)


# What is and is not in the language


def outcome(tokenizer: Tokenizer, schema: Any, text: str) -> str:
    """Return "whole", "open" (more must follow) or the text up to the token that is refused."""
    constraint = Constraint(tokenizer, Grammar.json_schema(schema))
    seen: list[int] = []
    for token in tokenizer.encode(text):
        if not constraint.allowed()[token]:
            return tokenizer.decode(seen)
        constraint.accept(token)
        seen.append(token)
    return "whole" if constraint.may_end else "open"


OBJECT = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        (OBJECT, '{"a": 1, "b": "x"}', "whole"),
        (OBJECT, '{"a":1,"b":"x"}', "whole"),
        (OBJECT, '{\n  "a": 1,\n  "b": "x"\n}', "whole"),
        (OBJECT, '{"b": "x", "a": 1}', '{"b": "x", "a'),  # the order of the schema
        (OBJECT, '{"a":   1}', '{"a": '),  # white space has an end
        (OBJECT, '{"a": 1, "c": [1, {"q": null}]}', "whole"),
        (OBJECT, '{"\\u0061": "x"}', '{"\\'),  # "a" in disguise
        (OBJECT, '{"a": 1e99}', "whole"),
        (OBJECT, '{"a": 1e999}', '{"a": 1e99'),  # beyond a double
        (OBJECT, '{"a": NaN}', '{"a":'),
        (OBJECT, '{"a": 01}', '{"a": 0'),
        (OBJECT, '{"b": "\\ud800"}', '{"b": "\\'),
        (OBJECT, '{"b": "tab\\t \\"q\\" \\\\ é😀"}', "whole"),
        (OBJECT, '{"a": 1} x', '{"a": 1}'),
        ({"type": "integer"}, "12", "whole"),
        ({"type": "integer"}, "-", "open"),
        ({"type": "integer"}, "1.5", "1"),
        ({"type": ["string", "null"]}, "null", "whole"),
        ({"const": {"a": [1, 2]}}, '{"a": [1, 2]}', "whole"),
        ({"const": {"a": [1, 2]}}, '{"a": [1, 3]}', '{"a": [1, '),
        ({"type": "string", "pattern": "ab"}, '"xaby"', "whole"),
        ({"type": "string", "format": "no-such"}, '"anything"', "whole"),
        ({"items": [{"type": "integer"}], "additionalItems": False, "type": "array"}, "[1]", "whole"),
        ({"items": [{"type": "integer"}], "additionalItems": False, "type": "array"}, '["', "["),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 5}, "3", ""),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 5}, "4", "whole"),
        ({"propertyNames": {"type": "string"}, "type": "object"}, '{"any": 1}', "whole"),
        ({"propertyNames": {"pattern": "^a+$"}, "type": "object"}, '{"aa": 1}', "whole"),
        ({"propertyNames": {"pattern": "^a+$"}, "type": "object"}, '{"b', '{"'),
        ({"propertyNames": {"enum": ["x", "yy"]}, "type": "object"}, '{"x": 1, "yy": 2}', "whole"),
        ({"propertyNames": {"enum": ["x", "yy"]}, "type": "object"}, '{"z', '{"'),
        (True, '[1, "x", {}]', "whole"),
        ({"type": "array", "items": {"$ref": "#"}}, "[[], [[]]]", "whole"),
        (
            {"properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}, "required": ["a", "b"]},
            '{"a": 1, "b": "',
            '{"a": 1, "b":',
        ),
    ],
)
def test_language(tokenizer: Tokenizer, schema: Any, text: str, expected: str) -> None:
    assert outcome(tokenizer, schema, text) == expected


def test_a_number_has_an_end(tokenizer: Tokenizer) -> None:
    constraint = Constraint(tokenizer, Grammar.json_schema({"type": "number"}))
    one = tokenizer.encode("1")[0]
    n = 0
    while constraint.allowed()[one]:
        constraint.accept(one)
        n += 1
    assert n == 100 and constraint.may_end
    for text in ("9", "0", "."):
        assert not constraint.allowed()[tokenizer.encode(text)[0]]


def test_a_number_that_must_go_on_may(tokenizer: Tokenizer) -> None:
    """The limit of digits gives way where the schema leaves no other choice, but not to zeros without end."""
    zeros = "0." + "0" * 99
    schema = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    assert outcome(tokenizer, schema, zeros) == "open"
    assert outcome(tokenizer, schema, zeros + "0") == zeros
    assert outcome(tokenizer, schema, zeros + "1") == "whole"


def test_nesting_has_an_end(tokenizer: Tokenizer) -> None:
    constraint = Constraint(tokenizer, Grammar.json_schema({"type": "array"}))
    opening = tokenizer.encode("[")[0]
    n = 0
    while constraint.allowed()[opening]:
        constraint.accept(opening)
        n += 1
    assert n == 100
    for token in tokenizer.encode('"[[{"' + "]" * n):  # in a string it is text
        constraint.accept(token)
    assert constraint.done


# Schemas that cannot be used


def deep(n: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(n):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "object", "properties": {"a": {"not": {"type": "string"}}}}, r"schema\.properties\.a: .*not"),
        ({"type": "array", "items": {"type": "array", "uniqueItems": True}}, r"schema\.items: .*uniqueItems"),
        ({"propertyNames": {"minLength": 3}}, r"schema: .*propertyNames"),
        ({"if": {}, "then": {}}, r"schema: .*if"),
        ({"anyOf": [{"type": "string"}, {"oneOf": [{"type": "number"}, {"type": "integer"}]}]}, r"anyOf\[1\]: .*oneOf"),
        ({"$defs": {"d": {"contains": {}}}, "items": {"$ref": "#/$defs/d"}}, r"schema\.\$defs\.d: .*contains"),
        ({"type": "string", "pattern": "(?=a)b"}, r"schema: .*look"),
        ({"type": "string", "pattern": "(("}, r"schema: .*unclosed"),
        ({"type": "strin"}, r"schema\.type is 'strin'"),
        ({"type": []}, r"schema\.type is an empty list"),
        ({"type": [["string"]]}, r"schema\.type"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, r"schema: .*minimum"),
        ({"type": "integer", "minimum": "5"}, r"schema\.minimum must be a number"),
        ({"type": "string", "minLength": -1}, r"schema\.minLength must be an integer"),
        ({"type": "string", "minLength": 10**9}, r"schema\.minLength is 1000000000"),
        ({"enum": []}, r"schema\.enum"),
        ({"enum": list(range(10_001))}, r"schema\.enum has 10001 values"),
        ({"const": {"a": [10**30]}}, r"schema\.const holds an integer of more than 64 bits"),
        ({"enum": ["a\x01"]}, r"U\+0001"),
        ({"enum": ["\ud800"]}, r"U\+D800"),
        ({"properties": {"a\x00": {}}}, r"U\+0000"),
        ({"properties": {str(i): {} for i in range(1001)}}, r"1001 properties"),
        ({"properties": []}, r"schema\.properties must be an object"),
        ({"properties": {"a": 5}}, r"schema\.properties\.a must be an object"),
        ({"properties": {"a": {"required": True}}}, r"schema\.properties\.a\.required must be a list"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, r"no value"),
        ({"anyOf": {}}, r"schema\.anyOf must be a list"),
        ({"$ref": "http://example.org/schema"}, r"schema\.\$ref is 'http"),
        ({"$ref": "#/$defs/none"}, r"nothing stands there"),
        ({"$ref": "#/enum", "enum": [1]}, r"no schema"),
        ({"$ref": 5}, r"schema\.\$ref must be a string"),
        ({"$ref": "#"}, r"finite"),
        ({"type": "object", "properties": {"c": {"$ref": "#"}}, "required": ["c"]}, r"finite"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, r"finite"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, r"finite"),
        (deep(70), r"deeper than 64"),
        (False, r"no value"),
        ({"const": float("nan")}, r"cannot be used"),
        ({"anyOf": [{"const": "x" * 1000 + str(i)} for i in range(300)]}, r"has \d+ bytes"),
        (
            {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(19)]},
            r"schema brings .* patterns",
        ),
        (
            {"allOf": [{"anyOf": [{"properties": {f"{i} {j}": {}}} for i in range(4)]} for j in range(6)]},
            r"schema brings .* combinations",
        ),
        (
            {"allOf": [{"properties": {"x": {"pattern": f"(a|b)*a.{{{i}}}"}}} for i in range(9)]},
            r"schema brings .* patterns",
        ),
        ({"prefixItems": [{"type": "integer", "multipleOf": 9973 - i} for i in range(9)]}, r"multipleOf together"),
        ({"prefixItems": [{"minimum": 0.1, "maximum": i} for i in range(2001)]}, r"numbers with bounds"),
        (
            {
                "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(600)} | {"d600": {}},
                "$ref": "#/$defs/d0",
            },
            r"refers to more than 500 places",
        ),
        ({"$dynamicRef": "#x"}, r"schema: .*dynamicRef"),
    ],
)
def test_refused_with_the_part_named(schema: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Grammar.json_schema(schema)


def test_very_deep_input_is_refused_before_it_is_walked() -> None:
    schema: Any = {}
    for _ in range(100_000):
        schema = {"items": schema}
    with pytest.raises(ValueError, match="deeper"):
        Grammar.json_schema(schema)


def test_what_says_nothing_is_allowed() -> None:
    """Annotations, definitions that nobody uses, and keywords in their neutral form."""
    Grammar.json_schema(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$id": "https://example.org/x",
            "title": "T",
            "definitions": {
                "never": {"type": "object", "properties": {"a": {"$ref": "#/definitions/never"}}, "required": ["a"]}
            },
            "type": "object",
            "properties": {"$ref": {"type": "string", "description": "a property of this name", "x-order": 1}},
            "unevaluatedProperties": True,
            "default": {"$ref": "#/not/a/reference"},
            "maxProperties": 10**9,
            "allOf": [{"$ref": "#/$defs/used"}],
            "$defs": {"used": {"properties": {"date": {"type": "string", "format": "date", "pattern": "^2"}}}},
        }
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"},
        {"type": "string", "pattern": "^(a|aa|aaa|a*)*b$"},
        {"type": "string", "maxLength": 1_000_000},
        {"type": "array", "items": {"type": "array", "items": {"type": "string"}, "maxItems": 1000}, "maxItems": 1000},
        {"enum": [f"value {i}" for i in range(10_000)]},
        {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(1000)}},
        {"anyOf": [{"type": "object", "properties": {f"k{i}": {"type": "string"}}} for i in range(300)]},
        {
            "$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)}
            | {"d30": {"type": "null"}},
            "$ref": "#/$defs/d0",
        },
    ],
    ids=["nested counts", "ambiguous", "long string", "many items", "large enum", "wide", "branches", "doubling"],
)
@pytest.mark.timeout(20)
def test_large_schemas_end_quickly_one_way_or_the_other(schema: Any, tokenizer: Tokenizer) -> None:
    try:
        constraint = Constraint(tokenizer, Grammar.json_schema(schema))
    except ValueError:
        return
    for _ in range(20):
        token = next(i for i, ok in enumerate(constraint.allowed()) if ok)
        if token == tokenizer.eos_id:
            break
        constraint.accept(token)


@pytest.mark.timeout(20)
def test_references_that_lead_far(tokenizer: Tokenizer) -> None:
    """A chain is followed or refused, whatever the order of its links, and quickly."""
    for order in (range(450), range(449, -1, -1), sorted(range(450), key=lambda i: i * 7919 % 450)):
        links = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in order}
        schema: dict[str, Any] = {"$defs": {**links, "d450": {"type": "null"}}, "$ref": "#/$defs/d0"}
        try:
            Grammar.json_schema(schema)
        except ValueError as error:
            assert "references" in str(error)
    links = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(30)}
    schema = {"$defs": {**links, "d30": {"type": "null"}}, "$ref": "#/$defs/d0"}
    assert outcome(tokenizer, schema, "[" * 30 + "]" * 30) == "whole"


def test_the_json_of_a_schema_is_unchanged() -> None:
    """The caller's schema is read, never written to."""
    schema = {"type": "object", "properties": {"a": {"items": [{"type": "integer"}], "title": "t"}}, "title": "x"}
    before = json.dumps(schema)
    Grammar.json_schema(schema)
    assert json.dumps(schema) == before
