"""What importing costs, and what is said when a part is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import ds4.server
import pytest

PACKAGE = Path(ds4.server.__file__).parent
NETWORK = ("starlette", "uvicorn", "prometheus_client", "msgspec")


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_the_engine_needs_nothing_of_the_network() -> None:
    code = f"import sys, ds4.server.engine, ds4.server.contract; print(sorted(set({NETWORK}) & set(sys.modules)))"
    assert run(code).stdout.strip() == "[]"


def test_the_program_starts_without_the_server() -> None:
    code = f"import sys, ds4.cli.program; print(sorted(set({NETWORK}) & set(sys.modules)))"
    assert run(code).stdout.strip() == "[]"


def test_a_missing_part_is_named_with_what_to_install() -> None:
    code = "import sys; sys.modules['starlette'] = None; from ds4.cli.main import main; sys.exit(main(['server']))"
    done = run(code)
    assert done.returncode == 1
    assert "starlette" in done.stderr and "pip install 'ds4[server]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_names_are_attribute_errors() -> None:
    done = run("import ds4.server\ntry:\n    ds4.server.Nothing\nexcept AttributeError as error:\n    print(error)")
    assert "Nothing" in done.stdout


@pytest.mark.parametrize(("room", "other"), [("api", "engine"), ("engine", "api")])
def test_the_two_sides_know_only_the_contract(room: str, other: str) -> None:
    """Each can be tested with a stand-in of the other."""
    sources = list((PACKAGE / room).glob("*.py"))
    assert len(sources) > 5
    pattern = re.compile(rf"^\s*(?:from|import) +(?:\.\.{other}|ds4\.server\.{other})\b", re.MULTILINE)
    assert not [path.name for path in sources if pattern.search(path.read_text(encoding="utf-8"))]
