"""What the store of session states saves: loading a state against computing it, and the bytes that it takes.

::

    python benchmarks/kvstore.py                                     # the tiny model of the package
    python benchmarks/kvstore.py -m flash.gguf -n 2048 --json out.json
    python benchmarks/kvstore.py -m flash.gguf -n 131072 --fill        # large states, without computing them

Computes N random tokens, saves the state, loads it into a new session from a new store object, and checks that the
logits of the next tokens are the same bits. Then the conversation grows by turns, each saved, to see what a turn
writes. The file cache is warm: loading after a restart of the machine waits for the disk as well. With --fill the
session holds N positions of random rows (`Session.fill`), which do not pack: for the speed of large states alone.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import ds4
import numpy as np
from ds4.kvstore import Entry, KVStore, session_settings
from ds4.kvstore.dsv4 import Dims, payload_bytes


def random_tokens(model: ds4.Model, n: int) -> list[int]:
    rng = random.Random(1)
    return [rng.randrange(model.shape.n_vocab) for _ in range(n)]


def measure(
    model: ds4.Model, n: int, turns: int, turn: int, directory: Path, options: dict[str, Any], *, fill: bool
) -> dict[str, Any]:
    tokens = random_tokens(model, n + turns * turn + 8)
    n_ctx = len(tokens) + 8
    shape = model.shape
    key = np.asarray(tokens, dtype="<i4").tobytes()
    with KVStore(directory, budget_bytes=1 << 40) as store, model.session(n_ctx=n_ctx, **options) as session:
        session.sync(tokens[: min(n, 64)])  # pages of the weights
        session.reset()
        begin = time.perf_counter()
        if fill:
            session.fill(n)
            tokens[:n] = session.tokens
        else:
            session.sync(tokens[:n])
        prefill = None if fill else time.perf_counter() - begin
        snapshot = len(session.snapshot())
        begin = time.perf_counter()
        staged = store.stage(session, key[: 4 * n], reason="cold")
        took = time.perf_counter() - begin
        assert staged is not None
        n_bytes = staged.n_bytes
        begin = time.perf_counter()
        entry = staged.commit()
        wrote = time.perf_counter() - begin
        assert entry is not None
        want = session.eval_logits(tokens[n : n + 8])
        written = []
        if turns:
            session.reset()
            session.sync(tokens[:n])
        for i in range(1, turns + 1):
            session.sync(tokens[: n + i * turn])
            before = store.stats().written_today
            grown = store.save(session, key[: 4 * (n + i * turn)], reason="evict")
            assert grown is not None
            written.append(store.stats().written_today - before)
    with KVStore(directory, budget_bytes=1 << 40) as store, model.session(n_ctx=n_ctx, **options) as session:
        settings = session_settings(session)
        loads = []
        for _ in range(3):
            session.reset()
            begin = time.perf_counter()
            hit = store.lookup(key[: 4 * n], model=model.fingerprint, settings=settings, n_ctx=n_ctx)
            assert hit is not None
            with hit:
                assert hit.load(session) == n
            loads.append(time.perf_counter() - begin)
        same = bool(np.array_equal(session.eval_logits(tokens[n : n + 8]), want))
        chained = None
        if turns:
            hit = store.lookup(key, model=model.fingerprint, settings=settings, n_ctx=n_ctx)
            assert hit is not None
            with hit:
                begin = time.perf_counter()
                hit.load(session)
                chained = {"tokens": hit.n_tokens, "files": 1 + len(hit.entry.rows), "s": time.perf_counter() - begin}
    load = min(loads)
    return {
        "model": shape.name, "tokens": n, "isa": ds4.cpu_isa(), "bit_identical": same,
        "prefill_s": prefill, "load_s": load, "times_faster": None if prefill is None else prefill / load,
        "export_s": took, "write_s": wrote, "write_mb_per_s": n_bytes / wrote / 1e6,
        "save_mb_per_s": n_bytes / (took + wrote) / 1e6, "load_mb_per_s": n_bytes / load / 1e6,
        **sizes(entry, n), "snapshot_bytes": snapshot, "f32_bytes": payload_bytes(Dims.of(shape), n),
        "turn_tokens": turn, "turn_bytes": written, "chained": chained,
    }  # fmt: skip


def sizes(entry: Entry, n: int) -> dict[str, float]:
    rows = sum(r.n_bytes for r in entry.rows)
    return {
        "state_bytes": entry.n_bytes, "rows_bytes": rows, "rows_bytes_per_token": rows / n,
        "bytes_per_token": entry.total_bytes / n,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, help="a GGUF file; default: the model of the package")
    parser.add_argument("-n", "--tokens", type=int, default=2048)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--turn-tokens", type=int, default=64)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--fill", action="store_true", help="do not compute the N positions")
    parser.add_argument("--no-qat", action="store_true")
    parser.add_argument("--directory", type=Path, help="where to put the store; default: the temporary directory")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    options = {"qat": not args.no_qat, **({"threads": args.threads} if args.threads else {})}
    top = Path(tempfile.mkdtemp(prefix="kvstore-", dir=args.directory))
    try:
        with ds4.Model.open(args.model) if args.model else ds4.Model.open_embedded() as model:
            found = measure(
                model, args.tokens, 0 if args.fill else args.turns, args.turn_tokens, top, options, fill=args.fill
            )
    finally:
        shutil.rmtree(top)
    for name, value in found.items():
        print(f"{name:22} {value:.4g}" if isinstance(value, float) else f"{name:22} {value}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
