#!/usr/bin/env python3
"""Write src/ds4core/quant/iq2_xxs_grid.inc from the PyPI package "gguf".

The grid cannot be computed from a rule: it is data of the block format, made by the ggml authors (MIT license, see
NOTICE). Each row of 8 magnitudes 8, 25 or 43 becomes one 16-bit key, two bits a value. The result must have the known
SHA-256; a package that ships another grid is refused.

usage: python scripts/make_iq2_grid.py [--check]     (needs: pip install gguf)
"""

import argparse
import hashlib
import pathlib
import sys

import numpy as np
from gguf.quants import IQ2_XXS

KEYS_SHA256 = "915952ebc4af8ddba8113583ca1316fc818843f7b825bbf1a25ae1c39bf0e16d"
TARGET = pathlib.Path(__file__).resolve().parent.parent / "src/ds4core/quant/iq2_xxs_grid.inc"


def grid_keys():
    """The 256 keys as u16: sum of level << 2 * position, levels 0, 1, 2."""
    IQ2_XXS.init_grid()
    magnitudes = np.asarray(IQ2_XXS.grid).reshape(256, 8).astype(np.int64)
    levels = np.searchsorted([8, 25, 43], magnitudes)
    keys = (levels << (2 * np.arange(8))).sum(1).astype("<u2")
    digest = hashlib.sha256(keys.tobytes()).hexdigest()
    if digest != KEYS_SHA256:
        sys.exit(f"the grid of this gguf package has SHA-256 {digest}, expected {KEYS_SHA256}")
    return keys


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    args = parser.parse_args()
    lines = [
        "// Keys of the IQ2_XXS grid. Data of the format by the ggml authors (MIT license, see NOTICE); written by",
        "// scripts/make_iq2_grid.py, SHA-256 of the keys as little-endian u16:",
        f"// {KEYS_SHA256}",
    ]
    keys = grid_keys()
    for row in range(0, 256, 16):
        lines.append(", ".join(f"{key:5d}" for key in keys[row : row + 16]) + ",")
    text = "\n".join(lines) + "\n"
    if args.check:
        sys.exit(0 if TARGET.read_text() == text else f"{TARGET} differs from what the package gives")
    TARGET.write_text(text)


if __name__ == "__main__":
    main()
