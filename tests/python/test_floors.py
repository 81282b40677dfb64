"""Who may import or include whom: a room uses rooms on lower floors only (docs describe the house)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "ds4"
CORE = ROOT / "src" / "ds4core"

pytestmark = pytest.mark.skipif(not (PACKAGE.is_dir() and CORE.is_dir()), reason="not in a checkout")

# Floors of the Python package. The rooms of floor 2 build on each other in the order of ENGINE; nothing there sees
# the text rooms but `model`, which brings the two together.
LOWEST = {"_version", "errors", "progress"}
TEXT = {"chat", "tokenizer", "tokenizer_json", "stops"}
ENGINE = ["plotting", "library", "gguf", "gguf_experts", "budget", "user_cache", "hotness"]
ENGINE += ["file_range", "gguf_partial", "gguf_writer"]
ENGINE += ["sampling", "importance", "profile", "model_options", "experts", "token_ids", "state_arrays", "steering"]
ENGINE += ["session_state", "costs", "speculation", "session", "activations", "shapes"]
ENGINE += ["model_experts", "mtp_pair", "read_depth", "model"]
PUBLIC = {"", "cpu"} | LOWEST | TEXT | set(ENGINE)
TOOLS = {"grammar", "imatrix", "kvstore", "published"}  # files that more than one program reads
PROGRAMS = {"server", "bench", "doctor", "download", "eval", "quantize", "score", "steer"}
TOP = {"cli", "agent"}


def may_import(room: str) -> set[str]:
    """Return the rooms that a room of the Python package may import; "" is the package itself."""
    if room in LOWEST:
        return set()
    if room == "_native":
        return {"errors"}
    if room in TEXT:
        return {"errors"} | (TEXT - {"chat"})
    if room in ENGINE:
        return {"_native"} | LOWEST | TEXT | set(ENGINE[: ENGINE.index(room)])
    if room == "":
        return LOWEST | TEXT | set(ENGINE)
    if room in TOOLS:
        return PUBLIC
    if room in PROGRAMS:
        return PUBLIC | TOOLS
    return PUBLIC | TOOLS | PROGRAMS | TOP


# Floors of the core.
NATIVE_FLOORS = {
    "base": 0,
    "gguf": 1,
    "quant": 1,
    "backend": 2,
    "stream": 2,
    "model": 3,
    "kv": 3,
    "session": 4,
    "api": 5,
}
# Rooms of one floor that see each other all the same, and why.
NATIVE_SIBLINGS = {
    ("gguf", "quant"): "the size of a tensor follows from its type",
}


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    if len(parts) > 1:
        return parts[0]
    return "" if path.stem == "__init__" else path.stem


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name below ds4) of every import of a ds4 module; "" stands for the package.

    Imports for type checkers only are left out: they load nothing.
    """
    package = ("ds4", *path.relative_to(PACKAGE).parts[:-1])
    for node in run_time_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) + 1 - node.level]) if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # from ds4 import gguf: the module, if it is one
            names = [f"{module}.{a.name}" if is_module(f"{module}.{a.name}") else module for a in node.names]
        else:
            continue
        for name in names:
            if name == "ds4" or name.startswith("ds4."):
                yield node.lineno, name[len("ds4.") :]


def run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    for child in ast.iter_child_nodes(node):
        yield from run_time_nodes(child)


def is_module(name: str) -> bool:
    path = ROOT / "python" / Path(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_python_rooms_import_lower_floors_only() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        room = room_of(path)
        allowed = may_import(room) | {room}
        for line, name in imports(path):
            target = name.split(".")[0]
            if target not in allowed:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports ds4.{name}")
    assert not wrong, "\n".join(wrong)


def test_only_the_engine_imports_the_native_floor() -> None:
    users = {room_of(path) for path in PACKAGE.rglob("*.py") for _, name in imports(path) if name.startswith("_native")}
    assert users - {"_native"} <= set(ENGINE)


def test_only_capi_declares_c_functions() -> None:
    for path in (PACKAGE / "_native").glob("*.p[yx]*"):
        declares = "cdef extern" in path.read_text(encoding="utf-8")
        assert declares == (path.name == "_capi.pxd"), path.name


def native_sources() -> list[Path]:
    return sorted(p for p in CORE.rglob("*") if p.suffix in (".h", ".c", ".cpp", ".inc"))


def test_native_rooms_include_lower_floors_only() -> None:
    wrong = []
    for path in native_sources():
        room = path.relative_to(CORE).parts[0]
        if room == "include":
            continue
        for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            target = found[1].split("/")[0] if found and "/" in found[1] else None
            if target is None or target in ("ds4", room):
                continue
            lower = NATIVE_FLOORS.get(target, 99) < NATIVE_FLOORS[room]
            if not lower and (room, target) not in NATIVE_SIBLINGS:
                wrong.append(f"{path.relative_to(ROOT)}:{n} includes {found[1]}" if found else "")
    assert not wrong, "\n".join(wrong)


# Library code never ends the process, prints, or reads the environment.
FORBIDDEN = re.compile(
    r"(?<![\w.:>])(?:std::|::)?"
    r"(getenv|secure_getenv|exit|_exit|quick_exit|abort|printf|fprintf|vprintf|puts|putchar|perror|assert|system)\s*\("
    r"|std::(?:cout|cerr|clog)|#\s*include\s*<(?:iostream|cassert|assert\.h)>"
)


def without_comments_and_strings(text: str) -> str:
    """Blank out comments and literals, keeping the lines."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
    # A digit separator (1'000) is no literal.
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), re.sub(r"(?<=\d)'(?=\d)", "", text))


def test_the_core_never_exits_prints_or_reads_the_environment() -> None:
    wrong = []
    for path in native_sources():
        text = without_comments_and_strings(path.read_text(encoding="utf-8"))
        for n, line in enumerate(text.splitlines(), 1):
            found = FORBIDDEN.search(line)
            if found:
                wrong.append(f"{path.relative_to(ROOT)}:{n} {found[0].strip()}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("line", "forbidden"),
    [
        ('printf("x");', True),
        ("std::exit(1);", True),
        ("  ::abort();", True),
        ('auto e = getenv("X");', True),
        ("std::cerr << 1;", True),
        ("// exit(1) is never called", False),
        ('fail("exit(1)");', False),
        ("snprintf(buf, n, f);", False),
        ("on_exit(1);", False),
        ("static_assert(sizeof(int) == 4);", False),
        ("__attribute__((format(printf, 1, 2)))", False),
    ],
)
def test_the_search_finds_what_it_should(line: str, forbidden: bool) -> None:
    assert bool(FORBIDDEN.search(without_comments_and_strings(line))) == forbidden
