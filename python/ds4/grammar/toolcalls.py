"""Tool calls in the markup of the chat protocol, as a grammar in llguidance's form.

A call gives its parameters in the order of the schema, the required ones always; a string as its raw characters, any
other value as JSON text (see `ds4.chat`). Parameters beyond the declared ones are offered only where the schema has
`additionalProperties` or declares none at all.

Two lexemes that may stand at one place must not begin alike unless they part at a place of their own, for the lexer
takes the longest: that is why every parameter ends with its line end, and no lexeme begins with one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ds4.chat.escaping import escape_name
from ds4.chat.jsontext import dumps
from ds4.chat.messages import check_tools
from ds4.chat.protocol import PARAMETER_CLOSE

from .schema import Schema, check_text, where
from .strings import literal, parameter_forms

MAX_TOOLS = 512
MAX_VARIANTS = 16
MAX_NAME = 256
"""Longest name of a tool or parameter in characters."""

# What a schema of parameters may say. Anything else would go unheeded.
_KNOWN = {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "$ref"}

_ANY_NAME = rf"[^\x00-\x1f\x7f\"<>&]{{1,{MAX_NAME}}}"


class Rules:
    """Collects the rules of a grammar."""

    def __init__(self, json_options: Mapping[str, Any]) -> None:
        self.lines: list[str] = []
        self._json_options = json_options
        self._n = 0

    def rule(self, body: str) -> str:
        """Add a rule; returns its name."""
        return self._add("r", body)

    def lexeme(self, expression: str) -> str:
        """Add a lexeme; returns its name."""
        return self._add("T", expression)

    def json(self, schema: Mapping[str, Any]) -> str:
        """Add a rule for JSON text of a schema that stands alone; returns its name."""
        return self.rule(f"%json {dumps({**schema, 'x-guidance': self._json_options})}")

    def _add(self, kind: str, body: str) -> str:
        self._n += 1
        name = f"{kind}{self._n}"
        self.lines.append(f"{name}: {body}")
        return name


def tool_calls(
    rules: Rules, tools: Sequence[Mapping[str, Any]], names: Sequence[str] | None, parallel: bool
) -> list[tuple[str, Schema, list[Any]]]:
    """Add the rules of a block of calls, from `start` on.

    Returns
    -------
    list of (str, Schema, list)
        For every tool its name, its schema and the schemas of its parameters, to find the one at fault.
    """
    check_tools(tools)
    if not tools:
        raise ValueError("there are no tools to call")
    if len(tools) > MAX_TOOLS:
        raise ValueError(f"there are {len(tools)} tools; at most {MAX_TOOLS} can be told apart")
    declared = {tool["function"]["name"]: tool["function"] for tool in tools}
    if len(declared) < len(tools):
        raise ValueError("two tools have the same name")
    wanted = list(declared) if names is None else list(dict.fromkeys(names))
    if not wanted:
        raise ValueError("no tool is named")
    for name in wanted:
        if name not in declared:
            raise ValueError(f"there is no tool named {name!r}; declared: {', '.join(sorted(declared))}")
    parts = []
    calls = []
    for name in wanted:
        try:
            rule, schema, embedded = _call(rules, name, declared[name].get("parameters"))
        except ValueError as error:
            raise ValueError(f"the parameters of the tool {name!r} cannot be enforced: {error}") from None
        calls.append(rule)
        parts.append((name, schema, embedded))
    call = rules.rule(" | ".join(calls))
    rules.lines.append(
        f'start: "\\n\\n<" dsml "tool_calls>\\n" {call}{"+" if parallel else ""} "</" dsml "tool_calls>"'
    )
    return parts


def _call(rules: Rules, name: str, parameters: Any) -> tuple[str, Schema, list[Any]]:
    _check_name(name, "the name")
    schema = Schema({} if parameters is None else parameters)
    root = schema.resolve(schema.root)
    root = {} if root is True else root
    kinds = root.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise ValueError("schema.type must be 'object'")
    bodies, embedded = [], []
    for one in _variants(schema, root):
        unknown = sorted(set(one) - _KNOWN)
        if unknown or ("$ref" in one and set(one) & {"properties", "required", "additionalProperties"}):
            raise ValueError(f"schema.{(unknown or ['$ref'])[0]} cannot be enforced on the parameters as a whole")
        body, parts = _parameters(rules, schema, one)
        bodies.append(body)
        embedded += parts
    body = bodies[0] if len(bodies) == 1 else rules.rule(" | ".join(bodies))
    opening = _quoted(f'invoke name="{escape_name(name)}">\n')
    rule = rules.rule(f'"<" dsml {opening} {body} "</" dsml "invoke>\\n"')
    return rule, schema, embedded


def _variants(schema: Schema, root: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the schemas that a root with `anyOf` stands for: each branch requires or declares more parameters."""
    branches = root.get("anyOf", [])
    found = []
    for branch in branches[:MAX_VARIANTS]:
        more = schema.resolve(branch)
        if not isinstance(more, dict) or set(more) - {"type", "required", "properties"}:
            return [root]
        declared, added = root.get("properties", {}), more.get("properties", {})
        if any(declared[key] != added[key] for key in set(declared) & set(added)):
            return [root]
        one = {key: value for key, value in root.items() if key != "anyOf"}
        one["properties"] = {**declared, **added}
        one["required"] = list(dict.fromkeys([*root.get("required", ()), *more.get("required", ())]))
        found.append(one)
    return found if found and len(branches) <= MAX_VARIANTS else [root]


