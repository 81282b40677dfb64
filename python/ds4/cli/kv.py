"""``ds4 kv``: the files of a store of session states."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from ds4.kvstore import UNLIMITED, Entry, KVStore, check_files

from . import kv_exchange
from .memory import show_size
from .options import SizeType, model_of_state_option, take
from .settings import Settings
from .terminal import note

_GROUP = """\b
Examples:
  ds4 kv list ~/.cache/ds4/kv
  ds4 kv show ~/.cache/ds4/kv 3f9a --key
  ds4 kv check ~/.cache/ds4/kv --put-aside
  ds4 kv prune ~/.cache/ds4/kv --budget 1GiB
  ds4 kv export ~/.cache/ds4/kv 3f9a agent.ds4kv
  ds4 kv import /other/kv agent.ds4kv

A store keeps what a model has computed for a prompt, so that a later prompt that begins with the same text need not
compute it again. All commands may be used while servers run on the same directory. The files hold your prompts:
they are readable for you only, and an exported one is too."""

_SHORT = 12
_DIR = click.argument("directory", type=click.Path(path_type=Path))
_NAME = click.argument("name")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group("kv", help=_GROUP, short_help="List, check and carry stored session states.")
def command() -> None:
    """Files of a store."""


_LIST = """\b
Examples:
  ds4 kv list ~/.cache/ds4/kv
  ds4 kv list ~/.cache/ds4/kv --json

Lists the states, the last used first. "own" is what only this state needs at its end, "all" includes the rows of its
tokens, which states that begin with the same text share."""


@command.command("list", help=_LIST, short_help="List the states.")
@_DIR
@_JSON
def list_command(directory: Path, as_json: bool) -> int:
    """Run the command."""
    with KVStore(directory, budget_bytes=UNLIMITED, read_only=True) as store:
        entries, stats = store.entries(), store.stats()
    if as_json:
        _print({
            "directory": str(directory), "bytes": stats.n_bytes, "quarantined_bytes": stats.quarantined_bytes,
            "written_today": stats.written_today, "states": [_facts(e) for e in entries],
        })  # fmt: skip
        return 0
    if entries:
        print(f"{'name':{_SHORT}}  {'tokens':>8}  {'key':>9}  {'reason':9}  {'hits':>5}  {'used':16}  {'own':>10}  all")
    for e in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(e.last_used))
        print(
            f"{e.name[:_SHORT]}  {e.n_tokens:8}  {e.n_key:9}  {e.reason:9}  {e.hits:5}  {used}  "
            f"{show_size(e.n_bytes):>10}  {show_size(e.total_bytes)}"
        )
    aside = f", {show_size(stats.quarantined_bytes)} put aside" if stats.quarantined_bytes else ""
    print(f"{len(entries)} states, {show_size(stats.n_bytes)}{aside}")
    return 0


_SHOW = """\b
Examples:
  ds4 kv show ~/.cache/ds4/kv 3f9a
  ds4 kv show ~/.cache/ds4/kv 3f9a --key > prompt.txt

NAME is the begin of a state's name, as far as it is needed to tell it from the others."""


@command.command("show", help=_SHOW, short_help="Show a state, or the prompt that leads to it.")
@_DIR
@_NAME
@click.option("--key", "show_key", is_flag=True, help="Print the prompt's text, and nothing else.")
@_JSON
def show_command(directory: Path, name: str, show_key: bool, as_json: bool) -> int:
    """Run the command."""
    if show_key and as_json:
        raise click.UsageError("--key prints text; leave --json out")
    with KVStore(directory, budget_bytes=UNLIMITED, read_only=True) as store:
        entry = _find(store, name)
        key = store.read_key(entry)
    text = key.replace(b"\xff", b"").decode("utf-8", "replace")  # FF marks special tokens
    if show_key:
        print(text, end="")
        return 0
    facts = {**_facts(entry), "text": text}
    if as_json:
        _print(facts)
        return 0
    for label, value in (
        ("name", entry.name),
        ("tokens", entry.n_tokens),
        ("stored", f"{_when(entry.created)}, {entry.reason}"),
        ("used", f"{_when(entry.last_used)}, {entry.hits} hits"),
        ("model", entry.model.hex()),
        ("settings", facts["settings"]),
        ("bytes", f"{entry.n_bytes} and {entry.total_bytes - entry.n_bytes} of rows"),
        ("rows", ", ".join(f"{r.start}..{r.stop} {r.name[:_SHORT]}" for r in entry.rows) or "none"),
        ("tool calls", ", ".join(entry.calls) or "none"),
        ("begins", repr(text[:60])),
        ("ends", repr(text[-60:])),
    ):
        print(f"{label:10}  {value}")
    return 0


