"""JSON Schemas as they come in a request: checked, freed of what says nothing, and made to stand alone.

A schema comes from a stranger. Its size and nesting are limited before anything walks it, a reference may only point
into the schema itself, and one that no finite value can satisfy is refused: constrained by it, a model would write
until its limit. Keywords that llguidance does not know are left in, so that it refuses them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from ds4.chat.jsontext import dumps

MAX_SCHEMA_BYTES = 1 << 18
"""Longest schema as JSON text, in bytes."""

MAX_DEPTH = 64
"""Deepest nesting of schemas in schemas."""

MAX_SUBSCHEMAS = 10_000
"""Most schemas in a schema."""

MAX_REFERENCES = 500
"""Most places that the references of a schema lead to."""

MAX_PROPERTIES = 1_000
"""Most properties of one object; the cost of an object grows with their square."""

MAX_ENUM = 10_000
"""Most values of one `enum`."""

MAX_MULTIPLE = 10_000
"""Largest `multipleOf`, by its digits; its automaton has as many states."""

_MAX_PASSES = 40

_MULTIPLES_END = 10**15  # a multiple has an end, so that a model cannot miss it by one digit for ever

MAX_MULTIPLES = 50_000
"""Sum of the digits of all `multipleOf` of a schema."""

MAX_RANGES = 2_000
"""Most numbers with bounds in a schema: each becomes an expression of its own."""

MAX_MERGED_PATTERNS = 4
"""Most patterns that `allOf` may bring together on one string: the work grows exponentially with them."""

MAX_MERGED_BRANCHES = 256
"""Most combinations of branches of `anyOf` and `oneOf` that `allOf` may bring about."""

MAX_LENGTH = 1_000_000
"""Largest length or number of items that is counted."""

JSON = Any
Path = tuple[str | int, ...]

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = (
    "additionalProperties",
    "additionalItems",
    "unevaluatedProperties",
    "unevaluatedItems",
    "items",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
)
_ANNOTATIONS = {"$schema", "$id", "$comment", "$vocabulary", "id", "title", "description", "default", "nullable"}
_ANNOTATIONS |= {"example", "examples", "deprecated", "readOnly", "writeOnly", "strict", "discriminator", "xml"}
_ANNOTATIONS |= {"contentEncoding", "contentMediaType", "contentSchema", "externalDocs"}
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COMBINING = ("allOf", "anyOf", "oneOf")
_NUMBERS = ("minimum", "maximum", "multipleOf")
_TYPES = frozenset(("string", "number", "integer", "boolean", "null", "array", "object"))

# `format` is an annotation unless a reader says otherwise. These are enforced by llguidance, and the stricter ones
# below by patterns: no 30th of February, no second 60, no address longer than mail allows. All others are dropped.
_FORMATS = {"duration", "hostname", "ipv4", "ipv6", "uri"}

_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,15}"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
_PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "email": rf"{_ATOM}(?:\.{_ATOM}){{0,3}}@{_LABEL}(?:\.{_LABEL}){{1,3}}",
}

# Control characters that have an escape of one letter; the others are never written (see `grammar.JSON_OPTIONS`).
_SHORT_ESCAPES = frozenset("\n\r\t\b\f")


def where(path: Path) -> str:
    """Return a place in a schema in readable form."""
    return "schema" + "".join(f"[{p}]" if isinstance(p, int) else f".{_short(p)}" for p in path)


def _short(text: str) -> str:
    shown = text if text.isprintable() else ascii(text)[1:-1]
    return shown if len(shown) <= 60 else shown[:57] + "..."


class Schema:
    """A checked schema.

    Parameters
    ----------
    value : mapping or bool
        The schema.

    Raises
    ------
    ValueError
        It is too large or too deep, is not built like a JSON Schema, refers to something outside itself, or can be
        satisfied by no finite value. The text names the part.
    """

    def __init__(self, value: JSON) -> None:
        _check_depth(value)
        text = dumps(value)
        n_bytes = len(text.encode("utf-8", "surrogatepass"))
        if n_bytes > MAX_SCHEMA_BYTES:
            raise ValueError(f"the schema has {n_bytes} bytes; at most {MAX_SCHEMA_BYTES} are allowed")
        self._targets: dict[str, JSON] = {}
        self._paths: dict[int, Path] = {}
        self._n = 0
        self._n_ranges = 0
        self._multiples = 0
        self.root = self._read(value, ())
        self._check_references()
        try:
            self._check_merges()
            self._check_finite()
        except RecursionError:
            raise ValueError("the schema's references lead on and on, too far to follow") from None

    def resolve(self, schema: JSON) -> JSON:
        """Follow references that stand alone; the result is a schema of this document."""
        seen = 0
        while isinstance(schema, dict) and set(schema) - {"$defs", "definitions"} == {"$ref"}:
            schema = self._targets[schema["$ref"]]
            seen += 1
            if seen > self._n:
                raise ValueError("the schema's references lead in a circle")
        return schema

    def path_of(self, schema: JSON) -> Path:
        """Return the place of a part of this document."""
        return self._paths.get(id(schema), ())

    def alone(self, schema: JSON) -> dict[str, Any]:
        """Return a part of this document as a schema that stands alone, with what it refers to."""
        names: dict[str, str] = {}
        queue: list[str] = []

        def name_of(reference: str) -> str:
            if reference not in names:
                names[reference] = f"d{len(names)}"
                queue.append(reference)
            return f"#/$defs/{names[reference]}"

        result: dict[str, Any] | bool = _referring(schema, name_of)
        definitions: dict[str, Any] = {}
        while queue:
            reference = queue.pop()
            definitions[names[reference]] = _referring(self._targets[reference], name_of)
        if isinstance(result, bool):
            return {} if result else {"not": {}}
        if definitions:
            result["$defs"] = definitions
        return result

    # Reading

    def _read(self, schema: JSON, path: Path, depth: int = 0) -> JSON:
        """Check one schema and everything in it; returns it without annotations."""
        if depth > MAX_DEPTH:
            raise ValueError(f"the schema is nested deeper than {MAX_DEPTH} levels")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise ValueError(f"{where(path)} must be an object or a boolean, not {type(schema).__name__}")
        self._n += 1
        if self._n > MAX_SUBSCHEMAS:
            raise ValueError(f"the schema holds more than {MAX_SUBSCHEMAS} schemas")
        _check_keywords(schema, path)
        self._check_numbers(schema, path)
        schema = _modern(schema)
        clean: dict[str, Any] = {}
        for key, value in schema.items():
            here = (*path, key)
            if key in _ANNOTATIONS or key.startswith("x-") or _says_nothing(key, value):
                continue
            if key in _MAPS and isinstance(value, Mapping):
                clean[key] = {name: self._read(part, (*here, name), depth + 1) for name, part in value.items()}
            elif key in _LISTS and isinstance(value, list):
                clean[key] = [self._read(part, (*here, i), depth + 1) for i, part in enumerate(value)]
            elif key in _SINGLE and isinstance(value, (Mapping, bool)):
                clean[key] = self._read(value, here, depth + 1)
            else:
                clean[key] = value
        self._paths[id(clean)] = path
        return clean

    def _check_numbers(self, schema: Mapping[str, Any], path: Path) -> None:
        self._n_ranges += any(key in schema for key in _BOUNDS)
        if self._n_ranges > MAX_RANGES:
            raise ValueError(f"the schema holds more than {MAX_RANGES} numbers with bounds")
        self._multiples += _check_multiple(schema, path) if "multipleOf" in schema else 0
        if self._multiples > MAX_MULTIPLES:
            raise ValueError(f"the digits of all multipleOf together are more than {MAX_MULTIPLES}")

    def _check_merges(self) -> None:
        """Refuse what grows exponentially when the parts of `allOf`, or a reference and what is beside it, merge."""
        costs: dict[int, tuple[int, int]] = {}
        for path, schema in walk(self.root):
            parts = len(schema.get("allOf", ())) + ("$ref" in schema)
            if parts + bool(set(schema) - {"allOf", "$ref", "$defs", "definitions"}) < 2 or not parts:
                continue
            patterns, branches = self._merge_cost(schema, costs)
            if patterns > MAX_MERGED_PATTERNS:
                raise ValueError(f"{where(path)} brings more than {MAX_MERGED_PATTERNS} patterns together")
            if branches > MAX_MERGED_BRANCHES:
                raise ValueError(f"{where(path)} brings more than {MAX_MERGED_BRANCHES} combinations of branches about")

    def _merge_cost(self, schema: JSON, costs: dict[int, tuple[int, int]]) -> tuple[int, int]:
        """Return how many patterns may meet on a string of a schema, and how many combinations of branches it has."""
        if not isinstance(schema, dict):
            return 0, 1
        if id(schema) in costs:
            return costs[id(schema)]
        costs[id(schema)] = 0, 1  # what refers back to itself adds nothing
        patterns, branches = ("pattern" in schema) + ("format" in schema), 1
        merged = list(schema.get("allOf", ()))
        if "$ref" in schema:
            merged.append(self._targets[schema["$ref"]])
        for part in merged:
            more, factor = self._merge_cost(part, costs)
            patterns, branches = patterns + more, branches * factor
        for key in ("anyOf", "oneOf"):
            if key in schema:
                found = [self._merge_cost(part, costs) for part in schema[key]]
                patterns, branches = patterns + max(p for p, _ in found), branches * sum(b for _, b in found)
        inner = [self._merge_cost(part, costs) for place, part in children(schema) if place[0] not in _COMBINING]
        patterns += max((p for p, _ in inner), default=0)
        branches = min(branches * max((b for _, b in inner), default=1), MAX_MERGED_BRANCHES + 1)
        costs[id(schema)] = patterns, branches
        return patterns, branches

    def _check_references(self) -> None:
        for path, schema in walk(self.root):
            reference = schema.get("$ref")
            if reference is None:
                continue
            if not isinstance(reference, str):
                raise ValueError(f"{where(path)}.$ref must be a string")
            if reference not in self._targets:
                self._targets[reference] = self._find(reference, path)
            if len(self._targets) > MAX_REFERENCES:
                raise ValueError(f"the schema refers to more than {MAX_REFERENCES} places")

    def _find(self, reference: str, path: Path) -> JSON:
        if reference != "#" and not reference.startswith("#/"):
            raise ValueError(
                f"{where(path)}.$ref is {_short(reference)!r}; only references into the schema itself, '#/...', work"
            )
        node: JSON = self.root
        for part in reference[2:].split("/") if reference != "#" else ():
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and part in node:
                node = node[part]
            elif isinstance(node, list) and part.isascii() and part.isdigit() and int(part) < len(node):
                node = node[int(part)]
            else:
                raise ValueError(f"{where(path)}.$ref is {_short(reference)!r}, and nothing stands there")
        if not isinstance(node, bool) and (not isinstance(node, dict) or id(node) not in self._paths):
            raise ValueError(f"{where(path)}.$ref is {_short(reference)!r}, and what stands there is no schema")
        return node

    # Whether there is a finite value

    def _check_finite(self) -> None:
        """Find the schemas that have a finite value, from the leaves up, until nothing is added."""
        targets = [target for target in self._targets.values() if isinstance(target, dict)]
        finite: set[int] = set()
        grown = True
        for _ in range(_MAX_PASSES):
            if not grown:
                break
            grown = False
            targets.reverse()
            for target in targets:
                if id(target) not in finite and self._finite(target, finite):
                    finite.add(id(target))
                    grown = True
        else:
            raise ValueError("the schema's references are too entangled")
        used = _reachable(self.root, self._targets)
        for target in targets:
            if id(target) not in finite and id(target) in used:
                place = where(self._paths[id(target)])
                raise ValueError(f"{place} can be satisfied by no finite value: it requires itself, without end")
        if not self._finite(self.root, finite):
            raise ValueError("the schema can be satisfied by no value")

    def _finite(self, schema: JSON, finite: set[int]) -> bool:
        if isinstance(schema, bool):
            return schema
        reference = schema.get("$ref")
        if reference is not None:
            target = self._targets[reference]
            if not (target if isinstance(target, bool) else id(target) in finite):
                return False
        if "enum" in schema or "const" in schema:
            return True
        for key in ("anyOf", "oneOf"):
            if key in schema and not any(self._finite(part, finite) for part in schema[key]):
                return False
        if not all(self._finite(part, finite) for part in schema.get("allOf", ())):
            return False
        types = schema.get("type")
        types = {types} if isinstance(types, str) else set(types or _TYPES)
        if types - {"object", "array"}:
            return True
        return ("object" in types and self._finite_object(schema, finite)) or (
            "array" in types and self._finite_array(schema, finite)
        )

    def _finite_object(self, schema: dict[str, Any], finite: set[int]) -> bool:
        properties = schema.get("properties", {})
        rest = schema.get("additionalProperties", True)
        return all(self._finite(properties.get(name, rest), finite) for name in schema.get("required", ()))

    def _finite_array(self, schema: dict[str, Any], finite: set[int]) -> bool:
        prefix, least = schema.get("prefixItems", []), schema.get("minItems", 0)
        rest = schema.get("items", True)
        return all(self._finite(part, finite) for part in prefix[:least]) and (
            least <= len(prefix) or self._finite(rest, finite)
        )


def children(schema: JSON) -> Iterator[tuple[Path, JSON]]:
    """Yield the schemas directly inside a checked schema, definitions left out, with their places."""
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in _MAPS and key not in ("$defs", "definitions") and isinstance(value, dict):
            yield from (((key, name), part) for name, part in value.items())
        elif key in _LISTS and isinstance(value, list):
            yield from (((key, i), part) for i, part in enumerate(value))
        elif key in _SINGLE and isinstance(value, (dict, bool)):
            yield (key,), value


def walk(schema: JSON, path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield every schema in a checked schema, itself and definitions among them, with its place."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for key in ("$defs", "definitions"):
        for name, part in schema.get(key, {}).items():
            yield from walk(part, (*path, key, name))
    for place, part in children(schema):
        yield from walk(part, (*path, *place))


def _reachable(root: JSON, targets: Mapping[str, JSON]) -> set[int]:
    """Return the schemas that are used: definitions that nobody refers to do no harm."""
    seen: set[int] = set()
    stack = [root]
    while stack:
        schema = stack.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        if "$ref" in schema:
            stack.append(targets[schema["$ref"]])
        stack.extend(part for _, part in children(schema))
    return seen


def _referring(schema: JSON, name_of: Any) -> JSON:
    """Copy a checked schema without its definitions; references get new names."""
    if not isinstance(schema, dict):
        return schema
    copy: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("$defs", "definitions"):
            continue
        if key == "$ref":
            copy[key] = name_of(value)
        elif key in _MAPS and isinstance(value, dict):
            copy[key] = {name: _referring(part, name_of) for name, part in value.items()}
        elif key in _LISTS and isinstance(value, list):
            copy[key] = [_referring(part, name_of) for part in value]
        elif key in _SINGLE and isinstance(value, (dict, bool)):
            copy[key] = _referring(value, name_of)
        else:
            copy[key] = value
    return copy


# Checks of one schema


def _check_depth(value: JSON) -> None:
    """Refuse deep nesting before anything recursive sees the value."""
    stack: list[tuple[Any, int]] = [(value, 0)]
    while stack:
        node, depth = stack.pop()
        if depth > 2 * MAX_DEPTH:
            raise ValueError(f"the schema is nested deeper than {MAX_DEPTH} levels")
        if isinstance(node, Mapping):
            stack.extend((part, depth + 1) for part in node.values())
        elif isinstance(node, (list, tuple)):
            stack.extend((part, depth + 1) for part in node)


def _check_keywords(schema: Mapping[str, Any], path: Path) -> None:
    if any(not isinstance(key, str) for key in schema):
        raise ValueError(f"{where(path)} has a key that is not a string")
    _check_types(schema, path)
    for key in _MAPS:
        if key in schema and not isinstance(schema[key], Mapping):
            raise ValueError(f"{where(path)}.{key} must be an object")
    for key in ("allOf", "anyOf", "oneOf"):
        if key in schema and not (isinstance(schema[key], list) and schema[key]):
            raise ValueError(f"{where(path)}.{key} must be a list that is not empty")
    for key in _COUNTS:
        if key in schema:
            count = schema[key]
            whole = (isinstance(count, int) and not isinstance(count, bool)) or (
                isinstance(count, float) and count.is_integer()
            )
            if not whole or count < 0:
                raise ValueError(f"{where(path)}.{key} must be an integer of 0 or more")
            if count > MAX_LENGTH and key.startswith("min"):
                raise ValueError(f"{where(path)}.{key} is {count}; at most {MAX_LENGTH} can be counted")
    for key in _NUMBERS:
        if key in schema and (isinstance(schema[key], bool) or not isinstance(schema[key], (int, float))):
            raise ValueError(f"{where(path)}.{key} must be a number")
    properties = schema.get("properties", {})
    if len(properties) > MAX_PROPERTIES:
        raise ValueError(f"{where(path)} has {len(properties)} properties; at most {MAX_PROPERTIES} are allowed")
    required = schema.get("required", [])
    if not isinstance(required, list) or any(not isinstance(name, str) for name in required):
        # `required: true` on a property is an old draft's form; here it would be ignored in silence
        raise ValueError(f"{where(path)}.required must be a list of names")
    if len(required) > MAX_PROPERTIES:
        raise ValueError(f"{where(path)}.required has {len(required)} names; at most {MAX_PROPERTIES} are allowed")
    for name in (*properties, *required):
        check_text(name, path)
    _check_values(schema, path)


def _check_multiple(schema: Mapping[str, Any], path: Path) -> int:
    """Return the digits of `multipleOf` as a number."""
    multiple = Decimal(repr(schema["multipleOf"]))
    if multiple <= 0:
        raise ValueError(f"{where(path)}.multipleOf must be above 0")
    digits = int("".join(map(str, multiple.normalize().as_tuple().digits)))
    if digits > MAX_MULTIPLE or multiple > MAX_MULTIPLE:
        raise ValueError(
            f"{where(path)}.multipleOf is {multiple}; at most {MAX_MULTIPLE}, in value and digits, is possible"
        )
    for key in _BOUNDS:
        bound = schema.get(key)
        if isinstance(bound, (int, float)) and abs(bound) > _MULTIPLES_END:
            raise ValueError(f"{where(path)}.{key} is {bound}; beside multipleOf at most 1e15 is possible")
    return digits


def _check_types(schema: Mapping[str, Any], path: Path) -> None:
    if "type" not in schema:
        return
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    for name in types:
        if not isinstance(name, str) or name not in _TYPES:
            shown = _short(name) if isinstance(name, str) else type(name).__name__
            raise ValueError(f"{where(path)}.type is {shown!r}; known: {', '.join(sorted(_TYPES))}")
    if not types:
        raise ValueError(f"{where(path)}.type is an empty list")


def _check_values(schema: Mapping[str, Any], path: Path) -> None:
    if "enum" in schema:
        values = schema["enum"]
        if not isinstance(values, list) or not values:
            raise ValueError(f"{where(path)}.enum must be a list that is not empty")
        if len(values) > MAX_ENUM:
            raise ValueError(f"{where(path)}.enum has {len(values)} values; at most {MAX_ENUM} are allowed")
        for value in values:
            check_text(value, (*path, "enum"))
    if "const" in schema:
        check_text(schema["const"], (*path, "const"))


def check_text(value: JSON, path: Path) -> None:
    """Refuse values that are never written.

    Those are strings with lone surrogates or with controls that only a numeric escape expresses, and integers that
    llguidance would round.
    """
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"{where(path)} holds an integer of more than 64 bits")
    if isinstance(value, str):
        for char in value:
            if (char < " " and char not in _SHORT_ESCAPES) or "\ud800" <= char <= "\udfff":
                raise ValueError(f"{where(path)} holds the character U+{ord(char):04X}, which cannot be written")
    elif isinstance(value, Mapping):
        for key, part in value.items():
            check_text(key, path)
            check_text(part, path)
    elif isinstance(value, (list, tuple)):
        for part in value:
            check_text(part, path)


def _modern(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema of an earlier draft in today's keywords."""
    changed = dict(schema)
    if isinstance(changed.get("items"), list):
        changed["prefixItems"] = changed.pop("items")
        if "additionalItems" in changed:
            changed["items"] = changed.pop("additionalItems")
    if isinstance(changed.get("propertyNames"), Mapping):
        _name_properties(changed)
    for limit, key in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(changed.get(key), bool):
            exclusive = changed.pop(key)
            if exclusive and limit in changed:
                changed[key] = changed.pop(limit)
    known = _PATTERNS.get(changed["format"]) if isinstance(changed.get("format"), str) else None
    if known is not None and "pattern" not in changed:
        changed["pattern"] = f"^(?:{known})$"
        del changed["format"]
    if "multipleOf" in changed:
        for limit, key, end in (("minimum", "exclusiveMinimum", -1), ("maximum", "exclusiveMaximum", 1)):
            if limit not in changed and key not in changed:
                changed[limit] = end * _MULTIPLES_END
    for key in ("maxLength", "maxItems", "maxProperties"):
        if changed.get(key, 0) > MAX_LENGTH:
            del changed[key]  # no completion is that long
    return changed


