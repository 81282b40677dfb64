"""Suites of questions: JSON lines, one case a line. docs/eval.md describes the fields.

An object with "suite" instead of "id" is the head of the file; it may stand on the first line only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import regex  # type: ignore[import-untyped, unused-ignore]

from ds4.chat import check_messages, check_tools

from .extract import MAX_LINE, integer

Kind = Literal["letter", "integer", "lines", "exact", "regex", "call"]
KINDS: tuple[Kind, ...] = ("letter", "integer", "lines", "exact", "regex", "call")
MODES = ("thinking", "chat")

MAX_TOKENS = 1_000_000
_MAX_SEED = (1 << 64) - 1
_MAX_FILE = 64 << 20
_MAX_CHOICES = 26
_FOLDER = Path(__file__).parent / "suites"


@dataclass(frozen=True, slots=True)
class Case:
    """One question with its accepted answer.

    Attributes
    ----------
    id : str
        Its name, unique in the suite.
    source : str
        Where it comes from; the name of the suite when the file does not say.
    kind : {"letter", "integer", "lines", "exact", "regex", "call"}
        How an answer is read and compared.
    answer : object
        What is right: a letter; digits; a sorted tuple of line numbers; a tuple of texts; a pattern; a mapping with
        the name and the arguments of a call.
    question : str or None
        The question, without choices and instruction; None when there are messages.
    messages : tuple of mappings
        A conversation that is sent as it stands.
    system : str or None
        System text in place of the usual one; "" for none. None: the usual one.
    choices : tuple of str
        Of the kind "letter": what is lettered.
    code : str or None
        A source text that is shown below the question with line numbers.
    tools : tuple of mappings
        Tools that are declared.
    bare : bool
        The question is the whole prompt: no system text, no instruction about the form of the answer.
    mode : {None, "thinking", "chat"}
        How to ask, unless the run decides.
    max_tokens, seed : int or None
        Less tokens than the run allows, and a seed of its own.
    match_case : bool
        Of the kind "exact": whether capital letters count.
    line : int
        Line of the file, from 1.
    text : str
        That line.
    """

    id: str
    source: str
    kind: Kind
    answer: Any
    question: str | None = None
    messages: tuple[Mapping[str, Any], ...] = ()
    system: str | None = None
    choices: tuple[str, ...] = ()
    code: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    bare: bool = False
    mode: Literal["thinking", "chat"] | None = None
    max_tokens: int | None = None
    seed: int | None = None
    match_case: bool = False
    line: int = 0
    text: str = ""

    @property
    def name(self) -> str:
        """Source and id."""
        return f"{self.source}/{self.id}"

    @property
    def expected(self) -> str:
        """The right answer as one line of text."""
        if self.kind == "lines":
            return ",".join(map(str, self.answer))
        if self.kind == "exact":
            return " | ".join(self.answer)
        if self.kind == "call":
            return f"{self.answer['name']}({json.dumps(self.answer['arguments'], ensure_ascii=False, sort_keys=True)})"
        return str(self.answer)


@dataclass(frozen=True, slots=True)
class Suite:
    """The cases of a file.

    Attributes
    ----------
    name : str
        From the head of the file, else the name of the file.
    description : str
        From the head; "" without one.
    cases : tuple of Case
        In the order of the file.
    """

    name: str
    description: str
    cases: tuple[Case, ...]


def own_suites() -> list[str]:
    """Return the names of the suites in the package."""
    return sorted(path.stem for path in _FOLDER.glob("*.jsonl"))


def open_suite(name: str | Path) -> Suite:
    """Read a suite by the name it has in the package, or by the path of its file.

    A text is taken as a name if it is one; a path of the same name can be written with a directory.

    Raises
    ------
    OSError, ValueError
        As `read_suite`; the text lists the suites of the package if `name` is no file.
    """
    if str(name) in own_suites():
        return read_suite(_FOLDER / f"{name}.jsonl")
    path = Path(name)
    if not path.exists() and path.suffix != ".jsonl":
        raise ValueError(f"{name} is neither a file nor one of the suites {', '.join(own_suites())}")
    return read_suite(path)


def read_suite(path: Path) -> Suite:
    """Read a suite.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        A line is wrong; the text names the file, the line and the field.
    """
    if path.stat().st_size > _MAX_FILE:
        raise ValueError(f"{path}: more than {_MAX_FILE >> 20} MiB, which is no suite")
    cases: list[Case] = []
    lines: dict[str, int] = {}
    name, description = _file_name(path), ""
    for number, raw in enumerate(path.read_bytes().split(b"\n"), 1):
        if not raw.strip():
            continue
        text = _decoded(raw, f"{path}:{number}")
        fields = _Fields(_object(text, f"{path}:{number}"), f"{path}:{number}")
        if "suite" in fields.left:
            if cases or number > 1:
                raise fields.fault("suite", "the head of a suite stands on the first line")
            name, description = fields.name("suite"), fields.text("description", default="")
            fields.end()
            continue
        case = _case(fields, name, number, text)
        if case.id in lines:
            raise fields.fault("id", f"{case.id!r} is the name of line {lines[case.id]}, too")
        lines[case.id] = number
        cases.append(case)
    if not cases:
        raise ValueError(f"{path}: there is no case in this file")
    return Suite(name, description, tuple(cases))


def _file_name(path: Path) -> str:
    """Return the name of a file as that of a suite: without spaces and what cannot be printed."""
    name = "".join(c if c.isprintable() and not c.isspace() else "-" for c in path.stem[:100])
    return name.encode("utf-8", "replace").decode("utf-8") or "suite"


def parse_case(text: str, suite: str, where: str) -> Case:
    """Read one line of a suite.

    Parameters
    ----------
    text : str
        The line.
    suite : str
        Name of the suite, which is the source when the line names none.
    where : str
        Where it is from, for messages.

    Raises
    ------
    ValueError
        The line is wrong.
    """
    return _case(_Fields(_object(text, where), where), suite, 0, text)


def _decoded(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8").removeprefix("\ufeff").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 text (byte {error.start} of the line)") from None


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_no_repeats, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError(f"{where}: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{where}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where}: a line must be an object, not {_type_name(value)}")
    return value


def _no_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise ValueError(f"the field {key!r} is given twice")
        out[key] = value
    return out


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _type_name(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return "null" if value is None else names[type(value)]


@dataclass(slots=True)
class _Fields:
    """The fields of one line; each is taken once, and what is left at the end is unknown."""

    left: dict[str, Any]
    where: str
    given: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.given = frozenset(self.left)

    def fault(self, name: str, text: str) -> ValueError:
        return ValueError(f"{self.where}: {name}: {text}")

    def take(self, name: str) -> Any:
        if name not in self.left:
            raise self.fault(name, "this field is missing")
        return self.left.pop(name)

    def text(self, name: str, *, default: str | None = None) -> str:
        if default is not None and name not in self.left:
            return default
        value = self.take(name)
        if not isinstance(value, str):
            raise self.fault(name, f"must be a text, not {_type_name(value)}")
        self.check_text(name, value)
        if default is None and not value.strip():
            raise self.fault(name, "is empty")
        return value

    def check_text(self, name: str, value: str) -> None:
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise self.fault(name, "holds half of a surrogate pair") from None

    def name(self, name: str, *, default: str | None = None) -> str:
        """Take a text without spaces and control characters."""
        value = self.text(name, default=default)
        if len(value) > 200 or any(c.isspace() or not c.isprintable() for c in value):
            raise self.fault(name, f"{value[:40]!r} must have at most 200 characters, none of them a space")
        return value

    def number(self, name: str, low: int, high: int) -> int | None:
        if name not in self.left:
            return None
        value = self.take(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fault(name, f"must be a whole number, not {_type_name(value)}")
        if not low <= value <= high:
            raise self.fault(name, f"must be in {low}..{high}, not {value}")
        return value

    def flag(self, name: str) -> bool:
        value = self.left.pop(name, False)
        if not isinstance(value, bool):
            raise self.fault(name, f"must be true or false, not {_type_name(value)}")
        return value

    def list(self, name: str) -> list[Any]:
        value = self.take(name)
        if not isinstance(value, list):
            raise self.fault(name, f"must be a list, not {_type_name(value)}")
        return value

    def end(self) -> None:
        for name in self.left:
            raise self.fault(name, "this field is unknown, or does not go with the others")


def _case(fields: _Fields, suite: str, line: int, text: str) -> Case:
    name = fields.name("id")
    kind = fields.take("kind")
    if kind not in KINDS:
        raise fields.fault("kind", f"must be one of {', '.join(KINDS)}, not {str(kind)[:40]!r}")
    source = fields.name("source", default=suite)
    messages, tools = _conversation(fields)
    bare = bool(messages) or fields.flag("bare")
    mode = fields.left.pop("mode", None)
    if mode not in (None, *MODES):
        raise fields.fault("mode", f"must be one of {', '.join(MODES)}, not {str(mode)[:40]!r}")
    choices = _choices(fields) if kind == "letter" else ()
    code = fields.text("code") if "code" in fields.left and not messages else None
    question = None if messages else fields.text("question")
    system = None if messages else fields.text("system", default="") if "system" in fields.left else None
    answer = _ANSWERS[kind](fields, choices, code)
    case = Case(
        name, source, kind, answer, question, messages, system, choices, code, tools, bare, mode,
        fields.number("max_tokens", 1, MAX_TOKENS), fields.number("seed", 0, _MAX_SEED),
        fields.flag("match_case") if kind == "exact" else False, line, text,
    )  # fmt: skip
    fields.text("note", default="")
    fields.end()
    return case


def _conversation(fields: _Fields) -> tuple[tuple[Mapping[str, Any], ...], tuple[Mapping[str, Any], ...]]:
    tools: tuple[Mapping[str, Any], ...] = ()
    if "tools" in fields.left:
        tools = tuple(fields.list("tools"))
        try:
            check_tools(tools)
        except (ValueError, TypeError) as error:
            raise fields.fault("tools", str(error)) from None
    if "messages" not in fields.left:
        return (), tools
    if "question" in fields.left:
        raise fields.fault("question", "a case has a question or messages, not both")
    messages = tuple(fields.list("messages"))
    try:
        checked = check_messages(messages)
    except (ValueError, TypeError) as error:
        raise fields.fault("messages", str(error)) from None
    if not checked or checked[-1].role not in ("user", "tool"):
        raise fields.fault("messages", "the last one must be of the user or a tool")
    return messages, tools


def _choices(fields: _Fields) -> tuple[str, ...]:
    if "messages" in fields.given:  # the letters are part of the messages; the answer says how far they go
        n = fields.number("n_choices", 2, _MAX_CHOICES)
        if n is None:
            raise fields.fault("n_choices", "is needed with messages: how many letters there are")
        return ("",) * n
    choices = fields.list("choices")
    if not 2 <= len(choices) <= _MAX_CHOICES:
        raise fields.fault("choices", f"there must be 2..{_MAX_CHOICES}, not {len(choices)}")
    for choice in choices:
        if not isinstance(choice, str) or not choice.strip():
            raise fields.fault("choices", "each must be a text that is not empty")
        fields.check_text("choices", choice)
    return tuple(choices)


# Answers, in the form that `grade` compares with


def _letter(fields: _Fields, choices: tuple[str, ...], code: str | None) -> str:
    value = fields.text("answer")
    last = chr(ord("A") + len(choices) - 1)
    if len(value) != 1 or not "A" <= value <= last:
        raise fields.fault("answer", f"must be a letter from A to {last}, not {value[:40]!r}")
    return value


def _integer(fields: _Fields, choices: tuple[str, ...], code: str | None) -> str:
    value = fields.take("answer")
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise fields.fault("answer", f"must be a whole number or its digits, not {_type_name(value)}")
    text = str(value)
    if not regex.fullmatch(r"-?[0-9]{1,400}", text):
        raise fields.fault("answer", f"{text[:40]!r} is not a whole number of at most 400 digits")
    return str(integer(text))


def _lines(fields: _Fields, choices: tuple[str, ...], code: str | None) -> tuple[int, ...]:
    most = MAX_LINE if code is None else len(code.splitlines())
    found: set[int] = set()
    for value in fields.list("answer"):
        first, last = _range(fields, value)
        if not 0 <= first <= last <= most:
            raise fields.fault("answer", f"{value!r} is not among the lines 1..{most} (0: no line)")
        found.update(range(first, last + 1))
    if not found or (0 in found and len(found) > 1):
        raise fields.fault("answer", "must hold line numbers, or only 0 for no line")
    return tuple(sorted(found))


def _range(fields: _Fields, value: Any) -> tuple[int, int]:
    if isinstance(value, str):
        ends = regex.fullmatch(r"([0-9]{1,3})-([0-9]{1,3})", value)
        if ends:
            return int(ends[1]), int(ends[2])
    if isinstance(value, bool) or not isinstance(value, int):
        raise fields.fault("answer", 'must hold numbers, or texts such as "3-5"')
    return value, value


def _exact(fields: _Fields, choices: tuple[str, ...], code: str | None) -> tuple[str, ...]:
    value = fields.take("answer")
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(t, str) and t.strip() for t in texts):
        raise fields.fault("answer", "must be a text or a list of texts, none of them empty")
    for text in texts:
        fields.check_text("answer", text)
    return tuple(texts)


def _regex(fields: _Fields, choices: tuple[str, ...], code: str | None) -> str:
    value = fields.text("answer")
    try:
        regex.compile(value)
    except regex.error as error:
        raise fields.fault("answer", f"not a pattern: {error}") from None
    return value


def _call(fields: _Fields, choices: tuple[str, ...], code: str | None) -> Mapping[str, Any]:
    value = fields.take("answer")
    if not isinstance(value, dict) or set(value) != {"name", "arguments"}:
        raise fields.fault("answer", "must be an object with name and arguments")
    if not isinstance(value["name"], str) or not isinstance(value["arguments"], dict):
        raise fields.fault("answer", "name must be a text and arguments an object")
    if "tools" not in fields.given:
        raise fields.fault("tools", "a call needs tools to choose from")
    return value


_ANSWERS: dict[str, Callable[[_Fields, tuple[str, ...], str | None], Any]] = {
    "letter": _letter,
    "integer": _integer,
    "lines": _lines,
    "exact": _exact,
    "regex": _regex,
    "call": _call,
}
