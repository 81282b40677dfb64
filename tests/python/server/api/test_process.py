"""The program: how it starts, what it refuses, how it ends."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from .processes import ServerProcess, program

BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
HOT = {**BODY, "n": 8, "temperature": 100, "min_p": 0, "seed": 1, "thinking": False, "stream": True}


def run(*arguments: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command line that ends by itself."""
    done = subprocess.run([*program(), *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    return done


def test_the_help_teaches() -> None:
    done = run("--help")
    assert done.returncode == 0
    for word in ("Examples:", "curl http://127.0.0.1:8000", "openai.OpenAI(", "ANTHROPIC_BASE_URL", "wire_api"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "0.0.0.0"], "--api-key"),
        (["--host", "::"], "--api-key"),
        (["--port", 70000], "65535"),
        (["--api-key", "two words"], "API key"),
        (["--think", "--nothink"], "cannot be given together"),
        (["--session-memory", "1k"], "--session-memory"),
        (["--backend", "cuda", "--cpu"], "contradict"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(arguments: list[Any], says: str) -> None:
    """L058, L059: also to be open to a network without a key."""
    done = run(*arguments)
    assert done.returncode == 2 and says in done.stderr, done.stderr


def test_a_port_in_use_is_a_failure_with_its_number() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("--port", port)
    assert done.returncode == 1 and str(port) in done.stderr
    assert run("--host", "no.such.host.invalid").returncode == 2  # not loopback: refused before it is looked up
    assert run("-m", "/nowhere.gguf", "--port", 0).returncode == 1
    assert run("--trace", "/nowhere/trace", "--port", 0).returncode == 1


def test_a_trace_is_written_for_its_owner_only(tmp_path: Path) -> None:
    """And never over a file that the server reads."""
    trace, keys = tmp_path / "trace", tmp_path / "keys"
    keys.write_text("a-key\n")
    with ServerProcess("--trace", trace, "-c", 1024) as server:
        httpx.post(f"{server.url}/v1/chat/completions", json=BODY)
    assert "capital of France" in trace.read_text() and trace.stat().st_mode & 0o077 == 0
    done = run("--trace", keys, "--api-key-file", keys)
    assert done.returncode == 2 and keys.read_text() == "a-key\n"


def test_keys_from_a_file_and_a_default_without_thinking(tmp_path: Path) -> None:
    """L053, L058: start flags reach the requests."""
    keys = tmp_path / "keys"
    keys.write_text("# of the team\nfirst-key\n\nsecond-key\n")
    with ServerProcess("--api-key-file", keys, "--nothink", "-c", 1024, "--quiet") as server:
        url = f"{server.url}/v1/chat/completions"
        assert httpx.post(url, json=BODY).status_code == 401
        for key in ("first-key", "second-key"):
            answer = httpx.post(url, json=BODY, headers={"x-api-key": key})
            assert "reasoning_content" not in answer.json()["choices"][0]["message"]
        thinking = httpx.post(url, json={**BODY, "thinking": True}, headers={"x-api-key": "first-key"})
        assert thinking.json()["choices"][0]["message"]["reasoning_content"]
    assert not any("POST" in line for line in server.log)
    assert run("--api-key-file", tmp_path / "missing").returncode == 1
    (tmp_path / "empty").write_text("# none\n")
    assert run("--api-key-file", tmp_path / "empty").returncode == 2


def test_ipv6_and_the_name_of_the_model() -> None:
    with ServerProcess("--host", "::1", "--name", "mine", "-c", 1024) as server:
        assert server.url.startswith("http://[::1]:")
        assert httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"] == "mine"


def test_a_conversation_survives_a_restart(tmp_path: Path) -> None:
    """With --kv-dir: another process goes on from the disk, with the same answer; not without it."""
    system = "You are a helpful assistant. " * 150
    body = {"messages": [{"role": "system", "content": system}, *BODY["messages"]], "thinking": False}
    found = []
    for arguments in (["--kv-dir", tmp_path / "kv"], ["--kv-dir", tmp_path / "kv"], []):
        with ServerProcess("-c", 2048, *arguments) as server:
            answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
        text = answer["choices"][0]["message"]["content"]
        found.append((text, answer["ds4"]["cached_tokens"]))
    assert found[0][0] == found[1][0] == found[2][0]
    assert found[0][1] == found[2][1] == 0 and found[1][1] >= 512
    assert (tmp_path / "kv").stat().st_mode & 0o077 == 0
    assert run("--kv-budget", "1GiB").returncode == 2


def stream_until_text(server: ServerProcess, **fields: Any) -> tuple[httpx.Client, Any, Any]:
    client = httpx.Client(timeout=30)
    context = client.stream("POST", f"{server.url}/v1/chat/completions", json={**HOT, **fields})
    answer = context.__enter__()
    lines = answer.iter_lines()
    for line in lines:
        if '"content":"' in line and '"content":""' not in line:
            break
    return client, context, lines


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_in_good_order(number: signal.Signals) -> None:
    """Running answers come to their end, new connections are refused, exit code 0."""
    with ServerProcess("-c", 4096, "--drain", 30) as server:
        client, context, lines = stream_until_text(server, n=2, max_tokens=1000)
        server.process.send_signal(number)
        rest = list(lines)
        assert rest[-2] == "data: [DONE]" or rest[-1] == "data: [DONE]", rest[-4:]
        context.__exit__(None, None, None)
        client.close()
        assert server.process.wait(20) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")


def test_drain_is_a_limit() -> None:
    with ServerProcess("-c", 32768, "--drain", 0.2) as server:
        client, context, lines = stream_until_text(server)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        rest = list(lines)
        assert "event: error" in rest and not any("[DONE]" in line for line in rest)
        context.__exit__(None, None, None)
        client.close()
        assert server.process.wait(20) == 0
        assert time.monotonic() - began < 5


def test_a_second_signal_ends_the_server_at_once() -> None:
    with ServerProcess("-c", 32768, "--drain", 60) as server:
        client, context, _ = stream_until_text(server)
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(5) == 130
        client.close()
        del context


def test_a_request_has_one_line_of_log() -> None:
    with ServerProcess("-c", 1024) as server:
        httpx.post(f"{server.url}/v1/chat/completions", json=BODY)
        httpx.get(f"{server.url}/nothing%0Ahere")
    text = "".join(server.log)
    assert re.search(r"POST /v1/chat/completions 200, \d+ ms: \d+ tokens in, 0 kept \(cold.*\), \d+ out \(stop\)", text)
    assert re.search(r"GET /nothing\S+ 404", text)
