"""What is scored: a prompt and the tokens that are to follow it, from files or cut out of a text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds4.chat import render
from ds4.tokenizer import Tokenizer

CASE_SUFFIXES = (".tsv", ".jsonl")
"""Names of case files end so; any other file is a text."""


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt with a given continuation, as tokens.

    Attributes
    ----------
    id : str
        Its name, without tabs and line ends.
    prompt, target : tuple of int
        Token ids; neither is empty.
    kind : str or None
        The group whose sums it belongs to.
    """

    id: str
    prompt: tuple[int, ...]
    target: tuple[int, ...]
    kind: str | None = None

    @property
    def n_positions(self) -> int:
        """Positions that are evaluated: all tokens but the last."""
        return len(self.prompt) + len(self.target) - 1


def needed_ctx(cases: Sequence[Case]) -> int:
    """Return the context that the longest of some cases needs."""
    return max(case.n_positions for case in cases)


def check_room(cases: Sequence[Case], n_ctx: int) -> None:
    """Check that every case fits into a context, before the first is computed.

    Raises
    ------
    ValueError
        One does not; the text names it.
    """
    for case in cases:
        if case.n_positions > n_ctx:
            raise ValueError(
                f"case {case.id}: {len(case.prompt)} tokens of prompt and {len(case.target)} of continuation need a "
                f"context of {case.n_positions}, this one has {n_ctx}"
            )


# Texts


