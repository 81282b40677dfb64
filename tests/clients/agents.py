"""Coding agents from the npm registry against ds4, each in a home directory of its own.

    PYTHONPATH=tests python tests/clients/agents.py AGENTS --install       installs them there first, about 1 GB
    PYTHONPATH=tests python tests/clients/agents.py AGENTS                 all that are installed there
    PYTHONPATH=tests python tests/clients/agents.py AGENTS codex pi
    PYTHONPATH=tests python tests/clients/agents.py AGENTS --embedded      the tiny model itself; for pi

Each agent is asked two things without a person: to answer, and to write a file. The model is a script (see
`scripted_server`): these prompts are beyond the tiny model of the package. What is checked is that the answer is
printed, that the file is there with its text, that nothing was asked twice, and that the turn after the tool's result
reused the turn before it.

With `--embedded` the tiny model itself answers, through `ds4 server`. It can follow the short prompts of pi: it calls
one of its tools, by its own choice, reads the result and answers. What it says is of no use.
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

TEXT = "hello from ds4: äöü 日本"
SECONDS = 120


@dataclass(frozen=True, slots=True)
class Agent:
    """How an agent is set up and asked.

    Parameters
    ----------
    package, version : str
        As npm has them; the version is one that is known to work.
    dialect : str
        The path that it asks.
    prepare : callable
        Writes its files: (home, work, url).
    command : callable
        Question -> arguments.
    environment : mapping
        Variables; {url} becomes the server's address.
    """

    package: str
    version: str
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


def pi_files(api: str) -> Callable[[Path, Path, str], None]:
    """Name the provider, of one of the three kinds that pi knows."""

    def prepare(home: Path, work: Path, url: str) -> None:
        folder = home / ".pi" / "agent"
        folder.mkdir(parents=True)
        cost = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
        model = {"id": "ds4", "name": "ds4", "reasoning": False, "input": ["text"], "cost": cost}
        model |= {"contextWindow": 131_072, "maxTokens": 4096}
        base = url if api == "anthropic-messages" else f"{url}/v1"
        provider = {"baseUrl": base, "api": api, "apiKey": "none", "models": [model]}
        (folder / "models.json").write_text(json.dumps({"providers": {"ds4": provider}}))

    return prepare


def pi(api: str, dialect: str) -> Agent:
    """Return pi over one of its kinds of provider."""
    return Agent(
        "@mariozechner/pi-coding-agent",
        "0.73.1",
        dialect,
        pi_files(api),
        lambda ask: ["pi", "-p", "--provider", "ds4", "--model", "ds4", ask],
        {"PI_OFFLINE": "1"},
    )


AGENTS = {
    "claude": Agent(
        "@anthropic-ai/claude-code",
        "2.1.332",
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
        "@openai/codex",
        "0.171.0",
        "/v1/responses",
        codex_files,
        lambda ask: ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", ask],
        {"DS4_KEY": "none"},
    ),
    "opencode": Agent(
        "opencode-ai",
        "1.18.33",
        "/v1/chat/completions",
        opencode_files,
        lambda ask: ["opencode", "run", ask],
        {"OPENCODE_DISABLE_MODELS_FETCH": "1"},
    ),
    "pi": pi("openai-completions", "/v1/chat/completions"),
    "pi-responses": pi("openai-responses", "/v1/responses"),
    "pi-messages": pi("anthropic-messages", "/v1/messages"),
}


def program(name: str, folder: Path) -> Path:
    """Return where npm puts the program of an agent."""
    return folder / "node_modules" / ".bin" / AGENTS[name].command("")[0]


def install(folder: Path) -> None:
    """Install the versions that are known to work."""
    packages = sorted({f"{agent.package}@{agent.version}" for agent in AGENTS.values()})
    command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder), *packages]
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(command, check=True, timeout=900)


class ServerProcess:
    """A server in a process of its own: the scripted one, or ds4 itself with the tiny model."""

    def __init__(self, *, embedded: bool = False) -> None:
        self.log: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        command = [sys.executable, str(HERE / "scripted_server.py")]
        if embedded:
            command = [sys.executable, "-m", "ds4", "server", "--port", "0", "-c", "16384", "--nothink", "--temp", "0"]
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

    def __enter__(self) -> ServerProcess:
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
    arguments = agent.command(ask)[1:]
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG", "TERM", "SSL_CERT_FILE")}
    added = {key: value.replace("{url}", url) for key, value in agent.environment.items()}
    done = subprocess.run(
        [str(program(name, folder)), *arguments],
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
    with tempfile.TemporaryDirectory() as top, ServerProcess() as server:
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
    answers = requests(name, server)
    calls = [answer for answer in answers if answer["end"] == "tool_calls"]
    assert len(calls) == 1, f"{name} had {len(calls)} calls made, not one: {answers}"
    result = answers[answers.index(calls[0]) + 1]
    prompt, kept = result["prompt"], result["kept"]
    assert kept >= 0.95 * prompt, f"{name}: only {kept} of {prompt} tokens were reused behind the tool's result"
    return {"requests": len(answers), "prompt_tokens": prompt, "reused_tokens": kept, "seconds": round(seconds, 1)}


def check_embedded(name: str, folder: Path) -> dict[str, Any]:
    """Let an agent work with the tiny model; return what was measured.

    Raises
    ------
    AssertionError
        There was no tool call, no answer after its result, or nothing was printed.
    """
    with tempfile.TemporaryDirectory() as top, ServerProcess(embedded=True) as server:
        home, work = Path(top) / "home", Path(top) / "work"
        home.mkdir()
        work.mkdir()
        AGENTS[name].prepare(home, work, server.url)
        said = run_agent(name, folder, "What is 2 + 3?", work, home, server.url)
    assert said.strip(), f"{name} printed nothing"
    answers = requests(name, server)
    assert len(answers) >= 2 and answers[0]["end"] == "tool_calls" and answers[-1]["end"] == "stop", answers
    return {"requests": len(answers), "prompt_tokens": answers[-1]["prompt"], "reused_tokens": answers[-1]["kept"]}


_ANSWER = re.compile(r": (?P<prompt>\d+) tokens in, (?P<kept>\d+) kept .*, \d+ out \((?P<end>\w+)\)")


def requests(name: str, server: ServerProcess) -> list[dict[str, Any]]:
    """Return what the server's log says of an agent's requests, all of them answered well."""
    lines = [line for line in server.log if f"POST {AGENTS[name].dialect}" in line]
    found = [_ANSWER.search(line) for line in lines if " 200, " in line]
    assert lines and len(found) == len(lines) and all(found), "".join(server.log)
    return [{"prompt": int(m["prompt"]), "kept": int(m["kept"]), "end": m["end"]} for m in found if m]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where npm has installed the agents, or shall")
    parser.add_argument("names", nargs="*", choices=[*AGENTS, []], metavar="NAME", help=", ".join(AGENTS))
    parser.add_argument("--install", action="store_true", help="install the versions that are known to work")
    parser.add_argument("--embedded", action="store_true", help="the tiny model instead of the script; for pi")
    options = parser.parse_intermixed_args()
    folder = options.folder.resolve()
    if options.install:
        install(folder)
    known = [name for name in AGENTS if name.startswith("pi") or not options.embedded]
    wanted = options.names or [name for name in known if program(name, folder).exists()]
    if not wanted:
        parser.error(f"no agent is installed in {folder}")
    check = check_embedded if options.embedded else check_agent
    failed = 0
    for name in wanted:
        try:
            print(f"{name}: {check(name, folder)}", flush=True)
        except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"{name}: FAILED: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
