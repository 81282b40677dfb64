"""What expert streaming gives: beside its disk, beside no streaming, and beside a mapped file in too little memory.

    python benchmarks/expert_streaming.py flash.gguf --slots 1 64 256
    python benchmarks/expert_streaming.py flash.gguf --slots 0 all --rounds 9 --together
    python benchmarks/expert_streaming.py flash.gguf --slots 0 25% --prefill 2048
    python benchmarks/expert_streaming.py flash.gguf --slots 0 25% --memory 6GiB --peer llama-bench

First the raw disk: reads of the size of an expert from random places, as many at a time, and long ones. Then for each
number of slots (0: the mapped file; all; or a share such as 25%) one token after another, of random ids, so that
hash-routed layers choose evenly; with --prefill N a prompt of N tokens instead. Rounds alternate between the variants,
which are opened anew for each unless --together finds room for all of them at once. Printed are tokens a second, hits,
bytes, the speed of the disk over the whole time and while anything was being read, the part of the time that was
waited, and guesses of the next layer's experts that were right; at the end medians, and the ratios to the first
variant, round by round.

In decode the speed of the disk is told as a part of the raw one in three ways: over the whole time; with the head taken
as --layers layers have it (a file of few layers has a head for every few layers, and while the head computes nothing is
known of the next token: the disk has nothing to do); and over the layers alone. --guesses both adds to each variant one
that reads nothing on guesses, and takes for the bytes that are needed those that it reads; without it what wrong
guesses read counts as well.

A cache for all experts is filled before its time is taken, and a mapped file computes a long prompt, which reads it
all, unless --memory leaves no room for that: see small_memory.py, which takes the rest of the memory away meanwhile.
--peer decodes with another program, which speaks the options of llama-bench, on the mapped file as well.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import ds4
import numpy as np
from ds4.budget import ExpertPlan, expert_plan, parse_size, show_size
from ds4.experts import ReadOptions
from ds4.model import measure_reads
from numpy.typing import NDArray
from small_memory import small_memory

LONG_READ = 64 << 20


def forget(path: str) -> None:
    """Let the page cache drop a file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


class Variant:
    """A number of slots, and what was measured with it."""

    def __init__(self, text: str, plan: ExpertPlan, guess: bool) -> None:
        self.guess = guess
        if text == "all":
            self.slots = plan.n_experts
        elif text.endswith("%"):
            self.slots = max(1, round(plan.n_experts * float(text[:-1]) / 100))
        else:
            self.slots = int(text)
        self.has_all = self.slots >= plan.n_experts
        self.cache = min(self.slots, plan.n_experts) * plan.slot_bytes or None
        self.rounds: list[float] = []  # medians
        self.speeds: list[float] = []
        self.file_bytes: list[int] = []
        self.times: list[list[float]] = []  # of runs: seconds in all, with the head of a whole model, without the head
        self.name = f"{self.slots:6} slots" if self.slots else "mapped file "
        self.name += "" if guess or not self.slots else ", no guesses"

    def start(self, args: argparse.Namespace, reads: ReadOptions) -> None:
        """Open the model and bring it to the state that is measured."""
        begin = time.perf_counter()
        rng = np.random.default_rng((args.seed, 0))
        if args.memory is not None:
            forget(args.model)
        reads = replace(reads, guess=self.guess)
        self.model = ds4.Model.open(args.model, expert_cache=self.cache, reads=reads)
        self.session = self.model.session(
            n_ctx=max(4096, 2 * args.prefill), threads=args.threads, chunk=args.chunk, checkpoint_bytes=0
        )
        if self.has_all:
            self.model.preload_experts()
        elif not self.slots and args.memory is None:
            self.session.eval(rng.integers(0, self.model.shape.n_vocab, 2048))
        if not args.prefill:
            run(self.session, rng.integers(0, self.model.shape.n_vocab, args.warm), False)
        print(f"{self.name}: ready after {time.perf_counter() - begin:.1f} s", flush=True)

    def stop(self) -> None:
        """Close the model."""
        self.session.close()
        self.model.close()

    def guesses(self) -> NDArray[np.int64]:
        """Return the guesses so far, and those that were right."""
        if not self.slots:
            return np.zeros(2, np.int64)
        stats = self.model.expert_stats()
        return np.array([stats.total("guessed"), stats.total("guessed_right")])

    def measure(self, args: argparse.Namespace, seed: tuple[int, int]) -> None:
        """Take the time of `args.repeat` runs."""
        rng = np.random.default_rng(seed)  # the same for all variants
        for _ in range(args.repeat):
            self.session.reset()
            ids = rng.integers(0, self.model.shape.n_vocab, args.prefill or args.tokens)
            before, guesses = self.session.expert_use(), self.guesses()
            with nullcontext() if args.prefill else self.session.profile() as profile:
                seconds = run(self.session, ids, bool(args.prefill))
                head = 0.0 if profile is None else float(profile.decode.by_part()["head"])
            use = self.session.expert_use().minus(before)
            self.speeds.append(len(ids) / seconds)
            self.file_bytes.append(use.file_bytes)
            line = f"{self.name}: {len(ids) / seconds:7.2f} tokens/s"
            if self.slots:
                line += f", hits {use.hit_rate:4.0%}, {use.file_bytes / 1e9:6.2f} GB"
                line += f", {use.file_bytes / 1e9 / seconds:5.2f} GB/s ({use.read_speed / 1e9:5.2f} while reading)"
                line += f", waited {use.wait_ns * 1e-9 / seconds:4.0%}"
                guessed, right = self.guesses() - guesses
                line += f", {right / guessed:.0%} of {guessed} guesses right" if guessed else ""
            if self.slots and not args.prefill:
                share = min(self.model.shape.n_layer / args.layers, 1)
                self.times.append([seconds, seconds - head * (1 - share), seconds - head])
            print(line, flush=True)
        self.rounds.append(statistics.median(self.speeds[-args.repeat :]))


