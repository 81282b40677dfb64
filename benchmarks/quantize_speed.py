"""Speed of the quantizers, one thread, next to those of llama.cpp (ggml) on the same data.

Every type is encoded by ds4 in each CPU variant that this machine has, and by ggml's own function when `--ggml` names
its library; benchmarks/README.md says how to build one. Rounds alternate between all of them, and the median counts.
Time is that of the processor, not of the clock, so that other programs disturb little.

    python benchmarks/quantize_speed.py --ggml PATH/libggml-base.so
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import ds4
import numpy as np
from ds4 import gguf
from numpy.typing import NDArray

CASES = [
    ("Q8_0", False),
    ("MXFP4", False),
    ("Q2_K", False),
    ("Q2_K", True),
    ("Q4_K", False),
    ("Q4_K", True),
    ("IQ2_XXS", True),
]
VARIANTS = ["base", "avx2", "avx512"]
WIDTH = 4096

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass
class Result:
    """Speed of one encoder.

    Attributes
    ----------
    type : str
        Tensor type, with "+w" when importance was given.
    encoder : str
        A CPU variant of ds4, or "ggml".
    values_per_second : float
        Of the median round.
    ratio : float or None
        To ggml's speed.
    equal_blocks : float or None
        Share of blocks that are the same bytes as ggml's.
    """

    type: str
    encoder: str
    values_per_second: float
    ratio: float | None = None
    equal_blocks: float | None = None


class Ggml:
    """ggml's quantizer in a shared library.

    Parameters
    ----------
    path : path-like
        libggml-base.so.
    """

    def __init__(self, path: Path) -> None:
        lib = ctypes.CDLL(str(path))
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        self._chunk = lib.ggml_quantize_chunk
        self._chunk.argtypes = [ctypes.c_int, pointer, pointer, count, count, count, pointer]
        self._chunk.restype = ctypes.c_size_t
        init = lib.ggml_quantize_init
        init.argtypes = [ctypes.c_int]
        for name, _ in CASES:
            init(gguf.type_info(name).id)

    def encode(self, name: str, rows: Floats, weights: Floats | None) -> Bytes:
        """Return the stored bytes of rows."""
        info = gguf.type_info(name)
        out = np.empty(info.n_bytes(rows.size), np.uint8)
        address = None if weights is None else weights.ctypes.data
        done = self._chunk(info.id, rows.ctypes.data, out.ctypes.data, 0, *rows.shape, address)
        if done != out.size:
            raise SystemExit(f"ggml wrote {done} bytes of {name}, not {out.size}")
        return out


def encode_here(name: str, rows: Floats, weights: Floats | None) -> Bytes:
    """Return the stored bytes of rows, by ds4."""
    return np.frombuffer(gguf.quantize(name, rows, weights), np.uint8)


def available_variants() -> list[str]:
    """CPU variants that this machine has."""
    found = []
    for name in VARIANTS:
        try:
            ds4.set_cpu_isa(name)
        except ds4.BackendUnavailableError:
            break
        found.append(name)
    ds4.set_cpu_isa("auto")
    return found


def measure(
    name: str, weighted: bool, rows: Floats, weights: Floats, ggml: Ggml | None, rounds: int, variants: list[str]
) -> list[Result]:
    """Measure every encoder of one type."""
    given = weights if weighted else None
    encoders: dict[str, Callable[[], Bytes]] = {v: lambda: encode_here(name, rows, given) for v in variants}
    if ggml is not None:
        encoders["ggml"] = lambda: ggml.encode(name, rows, given)
    times: dict[str, list[float]] = {encoder: [] for encoder in encoders}
    stored: dict[str, Bytes] = {}
    for turn in range(rounds + 1):
        for encoder, run in encoders.items():
            if encoder != "ggml":
                ds4.set_cpu_isa(encoder)
            start = time.thread_time()
            stored[encoder] = run()
            if turn:  # the first round fills caches and tables
                times[encoder].append(time.thread_time() - start)
    ds4.set_cpu_isa("auto")
    size = gguf.type_info(name).block_bytes
    for encoder in variants[1:]:
        if not np.array_equal(stored[encoder], stored[variants[0]]):
            raise SystemExit(f"{name}: {encoder} and {variants[0]} disagree")
    label = name + "+w" * weighted
    speeds = {encoder: rows.size / statistics.median(t) for encoder, t in times.items()}
    results = []
    for encoder in encoders:
        result = Result(label, encoder, speeds[encoder])
        if ggml is not None and encoder != "ggml":
            result.ratio = speeds[encoder] / speeds["ggml"]
            same = (stored[encoder] == stored["ggml"]).reshape(-1, size).all(1)
            result.equal_blocks = float(same.mean())
        results.append(result)
    return results


def print_table(results: list[Result]) -> None:
    """Print results as a Markdown table: a row a type, a column an encoder."""
    by_type: dict[str, dict[str, Result]] = {}
    for result in results:
        by_type.setdefault(result.type, {})[result.encoder] = result
    encoders = list(next(iter(by_type.values())))
    print("| type | " + " | ".join(encoders) + " | equal blocks |")
    print("|---|" + "--:|" * (len(encoders) + 1))
    for label, row in by_type.items():
        cells = []
        for encoder in encoders:
            result = row[encoder]
            text = f"{result.values_per_second / 1e6:.1f}"
            cells.append(text if result.ratio is None else f"{text} ({result.ratio:.2f}x)")
        equal = row[encoders[0]].equal_blocks
        print(f"| {label} | " + " | ".join(cells) + (" | - |" if equal is None else f" | {100 * equal:.2f} % |"))
    print("\nMillion values per second, one thread; in brackets the ratio to ggml.")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ggml", type=Path, metavar="FILE", help="llama.cpp's libggml-base.so to compare with")
    parser.add_argument("--rows", type=int, default=64, help=f"rows of {WIDTH} values (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds whose median counts (default: %(default)s)")
    parser.add_argument("--types", default="", metavar="LIST", help="only these, such as Q2_K+w,IQ2_XXS+w")
    parser.add_argument("--json", metavar="FILE", help='also write the results as JSON; "-" in place of the table')
    options = parser.parse_args()
    if options.rows < 1 or options.rounds < 1:
        parser.error("--rows and --rounds must be at least 1")
    known = {name + "+w" * weighted: (name, weighted) for name, weighted in CASES}
    wanted = options.types.split(",") if options.types else list(known)
    for label in wanted:
        if label not in known:
            parser.error(f"unknown type {label}; known are {', '.join(known)}")

    rng = np.random.default_rng(1)
    rows = (rng.standard_normal((options.rows, WIDTH)) * 0.02).astype(np.float32)
    weights = np.exp(rng.standard_normal(WIDTH) * 1.5).astype(np.float32)
    ggml = None if options.ggml is None else Ggml(options.ggml)
    variants = available_variants()
    results: list[Result] = []
    for label in wanted:
        results += measure(*known[label], rows, weights, ggml, options.rounds, variants)
    text = json.dumps([asdict(r) for r in results], indent=1)
    if options.json != "-":
        print_table(results)
        if options.json:
            Path(options.json).write_text(text + "\n", encoding="utf-8")
    else:
        sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
