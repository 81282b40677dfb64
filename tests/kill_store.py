"""Kill processes that save into a store, at random moments, and look at what is left.

::

    python tests/kill_store.py --rounds 1000
    python tests/kill_store.py --rounds 1000 --seed 7 --directory /mnt/disk

A round lets one or two processes save, load, add tool calls and make room until they are killed (SIGKILL) after 0 to
`--longest` milliseconds. Then a store is opened as after a restart, and

* every file that has a name is sound, to the last byte, and loads as exactly the state that was saved;
* nothing was put aside, and nothing is left in tmp/;
* every state whose save had returned is there, except in the rounds whose budget is small;
* the files take no more than the budget.

Exit code 0 when all rounds passed, 1 otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from ds4.kvstore import Hit, KVStore, Retention, session_settings
from ds4.kvstore.files import verify
from support.stored_session import PlainSession

ROOMY = {"budget_bytes": 1 << 40, "retention": Retention(lineage=1 << 30)}
TIGHT = {"budget_bytes": 150_000}


def session_of(key: bytes) -> PlainSession:
    """The state that a key leads to: a text and its turns have the tokens of their digests."""
    tokens: list[int] = []
    for part in key.split(b"/"):
        digest = hashlib.sha256(part).digest()
        tokens += [b << 8 for b in digest] * (1 + digest[0] % 3)
    return PlainSession(tokens, row_bytes=1 + tokens[0] // 512, tail_bytes=2000)


def key_of(rng: random.Random) -> bytes:
    return b"/".join(b"%d" % rng.randrange(6) for _ in range(rng.randrange(1, 6)))


def find(store: KVStore, key: bytes) -> Hit | None:
    session = PlainSession()
    return store.lookup(key, model=session.model.fingerprint, settings=session_settings(session), n_ctx=1 << 20)


def work(directory: Path, seed: int, told: int, options: dict[str, object]) -> None:
    """Use a store until killed; tell each key whose save has returned."""
    logging.disable(logging.CRITICAL)
    rng = random.Random(seed)
    store = KVStore(directory, **options)  # type: ignore[arg-type]
    while True:
        key = key_of(rng)
        reason = rng.choice(["cold", "evict", "continued"])
        blocks = {f"call {rng.randrange(100)}": "text" * rng.randrange(50)} if rng.random() < 0.3 else {}
        if store.save(session_of(key), key, reason=reason, tool_blocks=blocks) is not None:
            os.write(told, key + b"\n")
        hit = find(store, key_of(rng))
        if hit is not None:
            with hit:
                hit.load(PlainSession())


def start(directory: Path, seed: int, options: dict[str, object]) -> tuple[int, int]:
    """Start a process; return its id and where its keys can be read."""
    listen, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(listen)
            work(directory, seed, told, options)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(told)
    return child, listen


def end(child: int, listen: int) -> set[bytes]:
    """Kill a process and return the keys it told of."""
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with os.fdopen(listen, "rb") as f:
        told = f.read()
    if not os.WIFSIGNALED(status):
        raise SystemExit("a process ended by itself")
    return set(told[: told.rfind(b"\n") + 1].split())


class UnsoundStoreError(Exception):
    """What should not be."""


def inspect(directory: Path, wanted: set[bytes], options: dict[str, object], checked: dict[str, int]) -> int:
    """Open the store as after a restart, and check it; return the number of states.

    Raises
    ------
    UnsoundStoreError
        Something is wrong.
    """
    wrong = []
    with KVStore(directory, **options) as store:  # type: ignore[arg-type]
        for path in sorted(directory.iterdir()):
            if path.suffix in (".state", ".rows") and checked.get(path.name) != path.stat().st_ino:
                try:
                    verify(path)
                except ValueError as error:
                    wrong.append(f"{path.name}: {error}")
                checked[path.name] = path.stat().st_ino
        for key in sorted(wanted):
            hit = find(store, key)
            if hit is None:
                wrong.append(f"nothing is found for {key!r}")
                continue
            with hit:
                session = PlainSession()
                hit.load(session)
                if hit.key != key and options is ROOMY:
                    wrong.append(f"{key!r} is lost, {hit.key!r} is there")
                elif session.tokens != session_of(hit.key).tokens:
                    wrong.append(f"{key!r} has other tokens")
        entries = store.entries()
        for entry in entries if options is TIGHT else []:
            for key in {k for k in ALL_KEYS if len(k) == entry.n_key}:
                hit = find(store, key)
                if hit is not None:
                    with hit:
                        hit.load(PlainSession())
        stats = store.stats()
        if stats.put_aside or any((directory / "quarantine").iterdir()):
            wrong.append("files were put aside")
        if stats.n_bytes > stats.budget_bytes:
            wrong.append(f"{stats.n_bytes} bytes in a budget of {stats.budget_bytes}")
    if any((directory / "tmp").iterdir()):
        wrong.append("something is left in tmp/")
    if wrong:
        raise UnsoundStoreError("\n  ".join(wrong))
    return len(entries)


ALL_KEYS = [b"%d/%d" % (a, b) for a in range(6) for b in range(6)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=float, default=60.0, metavar="MS")
    parser.add_argument("--directory", type=Path, help="where to work; default: the directory for temporary files")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    top = Path(tempfile.mkdtemp(prefix="kill-store-", dir=options.directory))
    begin, n_told, n_states = time.monotonic(), 0, 0
    saved: set[bytes] = set()
    checked: dict[str, int] = {}
    try:
        for n in range(options.rounds):
            tight = n % 3 == 2
            directory, kind = (top / "tight", TIGHT) if tight else (top / "roomy", ROOMY)
            if n % 150 == 0 and not tight:  # from an empty directory, now and then
                shutil.rmtree(directory, ignore_errors=True)
                saved.clear()
                checked.clear()
            both = [start(directory, rng.randrange(1 << 32), kind) for _ in range(1 + (n % 5 == 4))]
            told: set[bytes] = set()
            for child, listen in both:
                time.sleep(rng.uniform(0, options.longest / 1000))
                told |= end(child, listen)
            n_told += len(told)
            saved |= set() if tight else told
            try:
                n_states = max(n_states, inspect(directory, set() if tight else saved, kind, {} if tight else checked))
            except UnsoundStoreError as error:
                print(f"round {n}, {'tight' if tight else 'roomy'}:\n  {error}", file=sys.stderr)
                return 1
    finally:
        shutil.rmtree(top)
    seconds = time.monotonic() - begin
    print(f"{options.rounds} rounds, {n_told} saves returned, at most {n_states} states, {seconds:.0f} s: all sound")
    return 0


if __name__ == "__main__":
    sys.exit(main())
