"""Reading of a `tokenizer.json`, the form in which the tokenizer is published, into a GGUF token table.

Only what V4's tokenizer needs is understood; anything that would make ids differ from V4's rules (another
way of cutting text, a normalizer, other BPE options) is an error rather than a guess.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .tokenizer import CONTROL, FIRST_BYTE, FIRST_MERGE, NORMAL, PRE, USER_DEFINED, Tokenizer

# The three expressions of V4's tokenizer, as published; applied one after another, each match a piece.
_CUTS = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)

_BOS = "<｜begin▁of▁sentence｜>"
_EOS = "<｜end▁of▁sentence｜>"


@dataclass(frozen=True, slots=True)
class TokenTable:
    """A token table as a GGUF file holds it.

    Parameters
    ----------
    tokens : list of str
        Normal tokens in GPT-2's byte alphabet, added ones literally.
    merges : list of str
        "left right" in the same alphabet; merge k makes token 259+k.
    token_type : list of int
        1 normal, 3 control, 4 user-defined.
    bos_id, eos_id, pad_id : int
        V4 pads with its end token.
    pre : str
        Name of the way of cutting text.
    """

    tokens: list[str]
    merges: list[str]
    token_type: list[int]
    bos_id: int
    eos_id: int
    pad_id: int
    pre: str = PRE

    def tokenizer(self) -> Tokenizer:
        """Build the tokenizer of this table."""
        return Tokenizer(
            self.tokens,
            self.merges,
            self.token_type,
            bos_id=self.bos_id,
            eos_id=self.eos_id,
            pad_id=self.pad_id,
        )


def read_tokenizer_json(path: str | os.PathLike[str]) -> TokenTable:
    """Read a token table from a `tokenizer.json`.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        The file is not JSON, not a byte-level BPE that cuts text like V4, or its ids have gaps or are taken
        twice; the text names the file and the difference.
    """
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError(f"it holds a {type(data).__name__}, not an object")
        return _table(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{os.fspath(path)}: {reason}") from error


def _table(data: Mapping[str, Any]) -> TokenTable:
    model = data["model"]
    _check_model(model)
    _check_cuts(data.get("pre_tokenizer"))
    normalizer = data.get("normalizer")
    if normalizer and normalizer.get("normalizers") != []:
        raise ValueError(f"it has a normalizer of type {normalizer.get('type')!r}; V4 has none")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    n_base = FIRST_MERGE + len(merges)

    by_id: dict[int, str] = {}
    for token, i in model["vocab"].items():
        if by_id.setdefault(i, token) != token:
            raise ValueError(f"the id {i} belongs to {by_id[i]!r} and to {token!r}")
    kinds: dict[int, int] = {}
    for entry in data["added_tokens"]:
        i, content = entry["id"], entry["content"]
        if by_id.setdefault(i, content) != content or i in kinds:
            raise ValueError(f"the id {i} belongs to {by_id[i]!r} and to the added token {content!r}")
        for option in ("single_word", "lstrip", "rstrip"):
            if entry.get(option):
                raise ValueError(f"the added token {content!r} has {option}, which V4 never uses")
        kinds[i] = CONTROL if entry.get("special") or _looks_like_control(content) else USER_DEFINED
    missing = [i for i in range(len(by_id)) if i not in by_id]
    if missing:
        raise ValueError(f"there are {len(by_id)} tokens, but none with the id {missing[0]}")
    for i in range(len(by_id)):
        if (i in kinds) == (FIRST_BYTE <= i < n_base):
            what = "is" if i in kinds else "is not"
            raise ValueError(f"token {i} {what} an added token, but those are below {FIRST_BYTE} and from {n_base} on")
    contents = {by_id[i]: i for i in kinds}
    for name in (_BOS, _EOS):
        if name not in contents:
            raise ValueError(f"the special token {name!r} is missing")
    return TokenTable(
        tokens=[by_id[i] for i in range(len(by_id))],
        merges=merges,
        token_type=[kinds.get(i, NORMAL) for i in range(len(by_id))],
        bos_id=contents[_BOS],
        eos_id=contents[_EOS],
        pad_id=contents[_EOS],
    )


def _looks_like_control(content: str) -> bool:
    return content.startswith(("<｜", "<|")) and content.endswith(("｜>", "|>"))


def _check_model(model: Mapping[str, Any]) -> None:
    if model.get("type") != "BPE":
        raise ValueError(f"its model is {model.get('type')!r}, not BPE")
    for option in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(option):
            raise ValueError(f"its model sets {option}; byte-level BPE as in V4 has none")


def _check_cuts(pre: Any) -> None:
    """Check that text is cut by V4's three expressions and then mapped byte by byte."""
    steps = pre.get("pretokenizers", []) if isinstance(pre, dict) and pre.get("type") == "Sequence" else []
    if len(steps) != len(_CUTS) + 1:
        raise ValueError(f"its pre_tokenizer has {len(steps)} steps, not the {len(_CUTS) + 1} of V4")
    for i, (step, cut) in enumerate(zip(steps, _CUTS, strict=False)):
        found = step.get("pattern", {}).get("Regex")
        if found != cut:
            raise ValueError(f"step {i} of its pre_tokenizer is {found!r}, not {cut!r}")
        if step.get("behavior") != "Isolated" or step.get("invert"):
            raise ValueError(f"step {i} of its pre_tokenizer does not isolate its matches")
    last = steps[-1]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space") or last.get("use_regex", True):
        raise ValueError("the last step of its pre_tokenizer is not a plain byte-level mapping")
