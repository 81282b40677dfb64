"""Calibration text: rendered prompts, each after a marker line, in one file.

::

    ===== DS4_IMATRIX_PROMPT <id> <category> <mode> <source> =====

What stands between two markers, without white space at its ends, is one prompt in the model's own format; special
tokens in it count. Measure on what the model will be used for: chats, tool calls and their results, code, long texts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds4.chat import MODES, render_text

from .atomic import new_file
from .errors import CorpusError

MARKER = "===== DS4_IMATRIX_PROMPT"
TEXT_PIECE = 12_000
"""Characters of a piece of plain text, at most; about 3000 tokens of English."""

_MARKER_LINE = re.compile(r"===== DS4_IMATRIX_PROMPT (\S+) (\S+) (\S+) (\S.*) =====\s*")


@dataclass(frozen=True, slots=True)
class CorpusPrompt:
    """One rendered prompt.

    Attributes
    ----------
    id, category : str
        A name, and the kind of use; without white space.
    mode : str
        "thinking" or "chat"; corpora made elsewhere may use other words.
    source : str
        Where it comes from.
    text : str
        The prompt as the model sees it.
    """

    id: str
    category: str
    mode: str
    source: str
    text: str


def read_prompts(path: str | os.PathLike[str], *, text_piece: int = TEXT_PIECE) -> Iterator[CorpusPrompt]:
    """Read the prompts of a file.

    Parameters
    ----------
    path : path-like
        One of: a corpus (its first line is a marker); chats in .jsonl (one a line) or .json (one, or a list), each
        {"messages": [...]} with "tools", "mode" ("thinking" or "chat"), "category" and "id" if wanted; else plain
        text, which becomes user messages. Where no mode is given, every other prompt thinks.
    text_piece : int
        Characters of a piece of plain text, at most. Texts are cut at the ends of paragraphs and lines.

    Raises
    ------
    OSError
        The file cannot be read.
    CorpusError
        It is not UTF-8, is empty, or a chat in it cannot be rendered; the error names the line.
    """
    path = Path(path)
    name = str(path)
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(f"not UTF-8 text (byte {error.start})", path=name) from None
    if not text.strip():
        raise CorpusError("it is empty", path=name)
    if text.lstrip().startswith(MARKER):
        return _corpus(text, name)
    if path.suffix.lower() in (".json", ".jsonl"):
        return _chats(text, path)
    return _plain(text, path, text_piece)


def _corpus(text: str, name: str) -> Iterator[CorpusPrompt]:
    head: tuple[str, ...] | None = None
    start, lines = 0, []
    for number, line in enumerate([*text.split("\n"), None], 1):
        if line is not None and not line.startswith(MARKER):
            lines.append(line)
            continue
        if head is not None:
            prompt = "\n".join(lines).strip()
            if not prompt:
                raise CorpusError("no text follows this marker", path=name, line=start)
            yield CorpusPrompt(head[0], head[1], head[2], head[3], prompt)
        if line is None:
            return
        found = _MARKER_LINE.fullmatch(line)
        if found is None:
            raise CorpusError(f"a marker reads: {MARKER} ID CATEGORY MODE SOURCE =====", path=name, line=number)
        head, start, lines = found.groups(), number, []


def _chats(text: str, path: Path) -> Iterator[CorpusPrompt]:
    if path.suffix.lower() == ".json":
        try:
            whole = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"not JSON: {error}", path=str(path)) from None
        chats = whole if isinstance(whole, list) else [whole]
        places: Iterable[tuple[int | None, Any]] = ((None, chat) for chat in chats)
    else:
        places = _json_lines(text, path)
    for i, (line, chat) in enumerate(places):
        yield _rendered(chat, i, path, line)


def _json_lines(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"not JSON: {error}", path=str(path), line=number) from None


def _rendered(chat: Any, i: int, path: Path, line: int | None) -> CorpusPrompt:
    def fail(message: str) -> CorpusError:
        where = "" if line is not None else f"chat {i}: "
        return CorpusError(where + message, path=str(path), line=line)

    if not isinstance(chat, Mapping) or not isinstance(chat.get("messages"), list):
        raise fail('a chat is an object with "messages", a list')
    mode = chat.get("mode")
    if mode is None:
        mode = MODES[i % 2]
    try:
        text = render_text(chat["messages"], mode=mode, tools=chat.get("tools"), effort=chat.get("effort"))
    except (ValueError, TypeError, RecursionError) as error:
        raise fail(str(error)) from None
    name = _word(chat.get("id")) or f"{_word(path.stem)}-{i}"
    category = _word(chat.get("category")) or ("agent" if chat.get("tools") else "chat")
    return CorpusPrompt(name, category, str(mode), _word(path.name), text.strip())


def _plain(text: str, path: Path, text_piece: int) -> Iterator[CorpusPrompt]:
    if text_piece < 1:
        raise ValueError(f"text_piece must be 1 or more, not {text_piece}")
    for i, piece in enumerate(_pieces(text, text_piece)):
        mode = MODES[i % 2]
        rendered = render_text([{"role": "user", "content": piece}], mode=mode)
        yield CorpusPrompt(f"{_word(path.stem)}-{i}", "text", mode, _word(path.name), rendered)


def _pieces(text: str, size: int) -> Iterator[str]:
    """Cut a text where a paragraph, else a line, else a word ends."""
    at = 0
    while at < len(text):
        end = at + size
        if end < len(text):
            for separator in ("\n\n", "\n", " "):
                cut = text.rfind(separator, at + size // 2, end)
                if cut > at:
                    end = cut + len(separator)
                    break
        piece = text[at:end].strip()
        if piece:
            yield piece
        at = end


def _word(value: Any) -> str:
    """Return a value as one word of a marker line."""
    return "" if value is None else re.sub(r"\s+", "_", str(value).strip())


def write_corpus(path: str | os.PathLike[str], prompts: Iterable[CorpusPrompt], *, force: bool = False) -> int:
    """Write a corpus; it gets its name when it is complete.

    Returns
    -------
    int
        Number of prompts.

    Raises
    ------
    OSError
        The file cannot be written, or exists and `force` is not set.
    CorpusError
        A prompt holds a marker line itself, so it could not be read back, or there is no prompt.
    """
    path = Path(path)
    n = 0
    with new_file(path, force) as f:
        for prompt in prompts:
            if any(line.startswith(MARKER) for line in prompt.text.split("\n")):
                raise CorpusError(f"prompt {prompt.id} holds a line that looks like a marker", path=prompt.source)
            line = f"{MARKER} {prompt.id} {prompt.category} {prompt.mode} {prompt.source} ====="
            # A lone surrogate has no UTF-8; the tokenizer reads it as U+FFFD, and "?" would be another token.
            text = prompt.text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            f.write(f"{line}\n{text}\n".encode("utf-8", "replace"))
            n += 1
        if not n:
            raise CorpusError("there are no prompts to write", path=str(path))
    return n
