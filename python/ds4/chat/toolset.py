"""The tools a request declared, and what their schemas say about a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .jsontext import dumps, loads
from .messages import check_tools


class ToolSet:
    """Declared tools by name.

    Parameters
    ----------
    tools : sequence of mappings, optional
        In the form `{"type": "function", "function": {...}}`.

    Raises
    ------
    ValueError
        As `messages.check_tools`.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]] | None) -> None:
        check_tools(tools)
        self._schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools or ()}

    def __len__(self) -> int:
        return len(self._schemas)

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def read_value(self, tool: str, path: Sequence[str], raw: str) -> tuple[str, Any, str | None]:
        """Read a value that the model marked as JSON.

        Returns the JSON text to pass on, the value read, and a note if something was repaired. Where the
        schema asks for a string, a bare word (`celsius`) or another JSON value becomes the string of its
        characters; null is left, it stands for an absent value. What is not JSON becomes a string as well:
        the call stays readable and the tool can say what it expected.
        """
        text = raw.strip()
        try:
            value = loads(text)
        except ValueError:
            return (
                dumps(text),
                text,
                f"the value of {'.'.join(path)} in a call of {tool} is not JSON: taken as a string",
            )
        if value is not None and not isinstance(value, str) and _wants_string(self._schema(tool, path)):
            return dumps(text), text, f"the value of {'.'.join(path)} in a call of {tool} was not marked as a string"
        return text, value, None

    def _schema(self, tool: str, path: Sequence[str]) -> Any:
        schema = self._schemas.get(tool)
        for key in path:
            properties = schema.get("properties") if isinstance(schema, Mapping) else None
            schema = properties.get(key) if isinstance(properties, Mapping) else None
        return schema


def _wants_string(schema: Any) -> bool:
    """Tell whether a schema admits strings and nothing else (except null)."""
    if not isinstance(schema, Mapping):
        return False
    kind = schema.get("type")
    if isinstance(kind, str):
        return kind == "string"
    if isinstance(kind, list):
        return "string" in kind and set(map(str, kind)) <= {"string", "null"}
    if "enum" in schema or "const" in schema:
        values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema.get("const")]
        return any(isinstance(v, str) for v in values) and all(v is None or isinstance(v, str) for v in values)
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list) and options:
        rest = [o for o in options if not (isinstance(o, Mapping) and o.get("type") == "null")]
        return bool(rest) and all(map(_wants_string, rest))
    return False