def run(session: ds4.Session, ids: np.ndarray, at_once: bool) -> float:
    """Return the seconds of some tokens, computed one after another or as a prompt."""
    start = time.perf_counter()
    if at_once:
        session.eval(ids)
    else:
        for token in ids:
            session.eval([int(token)])
    return time.perf_counter() - start


def peer_speed(args: argparse.Namespace) -> float:
    """Return the tokens a second of the other program."""
    forget(args.model)
    command = [args.peer, "-m", args.model, "-p", "0", "-n", str(args.tokens), "-r", str(args.repeat), "-o", "json"]
    command += ["-lm", "mmap", "--no-warmup"] + ([] if args.threads is None else ["-t", str(args.threads)])
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    samples = json.loads(done.stdout)[0]["samples_ts"]
    print(f"peer        : {', '.join(f'{s:.2f}' for s in samples)} tokens/s", flush=True)
    return statistics.median(samples)


def raw_speeds(args: argparse.Namespace, plan: ExpertPlan, reads: ReadOptions) -> list[float]:
    """Print what the disk gives; returns the bytes a second of experts, of their reads, and of long reads."""
    file_bytes = os.stat(args.model).st_size
    sizes = {plan.slot_bytes: "an expert"}
    sizes.setdefault(plan.read_bytes, "one read of it")
    sizes[min(LONG_READ, file_bytes // 2)] = "long ranges"
    medians = []
    for n_bytes, name in sizes.items():
        count = max(int(min(1.5e9, 8 * file_bytes) / n_bytes), 8)
        speeds = [measure_reads(args.model, n_bytes, count, reads=reads, seed=seed) for seed in (1, 2, 3)]
        medians.append(statistics.median(speeds))
        print(f"raw reads of {name}, {n_bytes} bytes: " + ", ".join(f"{s / 1e9:.2f}" for s in speeds) + " GB/s")
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--slots", nargs="+", default=["64"])
    parser.add_argument("--tokens", type=int, default=30)
    parser.add_argument("--prefill", type=int, default=0, metavar="N")
    parser.add_argument("--chunk", type=int, metavar="N")
    parser.add_argument("--warm", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--together", action="store_true", help="keep all variants open at once")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--io", choices=["auto", "io_uring", "threads"], default="auto")
    parser.add_argument("--guesses", choices=["yes", "no", "both"], default="yes", help="of the next layer's experts")
    parser.add_argument("--layers", type=int, default=43, help="of the model whose share of the head is told")
    parser.add_argument("--memory", type=parse_size, metavar="SIZE")
    parser.add_argument("--peer", metavar="PROGRAM")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    reads = ReadOptions(io=args.io, depth=args.depth)
    plan = expert_plan([args.model])
    with_guesses = {"yes": (True,), "no": (False,), "both": (True, False)}[args.guesses]
    variants = [Variant(text, plan, guess) for text in args.slots for guess in with_guesses]
    print(
        f"{show_size(plan.resident_bytes)} of other weights, {plan.n_experts} experts of {show_size(plan.slot_bytes)}"
    )
    speeds = raw_speeds(args, plan, reads)
    raw = speeds[-1]
    peer = []
    with nullcontext() if args.memory is None else small_memory(args.memory):
        if args.memory is not None:
            print(f"{show_size(args.memory)} of memory are left")
        for variant in variants if args.together else []:
            variant.start(args, reads)
        for i in range(args.rounds):
            for variant in variants[:: 1 if i % 2 == 0 else -1]:
                if not args.together:
                    variant.start(args, reads)
                variant.measure(args, (args.seed, 1 + i))
                if not args.together:
                    variant.stop()
            if args.peer is not None:
                peer.append(peer_speed(args))
    for variant in variants:
        speed = statistics.median(variant.speeds)
        line = (
            f"{variant.name}: median {speed:.2f} tokens/s, {compared(variant.rounds, variants[0].rounds)} of the first"
        )
        if variant.times:
            needed = next(v for v in reversed(variants) if v.slots == variant.slots).file_bytes
            parts = np.median(
                [[n / t / speeds[0] for t in s] for n, s in zip(needed, variant.times, strict=True)], axis=0
            )
            line += f"; of the raw disk {parts[0]:.1%}, {parts[1]:.1%} with the head of {args.layers} layers, "
            line += f"{parts[2]:.1%} without the head"
        if peer:
            line += f", {compared(variant.rounds, peer)} of the peer"
        if args.prefill and variant.slots and not variants[0].slots:
            # The slower of the disk and of the computation without streaming.
            disk = raw * args.prefill / max(1, statistics.median(variant.file_bytes))
            bound = [min(speed, disk) for speed in variants[0].rounds]
            line += f", {compared(variant.rounds, bound)} of what disk ({raw / 1e9:.2f} GB/s) or computation allow"
        print(line)


def compared(speeds: Sequence[float], others: Sequence[float]) -> str:
    """Return the ratio of speeds of the same rounds: the median, in brackets the extremes."""
    ratios = sorted(a / b for a, b in zip(speeds, others, strict=True))
    return f"{statistics.median(ratios):.3f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


if __name__ == "__main__":
    main()
