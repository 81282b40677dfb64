"""Measure a conversion: time, rate, and the peak of memory of the process that does it.

usage: python benchmarks/convert.py CHECKPOINT OUT [options of ds4 convert]

    python benchmarks/make_checkpoint.py checkpoint
    python benchmarks/convert.py checkpoint out.gguf --recipe mxfp4

Peak memory is that of the kernel's account of the child (resident, with the pages of mapped files). Results go to
standard output as one JSON object; the file stays.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    if len(sys.argv) < 3 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    begin = time.monotonic()
    command = [sys.executable, "-m", "ds4", "convert", *sys.argv[1:]]
    _, status, usage = os.wait4(os.posix_spawn(command[0], command, dict(os.environ)), 0)
    seconds = time.monotonic() - begin
    code = os.waitstatus_to_exitcode(status)
    if code:
        sys.exit(f"ds4 convert ended with code {code}")
    read = sum(file.stat().st_size for file in source.glob("*.safetensors"))
    report = {
        "options": sys.argv[3:],
        "read_gb": round(read / 1e9, 3),
        "written_gb": round(out.stat().st_size / 1e9, 3),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "read_mb_per_second": round(read / 1e6 / seconds, 1),
        "peak_memory_mb": round(usage.ru_maxrss * 1024 / 1e6, 1),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
