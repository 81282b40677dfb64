"""What expert streaming gives beside the disk below it, in one run.

    python benchmarks/expert_streaming.py flash.gguf --slots 1 64 256 --tokens 30

First the raw disk: reads of the size of an expert from random places, as many at a time. Then for each number of
slots one token after another, of random ids, so that hash-routed layers choose evenly: tokens a second, hits,
bytes, the speed of the disk over the whole time and while anything was being read, and the part of the time that
was waited. Slots 0 is the mapped file, for the speed of the computation alone: give it when the file fits the
memory.
"""

from __future__ import annotations

import argparse
import time

import ds4
import numpy as np
from ds4.experts import ReadOptions
from ds4.model import measure_reads


def decode(session: ds4.Session, n: int, n_vocab: int, rng: np.random.Generator) -> float:
    """Return the seconds of n tokens."""
    ids = rng.integers(0, n_vocab, n)
    start = time.perf_counter()
    for token in ids:
        session.eval([int(token)])
    return time.perf_counter() - start


def run(path: str, slots: int, args: argparse.Namespace, reads: ReadOptions, slot_bytes: int) -> None:
    rng = np.random.default_rng(args.seed)
    start = time.perf_counter()
    model = ds4.Model.open(path, expert_cache=slots * slot_bytes or None, reads=reads)
    opened = time.perf_counter() - start
    with model, model.session(n_ctx=4096, threads=args.threads) as session:
        decode(session, args.warm, model.shape.n_vocab, rng)
        for _ in range(args.repeat):
            before = model.expert_stats() if slots else None
            use = session.expert_use()
            seconds = decode(session, args.tokens, model.shape.n_vocab, rng)
            line = f"{slots:6} slots: {args.tokens / seconds:7.2f} tokens/s"
            if before is not None:
                after, use = model.expert_stats(), session.expert_use().minus(use)
                n_bytes, busy = after.read_bytes - before.read_bytes, (after.busy_ns - before.busy_ns) * 1e-9
                line += (
                    f", hits {use.hits / use.asked:4.0%}, {n_bytes / 1e9:6.2f} GB, {n_bytes / 1e9 / seconds:5.2f} GB/s"
                )
                line += f" ({n_bytes / 1e9 / busy:5.2f} while reading)" if busy else ""
                line += f", waited {use.wait_ns * 1e-9 / seconds:4.0%}"
            print(line + f"  [opened in {opened:.1f} s]", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--slots", type=int, nargs="+", default=[64])
    parser.add_argument("--tokens", type=int, default=30)
    parser.add_argument("--warm", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--io", choices=["auto", "io_uring", "threads"], default="auto")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    reads = ReadOptions(io=args.io, depth=args.depth)
    with ds4.Model.open(args.model, expert_cache=1 << 28, reads=reads) as model:
        stats = model.expert_stats()
    size = max(block.expert_bytes for block in stats.blocks)
    for name, n_bytes in (("an expert", size), ("a third of one", size // 3 // 4096 * 4096)):
        count = max(int(2e9 / n_bytes), 8)
        speeds = [measure_reads(args.model, n_bytes, count, reads=reads, seed=seed) for seed in (1, 2, 3)]
        print(f"raw reads of {name}, {n_bytes} bytes: " + ", ".join(f"{s / 1e9:.2f}" for s in speeds) + " GB/s")
    for slots in args.slots:
        run(args.model, slots, args, reads, stats.slot_bytes)


if __name__ == "__main__":
    main()
