"""Compare ds4 with other engines on one model file, on the CPU, in one run.

    python benchmarks/cpu_compare.py -m flash.gguf -t 2 \\
        --peer 'llama.cpp=peers/llama/bin/llama-bench -lm none' --json compare.json

--peer NAME=COMMAND is a program with the options and the JSON of llama-bench; it gets -m, -p, -n, -r, -t and -o json.
Engines alternate in rounds, and every second round goes backwards, so that slow drifts of a machine hit all alike. The
bandwidth of the memory is measured before every round. Printed are medians, extremes, ratios to the first peer, the
memory floor of decode (bandwidth over the bytes that a token reads) and the share of it that ds4 reached, and whether
ds4's targets are met. Exit code: 0 all engines ran, 1 one failed, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ds4
from ds4.bench import TokenBytes, Workload, parse_workloads, token_bytes

HERE = Path(__file__).parent
CURVE = (1024, 2048, 4096, 8192, 16384)

# Speeds of engines that cannot be built from a package index, as multiples of llama.cpp measured beside it once
# (two Zen 4 cores, the same file): prefill of short prompts, of long ones, decode.
STAND_INS = {"ik_llama.cpp": {"pp_short": 80 / 42, "pp": 1.58, "tg": 1.31}}
# ds4's targets as multiples of llama.cpp: 2 x ik_llama.cpp in prefill, 1.3 x in decode or that share of the floor.
TARGETS = {"pp_short": 2 * 80 / 42, "pp": 3.2, "tg": 1.7}
FLOOR_TARGET = 0.85
CURVE_TARGETS = {"prefill cost a token, 16k against 1k": 1.6, "decode time a token, 16k against 1k": 1 / 0.9}


class EngineError(Exception):
    """An engine failed, or printed something else than expected."""


@dataclass
class Engine:
    """A program under test: its command, and tokens a second of every run by test."""

    name: str
    command: list[str]
    is_peer: bool
    samples: dict[str, list[float]] = field(default_factory=dict)
    cpus: dict[str, list[float]] = field(default_factory=dict)  # processors at work, where the program tells
    errors: list[str] = field(default_factory=list)

    def add(self, test: str, tps: float) -> None:
        self.samples.setdefault(test, []).append(tps)

    def median(self, test: str) -> float | None:
        found = self.samples.get(test)
        return statistics.median(found) if found else None


def kind_of(w: Workload) -> str:
    """Return which ratio belongs to a test: prefill of up to 256 tokens, of more, or decode."""
    return "tg" if w.is_decode else "pp_short" if w.n <= 256 else "pp"


def run(command: Sequence[str], timeout: float) -> str:
    """Run a command and return its standard output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except OSError as error:
        raise EngineError(f"{command[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise EngineError(f"not finished after {timeout:.0f} s") from None
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise EngineError(f"exit code {done.returncode}: {last}")
    return done.stdout


def run_ds4(engine: Engine, workloads: Sequence[Workload], a: argparse.Namespace) -> None:
    tests = ",".join(w.name for w in workloads)
    command = [*engine.command, "-m", str(a.model), "--tests", tests, "--reps", str(a.reps), "-t", str(a.threads)]
    for line in run([*command, "--jsonl"], a.timeout).splitlines():
        row = json.loads(line)
        engine.add(row["test"], float(row["tps"]))
        engine.cpus.setdefault(row["test"], []).append(row["cpu_seconds"] / row["seconds"])


def run_peer(engine: Engine, workloads: Sequence[Workload], a: argparse.Namespace) -> None:
    """One call for each depth: llama-bench computes the context of a depth, which ds4 fills."""
    for depth in sorted({w.depth for w in workloads}):
        pp = ",".join(str(w.n) for w in workloads if not w.is_decode and w.depth == depth) or "0"
        tg = ",".join(str(w.n) for w in workloads if w.is_decode and w.depth == depth) or "0"
        command = [*engine.command, "-m", str(a.model), "-p", pp, "-n", tg, "-r", str(a.reps), "-t", str(a.threads)]
        out = run([*command, *(["-d", str(depth)] if depth else []), "-o", "json"], a.timeout)
        try:
            rows = json.loads(out[out.index("[") :])
            for row in rows:
                kind, n = ("pp", row["n_prompt"]) if row["n_prompt"] else ("tg", row["n_gen"])
                for tps in row.get("samples_ts") or [row["avg_ts"]]:
                    engine.add(Workload(kind, n, depth).name, float(tps))
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(f"its output is not that of llama-bench -o json ({error!r})") from None


class Bandwidth:
    """The program of bandwidth.cpp, built for this machine, and what it found."""

    def __init__(self, folder: Path, threads: int, mib: int) -> None:
        self.rounds: list[dict[str, Any]] = []
        self._command = [str(folder / "bandwidth"), str(threads), str(mib), "5"]
        compiler = shlex.split(os.environ.get("CXX", "c++"))
        if shutil.which(compiler[0]) is None:
            raise EngineError(f"{compiler[0]} is needed to build benchmarks/bandwidth.cpp (or give --bandwidth GB/S)")
        native = [] if platform.machine() == "riscv64" else ["-march=native"]
        flags = ["-std=c++17", "-O3", *native, "-pthread", "-o", self._command[0]]
        run([*compiler, *flags, str(HERE / "bandwidth.cpp")], 120)

    def measure(self) -> None:
        self.rounds.append(json.loads(run(self._command, 120)))

    @property
    def best(self) -> float:
        """Bytes a second that the memory gave at its best: what the floor is reckoned with."""
        return max(float(r["bandwidth"]) for r in self.rounds)


def measure(
    engines: Sequence[Engine], workloads: Sequence[Workload], a: argparse.Namespace, bandwidth: Bandwidth | None
) -> None:
    """Run all engines in rounds; a failure is noted, and the other engines go on."""
    for round_ in range(a.rounds):
        if bandwidth is not None:
            bandwidth.measure()
        for engine in engines if round_ % 2 == 0 else reversed(engines):
            mine = [w for w in workloads if not (engine.is_peer and w.depth and not a.peer_depths)]
            tell(f"round {round_ + 1} of {a.rounds}: {engine.name}")
            try:
                (run_peer if engine.is_peer else run_ds4)(engine, mine, a)
            except EngineError as error:
                engine.errors.append(str(error))
                tell(f"{engine.name} failed: {error}")


def measure_curve(engine: Engine, a: argparse.Namespace) -> dict[str, Any] | None:
    """Time whole prompts of 1k to 16k tokens once, and decode behind 1k and 16k filled positions."""
    prompts = [Workload("pp", n) for n in CURVE if n <= a.curve]
    decodes = [Workload("tg", 32, n) for n in (prompts[0].n, prompts[-1].n)]
    tell(f"curve: {prompts[0].name} to {prompts[-1].name}")
    part = Engine(engine.name, engine.command, False)
    once = argparse.Namespace(**{**vars(a), "reps": 1})
    try:
        run_ds4(part, prompts, once)
        for _ in range(a.rounds):  # both depths in turn, so that a drift is no slope
            run_ds4(part, decodes, a)
    except EngineError as error:
        engine.errors.append(str(error))
        tell(f"curve failed: {error}")
        return None
    first, last = (part.median(w.name) or 0.0 for w in (prompts[0], prompts[-1]))
    near, far = (part.median(w.name) or 0.0 for w in decodes)
    return {
        "prefill_ms": {w.name: 1e3 / (part.median(w.name) or 1.0) for w in prompts},
        "decode_ms": {w.name: 1e3 / (part.median(w.name) or 1.0) for w in decodes},
        "prefill_ratio": first / last, "decode_ratio": near / far,
    }  # fmt: skip


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """What the numbers belong to."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return {
        "cpu": name, "cpus": os.cpu_count(), "system": f"{platform.system()} {platform.release()}",
        "ds4": ds4.__version__, "cpu_isa": ds4.cpu_isa(), "load": [round(x, 2) for x in os.getloadavg()],
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip


def targets(
    engine: Engine, first: Engine | None, workloads: Sequence[Workload], floors: dict[str, TokenBytes],
    bandwidth: float | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Hold ds4 against its targets, one entry a test that both engines ran without a depth."""
    found = []
    for w in workloads:
        ours, theirs = engine.median(w.name), first.median(w.name) if first else None
        if ours is None or theirs is None or w.depth:
            continue
        wanted = TARGETS[kind_of(w)] * theirs
        text = f"{TARGETS[kind_of(w)]:.2f} x {first.name if first else ''}"
        if w.is_decode and bandwidth:
            share = FLOOR_TARGET * floors[w.name].floor(bandwidth)
            if share < wanted:
                wanted, text = share, f"{100 * FLOOR_TARGET:.0f} % of the floor (lower than {text})"
            else:
                text += f" (lower than {100 * FLOOR_TARGET:.0f} % of the floor)"
        found.append({"test": w.name, "wanted": wanted, "tps": ours, "met": ours >= wanted, "target": text})
    return found


def report(
    engines: Sequence[Engine], workloads: Sequence[Workload], floors: dict[str, TokenBytes], bandwidth: float | None,
    curve: dict[str, Any] | None, a: argparse.Namespace,
) -> tuple[list[str], dict[str, Any]]:  # fmt: skip
    """Return the lines to print and the report for programs."""
    ours, peers = engines[0], [e for e in engines if e.is_peer]
    first = peers[0] if peers else None
    known = {e.name for e in peers}
    estimates = {name: r for name, r in STAND_INS.items() if first and name not in known and a.stand_ins}
    here = machine()
    lines = [
        f"{here['time']}, {here['cpu']}, {a.threads} thread(s) of {here['cpus']}, ds4 {here['ds4']} ({here['cpu_isa']})"
    ]
    lines.append(f"{a.model.name}; {a.rounds} rounds of {a.reps}; median (least-most) tokens/s and ratio to "
                 f"{first.name if first else 'nothing'}")  # fmt: skip
    head = [e.name for e in engines] + [f"{name} (estimate)" for name in estimates]
    lines += ["", "| test | " + " | ".join(head) + " |", "|---|" + "---:|" * len(head)]
    rows: list[dict[str, Any]] = []
    for w in workloads:
        base = first.median(w.name) if first else None
        cells = []
        for e in engines:
            tps = e.median(w.name)
            if tps is None:
                cells.append("-")
                continue
            samples = e.samples[w.name]
            ratio = f" x{tps / base:.2f}" if base else ""
            cells.append(f"{tps:.2f} ({min(samples):.2f}-{max(samples):.2f}){ratio}")
            rows.append({"test": w.name, "engine": e.name, "tps": tps, "samples": samples,
                         "ratio": tps / base if base else None})  # fmt: skip
        for ratios in estimates.values():
            ratio = ratios[kind_of(w)]
            cells.append(f"{base * ratio:.2f} x{ratio:.2f}" if base and not w.depth else "-")
        lines.append(f"| {w.name} | " + " | ".join(cells) + " |")
    floor_rows = []
    if bandwidth:
        lines += ["", f"memory: {bandwidth / 1e9:.1f} GB/s with {a.threads} thread(s)"]
        for name, need in floors.items():
            tps, floor = ours.median(name), need.floor(bandwidth)
            shares = ", ".join(
                f"{e.name} {100 * (e.median(name) or 0) / floor:.1f} %" for e in engines if e.median(name) is not None
            )
            reads = f"{name} reads {need.total / 1e6:.1f} MB a token"
            reached = f"; reached: {shares}" if shares else ""
            lines.append(f"{reads}: floor {1e3 / floor:.2f} ms, {floor:.2f} tokens/s{reached}")
            floor_rows.append({"test": name, "bytes": need.total, "groups": need.groups, "floor_tps": floor,
                               "share": None if tps is None else tps / floor})  # fmt: skip
    for w in workloads:
        cpus = statistics.median(ours.cpus[w.name]) if w.name in ours.cpus else a.threads
        if not w.is_decode and cpus < 0.85 * a.threads:
            lines += [
                "",
                f"NOTE: {w.name} of ds4 had {cpus:.2f} processors for {a.threads} thread(s): other programs ran",
            ]
    checks = targets(ours, first, workloads, floors, bandwidth)
    lines += [""] if checks else []
    for c in checks:
        verdict = "met" if c["met"] else "NOT MET"
        lines.append(f"{verdict}: {c['test']} {c['tps']:.2f} of {c['wanted']:.2f} tokens/s, {c['target']}")
    if curve is not None:
        lines += ["", "| " + " | ".join([*curve["prefill_ms"], *curve["decode_ms"]]) + " |"]
        lines.append("|" + "---:|" * (len(curve["prefill_ms"]) + len(curve["decode_ms"])))
        times = [*curve["prefill_ms"].values(), *curve["decode_ms"].values()]
        lines.append("| " + " | ".join(f"{ms:.3f} ms" for ms in times) + " |")
        for (text, limit), ratio in zip(
            CURVE_TARGETS.items(), (curve["prefill_ratio"], curve["decode_ratio"]), strict=True
        ):
            lines.append(f"{'met' if ratio <= limit else 'NOT MET'}: {text} x{ratio:.3f} of at most x{limit:.2f}"
                         .replace("16k", f"{a.curve // 1024}k"))  # fmt: skip
    plain = {
        "format": "ds4-cpu-compare", "machine": here, "model": a.model.name, "threads": a.threads, "rounds": a.rounds,
        "reps": a.reps, "commands": {e.name: shlex.join(e.command) for e in engines}, "bandwidth": bandwidth,
        "results": rows, "estimates": estimates, "floors": floor_rows, "targets": checks,
        "cpus": ours.cpus, "curve": curve, "errors": {e.name: e.errors for e in engines if e.errors},
    }  # fmt: skip
    return lines, plain


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model", type=Path, required=True, help="the model, a GGUF file")
    p.add_argument(
        "--peer", action="append", default=[], metavar="NAME=COMMAND", help="a llama-bench compatible program"
    )
    p.add_argument("--tests", default="pp128,pp512,tg32", help="as in ds4 bench (%(default)s)")
    p.add_argument("-t", "--threads", type=int, default=min(os.cpu_count() or 1, 64))
    p.add_argument("--rounds", type=int, default=3, help="how often every engine is started (%(default)s)")
    p.add_argument("--reps", type=int, default=2, help="timed runs of a test in one start (%(default)s)")
    p.add_argument("--activations", choices=["quantized", "float32"], default="quantized",
                   help="of ds4; the peers round activations too (%(default)s)")  # fmt: skip
    p.add_argument("--ds4", default="", metavar="OPTIONS", help="more options of ds4 bench")
    p.add_argument("--peer-depths", action="store_true",
                   help="run tests at a depth with the peers too, which compute the context first")  # fmt: skip
    p.add_argument("--curve", type=int, nargs="?", const=CURVE[-1], choices=CURVE[1:], metavar="N",
                   help="prefill from 1k to N tokens, and decode at both depths, of ds4 alone (16384)")  # fmt: skip
    p.add_argument("--bandwidth", type=float, metavar="GB/S", help="do not measure the memory; 0: do without")
    p.add_argument("--area", type=int, default=1024, metavar="MIB", help="memory that is read for that (%(default)s)")
    p.add_argument("--no-stand-ins", dest="stand_ins", action="store_false", help="leave estimated engines out")
    p.add_argument("--timeout", type=float, default=3600, help="seconds of one start (%(default)s)")
    p.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON (- is standard output)")
    a = p.parse_args(argv)
    for name in ("threads", "rounds", "reps", "area"):
        if getattr(a, name) < 1:
            p.error(f"--{name} must be 1 or more")
    for peer in a.peer:
        name, _, command = peer.partition("=")
        if not name or not command.strip():
            p.error(f"--peer {peer!r} is not NAME=COMMAND")
    names = ["ds4", *(peer.partition("=")[0] for peer in a.peer)]
    if len(set(names)) < len(names):
        p.error("two engines have the same name")
    if a.bandwidth is not None and not 0 <= a.bandwidth < 1e6:
        p.error("--bandwidth must be GB/s")
    try:
        a.workloads = parse_workloads(a.tests)
    except ValueError as error:
        p.error(f"--tests: {error}")
    if not a.model.is_file():
        p.error(f"{a.model}: there is no such file")
    return a


def main(argv: Sequence[str] | None = None) -> int:
    a = arguments(argv)
    with ds4.Model.open(a.model) as model, ds4.GGUFFile(a.model) as file:
        floors = {w.name: token_bytes(file, model.shape, depth=w.depth) for w in a.workloads if w.is_decode}
    ours = [sys.executable, "-m", "ds4", "bench", "--warm-weights", "--activations", a.activations, *shlex.split(a.ds4)]
    engines = [Engine("ds4", ours, False)]
    for peer in a.peer:
        name, _, command = peer.partition("=")
        engines.append(Engine(name, shlex.split(command), True))
    curve = None
    with tempfile.TemporaryDirectory() as folder:
        meter = None
        if a.bandwidth is None:
            try:
                meter = Bandwidth(Path(folder), a.threads, a.area)
            except EngineError as error:
                tell(f"the memory cannot be measured: {error}")
                return 1
        measure(engines, a.workloads, a, meter)
        if a.curve:
            curve = measure_curve(engines[0], a)
        bandwidth = meter.best if meter is not None else a.bandwidth * 1e9 or None
    lines, plain = report(engines, a.workloads, floors, bandwidth, curve, a)
    if meter is not None:
        plain["bandwidth_rounds"] = meter.rounds
    print("\n".join(lines), file=sys.stderr if str(a.json) == "-" else sys.stdout)
    if a.json is not None:
        text = json.dumps(plain, indent=1, allow_nan=False) + "\n"
        if str(a.json) == "-":
            sys.stdout.write(text)
        else:
            draft = a.json.with_name(f".{a.json.name}.{os.getpid()}")
            draft.write_text(text)
            draft.replace(a.json)
    return 1 if any(e.errors for e in engines) else 0


if __name__ == "__main__":
    sys.exit(main())