_CHECK = """\b
Examples:
  ds4 kv check ~/.cache/ds4/kv
  ds4 kv check ~/.cache/ds4/kv --put-aside

Reads every file to its last byte. The exit status is 1 when one is damaged or lacks its rows. A server finds damage
by itself, before it uses a file."""


@command.command("check", help=_CHECK, short_help="Check every byte of a store.")
@_DIR
@click.option("--put-aside", is_flag=True, help="Move damaged files to the quarantine.")
@_JSON
def check_command(directory: Path, put_aside: bool, as_json: bool) -> int:
    """Run the command."""
    found = list(check_files(directory))
    faults = [f for _, f in found if f is not None]
    if put_aside and any(f.damaged for f in faults):
        with KVStore(directory, budget_bytes=UNLIMITED) as store:
            for fault in faults:
                if fault.damaged and fault.path.exists():
                    store.put_aside(fault.name, fault.kind, fault.problem)
    if as_json:
        _print({
            "directory": str(directory), "files": len(found),
            "faults": [{"file": f.path.name, "problem": f.problem, "damaged": f.damaged} for f in faults],
        })  # fmt: skip
    else:
        for f in faults:
            print(f"{f.path.name}: {f.problem}")
        print(f"{len(found)} files, {len(faults)} with faults")
    return 1 if faults else 0


_PRUNE = """\b
Examples:
  ds4 kv prune ~/.cache/ds4/kv --budget 1GiB
  ds4 kv prune ~/.cache/ds4/kv --budget 0

Deletes the least worthy states until all files take at most --budget, as a server does when its own budget is full.
States that a server is loading stay."""


@command.command("prune", help=_PRUNE, short_help="Delete the least worthy states.")
@_DIR
@click.option("--budget", type=SizeType(), required=True, metavar="SIZE", help="Bytes that may stay.")
@_JSON
def prune_command(directory: Path, budget: int, as_json: bool) -> int:
    """Run the command."""
    _check_exists(directory)
    with KVStore(directory, budget_bytes=UNLIMITED) as store:
        if store.read_only:
            raise click.ClickException(f"{directory} cannot be written")
        freed = store.prune(budget)
        stats = store.stats()
    if as_json:
        _print({"directory": str(directory), "freed": freed, "bytes": stats.n_bytes, "states": stats.states})
    else:
        print(f"freed {show_size(freed)}; {stats.states} states, {show_size(stats.n_bytes)} are left")
    if stats.n_bytes > budget:
        note("what is left is in use or was used in the last minutes")
        return 1
    return 0


_EXPORT = """\b
Examples:
  ds4 kv export ~/.cache/ds4/kv 3f9a agent.ds4kv
  ds4 kv export ~/.cache/ds4/kv 3f9a /other/cache --kvc -m flash.gguf

Writes a state with all its rows into one file, for ds4 kv import on another machine that has the same model file and
settings. With --kvc OUT is a directory, where a file of the other engine (KVC 1) is put under the name that it has
there; that needs the model that the state is of."""


