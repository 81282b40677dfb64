"""Many small requests of every kind against one server: does its memory stay flat?

    PYTHONPATH=tests python -m support.server_soak --requests 10000

starts ``ds4 server`` with the tiny model, sends it chats, streams, messages, Responses, refusals and clients that
leave, several at one time, and prints the memory of its process on the way. Exit code 1 when it grew by more than the
limit after the first fifth, when anything but the expected status came, or when something was left over at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

LIMIT_MIB = 24.0
"""Growth that is no leak: arenas of the allocator, memories of the engine that fill up."""

ASK: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


def kinds(i: int) -> list[tuple[str, dict[str, Any], int]]:
    """Return the requests of one round: path, body, expected status."""
    ask = [{"role": "user", "content": f"What is {i % 90} + {i % 7}?"}]
    return [
        ("/v1/chat/completions", {"messages": ask, "thinking": False}, 200),
        ("/v1/chat/completions", {"messages": ask, "stream": True, "logprobs": True}, 200),
        ("/v1/messages", {"messages": ask, "max_tokens": 20}, 200),
        ("/v1/messages", {"messages": ask, "max_tokens": 20, "stream": True}, 200),
        ("/v1/responses", {"input": f"What is {i % 50} - {i % 11}?", "stream": True}, 200),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 5, "n": 2}, 200),
        ("/v1/chat/completions", {"messages": []}, 400),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 3000}]}, 400),
    ]


def resident_mib(pid: int) -> float:
    """Return the memory of a process that is its own: not the pages of the model file."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) / 1024


def start() -> tuple[subprocess.Popen[str], str]:
    """Start a server on a free port."""
    command = [
        sys.executable,
        "-m",
        "ds4.cli.main",
        "server",
        "--port",
        "0",
        "-c",
        "1024",
        "--sessions",
        "4",
        "--quiet",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        found = re.search(r" at (http://\S+) ", line)
        if found:
            return process, found[1]
    raise RuntimeError("the server did not start")


async def leave(url: str) -> None:
    """Ask for a stream and go away after its first bytes."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"messages": ASK, "stream": True, "temperature": 100, "min_p": 0}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await reader.read(100)
    writer.transport.abort()


async def soak(url: str, pid: int, n_requests: int, report: Any) -> tuple[list[float], Counter[str]]:
    """Send the requests; return the memory at ten moments, and what came that was not expected."""
    wrong: Counter[str] = Counter()
    sizes: list[float] = []
    rounds = max(10, n_requests // 9)
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:

        async def one(path: str, body: dict[str, Any], status: int) -> None:
            answer = await http.post(path, json=body)
            if answer.status_code != status:
                wrong[f"{path} {answer.status_code}: {answer.text[:200]}"] += 1

        for i in range(rounds):
            await asyncio.gather(*(one(*kind) for kind in kinds(i)), leave(url))
            if (i + 1) % (rounds // 10) == 0 and len(sizes) < 10:
                sizes.append(resident_mib(pid))
                report(f"{(i + 1) * 9} requests: {sizes[-1]:.1f} MiB")
        for _ in range(100):
            levels = dict(
                line.rsplit(" ", 1) for line in (await http.get("/metrics")).text.splitlines() if line[:1] != "#"
            )
            left = {name: levels.get(name, "0.0") for name in ("ds4_active", "ds4_waiting")}
            if set(left.values()) == {"0.0"} and levels["ds4_http_requests_open"] == "1.0":
                break
            await asyncio.sleep(0.05)
        else:
            wrong[f"left over: {left}, {levels['ds4_http_requests_open']} open"] += 1
    return sizes, wrong


def run(n_requests: int, report: Any = print) -> tuple[float, Counter[str]]:
    """Return the growth in MiB after the first fifth, and what was not expected."""
    process, url = start()
    try:
        began = time.monotonic()
        sizes, wrong = asyncio.run(soak(url, process.pid, n_requests, report))
        report(f"{n_requests / (time.monotonic() - began):.0f} requests a second")
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        if process.poll() is None:
            process.kill()
        assert process.stderr is not None
        said = process.stderr.read()
        process.stderr.close()
    if process.returncode != 0 or "Traceback" in said:
        wrong[f"the server ended with {process.returncode}: {said[-2000:]}"] += 1
    return sizes[-1] - sizes[1], wrong


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--limit", type=float, default=LIMIT_MIB, help="growth in MiB that is allowed")
    options = parser.parse_args()
    growth, wrong = run(options.requests)
    print(f"growth after the first fifth: {growth:.1f} MiB")
    for what, times in wrong.items():
        print(f"unexpected, {times} times: {what}")
    return int(growth > options.limit or bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
