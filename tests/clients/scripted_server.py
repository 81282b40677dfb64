"""A server whose model does what a coding agent asks for, by a script.

The prompt of a coding agent (ten thousand tokens and more, two dozen tools) is beyond the tiny model of the package. So
only the arithmetic is replaced: tokenizer, prompts, sessions, sampling, parsing, the engine and HTTP are the real ones.
The script calls the agent's own tool for writing a file (or its shell), and says so when the result has come.

    PYTHONPATH=tests python tests/clients/scripted_server.py --port 8000
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import shlex
import sys
from typing import Any

from ds4.chat.messages import ToolCall
from ds4.chat.protocol import ASSISTANT, END_THINK, THINK, TOOL_RESULT_OPEN, USER
from ds4.chat.render import render_tool_calls
from ds4.server import Settings, serve
from ds4.server.engine import LocalEngine
from ds4.server.engine import Settings as EngineSettings
from support.scripted import ScriptedModel

ASK = "Create the file {path} with the text {text!r}."
ASKED = re.compile(r"Create the file (?P<path>\S+) with the text '(?P<text>[^']*)'\.")
GREETING = "Hello from the script."
WRITTEN = "The file is written."

WRITERS = ("write", "write_file", "create_file")
SHELLS = ("exec_command", "shell_command", "shell", "bash")


def reply(prompt: str) -> str:
    """Return what the model says to a prompt."""
    opening = f"I do as I am told.{END_THINK}" if prompt.endswith(THINK) else ""
    last = prompt.rsplit(USER, 1)[-1].split(ASSISTANT)[0]
    if TOOL_RESULT_OPEN in last:
        return opening + WRITTEN
    asked = list(ASKED.finditer(last))
    call = write_call(declared(prompt), asked[-1]["path"], asked[-1]["text"]) if asked else None
    if call is None:
        return opening + GREETING
    return opening + "I write it." + "".join(part.text for part in render_tool_calls([call]))


def declared(prompt: str) -> dict[str, dict[str, Any]]:
    """Return the parameters of the tools that a prompt shows, by name."""
    tools = {}
    for line in prompt.splitlines():
        if line.startswith('{"name": '):
            tool = json.loads(line)
            tools[tool["name"]] = tool.get("parameters", {}).get("properties", {})
    return tools


def write_call(tools: dict[str, dict[str, Any]], path: str, text: str) -> ToolCall | None:
    """Return the call that writes a file with one of these tools, if one of them can."""
    for name, parameters in tools.items():
        place = next((p for p in ("file_path", "filePath", "path") if p in parameters), None)
        if name.lower() in WRITERS and place is not None:
            return ToolCall(name, json.dumps({place: path, "content": text}))
    for name in SHELLS:
        if name in tools:
            command = f"printf %s {shlex.quote(text)} > {shlex.quote(path)}"
            key = "cmd" if "cmd" in tools[name] else "command"
            parts = tools[name].get(key, {}).get("type") == "array"
            arguments: dict[str, Any] = {key: ["bash", "-c", command] if parts else command}
            if "description" in tools[name]:
                arguments["description"] = "Writes the file"
            return ToolCall(name, json.dumps(arguments))
    return None


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--trace", help="write down every prompt and answer")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    logging.getLogger("ds4.server").setLevel(logging.INFO)
    engine = LocalEngine(ScriptedModel(reply), EngineSettings(n_ctx=262_144, trace=options.trace))

    def tell(url: str) -> None:
        print(f"serving a script at {url} (context 262144)", file=sys.stderr, flush=True)

    return serve(engine, Settings(), port=options.port, on_start=tell)


if __name__ == "__main__":
    sys.exit(main())
