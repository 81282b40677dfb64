"""The two halves of the server know each other by the contract only."""

from __future__ import annotations

import ast
from pathlib import Path

import ds4.server
import pytest

SERVER = Path(ds4.server.__file__).parent


def imported(path: Path) -> set[str]:
    """Names of the modules below ds4.server that a module imports."""
    package = ("ds4", "server", *path.relative_to(SERVER).parts[:-1])
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.startswith("ds4.server.")}


@pytest.mark.parametrize(("room", "other"), [("engine", "api"), ("api", "engine")])
def test_no_half_imports_the_other(room: str, other: str) -> None:
    paths = sorted((SERVER / room).rglob("*.py"))
    assert len(paths) > 5
    for path in paths:
        assert not any(name.startswith(f"ds4.server.{other}") for name in imported(path)), path.name


def test_the_contract_needs_nothing() -> None:
    assert not imported(SERVER / "contract.py")
