"""The entries of /v1/models."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ..contract import ModelInfo, RequestError

PARAMETERS = (
    "tools",
    "tool_choice",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "seed",
    "stream",
    "reasoning_effort",
    "response_format",
    "logprobs",
    "top_logprobs",
    "n",
)


def all_models(info: ModelInfo) -> dict[str, Any]:
    """Return the list: the model under its own name."""
    entry = one_model(info, info.id)
    return {"object": "list", "data": [entry], "has_more": False, "first_id": info.id, "last_id": info.id}


def one_model(info: ModelInfo, name: str) -> dict[str, Any]:
    """Return the entry of a model.

    Raises
    ------
    RequestError
        It is not served here.
    """
    if name != info.id:
        raise RequestError(
            f"the model {name!r} is not served here; this server has {info.id!r}", status=404, code="model_not_found"
        )
    return {
        "id": info.id,
        "object": "model",
        "type": "model",
        "display_name": info.shape,
        "name": info.shape,
        "created": info.created,
        "created_at": datetime.fromtimestamp(info.created, UTC).isoformat().replace("+00:00", "Z"),
        "owned_by": "ds4",
        "context_length": info.n_ctx,
        "top_provider": {
            "context_length": info.n_ctx,
            "max_completion_tokens": info.max_tokens,
            "is_moderated": False,
        },
        "supported_parameters": list(PARAMETERS),
    }
