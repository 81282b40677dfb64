"""What README.md and docs/cli.md show is true: examples run as written, and options exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from ds4.cli.program import program
from support.markdown import check_runs, has_embedded_model, python_blocks

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
CLI = ROOT / "docs" / "cli.md"


@pytest.mark.skipif(not has_embedded_model(), reason="this installation has no embedded model")
@pytest.mark.parametrize("code", python_blocks(README), ids=lambda code: code.splitlines()[0])
def test_python_examples_run_as_written(code: str, tmp_path: Path) -> None:
    check_runs(code, tmp_path)


def test_there_are_examples() -> None:
    assert len(python_blocks(README)) >= 2


@pytest.mark.parametrize("path", [README, CLI], ids=lambda p: p.name)
def test_options_in_the_text_exist(path: Path) -> None:
    groups = [c for c in program.commands.values() if isinstance(c, click.Group)]
    commands = [*program.commands.values(), *(c for group in groups for c in group.commands.values())]
    known = {d for command in commands for param in command.params for d in param.opts} | {"--help"}
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", path.read_text(encoding="utf-8")))
    assert named <= known, named - known


def test_cli_page_names_the_fields_of_the_json_answer() -> None:
    from ds4.cli.reply import Reply

    text = CLI.read_text(encoding="utf-8")
    missing = [name for name in Reply(1).as_json() if f"`{name}`" not in text]
    assert not missing