def _name_properties(changed: dict[str, Any]) -> None:
    """Say what `propertyNames` says by keywords that llguidance knows, where that is possible."""
    names = {key: value for key, value in changed["propertyNames"].items() if key not in _ANNOTATIONS}
    if names.get("type", "string") != "string":
        return
    names.pop("type", None)
    if not names:
        del changed["propertyNames"]
    elif "properties" not in changed and "patternProperties" not in changed:
        rest = changed.get("additionalProperties", True)
        if set(names) == {"pattern"} and isinstance(names["pattern"], str):
            changed["patternProperties"] = {names["pattern"]: rest}
        elif set(names) == {"enum"} and isinstance(names["enum"], list) and names["enum"]:
            changed["properties"] = {name: rest for name in names["enum"] if isinstance(name, str)}
        else:
            return
        changed["additionalProperties"] = False
        del changed["propertyNames"]


def _says_nothing(key: str, value: JSON) -> bool:
    return (
        (key == "uniqueItems" and value is False)
        or (key in ("unevaluatedProperties", "unevaluatedItems", "propertyNames") and value in (True, {}))
        or (key == "format" and isinstance(value, str) and value not in _FORMATS and value not in _PATTERNS)
        or (key in ("minLength", "minItems", "minProperties") and value == 0)
    )
