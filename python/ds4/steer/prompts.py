"""Prompts for directions and sweeps: lines of text, or chats."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ds4.chat import check_messages, render
from ds4.tokenizer import Tokenizer

_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class SteerPrompt:
    """One prompt.

    Attributes
    ----------
    messages : tuple of mappings
        As `ds4.chat.render` takes them.
    expected : tuple of str
        Texts that a right answer contains; empty when that is not known.
    """

    messages: tuple[Mapping[str, Any], ...]
    expected: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The last message, to show."""
        return str(self.messages[-1].get("content", ""))

    def right(self, answer: str) -> bool | None:
        """Whether an answer contains what is expected; None when nothing is."""
        return all(text in answer for text in self.expected) if self.expected else None

    def tokens(self, tokenizer: Tokenizer, mode: Literal["chat", "thinking"]) -> list[int]:
        """Return the tokens up to where the model begins."""
        return render(list(self.messages), mode=mode).encode(tokenizer)


def read_prompts(path: Path, *, system: str | None = None) -> list[SteerPrompt]:
    """Read a file of prompts.

    Parameters
    ----------
    path : Path
        ``.jsonl``: an object a line, {"messages": [...]} or {"prompt": "..."}, with "answer" if wanted, a text or a
        list of texts that a right answer contains. Any other name: a prompt a line. Empty lines and lines that begin
        with # are left out.
    system : str, optional
        System message of the prompts that have none.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        A line is no prompt, or there is none; the text names file and line.
    """
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} has more than {_MOST_BYTES} bytes")
    raw = path.read_bytes()
    try:
        lines = raw.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text (byte {error.start})") from None
    out = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            out.append(_chat(line, system) if path.suffix == ".jsonl" else _plain(line.strip(), (), system))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if not out:
        raise ValueError(f"{path} holds no prompt")
    return out


def _plain(text: str, expected: tuple[str, ...], system: str | None) -> SteerPrompt:
    return _checked([{"role": "user", "content": text}], expected, system)


def _chat(line: str, system: str | None) -> SteerPrompt:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    unknown = sorted(set(found) - {"messages", "prompt", "answer", "id", "category"})
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}")
    if ("messages" in found) == ("prompt" in found):
        raise ValueError('either "messages" or "prompt" is wanted')
    answer = found.get("answer", [])
    expected = [answer] if isinstance(answer, str) else answer
    if not isinstance(expected, list) or not all(isinstance(text, str) and text for text in expected):
        raise ValueError('"answer" must be a text or a list of texts')
    if "prompt" in found:
        if not isinstance(found["prompt"], str) or not found["prompt"].strip():
            raise ValueError('"prompt" must be a text')
        return _plain(found["prompt"], tuple(expected), system)
    if not isinstance(found["messages"], list):
        raise ValueError('"messages" must be a list')
    return _checked(found["messages"], tuple(expected), system)


def _checked(messages: Sequence[Any], expected: tuple[str, ...], system: str | None) -> SteerPrompt:
    check_messages(messages)
    if system is not None and not any(m.get("role") == "system" for m in messages):
        messages = [{"role": "system", "content": system}, *messages]
    return SteerPrompt(tuple(messages), expected)