def _parameters(rules: Rules, schema: Schema, root: dict[str, Any]) -> tuple[str, list[Any]]:
    """Return what stands between the tags of a call, and the schemas of the parameters."""
    properties: dict[str, Any] = dict(root.get("properties", {}))
    required = set(root.get("required", ()))
    rest = root.get("additionalProperties", not properties)
    for name in root.get("required", ()):
        if name not in properties:
            properties[name] = root.get("additionalProperties", True)
    embedded: list[Any] = []
    items: list[tuple[str, str]] = []  # a rule, and how often it may stand: "", "?" or "*"
    for name, part in properties.items():
        if schema.resolve(part) is False:
            if name in required:
                raise ValueError(f"schema.required names {name!r}, which nothing satisfies")
            continue
        _check_name(name, f"the parameter {name!r}")
        rule = _parameter(rules, schema, literal(escape_name(name)), part, embedded)
        items.append((rule, "" if name in required else "?"))
    if schema.resolve(rest) is not False:
        items.append((_parameter(rules, schema, _ANY_NAME, rest, embedded, tuple(properties)), "*"))
    if not items:
        return '"\\n"', embedded
    if required:
        return " ".join(rule + times for rule, times in items), embedded
    # None is required: one or more, or the empty line that the protocol writes for none.
    follow, some = "", ""
    for rule, times in reversed(items):
        some = rules.rule(f"{rule}{'+' if times == '*' else ''} {follow}" + (f" | {some}" if some else ""))
        follow = rules.rule(f"{rule}{times} {follow}")
    return rules.rule(f'"\\n" | {some}'), embedded


def _parameter(
    rules: Rules, schema: Schema, name: str, part: Any, embedded: list[Any], declared: Sequence[str] = ()
) -> str:
    """Add the rule of one parameter; `name` is a regular expression, from which `declared` names are taken out."""

    def opening(flag: str) -> str:
        expression = f'/parameter name="{name}" string="{flag}">/'
        if declared:
            others = "|".join(literal(escape_name(other)) for other in declared)
            expression += f' & ~/parameter name="(?:{others})" string="{flag}">/'
        return f'"<" dsml {rules.lexeme(expression)}'

    raw, json = parameter_forms(schema, part)
    forms = []
    if raw:
        forms.append(f"{opening('true')} ({' | '.join(map(rules.lexeme, raw))})")
    embedded.append(part)
    for other in json:
        alone = schema.alone(other)
        if PARAMETER_CLOSE in dumps(alone):
            raise ValueError(
                f"{where(schema.path_of(part))} names the text {PARAMETER_CLOSE!r}, which ends a parameter"
            )
        forms.append(f'{opening("false")} {rules.json(alone)} "</"')
    return rules.rule(" | ".join(f'{form} dsml "parameter>\\n"' for form in forms))


def _check_name(name: str, what: str) -> None:
    check_text(name, ())
    if len(escape_name(name)) > MAX_NAME:
        raise ValueError(f"{what} has more than {MAX_NAME} characters")


def _quoted(text: str) -> str:
    """Return a literal of the grammar."""
    return dumps(text)
