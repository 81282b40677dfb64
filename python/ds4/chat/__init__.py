"""Chat text: rendering of prompts and parsing of completions. Text in, text out; no model is needed."""

from .events import (
    Completion,
    Content,
    Event,
    Finish,
    Reasoning,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    collect,
)
from .messages import Message, ToolCall, check_messages, check_tools, with_system_role
from .parse import MAX_BLOCK, CompletionParser, parse_completion
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
    # prompts
    "render",
    "render_text",
    "render_tool_calls",
    "Prompt",
    "Text",
    "Special",
    "Message",
    "ToolCall",
    "check_messages",
    "check_tools",
    "with_system_role",
    "mode_of_effort",
    "MODES",
    "EFFORTS",
    "EFFORT_MAX_CONTEXT",
    "RENDERERS",
    # completions
    "CompletionParser",
    "parse_completion",
    "collect",
    "Completion",
    "Event",
    "Reasoning",
    "Content",
    "ToolCallStart",
    "ToolCallArguments",
    "ToolCallEnd",
    "Finish",
    "MAX_BLOCK",
]
