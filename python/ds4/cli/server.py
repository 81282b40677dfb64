"""``ds4 server``: the model as a service, for the clients of OpenAI and Anthropic."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from .memory import available_beside, show_size
from .opening import check_memory, check_text, opened_model
from .options import DEVICE, MEMORY, FiniteFloat, SizeType, Whole, take
from .output import keep_apart
from .settings import Settings
from .steering import chosen_steering
from .terminal import note

if TYPE_CHECKING:
    from ds4 import Model
    from ds4.kvstore import KVStore
    from ds4.server import Settings as ApiSettings
    from ds4.server.engine import Settings as EngineSettings

MOST_SESSIONS = 16
SHARE_OF_MEMORY = 0.8
"""Share of the memory left by the weights that sessions take when nothing is said."""

_HELP = """\b
Examples:
  ds4 server                                         the tiny model of the package, at http://127.0.0.1:8000
  ds4 server -m flash.gguf -c 131072                 for one machine, long conversations
  ds4 server -m flash.gguf --kv-dir ~/.cache/ds4     conversations survive a restart
  DS4_API_KEY=secret ds4 server -m flash.gguf --host 0.0.0.0    for a network
  ds4 server -m flash.gguf --nothink                 no reasoning unless a request asks for it

\b
curl http://127.0.0.1:8000/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hi"}]}'

\b
Python:        openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
               anthropic.Anthropic(base_url="http://127.0.0.1:8000", api_key="none")
Claude Code:   ANTHROPIC_BASE_URL=http://127.0.0.1:8000 ANTHROPIC_AUTH_TOKEN=none ANTHROPIC_MODEL=ds4 claude
Codex:         in ~/.codex/config.toml
                 model = "ds4"
                 model_provider = "ds4"
                 [model_providers.ds4]
                 name = "ds4"
                 base_url = "http://127.0.0.1:8000/v1"
                 wire_api = "responses"

