"""What README.md and docs/cli.md show is true: examples run as written, and options exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ds4 import Model
from ds4.cli.options import OPTIONS

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
CLI = ROOT / "docs" / "cli.md"

# Options of commands other than chat, which are not in the table.
OTHER_OPTIONS = {"--type", "--mtp-out", "--dry-run", "--help"}


def _python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def _has_embedded_model() -> bool:
    try:
        return Model.embedded_path().is_file()
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not _has_embedded_model(), reason="this installation has no embedded model")
@pytest.mark.parametrize("code", _python_blocks(), ids=lambda code: code.splitlines()[0])
def test_python_examples_run_as_written(code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-W", "error", "-c", code],
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_there_are_examples() -> None:
    assert len(_python_blocks()) >= 2


@pytest.mark.parametrize("path", [README, CLI], ids=lambda p: p.name)
def test_options_in_the_text_exist(path: Path) -> None:
    known = {d for declarations, _ in OPTIONS.values() for d in declarations} | OTHER_OPTIONS
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", path.read_text(encoding="utf-8")))
    assert named <= known, named - known


def test_cli_page_names_the_fields_of_the_json_answer() -> None:
    from ds4.cli.reply import Reply

    text = CLI.read_text(encoding="utf-8")
    missing = [name for name in Reply(1).as_json() if f"`{name}`" not in text]
    assert not missing