@command.command("export", help=_EXPORT, short_help="Write a state into one file.")
@_DIR
@_NAME
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--kvc", is_flag=True, help="Write a file of the other engine into the directory OUT.")
@click.option(
    "--quant", type=click.Choice(["2", "4"]), help="Bits of the routed experts, with --kvc. Default: the model's."
)
@model_of_state_option
@take("threads", "force_memory", "expert_cache")
@_JSON
def export_command(
    directory: Path, name: str, out: Path, force: bool, kvc: bool, quant: str | None, as_json: bool, **values: Any
) -> int:
    """Run the command."""
    if not kvc and (quant is not None or any(values.values())):
        raise click.UsageError("--quant and the options of the model need --kvc")
    with KVStore(directory, budget_bytes=UNLIMITED, read_only=True) as store:
        entry = _find(store, name)
        if kvc:
            out = kv_exchange.export_kvc(store, entry, out, quant, Settings(**values), force=force)
            n_bytes = out.stat().st_size
        else:
            n_bytes = store.export_state(entry, out, force=force)
    if as_json:
        _print({"file": str(out), "bytes": n_bytes, **_facts(entry)})
    else:
        print(f"wrote {out}: {entry.n_tokens} tokens, {show_size(n_bytes)}")
    return 0


_IMPORT = """\b
Examples:
  ds4 kv import ~/.cache/ds4/kv agent.ds4kv
  ds4 kv import ~/.cache/ds4/kv /other/cache/3a1f...9c.kv -m flash.gguf

Takes a state that ds4 kv export wrote, or a file of the other engine (KVC 1), which needs the model that it is of. Rows
that the store has already are not written again."""


@command.command("import", help=_IMPORT, short_help="Take a state from a file.")
@_DIR
@click.argument("file", type=click.Path(path_type=Path))
@model_of_state_option
@take("threads", "no_qat", "activations", "force_memory", "expert_cache")
@_JSON
def import_command(directory: Path, file: Path, as_json: bool, **values: Any) -> int:
    """Run the command."""
    with file.open("rb") as f:
        other = f.read(3) == b"KVC"
    settings = Settings(**values)
    if not other and settings != Settings():
        raise click.UsageError(f"{file} names its model itself; options of the model are for files of the other engine")
    with KVStore(directory, budget_bytes=UNLIMITED) as store:
        entry = kv_exchange.import_kvc(store, file, settings) if other else store.import_state(file)
        if entry is None:
            raise click.ClickException(f"{directory}: the state was not stored: {store.stats().problem}")
    if as_json:
        _print({"directory": str(directory), **_facts(entry)})
    else:
        print(f"{entry.name[:_SHORT]}: {entry.n_tokens} tokens, {show_size(entry.total_bytes)}")
    return 0


def _check_exists(directory: Path) -> None:
    if not directory.is_dir():
        raise FileNotFoundError(2, "No such directory", str(directory))


def _find(store: KVStore, name: str) -> Entry:
    found = [e for e in store.entries() if e.name.startswith(name.lower())]
    if not name or len(found) != 1:
        raise click.ClickException(
            f"{store.path}: {'no state' if not found else f'{len(found)} states'} with a name that begins with {name!r}"
        )
    return found[0]


def _facts(entry: Entry) -> dict[str, Any]:
    try:
        settings = json.loads(entry.settings)
    except ValueError:
        settings = entry.settings.hex()
    return {
        "name": entry.name, "tokens": entry.n_tokens, "key_bytes": entry.n_key, "reason": entry.reason,
        "created": entry.created, "last_used": entry.last_used, "hits": entry.hits, "bytes": entry.n_bytes,
        "total_bytes": entry.total_bytes, "model": entry.model.hex(), "settings": settings, "calls": list(entry.calls),
        "rows": [{"name": r.name, "start": r.start, "stop": r.stop, "bytes": r.n_bytes} for r in entry.rows],
    }  # fmt: skip


def _when(stamp: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stamp))


def _print(content: Any) -> None:
    print(json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1))
