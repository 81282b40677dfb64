"""Coding agents from npm against the server, where they are installed; the script that they are driven by."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from ds4.chat import parse_completion, render_text

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests" / "clients"))

from agents import AGENTS, check_agent, check_embedded, program  # noqa: E402
from scripted_server import ASK, GREETING, WRITTEN, reply  # noqa: E402

FOLDER = Path(os.environ.get("DS4_AGENTS", "/nonexistent"))


@pytest.mark.parametrize("name", list(AGENTS))
def test_an_agent_answers_and_writes_a_file(name: str) -> None:
    """Unmodified, without a person; see tests/clients/agents.py for how they are installed."""
    if not program(name, FOLDER).exists():
        pytest.skip(f"{name} is not installed; DS4_AGENTS names the directory that npm installed it to")
    check_agent(name, FOLDER)


@pytest.mark.parametrize("name", ["pi", "pi-responses", "pi-messages"])
def test_an_agent_works_with_the_tiny_model(name: str) -> None:
    """Its prompts are short enough for it: a tool call of the model's own choice, its result, an answer."""
    if not program(name, FOLDER).exists():
        pytest.skip(f"{name} is not installed; DS4_AGENTS names the directory that npm installed it to")
    check_embedded(name, FOLDER)


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


@pytest.mark.parametrize(
    ("declared", "arguments"),
    [
        (tool("Write", file_path="string", content="string"), {"file_path": "/tmp/a.txt", "content": "it"}),
        (tool("write", content="string", filePath="string"), {"filePath": "/tmp/a.txt", "content": "it"}),
        (tool("exec_command", cmd="string"), {"cmd": "printf %s it > /tmp/a.txt"}),
        (tool("shell", command="array"), {"command": ["bash", "-c", "printf %s it > /tmp/a.txt"]}),
    ],
)
@pytest.mark.parametrize("mode", ["chat", "thinking"])
def test_the_script_calls_the_tool_that_an_agent_has(declared: Any, arguments: dict[str, Any], mode: str) -> None:
    tools = [tool("other"), declared]
    messages: list[Any] = [{"role": "user", "content": ASK.format(path="/tmp/a.txt", text="it")}]
    said = parse_completion(reply(render_text(messages, mode=mode, tools=tools)), mode=mode, tools=tools)
    call = said.tool_calls[0]
    assert (call.name, call.value) == (declared["function"]["name"], arguments)
    calls = [{"id": "c", "function": {"name": call.name, "arguments": call.arguments}}]
    messages += [{"role": "assistant", "tool_calls": calls}, {"role": "tool", "tool_call_id": "c", "content": "ok"}]
    assert reply(render_text(messages, mode=mode, tools=tools)).endswith(WRITTEN)


def test_the_script_greets_otherwise() -> None:
    assert reply(render_text([{"role": "user", "content": "Say hi."}], mode="chat")) == GREETING
