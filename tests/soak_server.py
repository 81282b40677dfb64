"""Ask a server thousands of small things and watch its memory.

  python tests/soak_server.py                      # 10,000 requests, about 10 minutes
  python tests/soak_server.py --requests 500

Requests of all dialects, streamed and not, with tools, with errors, and clients that leave in the middle, by several
connections at once. The resident memory of the server process is read between batches; it fails (exit 1) if the last
fifth needs more than the second fifth by `--slack` (10 %), or if any answer is not the one that belongs to its request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]
BROKEN = [b"{", b"[]", b'{"messages": 3}']
CONNECTIONS = 6


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has no VmRSS")


class Client:
    """One connection that asks for one thing after the other."""

    def __init__(self, url: str, seed: int) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=60)
        self._random = random.Random(seed)
        self.faults: list[str] = []
        self.kinds: list[Callable[[], Awaitable[None]]] = [self.chat, self.chat_stream, self.completion]
        self.kinds += [self.messages, self.responses, self.tools, self.bad, self.leaves]

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    def expect(self, condition: bool, what: str) -> None:
        """Note a fault."""
        if not condition:
            self.faults.append(what)

    def _sum(self) -> tuple[str, str]:
        a, b = self._random.randrange(100), self._random.randrange(100)
        return f"What is {a} + {b}?", str(a + b)

    async def one(self) -> None:
        """Ask for something."""
        await self._random.choice(self.kinds)()

    async def _post(self, path: str, body: object) -> httpx.Response:
        return await self._http.post(path, json=body)

    async def chat(self) -> None:
        question, answer = self._sum()
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 200, "temperature": 0}
        r = await self._post("/v1/chat/completions", body)
        self.expect(r.status_code == 200 and r.json()["usage"]["completion_tokens"] > 0, f"chat: {r.status_code}")
        text = r.json()["choices"][0]["message"]["content"] or ""
        self.expect(answer in text or r.json()["choices"][0]["finish_reason"] == "length", f"chat: {question} {text}")

    async def chat_stream(self) -> None:
        question, _ = self._sum()
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 30, "stream": True}
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as r:
            lines = [line async for line in r.aiter_lines()]
        self.expect("data: [DONE]" in lines, "stream without an end")

    async def completion(self) -> None:
        r = await self._post("/v1/completions", {"prompt": self._sum()[0], "max_tokens": 8})
        self.expect(r.status_code == 200, f"completion: {r.status_code}")

    async def messages(self) -> None:
        body = {"model": "ds4", "max_tokens": 16, "messages": [{"role": "user", "content": self._sum()[0]}]}
        r = await self._post("/v1/messages", body)
        self.expect(r.status_code == 200 and r.json()["type"] == "message", f"messages: {r.status_code}")

    async def responses(self) -> None:
        r = await self._post("/v1/responses", {"input": self._sum()[0], "max_output_tokens": 16})
        self.expect(r.status_code == 200 and r.json()["object"] == "response", f"responses: {r.status_code}")

    async def tools(self) -> None:
        city = self._random.choice(["Rome", "Oslo", "Lima", "Cairo"])
        messages = [{"role": "user", "content": f"What is the weather in {city}?"}]
        body = {"messages": messages, "tools": TOOLS, "max_tokens": 120, "temperature": 0}
        r = await self._post("/v1/chat/completions", body)
        self.expect(r.status_code == 200, f"tools: {r.status_code}")
        for call in r.json()["choices"][0]["message"].get("tool_calls") or []:
            json.loads(call["function"]["arguments"])

    async def bad(self) -> None:
        r = await self._http.post("/v1/chat/completions", content=self._random.choice(BROKEN))
        self.expect(r.status_code == 400, f"bad request: {r.status_code}")

    async def leaves(self) -> None:
        body = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 400, "stream": True}
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as r:
            async for _ in r.aiter_lines():
                break


async def soak(url: str, pid: int, requests: int, seed: int) -> tuple[list[int], list[str]]:
    """Return the memory after each of 20 batches, and what went wrong."""
    clients = [Client(url, seed + i) for i in range(CONNECTIONS)]
    sizes = []

    async def some(client: Client, n: int) -> None:
        for _ in range(n):
            await client.one()

    batch = max(requests // 20, CONNECTIONS)
    for number in range(20):
        await asyncio.gather(*(some(client, batch // CONNECTIONS) for client in clients))
        sizes.append(resident(pid))
        print(f"{(number + 1) * 5:3d} %  {sizes[-1] / 2**20:.1f} MiB", flush=True)
    for client in clients:
        await client.close()
    return sizes, [fault for client in clients for fault in client.faults]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slack", type=float, default=0.10, help="growth that is allowed, as a part (default 0.10)")
    options = parser.parse_args()
    command = [sys.executable, "-m", "ds4", "server", "--port", "0", "-c", "2048", "--max-queue", "64"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert server.stderr is not None
    url = ""
    for line in server.stderr:
        if "http://" in line:
            url = next(word for word in line.split() if word.startswith("http://"))
            break
    if not url:
        print("the server did not start", file=sys.stderr)
        return 1
    # Its log must be read, or the pipe fills up.
    drain = subprocess.Popen(["cat"], stdin=server.stderr, stdout=subprocess.DEVNULL)
    try:
        sizes, faults = asyncio.run(soak(url, server.pid, options.requests, options.seed))
    finally:
        server.terminate()
        server.wait(30)
        drain.wait(30)
    early, late = statistics.median(sizes[4:8]), statistics.median(sizes[16:20])
    grown = late / early - 1
    print(f"{early / 2**20:.1f} MiB early, {late / 2**20:.1f} MiB late: {100 * grown:+.1f} %; {len(faults)} faults")
    for fault in faults[:10]:
        print(" ", fault)
    return 1 if faults or grown > options.slack else 0


if __name__ == "__main__":
    sys.exit(main())
