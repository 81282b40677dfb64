"""The `tokenizer.*` keys of a GGUF file from the tokenizer.json of a checkpoint."""

from __future__ import annotations

from pathlib import Path

from ds4.gguf_writer import KV
from ds4.tokenizer_json import read_tokenizer_json

from .hfconfig import Shape
from .safetensors import CheckpointError


def tokenizer_keys(directory: Path, shape: Shape) -> list[KV]:
    """Return the tokenizer records.

    Raises
    ------
    OSError
        tokenizer.json is missing or unreadable.
    CheckpointError
        It is not V4's kind of tokenizer, or its size differs from the model's vocabulary.
    """
    path = directory / "tokenizer.json"
    try:
        table = read_tokenizer_json(path)
        table.tokenizer()  # checks the whole table: merges, bytes, protocol tokens
    except ValueError as error:
        raise CheckpointError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    if len(table.tokens) != shape.n_vocab:
        raise CheckpointError(f"{path}: {len(table.tokens)} tokens, but config.json has vocab_size {shape.n_vocab}")
    return [
        KV("tokenizer.ggml.model", "string", "gpt2"),
        KV("tokenizer.ggml.pre", "string", table.pre),
        KV("tokenizer.ggml.tokens", "[string]", table.tokens),
        KV("tokenizer.ggml.token_type", "[i32]", table.token_type),
        KV("tokenizer.ggml.merges", "[string]", table.merges),
        KV("tokenizer.ggml.bos_token_id", "u32", table.bos_id),
        KV("tokenizer.ggml.eos_token_id", "u32", table.eos_id),
        KV("tokenizer.ggml.padding_token_id", "u32", table.pad_id),
        KV("tokenizer.ggml.add_bos_token", "bool", False),
    ]
