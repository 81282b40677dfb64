"""The OpenAPI document: it describes what is served, and what it describes never makes the server fail."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from ds4.server.api import Settings, create_app
from ds4.server.api.dialects import COUNT, DIALECTS
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance
from support.replayed import ReplayEngine

from .conftest import Local

APP = create_app(ReplayEngine(), Settings(keepalive=1.0, settle=0.01))
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)


def test_the_document_names_every_endpoint() -> None:
    document = Local(create_app(ReplayEngine())).get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for form in (*DIALECTS, COUNT):
        operation = document["paths"][form.path]["post"]
        name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        assert document["components"]["schemas"][name]["type"] == "object"
    assert {"/v1/models", "/v1/models/{id}", "/health", "/metrics"} <= set(document["paths"])


@SCHEMA.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_generated_requests_are_answered_or_refused(case: Any) -> None:
    """Right and wrong requests made from the document: no failure, no status or type that it does not name."""
    response = case.call()
    case.validate_response(response, checks=[not_a_server_error, status_code_conformance, content_type_conformance])


@pytest.mark.parametrize("form", DIALECTS, ids=[form.name for form in DIALECTS])
def test_required_fields_are_required_in_the_document(form: Any) -> None:
    document = Local(create_app(ReplayEngine())).get("/openapi.json").json()
    schema = document["components"]["schemas"][form.body.__name__]
    assert schema["required"] == [{"completion": "prompt", "responses": "input"}.get(form.name, "messages")]
    assert schema["properties"]["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 100}
