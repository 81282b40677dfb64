"""What the conformance program reads: tiny models and the prompts and logits of the golden data, as plain binary.

    python -m support.conformance FOLDER      (with tests/ on PYTHONPATH)

writes ``flash.gguf`` (F32) and one file for each mix of published quantized files, ``<recipe>.gguf``, and ``prompts``:
for each prompt u32 tokens n, rows k, vocabulary v; i32 tokens [n], positions [k]; f32 logits [k, v].
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from support.golden import load_golden
from support.tiny_gguf import RECIPES, write_tiny_gguf

LENGTHS = (5, 129)
QUANTIZED = ("ds4-q2", "ds4-q4", "llama-mxfp4")
"""Together they have every weight type with 8-bit activations."""


def write_prompts(path: Path) -> None:
    golden = load_golden("flash")
    with path.open("wb") as file:
        for length in LENGTHS:
            prompt = golden.prompts[length]
            head = np.array([length, *prompt.logits.shape], np.uint32)
            for part in (head, prompt.tokens.astype(np.int32), prompt.positions.astype(np.int32)):
                file.write(part.tobytes())
            file.write(prompt.logits.astype(np.float32).tobytes())


def write_conformance_data(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_prompts(folder / "prompts")
    write_tiny_gguf(folder / "flash.gguf", "flash", part="main")
    for recipe in QUANTIZED:
        write_tiny_gguf(folder / f"{recipe}.gguf", "flash", part="main", types=RECIPES[recipe])


if __name__ == "__main__":
    write_conformance_data(Path(sys.argv[1]))
