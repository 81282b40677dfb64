"""``ds4 doctor``: what this machine can run, and what to do about the rest."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import click

import ds4
from ds4 import doctor
from ds4.budget import expert_plan
from ds4.published import PUBLISHED, session_bytes

from .chats import chats_directory
from .memory import show_size
from .options import DEFAULT_CONTEXT, OPTIONS, Whole
from .user import TINY, SettingsError, default_model, user_directory

_HELP = """\b
Examples:
  ds4 doctor
  ds4 doctor -c 131072                     with a longer context in the memory plan
  ds4 doctor --simulate-memory 64GiB       as if the machine had that much to give
  ds4 doctor --json

Looks at the processor, the back ends, the memory against the published models and the default one, the disk (it reads
for a second at most), the optional parts of the package, and what ds4 keeps in your home directory. Every problem comes
with the step that solves it.

The exit code is 0 if something runs: a back end that opens a model and answers. Else it is 1."""

_EXPERTS_A_TOKEN = {"flash": 43 * 6, "pro": 61 * 6}


@click.command("doctor", help=_HELP, short_help="What this machine can run, and what is missing.")
@click.option(
    "-c",
    "--ctx",
    type=Whole(1, 1_048_576),
    default=DEFAULT_CONTEXT,
    show_default=True,
    metavar="N",
    help="Context for the memory plan.",
)
@click.option(*OPTIONS["simulate_memory"][0], **OPTIONS["simulate_memory"][1])
@click.option("--no-disk", is_flag=True, help="Do not measure the disk.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(ctx: int, simulate_memory: int | None, no_disk: bool, as_json: bool) -> int:
    """Run the command."""
    facts = examine(ctx, simulate_memory, disk=not no_disk)
    if as_json:
        print(json.dumps(facts, ensure_ascii=False, allow_nan=False, indent=1))
    else:
        _print(facts)
    return 0 if facts["runs"] else 1


def examine(n_ctx: int, simulated: int | None, *, disk: bool) -> dict[str, Any]:
    """Return everything as plain values."""
    problems: list[doctor.Finding] = []
    machine, memory = doctor.machine_facts(), doctor.memory_facts()
    available = memory["available_bytes"] if simulated is None else simulated
    if machine["version"] != machine["core_version"]:
        problems.append(doctor.Finding(
            f"the package is version {machine['version']}, its native library {machine['core_version']}",
            "install both again: pip install --force-reinstall ds4",
        ))  # fmt: skip
    smallest = min((p for p in PUBLISHED if p.experts), key=lambda p: p.n_bytes)
    needed = smallest.weights_bytes + session_bytes(smallest.shape, n_ctx)
    try:
        tiny: Path | None = ds4.Model.embedded_path()
    except FileNotFoundError as error:
        tiny = None
        problems.append(doctor.Finding(str(error), "install ds4 again, from a wheel or with its model file"))
    backends = doctor.backend_facts(tiny, needed)
    for backend in backends:
        problems += [f for f in backend.findings if f.step]
    runs, threads = _answers(tiny, backends, problems)
    default, path = _default(n_ctx, available, problems)
    models = [_published(p, n_ctx, available) for p in PUBLISHED if p.experts is not None]
    if path is None and default is None:
        fits = [m["target"] for m in models if m["fit"]["how"] in ("resident", "streamed")]
        if fits:
            problems.append(doctor.Finding("no real model is here yet", f"ds4 download {fits[0]}"))
    home = user_directory()
    place = path if path is not None else (home / "models" if home is not None else Path.cwd())
    return {
        "runs": runs,
        **machine,
        "threads": threads,
        "memory": {**memory, "available_bytes": available, "simulated": simulated is not None},
        "n_ctx": n_ctx,
        "backends": [dataclasses.asdict(b) for b in backends],
        "default_model": default,
        "published": models,
        "disk": _disk(place) if disk else None,
        "kept": doctor.sizes_of(_places(home)),
        "extras": doctor.extras(),
        "problems": [dataclasses.asdict(p) for p in problems],
    }


def _answers(
    tiny: Path | None, backends: list[doctor.BackendFacts], problems: list[doctor.Finding]
) -> tuple[bool, int | None]:
    """Let the tiny model compute a token; returns whether something runs, and how many threads it takes."""
    working = [b.name for b in backends if b.works]
    if not working:
        cpu = next(b for b in backends if b.name == "cpu")
        problems.insert(0, doctor.Finding(f"no back end works here: {cpu.reason}", "install ds4 again"))
        return False, None
    if tiny is None:
        return True, None
    try:
        with ds4.Model.open(tiny, backend=working[0]) as model, model.session(n_ctx=64) as session:
            session.sync(model.tokenizer.encode("hello"))
            session.logits()
            return True, session.threads
    except (ds4.DS4Error, OSError, MemoryError) as error:
        problems.insert(0, doctor.Finding(f"the tiny model does not answer: {error}", "give the process more memory"))
        return False, None


def _default(
    n_ctx: int, available: int | None, problems: list[doctor.Finding]
) -> tuple[dict[str, Any] | None, Path | None]:
    """Return what is known of the default model, and its path if it is there."""
    try:
        path = default_model()
    except SettingsError as error:
        problems.append(doctor.Finding(str(error), f"ds4 default {TINY} if it cannot be mended after all"))
        return None, None
    if path is None:
        return None, None
    facts: dict[str, Any] = {"path": str(path), "problem": None, "fit": None}
    try:
        with ds4.Model.open(path) as model:
            plan = model.memory_plan(n_ctx)
            experts = expert_plan([path])
            fit = doctor.fit_of(plan.weights_bytes, plan.total_session_bytes, experts, available)
            facts["fit"] = dataclasses.asdict(fit)
            facts["name"] = str(model.metadata.get("general.name", model.shape.name))
    except (ds4.DS4Error, OSError, ValueError) as error:
        strerror = error.strerror if isinstance(error, OSError) else None
        facts["problem"] = str(strerror or error).removeprefix(f"{path}: ")
        problems.append(doctor.Finding(
            f"the default model does not open: {path}: {facts['problem']}",
            f"ds4 default FILE names another one, ds4 default {TINY} none; ds4 inspect {path} tells more",
        ))  # fmt: skip
        return facts, path if path.exists() else None
    if fit.how == "streamed":
        problems.append(doctor.Finding(f"the default model does not fit into memory as a whole: {path}",
                                       "run it with --expert-cache auto"))  # fmt: skip
    elif fit.how == "no":
        problems.append(doctor.Finding(
            f"the default model does not fit: it needs {show_size(fit.least_bytes)}, and "
            f"{show_size(available or 0)} are available",
            f"free memory, a smaller context (-c), or another model (ds4 default {TINY})",
        ))  # fmt: skip
    return facts, path


def _published(published: Any, n_ctx: int, available: int | None) -> dict[str, Any]:
    session = session_bytes(published.shape, n_ctx)
    fit = doctor.fit_of(published.weights_bytes, session, published.experts, available)
    return {
        "target": published.target, "text": published.text, "file_bytes": published.n_bytes,
        "expert_bytes_a_token": _EXPERTS_A_TOKEN[published.shape] * published.experts.slot_bytes,
        "fit": dataclasses.asdict(fit),
    }  # fmt: skip


def _disk(place: Path) -> dict[str, Any]:
    measured = doctor.measure_disk(place)
    return {**dataclasses.asdict(measured), "bytes_per_second": measured.bytes_per_second}


def _places(home: Path | None) -> dict[str, Path]:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    places: dict[str, Path] = {}
    if home is not None:
        places = {
            "models": home / "models", "settings": home / "settings.json",
            "history": home.parent / ".ds4_history",
            "cache": (Path(cache) if cache.startswith("/") else home.parent / ".cache") / "ds4",
        }  # fmt: skip
    chats = chats_directory()
    return places if chats is None else {**places, "conversations": chats}


# Text


def _print(facts: dict[str, Any]) -> None:
    memory = facts["memory"]
    threads = "" if facts["threads"] is None else f", {facts['threads']} threads unless -t says otherwise"
    _line("ds4", f"{facts['version']} (core {facts['core_version']}), Python {facts['python']}, {facts['system']}")
    _line("processor", facts["processor"])
    _line("", f"kernels {facts['cpu_isa']} (of {', '.join(facts['cpu_isas'])})")
    _line("", f"{facts['usable_processors']} of {facts['processors']} processors may be used{threads}")
    available = memory["available_bytes"]
    text = "unknown" if available is None else f"{show_size(available)} available"
    text += " (simulated)" if memory["simulated"] else ""
    text += "" if memory["total_bytes"] is None else f", {show_size(memory['total_bytes'])} in the machine"
    text += "" if memory["limit_bytes"] is None else f", control groups allow {show_size(memory['limit_bytes'])}"
    _line("memory", text)
    for i, backend in enumerate(facts["backends"]):
        reason = "; ".join([backend["reason"], *(f["text"] for f in backend["findings"])])
        _line(
            "back ends" if not i else "", f"{backend['name']:6} " + ("works" if backend["works"] else f"no: {reason}")
        )
    for i, model in enumerate(facts["published"]):
        label = f"models, -c {facts['n_ctx']}" if not i else ""
        _line(label, f"{model['target']:6} {show_size(model['file_bytes']):>9}  {_fit(model, facts['disk'])}")
    default = facts["default_model"]
    if default is None:
        _line("default model", "none: the tiny one of the package")
    else:
        _line("default model", default["path"])
        _line("", default["problem"] or _fit({"fit": default["fit"]}, None))
    _print_disk(facts["disk"])
    for i, (name, entry) in enumerate(facts["kept"].items()):
        _line("kept" if not i else "", f"{name:13} {show_size(entry['bytes']):>10}  {entry['path']}")
    for i, (extra, needed) in enumerate(facts["extras"].items()):
        missing = [name for name, version in needed.items() if version is None]
        text = f"no: pip install 'ds4[{extra}]'" if missing else ", ".join(f"{n} {v}" for n, v in needed.items())
        _line("extras" if not i else "", f"{extra:9} {text}")
    print()
    for problem in facts["problems"]:
        print(f"- {problem['text']}\n  -> {problem['step']}")
    print("This machine runs ds4." if facts["runs"] else "Nothing runs here.")


def _print_disk(disk: dict[str, Any] | None) -> None:
    if disk is None:
        return
    if disk["problem"]:
        _line("disk", f"not measured: {disk['problem']}")
    else:
        cached = "" if disk["direct"] else " (perhaps from the page cache)"
        _line("disk", f"{disk['bytes_per_second'] / 1e6:.0f} MB/s in pieces of 4 MiB{cached}")
    _line("", f"{show_size(disk['free_bytes'])} free at {disk['path']}")


def _fit(model: dict[str, Any], disk: dict[str, Any] | None) -> str:
    fit = model["fit"]
    if fit["how"] == "unknown":
        whole = show_size(fit["weights_bytes"] + fit["session_bytes"])
        return f"needs {whole}, or {show_size(fit['least_bytes'])} with --expert-cache auto"
    if fit["how"] == "resident":
        return f"fits as a whole: {show_size(fit['weights_bytes'] + fit['session_bytes'])}"
    if fit["how"] == "no":
        return f"does not fit: needs {show_size(fit['least_bytes'])} at least"
    text = f"--expert-cache auto: {show_size(fit['cache_bytes'])} hold {100 * fit['share']:.0f} % of the experts"
    if disk is not None and disk["bytes_per_second"] and "expert_bytes_a_token" in model:
        missed = model["expert_bytes_a_token"] * (1 - fit["share"])
        text += f"; with as many hits the disk allows {disk['bytes_per_second'] / missed:.1f} t/s" if missed else ""
    return text


def _line(label: str, text: str) -> None:
    print(f"{label:17} {text}")
