"""Make this machine small for the time of a command.

    python benchmarks/small_memory.py 6GiB llama-bench -m flash.gguf -p 0 -n 32 -lm mmap

A second process takes memory and locks it until only so much is available; then the command runs, and its pages of
files compete for the rest as they would on a smaller machine. It is a stand-in for a control group, for systems where
none can be made: the limit holds for all programs together, and what the command takes for itself comes out of it.
Locking needs root or a limit (ulimit -l) that allows it. Less than 4 GiB is refused, because other programs would be
killed; should the memory end all the same, the process that holds it goes first.
"""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ds4.budget import available_memory, parse_size, show_size

LEAST = 4 << 30
_STEP = 64 << 20


def _available() -> int:
    found = available_memory()
    if found is None:
        raise SystemExit("this system does not tell how much memory is available")
    return found


def check_limit(limit: int) -> None:
    """Refuse a limit that is dangerous, or no limit."""
    if limit < LEAST:
        raise SystemExit(f"{show_size(limit)} is too little for the other programs; at least {show_size(LEAST)}")
    if limit > _available():
        raise SystemExit(f"only {show_size(_available())} are available")


def hold(limit: int) -> None:
    """Take memory until only `limit` is available, say so, and keep it until standard input ends."""
    Path("/proc/self/oom_score_adj").write_text("1000")
    libc = ctypes.CDLL(None, use_errno=True)
    held = []
    while _available() - _STEP > limit:
        block = mmap.mmap(-1, _STEP)
        address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        if libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(_STEP)):  # touches every page
            raise SystemExit(f"memory cannot be locked (errno {ctypes.get_errno()}); see ulimit -l")
        held.append(block)
    print(f"ready {len(held) * _STEP}", flush=True)
    sys.stdin.read()


@contextmanager
def small_memory(limit: int) -> Iterator[int]:
    """Leave only `limit` bytes available; gives the bytes that were taken for that."""
    check_limit(limit)
    command = [sys.executable, __file__, "--hold", str(limit)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            word, _, taken = child.stdout.readline().partition(" ")
            if word != "ready":
                raise SystemExit("the memory could not be taken")
            yield int(taken)
            if child.poll() is not None:
                raise SystemExit("the memory ran out and the limit with it: what was measured means nothing")
        finally:
            child.kill()


def main() -> int:
    if len(sys.argv) == 3 and sys.argv[1] == "--hold":
        hold(int(sys.argv[2]))
        return 0
    if len(sys.argv) < 3:
        print(__doc__)
        return 2
    with small_memory(parse_size(sys.argv[1])) as taken:
        print(f"{show_size(taken)} are held, {show_size(_available())} are available", file=sys.stderr)
        start = time.perf_counter()
        code = subprocess.run(sys.argv[2:], check=False).returncode
        print(f"{time.perf_counter() - start:.1f} s", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
