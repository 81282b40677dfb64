"""What a completion must look like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from ds4.chat.jsontext import dumps, loads

from .compile import DSML_RULE, compile_grammar
from .guard import Kind
from .schema import Schema, children, where
from .toolcalls import Rules, tool_calls

MAX_GRAMMAR_BYTES = 4 << 20
"""Longest grammar, as text."""

MAX_TOOLS_TEXT = 2 << 20
"""Longest list of tools as JSON text, in characters."""

# White space: what the protocol writes (one blank), none, or a line end with an indent: never a run without end.
# Escapes: those of one letter. A numeric one could spell the name of a declared property, and half a surrogate pair.
JSON_OPTIONS: Mapping[str, Any] = {
    "whitespace_pattern": r"([ ]|\n[ \t]{0,64})?",
    "json_allowed_escapes": 'nrtbf\\"',
}

_MAX_TRIALS = 200


class Grammar:
    """The form of a completion. Immutable; use one for as many constraints as you like.

    Made by `json_schema`, `json_object` and `tool_calls`. Equal arguments give the same grammar without reading the
    schema again.
    """

    __slots__ = ("kind", "source")

    def __init__(self, source: str, kind: Kind) -> None:
        self.source = source
        self.kind = kind

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool) -> Grammar:
        """Return the grammar of JSON texts that satisfy a schema.

        Properties come in the order of the schema; white space is at most one blank or a line end with an indent;
        numbers have at most 100 digits and an exponent of two.

        Parameters
        ----------
        schema : mapping
            JSON Schema, any draft from 4 on. References may point into the schema itself only. `format` is heeded if
            it is date-time, time, date, duration, email, hostname, ipv4, ipv6, uuid or uri, and is a remark otherwise.

        Raises
        ------
        ValueError
            The schema is wrong, too large, contradicts itself, or says something that cannot be enforced (`not`, `if`,
            `uniqueItems`, a `oneOf` whose branches may overlap, ...). The text names the part.
        """
        return _json_schema(_text(schema, "the schema"))

    @classmethod
    def json_object(cls) -> Grammar:
        """Return the grammar of JSON objects with any content."""
        return _json_schema('{"type": "object"}')

    @classmethod
    def tool_calls(
        cls, tools: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None, parallel: bool = True
    ) -> Grammar:
        """Return the grammar of a block of tool calls, from the blank line in front of it to its closing tag.

        What it admits is read by `ds4.chat.CompletionParser` as calls without error whose arguments satisfy the
        schemas. Parameters come in the order of the schema, the required ones always. Parameters that the schema does
        not declare are admitted if it has `additionalProperties` or declares none.

        Parameters
        ----------
        tools : sequence of mappings
            In the form `{"type": "function", "function": {...}}`.
        names : sequence of str, optional
            The tools that may be called; all when not given.
        parallel : bool
            Whether there may be more than one call.

        Raises
        ------
        ValueError
            There is no such tool, or a schema as in `json_schema`.
        """
        wanted = None if names is None else tuple(names)
        text = _text(list(tools), "the list of tools")
        if len(text) > MAX_TOOLS_TEXT:
            raise ValueError(f"the tools have {len(text)} characters as JSON; at most {MAX_TOOLS_TEXT} are allowed")
        return _tool_calls(text, wanted, parallel)

    def __repr__(self) -> str:
        return f"<Grammar of {'a JSON text' if self.kind == 'json' else 'tool calls'}, {len(self.source)} characters>"


def _text(value: Any, what: str) -> str:
    try:
        return dumps(value)
    except ValueError as error:
        raise ValueError(f"{what} cannot be used: {error}") from None


@lru_cache(maxsize=64)
def _json_schema(text: str) -> Grammar:
    schema = Schema(loads(text))
    rules = Rules(JSON_OPTIONS)
    value = rules.json(schema.alone(schema.root))
    grammar = Grammar("\n".join([f"start: {value}", *rules.lines]), "json")
    _check(grammar, lambda: _fault(schema, [schema.root]))
    return grammar


@lru_cache(maxsize=64)
def _tool_calls(text: str, names: tuple[str, ...] | None, parallel: bool) -> Grammar:
    rules = Rules(JSON_OPTIONS)
    tools = tool_calls(rules, loads(text), names, parallel)
    grammar = Grammar("\n".join([DSML_RULE, *rules.lines]), "calls")

    def fault() -> str | None:
        for name, schema, parts in tools:
            found = _fault(schema, parts)
            if found is not None:
                return f"the parameters of the tool {name!r}: {found}"
        return None

    _check(grammar, fault)
    return grammar


def _check(grammar: Grammar, fault: Callable[[], str | None]) -> None:
    if len(grammar.source) > MAX_GRAMMAR_BYTES:
        raise ValueError(
            f"the grammar has {len(grammar.source)} characters; at most {MAX_GRAMMAR_BYTES} are allowed: "
            "the schemas are too large together"
        )
    try:
        compile_grammar(_bytes(), grammar.source.replace(DSML_RULE, f"dsml: <[{_BYTES_DSML}]>"))
    except ValueError as error:
        raise ValueError(f"the schema cannot be enforced: {fault() or error}") from None


def _fault(schema: Schema, parts: list[Any]) -> str | None:
    """Find the smallest part that cannot be compiled, and say why."""
    trials = 0

    def trial(part: Any) -> str | None:
        nonlocal trials
        trials += 1
        rules = Rules(JSON_OPTIONS)
        value = rules.json(schema.alone(part))
        try:
            compile_grammar(_bytes(), "\n".join([f"start: {value}", *rules.lines]))
        except ValueError as error:
            return str(error)
        return None

    found = None
    seen: set[int] = set()
    queue = list(parts)
    while queue and trials < _MAX_TRIALS:
        part = queue.pop(0)
        if id(part) in seen:
            continue
        seen.add(id(part))
        why = trial(part)
        if why is not None:
            found = f"{where(schema.path_of(part))}: {why}"
            inner = [child for _, child in children(part)]
            if isinstance(part, dict) and "$ref" in part:
                inner.append(schema.resolve({"$ref": part["$ref"]}))
            queue = [child for child in inner if not isinstance(child, bool)]
    return found


# Grammars are checked against the smallest vocabulary: the single bytes, the end and the protocol's token.

_BYTES_EOS, _BYTES_DSML = 256, 257


class _Bytes:
    is_tokenizer_wrapper = True
    bos_token_id = None
    eos_token_id = _BYTES_EOS
    tokens = (*(bytes([i]) for i in range(256)), b"<end>", b"<dsml>")
    special_token_ids = (_BYTES_EOS, _BYTES_DSML)

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


@cache
def _bytes() -> Any:
    import llguidance

    table: Any = _Bytes()
    return llguidance.LLTokenizer(table, n_vocab=258, eos_token=_BYTES_EOS)
