"""The OpenAPI document: what the endpoints take and answer, made from the types that read the requests."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

import ds4

from .dialects import COUNT, DIALECTS, DialectForm

_SUMMARIES = {
    "/v1/chat/completions": "OpenAI chat completion",
    "/v1/completions": "OpenAI text completion",
    "/v1/responses": "OpenAI response",
    "/v1/messages": "Anthropic message",
    "/v1/messages/count_tokens": "Number of tokens of an Anthropic message request",
}
_ERRORS = ("400", "401", "403", "404", "405", "408", "413", "415", "429", "500", "503")


@cache
def document() -> dict[str, Any]:
    """Return the document."""
    forms = [*DIALECTS, COUNT]
    _, components = msgspec.json.schema_components(
        [form.body for form in forms], ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, Any] = {form.path: {"post": _post(form)} for form in forms}
    paths["/v1/models"] = {"get": _get("The models served", "application/json")}
    model = _get("One model", "application/json")
    model["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    paths["/v1/models/{id}"] = {"get": model}
    paths["/health"] = {"get": _get("Whether the server takes requests", "application/json")}
    paths["/experts"] = {"get": _get("Which streamed experts are in memory", "application/json")}
    paths["/metrics"] = {"get": _get("Numbers for Prometheus", "text/plain")}
    return {
        "openapi": "3.1.0",
        "info": {"title": "ds4", "version": ds4.__version__},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {"message": {"type": "string"}, "type": {"type": "string"}},
        }
    },
}


def _errors() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": "Refused or failed", "content": content} for status in _ERRORS}


def _get(summary: str, kind: str) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": {"description": "OK", "content": {kind: {}}}, **_errors()}}


def _post(form: DialectForm) -> dict[str, Any]:
    content = {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}}
    if form is COUNT:
        del content["text/event-stream"]
    schema = {"$ref": f"#/components/schemas/{form.body.__name__}"}
    return {
        "summary": _SUMMARIES[form.path],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"description": "The answer", "content": content}, **_errors()},
    }
