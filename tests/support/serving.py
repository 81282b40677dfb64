"""Short ways to ask an engine something."""

from __future__ import annotations

import asyncio
from typing import Any

import ds4
from ds4.server.contract import Content, Done, Event, Request, Sampling
from ds4.server.engine import LocalEngine, Settings

from .scripted import ScriptedModel

GREEDY = Sampling(temperature=0.0)


def ask(text: str = "What is 2 + 3?", **options: Any) -> Request:
    """A request of one user message, greedy unless told otherwise."""
    options.setdefault("messages", ({"role": "user", "content": text},))
    options.setdefault("sampling", GREEDY)
    options.setdefault("dialect", "chat")
    return Request(model="m", **options)


async def read(engine: LocalEngine, request: Request) -> list[Event]:
    """All events of an answer."""
    return [event async for event in await engine.open(request)]


def answers(model: ds4.Model | ScriptedModel, *requests: Request, together: bool = False, **settings: Any) -> Any:
    """The events of each answer: one request after the other, or all at once."""

    async def run() -> list[list[Event]]:
        settings.setdefault("n_ctx", 2048)
        async with LocalEngine(model, Settings(**settings)) as engine:  # type: ignore[arg-type]
            if together:
                return list(await asyncio.gather(*(read(engine, request) for request in requests)))
            return [await read(engine, request) for request in requests]

    return asyncio.run(run())


def text(events: list[Event], kind: type = Content, choice: int = 0) -> str:
    """The text of a choice, of one kind."""
    return "".join(e.text for e in events if isinstance(e, kind) and e.choice == choice)


def done(events: list[Event], choice: int = 0) -> Done:
    """The end of a choice."""
    (found,) = [e for e in events if isinstance(e, Done) and e.choice == choice]
    return found
