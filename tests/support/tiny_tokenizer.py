"""The tokenizer.json of the tiny vocabulary."""

from __future__ import annotations

from typing import Any

from ds4 import tokenizer_json

from .tiny_gguf import FIRST_MERGE, vocabulary


def tokenizer_document(size: int = 512) -> dict[str, Any]:
    """The tokenizer.json of the tiny vocabulary."""
    tokens, types, merges = vocabulary(size)
    n_base = FIRST_MERGE + len(merges)
    added = [
        {
            "id": i,
            "content": tokens[i],
            "special": types[i] == 3,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
        }
        for i in (*range(3), *range(n_base, size))
    ]
    splits = [
        {"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": False}
        for cut in tokenizer_json._CUTS
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, byte_level]},
        "model": {"type": "BPE", "vocab": {tokens[i]: i for i in range(n_base)}, "merges": merges},
    }
