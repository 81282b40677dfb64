"""tokenizer.json of a checkpoint: the table of the file, or a message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ds4.quantize import CheckpointError
from ds4.quantize.hfconfig import read_shape
from ds4.quantize.hftokenizer import tokenizer_keys
from support.synthetic_checkpoint import CONFIGS
from support.tiny_gguf import vocabulary
from support.tiny_tokenizer import tokenizer_document

SHAPE = read_shape(CONFIGS["test-flash"])
STRANGE: tuple[Any, ...] = (None, True, -1, 1 << 70, 1.5, float("nan"), "", "\ud800", [], [1], [[]], {}, {"a": 1})


def _keys(folder: Path, document: Any) -> dict[str, Any]:
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return {record.key: record.value for record in tokenizer_keys(folder, SHAPE)}


def test_the_table_is_that_of_the_tiny_models(tmp_path: Path) -> None:
    keys = _keys(tmp_path, tokenizer_document())
    tokens, types, merges = vocabulary()
    assert keys["tokenizer.ggml.tokens"] == tokens
    assert keys["tokenizer.ggml.token_type"] == types
    assert keys["tokenizer.ggml.merges"] == merges
    assert (keys["tokenizer.ggml.bos_token_id"], keys["tokenizer.ggml.eos_token_id"]) == (0, 1)


@pytest.mark.parametrize("lost", [1, 3])
def test_fewer_tokens_than_the_model_has(tmp_path: Path, lost: int) -> None:
    """L011: the last tokens are missing; both numbers are told."""
    document = tokenizer_document()
    document["added_tokens"] = [token for token in document["added_tokens"] if token["id"] < 512 - lost]
    with pytest.raises(CheckpointError, match=rf"{512 - lost} tokens, but config\.json has vocab_size 512"):
        _keys(tmp_path, document)


@pytest.mark.parametrize("change", ["no merges", "no tokens", "a gap"])
def test_arrays_that_do_not_fit_each_other(tmp_path: Path, change: str) -> None:
    """L010: merges, tokens and kinds of tokens belong together."""
    document = tokenizer_document()
    if change == "no merges":
        document["model"]["merges"] = []
    elif change == "no tokens":
        document["model"]["vocab"], document["added_tokens"] = {}, []
    else:
        document["added_tokens"] = [token for token in document["added_tokens"] if token["id"] != 500]
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: "):
        _keys(tmp_path, document)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    few = list(items)[:3] if path[-1:] in (("vocab",), ("merges",), ("added_tokens",)) else list(items)
    return [place for key, inner in few for place in ((*path, key), *_places(inner, (*path, key)))]


def test_strange_values(tmp_path: Path) -> None:
    """Every place of the document with every strange value: accepted, or refused with the name of the file."""
    text = json.dumps(tokenizer_document())
    refused = 0
    for place in _places(tokenizer_document()):
        for value in STRANGE:
            document = json.loads(text)
            inner = document
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = value
            try:
                _keys(tmp_path, document)
            except CheckpointError as error:
                assert "tokenizer.json" in str(error)
                refused += 1
    assert refused > 300


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    for raw in (b"", b"{", b"\xff", b"[]", b'{"model": 1}', b"[" * 100_000):
        (tmp_path / "tokenizer.json").write_bytes(raw)
        with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
            tokenizer_keys(tmp_path, SHAPE)
