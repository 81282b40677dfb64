"""Chat text: rendering of prompts and parsing of completions. Text in, text out; no model is needed."""

from .messages import Message, ToolCall, check_messages, check_tools, with_system_role
from .render import (
    EFFORT_MAX_CONTEXT,
    EFFORTS,
    MODES,
    RENDERERS,
    Prompt,
    Special,
    Text,
    mode_of_effort,
    render,
    render_text,
    render_tool_calls,
)

__all__ = [
    "EFFORTS",
    "EFFORT_MAX_CONTEXT",
    "MODES",
    "RENDERERS",
    "Message",
    "Prompt",
    "Special",
    "Text",
    "ToolCall",
    "check_messages",
    "check_tools",
    "mode_of_effort",
    "render",
    "render_text",
    "render_tool_calls",
    "with_system_role",
]
