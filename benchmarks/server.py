"""What the HTTP server costs beside the engine, on the model of the package.

  python benchmarks/server.py                    # a token is stretched to 5 ms, as a large model takes
  python benchmarks/server.py --rounds 21 --json server.json

Three measurements, each against a server process of its own on loopback:

rate      tokens a second of a streamed answer, over those of the same loop of sampling and computing without a server
first     time to the first token of a streamed answer, minus the time of prefill and first token without a server
          (nothing is stretched here)
streams   64 idle connections are kept alive while 8 clients stream: each stream's rate, the longest pause, and how
          long /health takes meanwhile

Both sides of a comparison alternate; medians are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ds4
import httpx
from ds4.chat import render

QUESTION = "Describe in detail, in many words, what a river is and where its water goes."
N_IDLE, N_STREAMS = 64, 8
WARM_UP = 18


class PacedSession:
    """A session whose steps take at least a given time a token, as those of a larger model."""

    def __init__(self, session: ds4.Session, seconds: float) -> None:
        self._session = session
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def eval(self, tokens: Any, **options: Any) -> None:
        """Compute, then wait for the rest of the step's time; the wait leaves the interpreter to others."""
        begin = time.perf_counter()
        self._session.eval(tokens, **options)
        rest = self._seconds - (time.perf_counter() - begin)
        if rest > 0:
            time.sleep(rest)

    def fork(self) -> PacedSession:
        """Copy the session, with its pace."""
        return PacedSession(self._session.fork(), self._seconds)


class PacedModel:
    """A model that makes paced sessions."""

    def __init__(self, model: ds4.Model, seconds: float) -> None:
        self._model = model
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def session(self, **options: Any) -> PacedSession:
        """Make a session."""
        return PacedSession(self._model.session(**options), self._seconds)


def run_server(milliseconds: float) -> int:
    """Serve until the pipe to the parent closes; the first line of output is the address."""
    import threading

    from ds4.server import serve
    from ds4.server.engine import LocalEngine, Settings

    model = PacedModel(ds4.Model.open_embedded(), milliseconds * 1e-3)
    engine = LocalEngine(model, Settings(n_ctx=2048, session={"threads": 1}))  # type: ignore[arg-type]

    def watch() -> None:
        sys.stdin.read()
        import os
        import signal

        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
    return serve(engine, port=0, on_start=lambda url: print(url, flush=True))