def text_cases(tokenizer: Tokenizer, text: str, n_ctx: int, *, stride: int | None = None, name: str) -> list[Case]:
    """Cut a text into windows, so that every token is predicted once.

    A text that fits is one window. Otherwise each window sees the end of what came before, but for a token at the
    start, and predicts what follows.

    Parameters
    ----------
    tokenizer : Tokenizer
        The text is encoded as plain text; every window begins with the BOS token.
    text : str
    n_ctx : int
        Positions of a window, its BOS token among them.
    stride : int, optional
        Tokens that a window predicts, after the first one, which predicts `n_ctx`; so `n_ctx - stride` tokens at least
        stand before them. Half of `n_ctx` when not given.
    name : str
        Name of the text; cases are named after it.

    Returns
    -------
    list of Case

    Raises
    ------
    ValueError
        The text is empty, or the stride is not in 1..n_ctx.
    """
    if stride is None:
        stride = max(1, n_ctx // 2)
    if not 1 <= stride <= n_ctx:
        raise ValueError(f"the stride must be in 1..{n_ctx} (the context), not {stride}")
    ids = tokenizer.encode(text)
    if not ids:
        raise ValueError(f"{name}: the text is empty")
    cases = []
    scored = 0
    while scored < len(ids):
        end = min(len(ids), scored + stride if scored else n_ctx)
        begin = max(0, end - n_ctx)
        where = name if not scored and end == len(ids) else f"{name}[{scored}:{end}]"
        prompt = (tokenizer.bos_id, *ids[begin:scored])
        cases.append(Case(where, prompt, tuple(ids[scored:end])))
        scored = end
    return cases


def read_utf8(path: Path) -> str:
    """Read a text file.

    Raises
    ------
    OSError
        It cannot be read.
    ValueError
        It is not UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text (byte {error.start})") from None


# Case files


def read_cases(path: Path, tokenizer: Tokenizer) -> list[Case]:
    """Read a file of prompts and continuations.

    Two forms are known. In a manifest (``.tsv``) a line has an id, the file of the prompt and the file of the
    continuation, separated by tabs, relative to the manifest; further columns are ignored, and so are lines that begin
    with ``#``. The prompt is one user message, rendered without system text and without thinking; the continuation is
    encoded as plain text.

    In JSON lines (``.jsonl``) a line is an object with `continuation` and either `messages` (with `tools`, `mode` and
    `effort` as in `ds4.chat.render`, mode "chat" when not given) or `prompt`, a text that is rendered already. After
    messages the continuation is plain text; after a rendered prompt special tokens count in it too. `specials` (true or
    false) says otherwise. `id` is the line number when not given; `kind` names a group.

    Parameters
    ----------
    path : Path
        The file; another suffix than ``.jsonl`` means a manifest.
    tokenizer : Tokenizer
        The model's.

    Raises
    ------
    OSError
        The file, or one that it names, cannot be read.
    ValueError
        It is malformed, or a prompt or continuation is empty; the text names the line.
    """
    text = read_utf8(path)
    rows = _json_rows(text, tokenizer, path) if path.suffix == ".jsonl" else _manifest_rows(text, tokenizer, path)
    cases: list[Case] = []
    seen: dict[str, int] = {}
    for line, case in rows:
        at = f"{path}:{line}: "
        if not case.id or any(c in case.id for c in "\t\r\n"):
            raise ValueError(f"{at}the id {case.id!r} is empty or holds a tab or line end")
        if case.id in seen:
            raise ValueError(f"{at}the id {case.id!r} is that of line {seen[case.id]}")
        if not case.prompt:
            raise ValueError(f"{at}the prompt of {case.id!r} is empty")
        if not case.target:
            raise ValueError(f"{at}the continuation of {case.id!r} is empty")
        seen[case.id] = line
        cases.append(case)
    if not cases:
        raise ValueError(f"{path}: there are no cases in it")
    return cases


def official_prompt(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Encode a user message as the published scores do it: no system text, no thinking."""
    return tuple(render([{"role": "user", "content": text}], mode="chat").encode(tokenizer))


def _manifest_rows(text: str, tokenizer: Tokenizer, path: Path) -> Iterator[tuple[int, Case]]:
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if not line.strip() or line.startswith("#"):
            continue
        columns = line.split("\t")
        if len(columns) < 3:
            raise ValueError(
                f"{path}:{number}: {len(columns)} columns; an id, a prompt file and a continuation file are needed, "
                "separated by tabs"
            )
        prompt, continuation = (_named_file(path, number, name) for name in columns[1:3])
        yield number, Case(columns[0], official_prompt(prompt, tokenizer), tuple(tokenizer.encode(continuation)))


def _named_file(manifest: Path, number: int, name: str) -> str:
    if not name:
        raise ValueError(f"{manifest}:{number}: a file name is empty")
    try:
        return read_utf8(manifest.parent / name)
    except ValueError as error:
        raise ValueError(f"{manifest}:{number}: {error}") from None


def _json_rows(text: str, tokenizer: Tokenizer, path: Path) -> Iterator[tuple[int, Case]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield number, _json_case(line, tokenizer, str(number))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}:{number}: {error}") from None


def _json_case(line: str, tokenizer: Tokenizer, default_id: str) -> Case:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg}, column {error.colno})") from None
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    if ("prompt" in row) == ("messages" in row):
        raise ValueError('either "prompt" or "messages" is needed')
    if "prompt" in row:
        prompt = tokenizer.encode(_field(row, "prompt", str), specials=True)
    else:
        rendered = render(
            _field(row, "messages", list),
            mode=_field(row, "mode", str, "chat"),
            tools=row.get("tools"),
            effort=row.get("effort"),
        )
        prompt = rendered.encode(tokenizer)
    specials = _field(row, "specials", bool, "prompt" in row)
    target = tokenizer.encode(_field(row, "continuation", str), specials=specials)
    kind = row.get("kind")
    if kind is not None and (not isinstance(kind, str) or any(c in kind for c in "\t\r\n")):
        raise ValueError('"kind" must be a text without tabs and line ends')
    found_id = row.get("id", default_id)
    if isinstance(found_id, bool) or not isinstance(found_id, (str, int)):
        raise ValueError('"id" must be a text or a whole number')
    return Case(str(found_id), tuple(prompt), tuple(target), kind)


def _field(row: dict[str, Any], key: str, kind: type, default: Any = None) -> Any:
    value = row.get(key, default)
    if not isinstance(value, kind):
        found = "missing" if key not in row else f"{type(value).__name__}, not {kind.__name__}"
        raise ValueError(f'"{key}" is {found}')
    return value
