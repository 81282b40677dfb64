"""Test vectors: what a model is known to answer, as files.

Three forms are read: the line format of the official vectors (`case`, `step`, `top`, `end`), the JSON of the hosted
interface they were made from, and the line format of local vectors, which hold logits. Tokens are bytes in the first
two: ids and texts do not tell tokens apart across interfaces, and a token can be a part of a character.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cases import read_utf8

MAX_ID, MAX_PATH, MAX_TOKEN, MAX_CTX = 95, 511, 128, 1_048_576
"""Limits of the line formats, in bytes and positions."""

JSON_SCHEMA = "ds4-official-logprobs-v1"
LOCAL_MODES = ("text", "rendered", "chat")

_UNKNOWN_LOGPROB = -1000.0  # the hosted interface gives -9999 for what it does not tell


@dataclass(frozen=True, slots=True)
class VectorStep:
    """A token that was chosen, and candidates with their log-probabilities, as bytes."""

    token: bytes
    top: tuple[tuple[bytes, float], ...]


@dataclass(frozen=True, slots=True)
class VectorCase:
    """A prompt and the greedy answer to it.

    Attributes
    ----------
    id : str
        Its name.
    prompt : str
        One user message; it is rendered without system text and without thinking.
    steps : tuple of VectorStep
        The answer, token by token.
    n_ctx : int or None
        Context that it was made for; None when the file does not tell.
    prompt_tokens : int or None
        Tokens of the rendered prompt, when they are known.
    """

    id: str
    prompt: str
    steps: tuple[VectorStep, ...]
    n_ctx: int | None = None
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class LocalCase:
    """A text and the best logits after its first tokens.

    Attributes
    ----------
    id : str
        Its name.
    mode : {"text", "rendered", "chat"}
        How the text becomes tokens: as it stands, with special tokens recognised, or as one user message.
    text : str
    n_ctx : int
        Context that it was made for.
    frontier : int
        Tokens that are evaluated.
    top : tuple of (int, float)
        Token ids with their logits, the best first.
    """

    id: str
    mode: str
    text: str
    n_ctx: int
    frontier: int
    top: tuple[tuple[int, float], ...]


AnyCase = VectorCase | LocalCase


def read_vectors(path: Path, *, base: Path | None = None) -> list[AnyCase]:
    """Read a file of test vectors.

    Parameters
    ----------
    path : Path
        ``.json`` is the JSON of the hosted interface, one object or a list of them; anything else a line format.
    base : Path, optional
        Folder that prompt files are relative to; the file's own when not given.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        It is malformed, breaks a limit, or a prompt file is not there; the text names the line or the case.
    """
    if path.suffix == ".json":
        cases: list[AnyCase] = list(_read_json(path))
    else:
        cases = list(_read_lines(path, path.parent if base is None else base))
    if not cases:
        raise ValueError(f"{path}: there are no cases in it")
    seen = set()
    for case in cases:
        if case.id in seen:
            raise ValueError(f"{path}: the id {case.id!r} appears twice")
        seen.add(case.id)
    return cases


# Line formats


class _Lines:
    """The meaningful lines of a file, and errors that name them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.number = 0
        self._lines = path.read_bytes().split(b"\n")

    def next(self) -> list[str] | None:
        """Return the first word and the rest of the next line that is neither blank nor a comment."""
        while self.number < len(self._lines):
            raw = self._lines[self.number].strip()
            self.number += 1
            if not raw or raw.startswith(b"#"):
                continue
            if not raw.isascii():
                raise self.error("the line is not ASCII")
            return raw.decode("ascii").split(maxsplit=1)
        return None

    def error(self, text: str) -> ValueError:
        return ValueError(f"{self._path}:{self.number}: {text}")

    def words(self, rest: str, n: int, form: str) -> list[str]:
        found = rest.split(maxsplit=n - 1)
        if len(found) != n:
            raise self.error(f"not of the form: {form}")
        return found

    def whole(self, text: str, what: str, low: int, high: int) -> int:
        if not text.isdecimal() or not low <= int(text[:12]) <= high or len(text) > 12:
            raise self.error(f"{what} is {text[:40]!r}, not a whole number in {low}..{high}")
        return int(text)

    def real(self, text: str, what: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.error(f"{what} is {text[:40]!r}, not a finite number")
        return value

    def token(self, text: str) -> bytes:
        if len(text) > 2 * MAX_TOKEN:
            raise self.error(f"a token has more than {MAX_TOKEN} bytes")
        try:
            return bytes.fromhex(text)
        except ValueError:
            raise self.error(f"{text[:40]!r} is not the bytes of a token in hexadecimal digits") from None

    def name(self, text: str) -> str:
        if len(text) > MAX_ID:
            raise self.error(f"the id has {len(text)} characters; at most {MAX_ID} are allowed")
        return text

    def prompt(self, text: str, base: Path) -> str:
        if len(text) > MAX_PATH:
            raise self.error(f"the path of the prompt file has {len(text)} bytes; at most {MAX_PATH} are allowed")
        path = base / text
        try:
            return read_utf8(path)
        except FileNotFoundError:
            raise self.error(f"the prompt file {text} is not there (looked for {path})") from None
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise self.error(f"the prompt file {path}: {why}") from None


def _read_lines(path: Path, base: Path) -> Iterator[AnyCase]:
    lines = _Lines(path)
    while (line := lines.next()) is not None:
        if line[0] != "case" or len(line) < 2:
            raise lines.error(f"{line[0][:40]!r} where a case should begin")
        second = line[1].split(maxsplit=2)[1:2]
        read: Callable[[_Lines, str, Path], AnyCase] = _local_case if second and second[0] in LOCAL_MODES else _case
        yield read(lines, line[1], base)


def _case(lines: _Lines, rest: str, base: Path) -> VectorCase:
    name, ctx, steps, file = lines.words(rest, 4, "case ID CTX STEPS PROMPT-FILE")
    name = lines.name(name)
    n_ctx = lines.whole(ctx, "the context", 1, MAX_CTX)
    n_steps = lines.whole(steps, "the number of steps", 1, MAX_CTX)
    prompt = lines.prompt(file, base)
    found: list[VectorStep] = []
    while len(found) < n_steps:
        rest = _expect(lines, "step", name)
        index, token, n_top = lines.words(rest, 3, "step INDEX TOKEN-BYTES TOPS")
        if lines.whole(index, "the step", 0, MAX_CTX) != len(found):
            raise lines.error(f"step {index} of case {name} where step {len(found)} should be")
        chosen = lines.token(token)
        top = []
        for _ in range(lines.whole(n_top, "the number of tops", 0, MAX_CTX)):
            token, logprob = lines.words(_expect(lines, "top", name), 2, "top TOKEN-BYTES LOGPROB")
            top.append((lines.token(token), lines.real(logprob, "the log-probability")))
        found.append(VectorStep(chosen, tuple(top)))
    _expect(lines, "end", name)
    return VectorCase(name, prompt, tuple(found), n_ctx)


def _local_case(lines: _Lines, rest: str, base: Path) -> LocalCase:
    fields = lines.words(rest, 5, "case ID text|rendered|chat CTX FRONTIER PROMPT-FILE TOPS")
    file, _, n_top = fields[4].rpartition(" ")  # a path may have spaces in it
    name, mode = lines.name(fields[0]), fields[1]
    n_ctx = lines.whole(fields[2], "the context", 1, MAX_CTX)
    frontier = lines.whole(fields[3], "the frontier", 1, n_ctx)
    count = lines.whole(n_top, "the number of tops", 1, MAX_CTX)
    if not file:
        raise lines.error("not of the form: case ID text|rendered|chat CTX FRONTIER PROMPT-FILE TOPS")
    text = lines.prompt(file.strip(), base)
    top = []
    first = 0
    for i in range(count):
        rank, token, logit = lines.words(_expect(lines, "top", name), 3, "top RANK TOKEN-ID LOGIT")
        found = lines.whole(rank, "the rank", 0, MAX_CTX)
        if i == 0:
            first = min(found, 1)  # files count from 0 or from 1
        if found != first + i:
            raise lines.error(f"rank {rank} of case {name} where rank {first + i} should be")
        top.append((lines.whole(token, "the token id", 0, 1 << 31), lines.real(logit, "the logit")))
    _expect(lines, "end", name)
    return LocalCase(name, mode, text, n_ctx, frontier, tuple(top))


def _expect(lines: _Lines, word: str, case: str) -> str:
    line = lines.next()
    if line is None:
        raise lines.error(f"the file ends in case {case}, where '{word}' should be")
    if line[0] != word or (word == "end") != (len(line) == 1):
        raise lines.error(f"{' '.join(line)[:40]!r} in case {case}, where '{word}' should be")
    return line[1] if len(line) > 1 else ""


def as_lines(cases: Sequence[tuple[VectorCase, str]]) -> str:
    """Write cases, each with the path of its prompt file, in the line format.

    Raises
    ------
    ValueError
        An id, path or token breaks a limit of the format.
    """
    out = []
    for case, file in cases:
        if not case.id.isascii() or not case.id or len(case.id) > MAX_ID or any(c.isspace() for c in case.id):
            raise ValueError(
                f"the id {case.id!r} cannot be written: 1 to {MAX_ID} ASCII characters without spaces are needed"
            )
        if not file.isascii() or len(file) > MAX_PATH or file != " ".join(file.split()):
            raise ValueError(
                f"the path {file!r} cannot be written: at most {MAX_PATH} ASCII characters without runs of spaces"
            )
        out.append(f"case {case.id} {case.n_ctx} {len(case.steps)} {file}")
        for i, step in enumerate(case.steps):
            for token in (step.token, *(token for token, _ in step.top)):
                if not 1 <= len(token) <= MAX_TOKEN:
                    raise ValueError(f"case {case.id}: a token of {len(token)} bytes cannot be written")
            out.append(f"step {i} {step.token.hex()} {len(step.top)}")
            out += [f"top {token.hex()} {logprob:.9f}" for token, logprob in step.top]
        out.append("end")
    return "\n".join(out) + "\n"


# JSON


def _read_json(path: Path) -> Iterator[VectorCase]:
    try:
        found = json.loads(read_utf8(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    for number, row in enumerate(found if isinstance(found, list) else [found], 1):
        name = row.get("id") if isinstance(row, dict) else None
        at = f"{path}: case {name if isinstance(name, str) else number}: "
        try:
            yield _json_case(row)
        except (KeyError, TypeError, ValueError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ValueError(at + what) from None


def _json_case(row: Any) -> VectorCase:
    _want(row, dict, "the case")
    if row.get("schema") != JSON_SCHEMA:
        raise ValueError(f"its schema is {row.get('schema')!r}, not {JSON_SCHEMA!r}")
    usage = row.get("usage")
    prompt_tokens = None
    if usage is not None:
        prompt_tokens = _want(usage, dict, "usage").get("prompt_tokens")
        if prompt_tokens is not None:
            _want(prompt_tokens, int, "usage.prompt_tokens")
    steps = [_json_step(i, step) for i, step in enumerate(_want(row["steps"], list, "steps"))]
    if not steps:
        raise ValueError("it has no steps")
    return VectorCase(
        _want(row["id"], str, "id"), _want(row["prompt"], str, "prompt"), tuple(steps), None, prompt_tokens
    )


def _json_step(i: int, step: Any) -> VectorStep:
    at = f"steps[{i}]"
    _want(step, dict, at)
    if step.get("step", i) != i:
        raise ValueError(f"{at} is step {step['step']!r}")
    token = _json_token(step["token"], f"{at}.token")
    top = []
    for k, candidate in enumerate(_want(step.get("top_logprobs") or [], list, f"{at}.top_logprobs")):
        where = f"{at}.top_logprobs[{k}]"
        found = _json_token(_want(candidate, dict, where)["token"], f"{where}.token")
        logprob = candidate["logprob"]
        if isinstance(logprob, bool) or not isinstance(logprob, (int, float)) or not math.isfinite(logprob):
            raise ValueError(f"{where}.logprob is not a finite number")
        if logprob > _UNKNOWN_LOGPROB:
            top.append((found, float(logprob)))
    return VectorStep(token, tuple(top))


def _json_token(token: Any, at: str) -> bytes:
    found = _want(_want(token, dict, at)["bytes"], list, f"{at}.bytes")
    if not found or not all(type(b) is int and 0 <= b <= 255 for b in found):
        raise ValueError(f"{at}.bytes must be whole numbers in 0..255, one at least")
    return bytes(found)


def _want(value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{what} is {type(value).__name__}, not {kind.__name__}")
    return value
