"""Reading of tokenizer.json files: what is taken over, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ds4 import tokenizer_json
from ds4.tokenizer import BYTE_CHARS, BYTE_ORDER
from ds4.tokenizer_json import read_tokenizer_json

ADDED = [
    ("<｜begin▁of▁sentence｜>", True),
    ("<｜end▁of▁sentence｜>", True),
    ("<｜▁pad▁｜>", True),
    ("<｜User｜>", False),
    ("<｜Assistant｜>", False),
    ("<think>", False),
    ("</think>", False),
    ("｜DSML｜", False),
    ("<｜latest_reminder｜>", False),
]


def document(merges: list[Any] | None = None) -> dict[str, Any]:
    pairs: list[Any] = ["h e", "Ġ t"] if merges is None else merges
    vocab = {content: i for i, (content, _) in enumerate(ADDED[:3])}
    vocab |= {BYTE_CHARS[byte]: 3 + i for i, byte in enumerate(BYTE_ORDER)}
    vocab |= {"he": 259, "Ġt": 260}
    ids = [0, 1, 2, *range(261, 261 + len(ADDED) - 3)]
    added = [
        {"id": i, "content": content, "special": special, "single_word": False, "lstrip": False, "rstrip": False}
        for i, (content, special) in zip(ids, ADDED, strict=True)
    ]
    splits = [
        {"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": False}
        for cut in tokenizer_json._CUTS
    ]
    return {
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*splits, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}],
        },
        "model": {"type": "BPE", "vocab": vocab, "merges": pairs},
    }


def write(path: Path, data: Any) -> Path:
    file = path / "tokenizer.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    return file


@pytest.mark.parametrize("merges", [["h e", "Ġ t"], [["h", "e"], ["Ġ", "t"]]])
def test_both_forms_of_merges_are_read(tmp_path: Path, merges: list[Any]) -> None:
    table = read_tokenizer_json(write(tmp_path, document(merges)))
    assert table.merges == ["h e", "Ġ t"]
    assert table.tokens[259:262] == ["he", "Ġt", "<｜User｜>"]
    assert table.token_type[:4] == [3, 3, 3, 1]
    assert table.token_type[261:] == [3, 3, 4, 4, 4, 3]
    assert (table.bos_id, table.eos_id, table.pad_id, table.pre) == (0, 1, 1, "joyai-llm")
    assert table.tokenizer().decode(table.tokenizer().encode("he the")) == "he the"


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(data: Any) -> None:
        *heads, last = path.split("/")
        for head in heads:
            data = data[int(head) if head.isdigit() else head]
        data[int(last) if last.isdigit() else last] = value

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change("model/type", "Unigram"), "its model is 'Unigram'"),
        (change("model/byte_fallback", True), "sets byte_fallback"),
        (change("normalizer", {"type": "NFC"}), "normalizer of type 'NFC'"),
        (change("pre_tokenizer", {"type": "ByteLevel"}), "has 0 steps, not the 4"),
        (change("pre_tokenizer/pretokenizers/0/pattern/Regex", r"\p{N}"), "step 0"),
        (change("pre_tokenizer/pretokenizers/1/behavior", "Removed"), "step 1"),
        (change("pre_tokenizer/pretokenizers/3/add_prefix_space", True), "last step"),
        (change("added_tokens/4/lstrip", True), "has lstrip"),
        (change("added_tokens/4/id", 4), "the id 4 belongs to"),
        (change("added_tokens/4/id", 261), "the id 261 belongs to"),
        (change("added_tokens/4/id", 999), "none with the id 262"),
        (change("added_tokens/1/content", "<eos>"), "the id 1 belongs to"),
        (change("model/vocab/he", 260), "the id 260 belongs to"),
        (change("model/merges", ["h e"]), "token 260 is not an added token"),
        (lambda d: d["added_tokens"].append({"id": 259, "content": "he"}), "token 259 is an added token"),
        (change("model", None), "tokenizer.json"),
    ],
)
def test_what_differs_from_v4_is_refused(
    tmp_path: Path, damage: Callable[[dict[str, Any]], None], message: str
) -> None:
    data = document()
    damage(data)
    with pytest.raises(ValueError, match=message):
        read_tokenizer_json(write(tmp_path, data))


@pytest.mark.parametrize("data", [[], "x", {}, {"model": {}}])
def test_other_json_is_refused_with_the_file_named(tmp_path: Path, data: Any) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json: "):
        read_tokenizer_json(write(tmp_path, data))


def test_broken_json_and_missing_files(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    with pytest.raises(FileNotFoundError):
        read_tokenizer_json(file)
    file.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json: "):
        read_tokenizer_json(file)
    file.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json: "):
        read_tokenizer_json(file)
