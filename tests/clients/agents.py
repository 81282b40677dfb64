"""Coding agents from the npm registry against ds4, each in a home directory of its own.

    npm install --prefix AGENTS @openai/codex @anthropic-ai/claude-code opencode-ai @mariozechner/pi-coding-agent
    PYTHONPATH=tests python tests/clients/agents.py AGENTS            # all that are installed there
    PYTHONPATH=tests python tests/clients/agents.py AGENTS codex pi

Each agent is asked two things without a person: to answer, and to write a file. The model is a script (see
`scripted_server`): these prompts are beyond the tiny model of the package. What is checked is that the answer is
printed, that the file is there with its text, and that the turn after the tool's result reused the turn before it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from scripted_server import ASK, GREETING, WRITTEN  # noqa: E402

TEXT = "hello from ds4"
SECONDS = 120


@dataclass(frozen=True, slots=True)
class Agent:
    """How an agent is set up and asked.

    Parameters
    ----------
    dialect : str
        The path that it asks.
    prepare : callable
        Writes its files: (home, work, url).
    command : callable
        Question -> arguments.
    environment : mapping
        Variables; {url} becomes the server's address.
    """

    dialect: str
    prepare: Callable[[Path, Path, str], None]
    command: Callable[[str], list[str]]
    environment: Mapping[str, str]


def nothing(home: Path, work: Path, url: str) -> None:
    """Write no files."""


def codex_files(home: Path, work: Path, url: str) -> None:
    """Name the provider."""
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(
        'model = "ds4"\nmodel_provider = "ds4"\ncheck_for_update_on_startup = false\n'
        f'[model_providers.ds4]\nname = "ds4"\nbase_url = "{url}/v1"\nenv_key = "DS4_KEY"\nwire_api = "responses"\n'
        "[analytics]\nenabled = false\n"
    )


def opencode_files(home: Path, work: Path, url: str) -> None:
    """Name the provider in the project."""
    options = {"baseURL": f"{url}/v1", "apiKey": "none"}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "ds4",
        "options": options,
        "models": {"ds4": {"name": "ds4"}},
    }
    settings = {"model": "ds4/ds4", "small_model": "ds4/ds4", "provider": {"ds4": provider}}
    (work / "opencode.json").write_text(json.dumps({"autoupdate": False, "share": "disabled", **settings}))


def pi_files(home: Path, work: Path, url: str) -> None:
    """Name the provider."""
    folder = home / ".pi" / "agent"
    folder.mkdir(parents=True)
    cost = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    model = {"id": "ds4", "name": "ds4", "reasoning": False, "input": ["text"], "cost": cost}
    model |= {"contextWindow": 131_072, "maxTokens": 4096}
    provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": "none", "models": [model]}
    (folder / "models.json").write_text(json.dumps({"providers": {"ds4": provider}}))


AGENTS = {
    "claude": Agent(
        "/v1/messages",
        nothing,
        lambda ask: ["claude", "-p", ask, "--permission-mode", "acceptEdits"],
        {
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": "ds4",
            "ANTHROPIC_SMALL_FAST_MODEL": "ds4",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_AUTOUPDATER": "1",
        },
    ),
    "codex": Agent(
        "/v1/responses",
        codex_files,
        lambda ask: ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", ask],
        {"DS4_KEY": "none"},
    ),
    "opencode": Agent(
        "/v1/chat/completions",
        opencode_files,
        lambda ask: ["opencode", "run", ask],
        {"OPENCODE_DISABLE_MODELS_FETCH": "1"},
    ),
    "pi": Agent(
        "/v1/chat/completions",
        pi_files,
        lambda ask: ["pi", "-p", "--provider", "ds4", "--model", "ds4", ask],
        {"PI_OFFLINE": "1"},
    ),
}


class ScriptedServer:
    """The scripted server in a process of its own."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        command = [sys.executable, str(HERE / "scripted_server.py")]
        path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line)
            found = re.search(r" at (http://\S+) ", line)
            if found:
                self.url = found[1]
                self._ready.set()
        self._ready.set()

    def __enter__(self) -> ScriptedServer:
        if not self._ready.wait(60) or not self.url:
            raise RuntimeError("the server did not start: " + "".join(self.log))
        return self

    def __exit__(self, *rest: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._reader.join(5)
        assert self._process.stderr is not None
        self._process.stderr.close()


def run_agent(name: str, folder: Path, ask: str, work: Path, home: Path, url: str) -> str:
    """Ask an agent something; return what it printed."""
    agent = AGENTS[name]
    program, *arguments = agent.command(ask)
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG", "TERM", "SSL_CERT_FILE")}
    added = {key: value.replace("{url}", url) for key, value in agent.environment.items()}
    done = subprocess.run(
        [str(folder / "node_modules" / ".bin" / program), *arguments],
        cwd=work,
        env={**kept, **added, "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise AssertionError(f"{name} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def check_agent(name: str, folder: Path) -> dict[str, Any]:
    """Let an agent answer and write a file; return what was measured.

    Raises
    ------
    AssertionError
        Something of it did not happen.
    """
    with tempfile.TemporaryDirectory() as top, ScriptedServer() as server:
        home, work = Path(top) / "home", Path(top) / "work"
        home.mkdir()
        work.mkdir()
        AGENTS[name].prepare(home, work, server.url)
        began = time.monotonic()
        said = run_agent(name, folder, "Say hi.", work, home, server.url)
        assert GREETING in said, f"{name} did not print the answer: {said[-2000:]}"
        path = work / "hello.txt"
        said = run_agent(name, folder, ASK.format(path=path, text=TEXT), work, home, server.url)
        assert path.is_file(), f"{name} wrote no file: {said[-2000:]}{''.join(server.log[-10:])}"
        assert path.read_text().rstrip("\n") == TEXT, path.read_text()
        assert WRITTEN in said, f"{name} did not print the last answer: {said[-2000:]}"
        seconds = time.monotonic() - began
    lines = [line for line in server.log if f"POST {AGENTS[name].dialect}" in line]
    assert lines and all(" 200, " in line for line in lines), "".join(server.log)
    found = [re.search(r": (\d+) tokens in, (\d+) kept", line) for line in lines]
    sizes = [(int(m[1]), int(m[2])) for m in found if m]
    prompt, kept = sizes[-1]
    assert kept >= 0.9 * prompt, f"{name}: only {kept} of {prompt} tokens were reused behind the tool's result"
    return {"requests": len(lines), "prompt_tokens": prompt, "reused_tokens": kept, "seconds": round(seconds, 1)}


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where npm installed the agents (--prefix)")
    parser.add_argument("names", nargs="*", choices=[*AGENTS, []], metavar="NAME", help=", ".join(AGENTS))
    options = parser.parse_args()
    folder = options.folder.resolve()
    installed = [name for name in AGENTS if (folder / "node_modules" / ".bin" / name).exists()]
    wanted = options.names or installed
    if not wanted:
        parser.error(f"no agent is installed in {folder}")
    failed = 0
    for name in wanted:
        try:
            print(f"{name}: {check_agent(name, folder)}", flush=True)
        except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"{name}: FAILED: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
