"""The entry point of ``ds4``.

Exit codes: 0 done, 1 the work failed, 2 the command line is wrong, 130 ended by Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ds4`` and return its exit code."""
    try:
        # Imported here: Ctrl-C while the libraries are being loaded is no traceback either.
        from .program import run

        return run(argv)
    except KeyboardInterrupt:
        print("ds4: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