class Server:
    """A server process."""

    def __init__(self, milliseconds: float) -> None:
        command = [sys.executable, str(Path(__file__)), "--serve", str(milliseconds)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            raise RuntimeError("the server did not start")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def body(n_tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": n_tokens,
        "temperature": 0,
        "thinking": False,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }


async def stream(client: httpx.AsyncClient, n_tokens: int, **more: Any) -> tuple[float, list[float], int]:
    """Return when the request was sent, when each piece of text came, and the number of tokens."""
    times: list[float] = []
    tokens = 0
    sent = time.perf_counter()
    async with client.stream("POST", "/v1/chat/completions", json=body(n_tokens, **more)) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            if chunk.get("usage"):
                tokens = chunk["usage"]["completion_tokens"]
            if any(c["delta"].get("content") for c in chunk["choices"]):
                times.append(time.perf_counter())
    return sent, times, tokens


class Alone:
    """The engine without a server: the same prompt, sampling and steps in this process."""

    def __init__(self, milliseconds: float) -> None:
        self._model = ds4.Model.open_embedded()
        self._prompt = render([{"role": "user", "content": QUESTION}], mode="chat").encode(self._model.tokenizer)
        self._session = PacedSession(self._model.session(n_ctx=2048, threads=1), milliseconds * 1e-3)
        self._sampler = ds4.Sampler.greedy()

    def rate(self, n_tokens: int) -> float:
        """Tokens a second after the first one."""
        s = self._session
        s.reset()
        s.sync(self._prompt)
        begin = time.perf_counter()
        for _ in range(n_tokens):
            token, _ = self._sampler.sample(s.logits_view())
            s.eval(token)
        return n_tokens / (time.perf_counter() - begin)

    def first(self) -> float:
        """Seconds of a prefill from nothing and of the first token."""
        s = self._session
        s.reset()
        begin = time.perf_counter()
        s.sync(self._prompt)
        token, _ = self._sampler.sample(s.logits_view())
        s.eval(token)
        return time.perf_counter() - begin


async def measure_rate(rounds: int, milliseconds: float, n_tokens: int) -> dict[str, Any]:
    alone = Alone(milliseconds)
    served, plain, ratios = [], [], []
    with Server(milliseconds) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            await stream(client, 4)
            for _ in range(rounds):
                plain.append(alone.rate(n_tokens))
                _, times, tokens = await stream(client, n_tokens)
                served.append((tokens - 1) / (times[-1] - times[0]))
                ratios.append(served[-1] / plain[-1])
    return {"alone": statistics.median(plain), "served": statistics.median(served), "ratio": statistics.median(ratios)}


async def measure_first(rounds: int) -> dict[str, Any]:
    alone = Alone(0)
    served, plain = [], []
    with Server(0) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            # A session's memory is touched for the first time once; the server keeps 16 sessions.
            for i in range(WARM_UP):
                await stream(client, 1, messages=[{"role": "system", "content": str(i)}, *body(1)["messages"]])
            for i in range(rounds):
                plain.append(alone.first())
                # Another system text each time, so that nothing is kept from the request before.
                system = {"role": "system", "content": str(1000 + i)}
                more = {"messages": [system, {"role": "user", "content": QUESTION}]}
                sent, times, _ = await stream(client, 1, **more)
                served.append(times[0] - sent)
    added = [a - b for a, b in zip(served, plain, strict=True)]
    return {"alone_ms": 1e3 * statistics.median(plain), "served_ms": 1e3 * statistics.median(served),
            "added_ms": 1e3 * statistics.median(added)}  # fmt: skip


async def measure_streams(milliseconds: float, n_tokens: int) -> dict[str, Any]:
    with Server(milliseconds) as server:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
            await stream(client, 2)
            host, port = server.url.removeprefix("http://").split(":")
            idle = []
            for _ in range(N_IDLE):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(f"GET /health HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
                await reader.readuntil(b"\r\n\r\n")
                idle.append((reader, writer))
            health: list[float] = []
            running = True

            async def ask_health() -> None:
                while running:
                    begin = time.perf_counter()
                    (await client.get("/health")).raise_for_status()
                    health.append(time.perf_counter() - begin)
                    await asyncio.sleep(0.05)

            asking = asyncio.create_task(ask_health())
            begin = time.perf_counter()
            found = await asyncio.gather(*(stream(client, n_tokens) for _ in range(N_STREAMS)))
            seconds = time.perf_counter() - begin
            running = False
            await asking
            alive = 0
            for reader, writer in idle:
                writer.write(f"GET /health HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
                alive += b"200" in await reader.readuntil(b"\r\n\r\n")
                writer.close()
    rates = [(tokens - 1) / (times[-1] - times[0]) for _, times, tokens in found]
    pauses = [max(b - a for a, b in itertools.pairwise(times)) for _, times, _ in found]
    return {
        "streams": N_STREAMS, "tokens_per_second": sum(tokens for _, _, tokens in found) / seconds,
        "slowest": min(rates), "fastest": max(rates), "longest_pause_ms": 1e3 * max(pauses),
        "health_ms": 1e3 * statistics.median(health), "idle": N_IDLE, "idle_alive": alive,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--milliseconds", type=float, default=5.0, help="what a token takes (default 5)")
    parser.add_argument("--tokens", type=int, default=100, help="tokens of an answer (default 100)")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--serve", type=float, metavar="MS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        return run_server(options.serve)
    if options.rounds < 1 or options.tokens < 2 or options.milliseconds < 0:
        parser.error("rounds from 1, tokens from 2, milliseconds from 0")
    result = {
        "rate": asyncio.run(measure_rate(options.rounds, options.milliseconds, options.tokens)),
        "first": asyncio.run(measure_first(options.rounds)),
        "streams": asyncio.run(measure_streams(options.milliseconds, options.tokens)),
    }
    r, f, s = result["rate"], result["first"], result["streams"]
    print(f"rate     {r['served']:.1f} of {r['alone']:.1f} tokens/s: {100 * r['ratio']:.1f} %")
    print(f"first    {f['served_ms']:.1f} ms served, {f['alone_ms']:.1f} ms alone: {f['added_ms']:.1f} ms added")
    print(
        f"streams  {s['streams']} at once: {s['tokens_per_second']:.0f} tokens/s in all, {s['slowest']:.1f} to "
        f"{s['fastest']:.1f} each, longest pause {s['longest_pause_ms']:.0f} ms; /health {s['health_ms']:.1f} ms; "
        f"{s['idle_alive']} of {s['idle']} idle connections alive"
    )
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
