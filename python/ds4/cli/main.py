"""The entry point of ``ds4``.

Exit codes: 0 done, 1 the work failed, 2 the command line is wrong, 130 ended by Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ds4`` and return its exit code."""
    open_streams()
    try:
        # Imported here: Ctrl-C while the libraries are being loaded is no traceback either.
        from .program import run

        return run(argv)
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            print("ds4: interrupted", file=sys.stderr, flush=True)
        return EXIT_INTERRUPTED


def bench() -> int:
    """Run ``ds4 bench`` under its own name and return its exit code."""
    return main(["bench", *sys.argv[1:]])


def evaluate() -> int:
    """Run ``ds4 eval`` under its own name and return its exit code."""
    return main(["eval", *sys.argv[1:]])


def server() -> int:
    """Run ``ds4 server`` under its own name and return its exit code."""
    return main(["server", *sys.argv[1:]])


def open_streams() -> None:
    """Give every standard stream that the caller closed an empty one, before a file can take its number.

    Otherwise the next file opened is "standard output", and what is meant for a closed stream ends up in it.
    """
    taken = [True] * 3
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            taken[fd] = False
            opened = os.open(os.devnull, os.O_RDWR)
            if opened == fd:  # the lowest free number, as all below it are in use
                os.set_inheritable(fd, True)
            else:
                os.dup2(opened, fd)
                os.close(opened)
    # Python found no stream at its start. A number in use by now belongs to something else.
    if sys.stdin is None:
        sys.stdin = open(os.devnull if taken[0] else 0, encoding="utf-8", closefd=taken[0])  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull if taken[1] else 1, "w", encoding="utf-8", closefd=taken[1])  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull if taken[2] else 2, "w", encoding="utf-8", closefd=taken[2])  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
