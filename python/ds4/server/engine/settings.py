"""Settings of the engine, all of them with a default that works on a small machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...speculation import Draft
from ...steering import Steering

DEFAULT_MAX_TOKENS = 393_216


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a `LocalEngine`.

    Parameters
    ----------
    model_id : str
        Name under which the model is served; the name of its shape when empty.
    n_ctx : int
        Tokens that prompt and answer may have together.
    max_tokens : int
        Most tokens of an answer, when the request does not ask for fewer.
    max_active : int
        Requests that are worked on at the same time, token by token in turn.
    max_queued : int
        Requests that may wait; more are refused (`Overloaded`). 0: nobody waits.
    prefill_quantum : int or None
        Most tokens of a prompt that are computed before others have their turn. None: 256, or the chunk of the sessions
        where that is longer than usual, because experts are streamed and fewer tokens would read as many of them.
    memory_bytes : int or None
        Memory for sessions; decides how many are alive. None: as many as `max_active`.
    keep_sessions : int
        Most sessions that are alive, working or idle.
    tool_memory_ids, tool_memory_bytes : int
        Bounds of the memory for calls as the model wrote them.
    turn_memory_bytes : int
        Bound of the memory for turns as the model drew them.
    text_cache_bytes : int
        Bound of the memory for texts that were tokenized.
    draft : Draft or None
        How tokens are guessed, while one request alone is worked on; never when None. The model needs an MTP block.
    steering : tuple of Steering
        What every answer is steered with, unless its request says otherwise; requests can scale it.
    session : mapping
        More options of `ds4.Model.session`, such as threads and chunk.
    trace : path-like or None
        A file to which everything is written down; it holds private text.
    """

    model_id: str = ""
    n_ctx: int = 32_768
    max_tokens: int = DEFAULT_MAX_TOKENS
    max_active: int = 8
    max_queued: int = 64
    prefill_quantum: int | None = None
    memory_bytes: int | None = None
    keep_sessions: int = 16
    tool_memory_ids: int = 100_000
    tool_memory_bytes: int = 64 << 20
    turn_memory_bytes: int = 32 << 20
    text_cache_bytes: int = 32 << 20
    draft: Draft | None = None
    steering: tuple[Steering, ...] = ()
    session: Mapping[str, Any] = field(default_factory=dict)
    trace: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        least = {
            "n_ctx": 2,
            "max_tokens": 1,
            "max_active": 1,
            "max_queued": 0,
            "keep_sessions": 1,
            "tool_memory_ids": 0,
            "tool_memory_bytes": 0,
            "turn_memory_bytes": 0,
            "text_cache_bytes": 0,
        }
        if self.prefill_quantum is not None:
            least["prefill_quantum"] = 1
        for name, low in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be int, not {type(value).__name__}")
            if value < low:
                raise ValueError(f"{name} must be at least {low}, not {value}")
        if self.memory_bytes is not None and self.memory_bytes < 1:
            raise ValueError(f"memory_bytes must be positive, not {self.memory_bytes}")
