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
    known = {d for command in commands for param in command.params for d in (*param.opts, *param.secondary_opts)}
    known |= {"--help"}
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", path.read_text(encoding="utf-8")))
    assert named <= known, named - known


def test_cli_page_names_the_fields_of_the_json_answer() -> None:
    from ds4.cli.reply import Reply

    text = CLI.read_text(encoding="utf-8")
    missing = [name for name in Reply(1).as_json() if f"`{name}`" not in text]
    assert not missing


def _commands(text: str) -> list[tuple[str, list[str]]]:
    """Lines that show a command, as (line, words)."""
    lines = re.findall(r"^(?:    |\$ |  )?(ds4 (?:[^\n`\\]|\\\n)+)", text, re.MULTILINE)
    lines += re.findall(r"`(ds4 [^`\n]+)`", text)
    return [(line, line.replace("\\\n", " ").split()) for line in lines]


PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_commands_in_the_text_have_their_options(path: Path) -> None:
    for line, words in _commands(path.read_text(encoding="utf-8")):
        command: click.Command = program
        if len(words) > 1 and words[1] not in program.commands:
            command = program.commands["chat"]  # what ds4 does without a command
        for word in words[1:]:
            if not isinstance(command, click.Group) or word not in command.commands:
                break
            command = command.commands[word]
        known = {d for param in command.params for d in (*param.opts, *param.secondary_opts)}
        named = {word.split("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
        assert named <= known | {"--help", "-h", "--version"}, f"{line}: {named - known}"


def test_commands_are_found_in_the_text() -> None:
    found = _commands("\n    ds4 score cases x -o y\nsee `ds4 splice A B --layout adjacent` too\n")
    assert [words[:2] for _, words in found] == [["ds4", "score"], ["ds4", "splice"]]