Any model name in a request is taken. There is a chat page at the address itself, numbers for Prometheus at /metrics,
and a description of all endpoints at /openapi.json. Ctrl-C lets running answers come to their end; a second one stops
at once."""


@click.command("server", help=_HELP, short_help="Serve the model to clients of OpenAI and Anthropic.")
@take("model")
@click.option("--name", metavar="NAME", default="", help="Name of the model in /v1/models. Default: that of its shape.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen: ::1, 0.0.0.0."
)
@click.option("--port", type=Whole(0, 65535), default=8000, show_default=True, metavar="N", help="0 takes a free one.")
@click.option(
    "--api-key",
    "api_keys",
    multiple=True,
    envvar="DS4_API_KEY",
    metavar="KEY",
    help="Key that clients must show; can be repeated. Other users of this machine may see it in the list of "
    "processes: better set DS4_API_KEY, or use --api-key-file.",
)
@click.option(
    "--api-key-file", type=click.Path(path_type=Path), metavar="FILE", help="File with such keys, one in a line."
)
@click.option("--allow-open", is_flag=True, help="Serve a network without a key.")
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME", help="Another name under which this machine is addressed."
)
@click.option(
    "--cors",
    multiple=True,
    metavar="ORIGIN",
    help='Web page that may call the server, or "*" for all; can be repeated.',
)
@take("ctx", "tokens")
@click.option(
    "--sessions", type=Whole(1, 4096), metavar="N", help="Conversations kept in memory. Default: 16 if they fit."
)
@click.option("--session-memory", type=SizeType(), metavar="SIZE", help="Memory for them; fewer are kept if need be.")
@click.option(
    "--active", type=Whole(1, 256), default=8, show_default=True, metavar="N", help="Answers made side by side."
)
@click.option(
    "--prefill-quantum",
    type=Whole(1, 4096),
    metavar="N",
    help="Most tokens of a prompt that are computed before other answers go on. Default: 256; 2048 where streamed "
    "experts are read for that many at a time.",
)
@click.option(
    "--max-queue",
    type=Whole(0, 1_000_000),
    default=64,
    show_default=True,
    metavar="N",
    help="Requests that may wait; more are answered 429.",
)
@click.option(
    "--kv-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep conversations on disk, across restarts too; servers may share it. It holds private text, readable for "
    "its owner only.",
)
@click.option("--kv-budget", type=SizeType(), metavar="SIZE", help="What they may take there. Default: 4GiB.")
@click.option("--kv-daily-writes", type=SizeType(), metavar="SIZE", help="What may be written there in a day.")
@click.option("--drain", type=FiniteFloat(0, 3600), default=30.0, show_default=True, metavar="SECONDS",
              help="Time that running answers have when the server stops.")  # fmt: skip
@take("think", "think_max", "nothink", "temp", "top_k", "top_p", "min_p", "seed")
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE",
              help="Write down every prompt and answer; such a file holds private text.")  # fmt: skip
@click.option("--quiet", is_flag=True, help="Do not tell of each request.")
@take("dir_steering_file", "dir_steering_ffn", "dir_steering_attn")
@take("mtp", "mtp_draft", "mtp_margin")
@take(*DEVICE, "check", *MEMORY)
@take("no_qat", "activations")
def command(
    name: str, host: str, port: int, api_keys: tuple[str, ...], api_key_file: Path | None, allow_open: bool,
    hosts: tuple[str, ...], cors: tuple[str, ...], sessions: int | None, session_memory: int | None, active: int,
    prefill_quantum: int | None, max_queue: int, kv_dir: Path | None,
    kv_budget: int | None, kv_daily_writes: int | None, drain: float, trace: Path | None, quiet: bool, **values: Any,
) -> int:  # fmt: skip
    """Run the command."""
    try:
        from ds4.server import OpenServerError, serve
        from ds4.server.api.serve import bind, check_open
        from ds4.server.engine import LocalEngine
    except ModuleNotFoundError as error:
        raise click.ClickException(f"the server needs {error.name}: pip install 'ds4[server]'") from None
    settings = _settings(values)
    if kv_dir is None and (kv_budget is not None or kv_daily_writes is not None):
        raise click.UsageError("--kv-budget and --kv-daily-writes need --kv-dir")
    check_text(name, "name")
    keep_apart([trace], [settings.model, settings.mtp, api_key_file])
    outside = _outside(settings, _keys(api_keys, api_key_file), hosts, cors, drain)
    try:
        check_open(host, outside, allow_open=allow_open)
    except OpenServerError as error:
        raise click.UsageError(str(error)) from None
    listener = bind(host, port)  # before the model is opened: that may take minutes
    try:
        with (
            opened_model(settings, n_sessions=sessions or MOST_SESSIONS) as model,
            _store(kv_dir, kv_budget, kv_daily_writes) as store,
        ):
            inside = _inside(model, settings, name, sessions, session_memory, active, prefill_quantum, max_queue, trace)
            engine = LocalEngine(model, inside, store=store)
            _log_to_stderr(quiet)

            def tell(url: str) -> None:
                note(f"serving {engine.info.id} at {url} (context {settings.ctx}, {inside.keep_sessions} sessions)")

            return serve(engine, outside, host=host, listener=listener, allow_open=allow_open, on_start=tell)
    finally:
        listener.close()


@contextmanager
def _store(path: Path | None, budget: int | None, daily: int | None) -> Iterator[KVStore | None]:
    """Open the store of conversations, if there is one."""
    if path is None:
        yield None
        return
    from ds4.kvstore import KVStore
    from ds4.kvstore.store import DEFAULT_BUDGET

    size = DEFAULT_BUDGET if budget is None else budget
    with KVStore(path, budget_bytes=size, daily_write_bytes=daily) as store:
        yield store


def _settings(values: dict[str, Any]) -> Settings:
    if values["cpu"] and values["backend"] not in ("auto", "cpu"):
        raise click.UsageError(f"--cpu and --backend {values['backend']} contradict each other")
    if values["think"] + values["think_max"] + values["nothink"] > 1:
        raise click.UsageError("--think, --think-max and --nothink cannot be given together")
    settings = Settings(**values)
    if values["mtp_margin"] and settings.draft is None:
        raise click.UsageError("--mtp-margin has no effect without --mtp-draft")
    return settings


def _keys(given: tuple[str, ...], path: Path | None) -> tuple[str, ...]:
    """Return the keys of the command line, the environment and a file."""
    keys = list(given)
    if path is not None:
        found = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        found = [line for line in found if line and not line.startswith("#")]
        if not found:
            raise click.UsageError(f"{path} holds no key")
        keys += found
    for key in keys:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise click.UsageError("an API key is a word of ASCII characters without spaces")
    return tuple(keys)


def _outside(
    settings: Settings, keys: tuple[str, ...], hosts: tuple[str, ...], cors: tuple[str, ...], drain: float
) -> ApiSettings:
    """Return the settings of the side of the network."""
    from ds4.server import Settings as ApiSettings
    from ds4.server.contract import Sampling

    effort: Literal["max"] | None = "max" if settings.think_max else None
    return ApiSettings(
        api_keys=keys,
        hosts=tuple(name.lower() for name in hosts) or None,
        cors=cors,
        drain=drain,
        mode="chat" if settings.nothink else "thinking",
        effort=effort,
        sampling=Sampling(settings.temperature, settings.top_p, settings.top_k, settings.min_p, settings.seed),
    )


def _inside(
    model: Model,
    settings: Settings,
    name: str,
    sessions: int | None,
    session_memory: int | None,
    active: int,
    prefill_quantum: int | None,
    max_queue: int,
    trace: Path | None,
) -> EngineSettings:
    """Return the settings of the side of the model, with as many sessions as fit."""
    from ds4.server.engine import Settings as EngineSettings

    plan = model.memory_plan(settings.ctx, threads=settings.threads, mtp=settings.draft is not None)
    available = available_beside([model], settings.simulate_memory)
    one = plan.total_session_bytes
    check_memory([model], one, settings, weights_bytes=plan.weights_bytes, n_ctx=settings.ctx)
    room = session_memory
    if room is not None and room < one:
        raise click.UsageError(
            f"--session-memory is less than one session of -c {settings.ctx} takes: {show_size(one)}"
        )
    most = sessions or MOST_SESSIONS
    if room is None and sessions is None and available is not None:
        room = max(one, int((available - plan.weights_bytes) * SHARE_OF_MEMORY))
    kept = most if room is None else min(most, room // one)
    if sessions is not None and kept < sessions:
        note(f"warning: {sessions} sessions of {show_size(one)} do not fit into --session-memory; {kept} are kept")
    return EngineSettings(
        model_id=name,
        n_ctx=settings.ctx,
        max_tokens=settings.tokens,
        max_active=active,
        max_queued=max_queue,
        prefill_quantum=prefill_quantum,
        keep_sessions=kept,
        trace=trace,
        draft=settings.draft,
        steering=chosen_steering(model, settings),
        session={
            "threads": settings.threads,
            "affinity": settings.affinity,
            "numa": settings.numa,
            "qat": not settings.no_qat,
            "activations": settings.activations,
        },
    )


def _log_to_stderr(quiet: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("ds4: %(message)s"))
    logging.raiseExceptions = False  # a terminal that has gone away does not stop the work
    for name, level in (("ds4", logging.WARNING if quiet else logging.INFO), ("uvicorn.error", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False
