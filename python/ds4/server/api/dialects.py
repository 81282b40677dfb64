"""The table of dialects: where each one is asked, how it is read, and how its answers look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..contract import ModelInfo
from . import chat, completions, messages, responses
from .chat import ChatBody, ChatReply
from .completions import CompletionBody, CompletionReply
from .fields import Call
from .messages import CountBody, MessagesBody, MessagesReply
from .reply import Reply
from .response_events import ResponsesReply
from .responses import ResponsesBody
from .settings import Settings


@dataclass(frozen=True, slots=True)
class DialectForm:
    """One way of asking.

    Parameters
    ----------
    name : str
        As in `Request.dialect`.
    path : str
    body : type
        Type of the request's body.
    read : callable
        Turns a body into a `Call`.
    reply : type of Reply
    prompt : str
        Name of the field that holds the prompt, for errors about its size.
    """

    name: str
    path: str
    body: type[Any]
    read: Callable[[Any, Settings, ModelInfo, str], Call]
    reply: type[Reply]
    prompt: str


DIALECTS = (
    DialectForm("chat", "/v1/chat/completions", ChatBody, chat.read, ChatReply, "messages"),
    DialectForm("completion", "/v1/completions", CompletionBody, completions.read, CompletionReply, "prompt"),
    DialectForm("responses", "/v1/responses", ResponsesBody, responses.read, ResponsesReply, "input"),
    DialectForm("messages", "/v1/messages", MessagesBody, messages.read, MessagesReply, "messages"),
)

COUNT = DialectForm("messages", "/v1/messages/count_tokens", CountBody, messages.read, MessagesReply, "messages")
"""Counting the tokens of a message request."""
